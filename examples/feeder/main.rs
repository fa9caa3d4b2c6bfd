//! Counts the words of a book on a GPU: a program to copy from, for feeding records of any size.
//!
//! Lines go through the feeder (`tidegate_ffi::splice`) to the GPU, which hashes every word; the host counts the
//! hashes. What comes out must be what a CPU counts. See `README.md`.

mod book;
mod device;
#[path = "kernels/src/hash.rs"]
mod hash;
#[path = "../support/kernels.rs"]
mod kernels;
mod picture;
mod report;
mod timeline;
mod words;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::{Parser, value_parser};
use tidegate_ffi::splice::cursor::{ELEMENT, Extent};
use tidegate_ffi::splice::feed::{Feeder, Sizes};

use book::{Counts, Shelf};
use device::Cuda;
use report::Report;
use words::Words;

/// Counts the words of Alice's Adventures in Wonderland on a GPU.
#[derive(Parser)]
#[command(name = "feeder")]
struct Args {
    /// The direct buffer: lines of the book as they are
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    direct: ByteSize,
    /// A launching buffer: what a full direct buffer is parsed to
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    launching: ByteSize,
    /// A working buffer on the GPU: several blocks
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    working: ByteSize,
    /// Launching buffers
    #[arg(long, value_name = "N", default_value_t = 3)]
    launching_buffers: usize,
    /// Working buffers: one is filled, one is worked on, of one the results come back
    #[arg(long, value_name = "N", default_value_t = 3)]
    working_buffers: usize,
    /// Data sets of a split
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = value_parser!(u32).range(1..))]
    data_sets_per_split: u32,
    /// How often the book is fed
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..))]
    times: u32,
    /// The kernel for the software GPU [default: the library built with this program]
    #[arg(long, value_name = "FILE")]
    kernels: Option<PathBuf>,
    /// Draw when parsing, copying and computing went on
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
    /// How much of it to draw
    #[arg(long, value_name = "SECONDS", default_value_t = 0.02)]
    picture_seconds: f64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn sizes(&self) -> Sizes {
        let bytes = |size: ByteSize| size.as_u64() as usize;
        Sizes {
            direct: bytes(self.direct),
            launching: bytes(self.launching),
            working: bytes(self.working),
            launching_buffers: self.launching_buffers,
            working_buffers: self.working_buffers,
        }
    }
}

/// What came of all splits.
#[derive(Default)]
struct Outcome {
    /// How often each hash occurs.
    hashes: HashMap<u64, u64>,
    splits: usize,
    data_sets: usize,
    triggers: usize,
    extent: Extent,
    /// Spent feeding, without the host's counting.
    seconds: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let counts = book::count(args.times.into());
    let device = Cuda::open(args.kernels.as_deref())?;
    let words = Words::new(device.timeline().clone());
    let mut feeder = Feeder::new(device, words, args.sizes())?;

    let outcome = feed(&mut feeder, &args)?;
    check(&outcome.hashes, &counts)?;

    let device = feeder.device();
    let spans = device.timeline().spans();
    let payload = outcome.extent.bytes + outcome.extent.data * ELEMENT;
    let plain = device.plain_copy(payload, args.sizes().working)?;
    let report = Report::new(device.name()?, &outcome, payload, plain, &spans, &counts);
    if let Some(path) = &args.picture {
        picture::draw(&spans, args.picture_seconds, &report.title(), path)?;
    }
    report.print(args.json)
}

/// Feeds the book, and counts what comes back. The first failure ends it.
fn feed(feeder: &mut Feeder<Cuda, Words>, args: &Args) -> Result<Outcome> {
    let mut shelf = Shelf::new(args.times.into(), args.data_sets_per_split as usize);
    let timeline = Arc::clone(feeder.device().timeline());
    let mut outcome = Outcome::default();
    while let Some(mut split) = shelf.split() {
        let begun = timeline.now();
        let fed = feeder.feed(&mut split)?;
        outcome.seconds += timeline.now() - begun;
        outcome.splits += 1;
        outcome.data_sets += fed.data_sets;
        outcome.triggers += fed.results.len();
        outcome.extent.data += fed.extent.data;
        outcome.extent.bytes += fed.extent.bytes;
        for hash in fed.results.iter().flatten() {
            *outcome.hashes.entry(*hash).or_default() += 1;
        }
    }
    Ok(outcome)
}

/// Whether the GPU has counted as the CPU has.
fn check(hashes: &HashMap<u64, u64>, counts: &Counts) -> Result<()> {
    let names = book::names(counts)?;
    for (hash, word) in &names {
        let (gpu, cpu) = (hashes.get(hash).copied().unwrap_or_default(), counts[*word]);
        if gpu != cpu {
            bail!("the GPU counted {word:?} {gpu} times, the CPU {cpu} times");
        }
    }
    match hashes.keys().find(|hash| !names.contains_key(hash)) {
        Some(hash) => bail!("the GPU counted a word that is not in the book (hash {hash:#x})"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_count_is_told() {
        let counts: Counts = [("and", 2), ("the", 3)].map(|(word, count)| (word.to_owned(), count)).into();
        let hash = |word: &str| hash::hash(word.as_bytes());
        let told = |hashes: &[(&str, u64)]| {
            let hashes = hashes.iter().map(|(word, count)| (hash(word), *count)).collect();
            check(&hashes, &counts).map_err(|error| error.to_string())
        };
        assert_eq!(told(&[("and", 2), ("the", 3)]), Ok(()));
        let wrong = "the GPU counted \"the\" 4 times, the CPU 3 times";
        assert_eq!(told(&[("and", 2), ("the", 4)]), Err(wrong.to_owned()));
        assert!(told(&[("and", 2)]).is_err());
        assert!(told(&[("and", 2), ("the", 3), ("teh", 1)]).unwrap_err().contains("not in the book"));
    }
}
