//! The book: its lines as a source of splits, its words, and how often a CPU counts each.

use std::collections::BTreeMap;
use std::iter::{Cycle, Peekable, Take};
use std::str::Lines;

use anyhow::{Result, ensure};
use tidegate_ffi::splice::Cause;
use tidegate_ffi::splice::data_set::Writer;
use tidegate_ffi::splice::feed::Source;

use crate::hash::hash;

/// *Alice's Adventures in Wonderland*: see `DATA.md`.
pub const TEXT: &str = include_str!("alice.txt");

/// How often each word occurs, in lower case.
pub type Counts = BTreeMap<String, u64>;

/// The words of an ASCII text, as they are written: letters, digits, and apostrophes between them.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let runs = text.split(|letter| !letter.is_ascii_alphanumeric() && *letter != b'\'');
    runs.map(without_quotes).filter(|word| !word.is_empty())
}

/// A run of letters without the apostrophes around it, which are quotation marks.
fn without_quotes(mut run: &[u8]) -> &[u8] {
    while let [b'\'', rest @ ..] | [rest @ .., b'\''] = run {
        run = rest;
    }
    run
}

/// Counts the words of the book, read so many times, without any of the machinery that this example is about.
pub fn count(times: u64) -> Counts {
    let mut counts = Counts::new();
    for word in words(TEXT.as_bytes()) {
        let word = String::from_utf8_lossy(word).to_ascii_lowercase();
        *counts.entry(word).or_default() += times;
    }
    counts
}

/// The words by their hashes, if no two have the same.
pub fn names(counts: &Counts) -> Result<BTreeMap<u64, &str>> {
    let names: BTreeMap<_, _> = counts.keys().map(|word| (hash(word.as_bytes()), word.as_str())).collect();
    ensure!(names.len() == counts.len(), "two words of the book have the same hash: take another one");
    Ok(names)
}

/// The book's lines, again and again, dealt into splits.
pub struct Shelf {
    lines: Peekable<Take<Cycle<Lines<'static>>>>,
    data_sets_per_split: usize,
}

impl Shelf {
    /// The book so many times; a split has so many data sets, the last one what is left.
    pub fn new(times: u64, data_sets_per_split: usize) -> Self {
        let lines = TEXT.lines().cycle().take(TEXT.lines().count() * times as usize);
        Self { lines: lines.peekable(), data_sets_per_split }
    }

    /// The next split, if there are lines left.
    pub fn split(&mut self) -> Option<Split<'_>> {
        self.lines.peek()?;
        let left = self.data_sets_per_split;
        Some(Split { shelf: self, left })
    }
}

/// Some data sets of lines.
pub struct Split<'a> {
    shelf: &'a mut Shelf,
    left: usize,
}

impl Source for Split<'_> {
    fn fill(&mut self, direct: &mut [u8]) -> Result<bool, Cause> {
        let mut set = Writer::new(direct)?;
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        while let Some(line) = self.shelf.lines.peek() {
            let is_in = set.push(line.as_bytes());
            if !is_in
                .map_err(|fault| format!("a line of the book: {fault}: make the direct buffer larger"))?
            {
                break;
            }
            self.shelf.lines.next();
        }
        Ok(!set.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::splice::data_set::DataSet;

    #[test]
    fn words_are_what_a_reader_calls_words() {
        let text = b"`Don't--' said 'Alice', (2 VERY)\n'' o'er";
        let wanted = ["Don't", "said", "Alice", "2", "VERY", "o'er"];
        assert!(words(text).eq(wanted.map(str::as_bytes)));
    }

    #[test]
    fn splits_have_every_line_once_and_in_order() {
        let mut shelf = Shelf::new(2, 3);
        let (mut lines, mut direct) = (Vec::new(), vec![0; 1000]);
        while let Some(mut split) = shelf.split() {
            let mut sets = 0;
            while split.fill(&mut direct).unwrap() {
                sets += 1;
                let set = DataSet::read(&direct).unwrap();
                lines.extend(set.data().map(|line| String::from_utf8(line.to_vec()).unwrap()));
            }
            assert!((1..=3).contains(&sets));
        }
        assert!(lines.iter().eq(TEXT.lines().chain(TEXT.lines())));
    }
}
