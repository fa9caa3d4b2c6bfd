//! What the program tells at its end.

use anyhow::Result;
use serde::Serialize;

use crate::Outcome;
use crate::book::Counts;
use crate::timeline::{Lane, Span, at_work};

/// How many of the most frequent words are told.
const TOP: usize = 8;

/// All figures; printed as JSON with `--json`.
#[derive(Serialize)]
pub struct Report {
    device: String,
    /// Counted on the GPU, and found to be what the CPU counts.
    words: u64,
    different_words: usize,
    /// The most frequent ones, with their counts.
    top: Vec<(String, u64)>,
    splits: usize,
    data_sets: usize,
    /// How often the GPU was triggered.
    triggers: usize,
    /// Bytes copied to the GPU: parsed lines and their places.
    payload_bytes: usize,
    seconds: f64,
    /// Seconds of a copy of as many bytes, and nothing else.
    plain_copy_seconds: f64,
    /// The feeder's bytes per second to the plain copy's.
    of_plain_copy: f64,
    /// The share of `seconds` in which each lane works.
    parse: f64,
    copy: f64,
    compute: f64,
    results: f64,
    /// The share in which at least two of the first three do.
    overlap: f64,
}

impl Report {
    pub fn new(
        device: String,
        outcome: &Outcome,
        payload_bytes: usize,
        plain_copy_seconds: f64,
        spans: &[Span],
        counts: &Counts,
    ) -> Self {
        let share = |lanes: &[Lane], at_least| at_work(spans, lanes, at_least) / outcome.seconds;
        let mut top: Vec<_> = counts.iter().map(|(word, count)| (word.clone(), *count)).collect();
        top.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        top.truncate(TOP);
        Self {
            device,
            words: outcome.hashes.values().sum(),
            different_words: outcome.hashes.len(),
            top,
            splits: outcome.splits,
            data_sets: outcome.data_sets,
            triggers: outcome.triggers,
            payload_bytes,
            seconds: outcome.seconds,
            plain_copy_seconds,
            of_plain_copy: plain_copy_seconds / outcome.seconds,
            parse: share(&[Lane::Parse], 1),
            copy: share(&[Lane::Copy], 1),
            compute: share(&[Lane::Compute], 1),
            results: share(&[Lane::Results], 1),
            overlap: share(&Lane::IN, 2),
        }
    }

    /// Above a picture.
    pub fn title(&self) -> String {
        format!(
            "A book fed to a GPU ({}): two or more of parse, copy and compute at work {:.0} % of the time",
            self.device,
            self.overlap * 100.0
        )
    }

    pub fn print(&self, is_json: bool) -> Result<()> {
        if is_json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let megabytes = self.payload_bytes as f64 / 1e6;
        let percent = |share: f64| share * 100.0;
        let top: Vec<_> = self.top.iter().map(|(word, count)| format!("{word} {count}")).collect();
        println!("device    {}", self.device);
        println!(
            "words     {} of {} kinds, each as often as the CPU counts it",
            self.words, self.different_words
        );
        println!("          {} …", top.join(", "));
        println!(
            "fed       {} splits, {} data sets; the GPU was triggered {} times",
            self.splits, self.data_sets, self.triggers
        );
        println!(
            "payload   {megabytes:.1} MB in {:.3} s: {:.0} MB/s, {:.3} of a plain copy's {:.0} MB/s",
            self.seconds,
            megabytes / self.seconds,
            self.of_plain_copy,
            megabytes / self.plain_copy_seconds
        );
        println!(
            "at work   parse {:.0} %, copy {:.0} %, compute {:.0} % of the time, at least two of them {:.0} %; \
             results back {:.0} %",
            percent(self.parse),
            percent(self.copy),
            percent(self.compute),
            percent(self.overlap),
            percent(self.results)
        );
        Ok(())
    }
}
