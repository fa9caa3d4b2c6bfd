//! I1, C2: every tensor of a PyTorch program survives switches at any moment, and nothing but tensors is moved.

#[path = "support/node.rs"]
mod node;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use support::patience::{finish_within, output_within};
use support::{Jobs, MIB, Manager};
use tidegate_manager::server::status::EndedJob;
use torch::{printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

/// Each test has the machine's cores for itself.
static TURN: Mutex<()> = Mutex::new(());

const PROGRAM: &str = "torch_lives.py";

/// What is alive of the program's memory, as it says itself, in bytes.
fn alive(words: &str) -> u64 {
    words.trim().strip_prefix("alive ").unwrap_or_else(|| panic!("{words}")).parse().unwrap()
}

/// Runs the program twice at once, as jobs on a GPU on which one fits. What they say, and their figures.
fn run_twice(python: &Path, arguments: &[&str]) -> [(String, String, EndedJob); 2] {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = ["--slice", "6ms", "--boundary-deadline", "1ms", "--poison"];
    let manager = Manager::start("1x40MiB", &options);
    let jobs = ["first", "second"].map(|job| {
        let mut job = script(manager.run(&["--name", job], python), PROGRAM);
        job.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        job.spawn().unwrap()
    });
    let outputs = jobs.map(|job| finish_within(PATIENCE, job));
    let status = manager.status_when(|status| status.has_ended("first") && status.has_ended("second"));
    let mut names = ["first", "second"].into_iter();
    outputs.map(|output| {
        let figures = status.ended_job(names.next().unwrap()).clone();
        assert!(figures.switches >= 4 && figures.peak_temporary_bytes >= 20 * MIB, "{figures:#?}");
        (printed(&output), String::from_utf8_lossy(&output.stderr).into_owned(), figures)
    })
}

#[test]
fn tensors_survive_switches_in_mid_iteration_and_the_rest_is_neither_kept_nor_moved() {
    let Some(python) = torch::python() else { return };
    let node = Manager::start("1x40MiB", &[]);
    let mut bare = script(Node::of(&node).run(&python), PROGRAM);
    bare.arg("2");
    let bare = printed(&output_within(PATIENCE, bare));
    for (words, complaints, figures) in run_twice(&python, &["50"]) {
        assert_eq!(words, bare);
        assert!(!complaints.contains("PyTorch"), "{complaints}");
        assert!(figures.saved_bytes / figures.switches < alive(&bare), "{figures:#?}");
    }
}

#[test]
fn what_does_not_add_up_is_said_once_and_segments_are_moved_as_a_whole() {
    let Some(python) = torch::python() else { return };
    for (words, complaints, figures) in run_twice(&python, &["40", "lie"]) {
        assert_eq!(complaints.matches("does not add up").count(), 1, "{complaints}");
        let moved = (figures.saved_bytes + figures.preempted_bytes) / figures.switches;
        assert!(moved > 2 * alive(&words), "{figures:#?}");
    }
}
