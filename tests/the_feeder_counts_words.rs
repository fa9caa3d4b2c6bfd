//! R3: the feeder's example counts the words of a book on a GPU as a plain count does, bare and as a job, with
//! buffers of any size; a buffer that is too small is told in words.

mod support;

use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use support::patience::output;
use support::{Manager, feeder};
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

const BOOK: &str = include_str!("../examples/feeder/alice.txt");

/// How often each word occurs, counted by another way than the example's.
fn counts() -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    let mut word = String::new();
    for letter in BOOK.chars().chain([' ']) {
        match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '\'' => word.extend(letter.to_lowercase()),
            _ => match std::mem::take(&mut word).trim_matches('\'') {
                "" => {}
                word => *counts.entry(word.to_owned()).or_default() += 1,
            },
        }
    }
    counts
}

/// The report of a run of so many times the book, whose counts are right.
fn counts_right(mut command: Command, times: u64, options: &[&str]) -> Value {
    command.args(["--json", "--times", &times.to_string()]).args(options);
    let output = output(command);
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = counts();
    assert_eq!(report["words"], counts.values().sum::<u64>() * times);
    assert_eq!(report["different_words"], counts.len());
    for told in report["top"].as_array().unwrap() {
        assert_eq!(told[1], counts[told[0].as_str().unwrap()] * times, "{told}");
    }
    report
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn the_feeder_counts_words_whatever_the_buffers_are() {
    let node = SoftwareNode::create(&"1x16MiB".parse().unwrap(), 64 << 10).unwrap();
    let bare = || {
        let mut command = Command::new(feeder());
        command.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
        command
    };
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("picture.svg");

    let report = counts_right(bare(), 3, &["--picture", picture.to_str().unwrap()]);
    let times = ["parse", "copy", "compute", "overlap"].map(|name| number(&report, name));
    assert!(times.iter().all(|share| (0.0..=1.0).contains(share)) && number(&report, "of_plain_copy") > 0.0);
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(["parse", "copy", "compute"].iter().all(|lane| drawn.contains(lane)));

    // Data sets of a line or a few; a split of one, and of several; one buffer of each kind.
    let small = ["--direct", "256", "--launching", "1KiB", "--working", "2KiB"];
    for more in [["--data-sets-per-split", "1000"], ["--launching-buffers", "1"], ["--working-buffers", "1"]]
    {
        let report = counts_right(bare(), 1, &[&small[..], &more].concat());
        assert!(number(&report, "triggers") > 100.0, "{report}");
    }
    let report = counts_right(bare(), 1, &["--data-sets-per-split", "1"]);
    assert_eq!(report["splits"], report["data_sets"]);

    let mut too_small = bare();
    too_small.args(["--working", "4KiB"]);
    let output = output(too_small);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for words in ["the block of data set 0", "there are 4096", "make the working buffer larger"] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn the_feeder_counts_words_as_a_job() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB"]);
    let report = counts_right(manager.run(&["--name", "words"], Path::new(&feeder())), 10, &[]);
    assert_eq!(report["device"], "Software GPU");
}
