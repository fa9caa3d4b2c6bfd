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
use torch::{Endless, has_allocated, printed, script};

const PATIENCE: Duration = Duration::from_secs(300);
/// For as many rounds as bring hundreds of switches.
const LONG_PATIENCE: Duration = Duration::from_secs(1800);

/// Each test has the machine's cores for itself.
static TURN: Mutex<()> = Mutex::new(());

/// At least so many times as much as a switch moves is in segments.
const FOOTPRINT_TO_MOVED: u64 = 5;

const PROGRAM: &str = "torch_lives.py";

/// What is alive of the program's memory, as it says itself, in bytes.
fn alive(words: &str) -> u64 {
    words.trim().strip_prefix("alive ").unwrap_or_else(|| panic!("{words}")).parse().unwrap()
}

/// What a run of the program has shown.
struct Run {
    /// What it printed.
    words: String,
    complaints: String,
    figures: EndedJob,
}

/// Runs the program beside another of its kind that never ends, on a GPU on which one fits.
fn run_beside_another(python: &Path, arguments: &[&str], allocator: &str, patience: Duration) -> Run {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = ["--slice", "6ms", "--boundary-deadline", "1ms", "--poison"];
    let manager = Manager::start("1x40MiB", &options);
    let start = |name: &str, arguments: &[&str]| {
        let mut job = script(manager.run(&["--name", name], python), PROGRAM);
        job.args(arguments).env("PYTORCH_CUDA_ALLOC_CONF", allocator);
        job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut rival = Endless(start("rival", &["1000000000"]));
    manager.status_when(|status| has_allocated(status, "rival", 20 * MIB));
    let output = finish_within(patience, start("guest", arguments));
    let words = printed(&output);
    assert_eq!(rival.0.try_wait().unwrap(), None, "it has lost nothing");
    drop(rival);
    let status = manager.status_when(|status| status.has_ended("guest"));
    let figures = status.ended_job("guest").clone();
    assert!(figures.switches > 0 && figures.peak_temporary_bytes >= 20 * MIB, "{figures:#?}");
    Run { words, complaints: String::from_utf8_lossy(&output.stderr).into_owned(), figures }
}

#[test]
fn tensors_survive_switches_in_mid_iteration_and_the_rest_is_neither_kept_nor_moved() {
    tensors_survive("12", PATIENCE);
}

#[test]
#[ignore = "takes a quarter of an hour: tests/long/instants"]
fn tensors_survive_hundreds_of_switches() {
    tensors_survive("210", LONG_PATIENCE);
}

/// The program goes on until it was switched so often.
fn tensors_survive(switches: &str, patience: Duration) {
    let Some(python) = torch::python() else { return };
    let node = Manager::start("1x40MiB", &[]);
    let mut bare = script(Node::of(&node).run(&python), PROGRAM);
    bare.arg("0");
    let bare = printed(&output_within(PATIENCE, bare));
    for allocator in ["", "expandable_segments:True"] {
        let Run { words, complaints, figures } =
            run_beside_another(&python, &[switches], allocator, patience);
        assert_eq!(words, bare);
        assert!(!complaints.contains("PyTorch"), "{complaints}");
        let moved = (figures.saved_bytes + figures.preempted_bytes) / figures.switches;
        println!("{} switches, each moved {moved} bytes; {bare}", figures.switches);
        // Beside what is always alive: what is about to die, and what was just freed and may be about to be used.
        assert!(moved * FOOTPRINT_TO_MOVED < figures.footprint_bytes, "{figures:#?}");
    }
}

#[test]
fn what_does_not_add_up_is_said_once_and_segments_are_moved_as_a_whole() {
    let Some(python) = torch::python() else { return };
    let Run { words, complaints, figures } = run_beside_another(&python, &["12", "lie"], "", PATIENCE);
    assert_eq!(complaints.matches("does not add up").count(), 1, "{complaints}");
    let moved = (figures.saved_bytes + figures.preempted_bytes) / figures.switches;
    assert!(moved > 2 * alive(&words), "{figures:#?}");
}
