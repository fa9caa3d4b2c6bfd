//! Two PyTorch trainings of a kind, unmodified, on a GPU for 1/1.6 of what they have: a switch moves what is alive
//! there, what is persistent stays, and all blocks are known as PyTorch has them.

#[path = "support/loops.rs"]
mod loops;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use loops::{Loop, Run};
use std::path::Path;
use support::{KIB, MIB, Manager};

/// How often each is stopped.
const SWITCHES: u64 = 4;

/// Of those, in the suite.
const SOME: [&str; 2] = ["large", "adam expandable_segments:True"];
const ALL: [&str; 11] = [
    "workers",
    "sgd",
    "large",
    "convolutions",
    "transformer",
    "lstm",
    "mixed_precision",
    "accumulation",
    "graph",
    "adam expandable_segments:True",
    "adam backend:cudaMallocAsync",
];

/// The most bytes that may be saved for each byte that is alive, in percent; and beside that for each piece.
const SAVED_PERCENT: u64 = 105;
const SAVED_PER_PIECE: u64 = 4 * KIB;
/// Models from this size have their persistent bytes in units of which at most so much is theirs, in percent.
const LARGE: u64 = 64 * MIB;
const KEPT_PERCENT: u64 = 130;

#[test]
fn of_two_trainings_on_too_little_memory_a_switch_moves_what_is_alive() {
    tabulate(&SOME);
}

#[test]
#[ignore = "takes some minutes: tests/long/table"]
fn of_two_trainings_of_any_kind() {
    tabulate(&ALL);
}

fn tabulate(loops: &[&str]) {
    let Some(python) = torch::python() else { return };
    println!(
        "{:<30} {:<31} {:>8} {:>8} {:>9} {:>10} {:>10} {:>9}",
        "loop", "boundary", "peak MiB", "live MiB", "live/peak", "saved/live", "labelled", "kept/live"
    );
    for name in loops {
        let run = run_two(&python, Loop::named(name));
        let ((moment, live), figures) = (run.boundary(), &run.figures);
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        println!(
            "{name:<30} {moment:<31} {:>8.1} {:>8.1} {:>9.3} {:>10.4} {:>10.4} {:>9.3}",
            ratio(run.peak, MIB),
            ratio(live, MIB),
            ratio(live, run.peak),
            ratio(figures.saved_bytes, figures.live_temporary_bytes),
            ratio(figures.labelled_bytes, run.persistent),
            ratio(figures.kept_bytes, live),
        );
        if Loop::named(name).has_blocks() {
            assert_eq!(run.audits, figures.boundaries, "{name}");
        }
        let most =
            figures.live_temporary_bytes * SAVED_PERCENT / 100 + figures.saved_pieces * SAVED_PER_PIECE;
        assert!(figures.saved_bytes <= most, "{name}: {figures:#?}");
        assert!(
            figures.labelled_bytes.abs_diff(run.persistent) * 100 <= run.persistent,
            "{name}: {figures:#?}"
        );
        if run.persistent >= LARGE {
            assert!(figures.kept_bytes * 100 <= live * KEPT_PERCENT, "{name}: {figures:#?}");
        }
    }
}

/// Runs a loop until it was stopped often enough, beside another of its kind that never ends, on 1/1.6 of the memory
/// that both have.
fn run_two(python: &Path, of: Loop<'_>) -> Run {
    let alone = Manager::start("1x1GiB", &[]);
    let bytes = of.start(&alone, python).end().figures.footprint_bytes;
    let memory = bytes * 2 * 10 / 16 + alone.status().gpus[0].headroom_bytes;
    drop(alone);
    let gpu = format!("1x{}KiB", memory / KIB);
    let manager = Manager::start(&gpu, &["--slice", "20ms", "--boundary-deadline", "2s"]);
    let _rival = of.rival(&manager, python, bytes / 2);
    let run = Loop { switches: SWITCHES, ..of }.start(&manager, python).end();
    assert!(run.figures.switches > 0, "{:#?}", run.figures);
    run
}
