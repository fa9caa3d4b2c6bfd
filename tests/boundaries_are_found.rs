//! C2: where an iteration of a PyTorch program ends is seen, whatever its loop looks like, and what outlives it
//! is known.

#[path = "support/program.rs"]
mod program;
mod support;
#[path = "support/torch.rs"]
mod torch;

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;
use support::patience::finish_within;
use support::{Jobs, Manager};
use tidegate_manager::server::status::EndedJob;
use torch::{printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

/// The loop's iterations.
const ITERATIONS: u64 = 30;
/// Iterations until a moment has come often enough to be chosen.
const LEARNING: u64 = 4;

/// Each loop of `torch_loops.py`, one with expandable segments too, and where its boundary is in the end.
const LOOPS: [(&str, &str); 9] = [
    ("sgd", "after an optimizer's zero_grad"),
    ("adam", "after an optimizer's zero_grad"),
    ("adam expandable", "after an optimizer's zero_grad"),
    ("keeps_its_gradients", "after an optimizer's step"),
    ("accumulation", "after an optimizer's zero_grad"),
    ("gan", "after an optimizer's zero_grad"),
    ("mixed_precision", "after an optimizer's zero_grad"),
    ("evaluation", "before a data loader's next"),
    ("graph", "before a graph's replay"),
];

/// What a run of a loop has shown.
struct Run {
    /// Bytes of parameters and of the state of optimizers.
    persistent: u64,
    /// What was said of its boundaries, in order.
    chosen: Vec<String>,
    /// How often all blocks were found to be as PyTorch has them.
    audits: u64,
    figures: EndedJob,
}

fn start(manager: &Manager, python: &Path, name: &str) -> Child {
    let mut job = script(manager.run(&["--name", name], python), "torch_loops.py");
    let (of, allocator) = name.split_once(' ').map_or((name, ""), |(of, _)| (of, "expandable_segments:True"));
    job.arg(of)
        .env("PYTORCH_CUDA_ALLOC_CONF", allocator)
        .env("TIDEGATE_LOG", "info")
        .env("TIDEGATE_AUDIT", "1");
    job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(manager: &Manager, name: &str, job: Child) -> Run {
    let output: Output = finish_within(PATIENCE, job);
    let persistent = printed(&output).trim().parse().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("not understood") && !said.contains("add up"), "{name}: {said}");
    let audits = said.matches("blocks are as PyTorch has them").count() as u64;
    let chosen = said.lines().filter_map(|line| line.strip_prefix("tidegate: boundaries: ")).map(Into::into);
    let chosen = chosen.collect();
    let figures = manager.status_when(|status| status.has_ended(name)).ended_job(name).clone();
    Run { persistent, chosen, audits, figures }
}

#[test]
fn every_kind_of_loop_has_a_boundary_in_each_iteration_and_what_outlives_it_is_known() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x3GiB", &[]);
    let jobs = LOOPS.map(|(name, _)| start(&manager, &python, name));
    for ((name, expected), job) in LOOPS.into_iter().zip(jobs) {
        let Run { persistent, chosen, audits, figures } = end(&manager, name, job);
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
fn a_program_that_tells_its_boundaries_is_believed() {
    let Some(python) = torch::python() else { return };
    let manager = Manager::start("1x512MiB", &[]);
    assert_eq!(end(&manager, "told", start(&manager, &python, "told")).figures.boundaries, ITERATIONS);
}
