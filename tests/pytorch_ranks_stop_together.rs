//! Ranks of PyTorch under torchrun, which itself reports no boundary, are switched at common boundaries of theirs,
//! and compute what they compute alone.

#[path = "support/node.rs"]
mod node;
mod support;
#[path = "support/torch.rs"]
mod torch;

use node::Node;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::patience::{finish_within, output_within};
use support::{Jobs, MIB, Manager};
use torch::{Endless, has_allocated, printed, script};

const PATIENCE: Duration = Duration::from_secs(300);

/// `torch_ddp.py` with two ranks, not started yet.
fn torchrun(mut python: Command) -> Command {
    // Each rank takes all processors otherwise.
    python.env("OMP_NUM_THREADS", "1").args([
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]);
    script(python, "torch_ddp.py")
}

/// What they print beside a job with which they do not fit, when they have been switched so often.
fn shared(manager: &Manager, python: &Path, switches: u64) -> String {
    let directory = tempfile::tempdir().unwrap();
    let enough = directory.path().join("enough");
    let mut gang = torchrun(manager.run(&["--name", "gang"], python));
    gang.arg("--until").arg(&enough).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let gang = gang.spawn().unwrap();
    // From here on they know their boundaries.
    manager.status_when(|status| status.jobs.iter().any(|job| job.figures.boundaries > 2));
    let mut rival = script(manager.run(&["--name", "rival"], python), "torch_mlp.py");
    let rival = Endless(rival.arg("--endless").stdout(Stdio::null()).spawn().unwrap());
    manager.status_when(|status| has_allocated(status, "rival", 64 * MIB));
    manager.work_until_switched(&["gang"], switches, || {});
    std::fs::write(&enough, "").unwrap();
    let printed = printed(&finish_within(PATIENCE, gang));
    drop(rival);
    printed
}

#[test]
fn ranks_under_torchrun_are_switched_at_their_common_boundaries() {
    let Some(python) = torch::python() else { return };
    // The deadline never comes: a rank that waited for the launcher would wait for ever.
    let manager = Manager::start("1x176MiB", &["--slice", "20ms", "--boundary-deadline", "1h"]);
    let bare = printed(&output_within(PATIENCE, torchrun(Node::of(&manager).run(&python))));
    assert_eq!(shared(&manager, &python, 10), bare);
    let status = manager.status_when(|status| status.has_ended("gang") && status.has_ended("rival"));
    let figures = status.ended_job("gang");
    assert!(figures.at_boundary * 10 >= figures.switches * 9, "{figures:#?}");
}

/// They are some steps apart, for each only submits what waits for its neighbours.
#[test]
fn stages_of_a_pipeline_that_run_ahead_are_switched_at_their_common_boundaries() {
    let Some(python) = torch::python() else { return };
    // On a busy machine an iteration may take longer than the default of one second.
    let manager =
        Manager::start("1x300MiB", &["--slice", "100ms", "--slice-max", "1s", "--boundary-deadline", "10s"]);
    let stages = |python: Command| {
        let mut stages = script(python, "torch_stages.py");
        stages.arg("400").env("TIDEGATE_SOFTGPU_NCCL_SHARED_GPU", "1");
        stages
    };
    let bare = printed(&output_within(PATIENCE, stages(Node::of(&manager).run(&python))));
    let mut rival = script(manager.run(&["--name", "rival"], &python), "torch_mlp.py");
    let rival = Endless(rival.arg("--endless").stdout(Stdio::null()).spawn().unwrap());
    manager.status_when(|status| has_allocated(status, "rival", 64 * MIB));
    let shared = stages(manager.run(&["--name", "stages"], &python));
    assert_eq!(printed(&output_within(PATIENCE, shared)), bare);
    drop(rival);
    let status = manager.status_when(|status| status.has_ended("stages") && status.has_ended("rival"));
    let figures = status.ended_job("stages");
    // While they learn their boundaries they may be stopped in the middle of an iteration.
    assert!(figures.switches >= 3 && figures.failed_drains <= 1, "{figures:#?}");
    assert!(figures.at_boundary * 2 >= figures.switches, "{figures:#?}");
}
