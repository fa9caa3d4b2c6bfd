//! C2: where an iteration of a PyTorch program ends is seen, whatever its loop looks like, and what outlives it
//! is known.

#[path = "support/loops.rs"]
mod loops;
#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use loops::{Loop, Run};
use std::sync::{Mutex, PoisonError};
use support::{MIB, Manager};

/// The loop's iterations.
const ITERATIONS: u64 = 30;
/// Iterations until a moment has come often enough to be chosen.
const LEARNING: u64 = 4;

/// How often a loop is stopped that is to be stopped at all.
const SWITCHES: u64 = 4;

/// Each loop of `torch_loops.py`, one with expandable segments too, and where its boundary is in the end.
const LOOPS: [(&str, &str); 10] = [
    ("sgd", "after an optimizer's zero_grad"),
    ("adam", "after an optimizer's zero_grad"),
    ("adam expandable_segments:True", "after an optimizer's zero_grad"),
    ("keeps_its_gradients", "after an optimizer's step"),
    ("accumulation", "after an optimizer's zero_grad"),
    ("gan", "after an optimizer's zero_grad"),
    ("mixed_precision", "after an optimizer's zero_grad"),
    ("compiled", "after an optimizer's zero_grad"),
    ("evaluation", "before a data loader's next"),
    ("graph", "before a graph's replay"),
];

/// Each test has the machine's cores for itself.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn every_kind_of_loop_has_a_boundary_in_each_iteration_and_what_outlives_it_is_known() {
    let Some(python) = torch::python() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let manager = Manager::start("1x4GiB", &[]);
    let jobs = LOOPS.map(|(name, _)| Loop::named(name).start(&manager, &python));
    for ((name, expected), job) in LOOPS.into_iter().zip(jobs) {
        let Run { persistent, chosen, audits, figures, .. } = job.end();
        let labelled = figures.labelled_bytes;
        println!("{name}: {chosen:?}, {} boundaries, {labelled} of {persistent} bytes", figures.boundaries);
        assert!(labelled.abs_diff(persistent) * 100 <= persistent, "{name}: {labelled}, not {persistent}");
        assert_eq!(audits, figures.boundaries, "{name}");
        assert!(chosen.last().is_some_and(|last| last.starts_with(expected)), "{name}: {chosen:?}");
        // Four times as many batches, of which some come before it is known which moment is the boundary.
        let most = if name == "evaluation" { 5 * ITERATIONS } else { ITERATIONS + 2 * LEARNING };
        assert!((ITERATIONS - LEARNING..=most).contains(&figures.boundaries), "{name}: {figures:#?}");
    }
}

#[test]
fn an_inference_without_a_loader_stops_where_it_waits_for_the_gpu() {
    let Some(python) = torch::python() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let manager = Manager::start("1x128MiB", &["--slice", "20ms", "--boundary-deadline", "10s"]);
    let inference = Loop::named("inference");
    let _rival = inference.rival(&manager, &python, 64 * MIB);
    let Run { chosen, figures, .. } = Loop { switches: SWITCHES, ..inference }.start(&manager, &python).end();
    assert_eq!((chosen.len(), figures.boundaries), (0, 0), "no iteration's end is known: {chosen:?}");
    // Until it had waited often enough it was stopped at once.
    assert!(figures.at_boundary > 0, "{figures:#?}");
}

#[test]
fn the_cache_is_emptied_once_before_the_first_step() {
    let Some(python) = torch::python() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let manager = Manager::start("1x512MiB", &[]);
    assert!(Loop::named("emptied").start(&manager, &python).end().figures.labelled_bytes > 0);
}

#[test]
fn a_program_that_tells_its_boundaries_is_believed() {
    let Some(python) = torch::python() else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let manager = Manager::start("1x512MiB", &[]);
    let run = Loop::named("told").start(&manager, &python).end();
    assert_eq!(run.figures.boundaries, ITERATIONS);
}
