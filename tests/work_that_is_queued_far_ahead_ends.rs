//! A program that submits seconds of work ahead, and waits for the oldest only, is stopped like any other: what it has submitted
//! takes long, and nothing more has to be let through for it to end. The same where it waits for none, and the driver's queue
//! is full. While others wait it has little under way.

#[path = "support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "support/stage.rs"]
mod stage;
mod support;

use stage::Stage;
use std::process::{Child, Stdio};
use std::time::Duration;
use support::patience::finish_within;
use support::{EndedJob, Jobs, Manager};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_full_queue_ends() {
    // 5 s of work are before what its thread submits. What is let through comes behind it.
    let jobs =
        [("ahead", "mib=160 kernel=5000 steps=3600 never=1"), ("busy", "mib=160 kernel=5000 steps=1500")];
    let ahead = play(jobs);
    assert_eq!(ahead.failed_drains, 0, "{ahead:?}");
}

#[test]
fn work_that_is_queued_far_ahead_ends() {
    // 2.6 s of work ahead; work that does not end in a quarter of the drain limit was taken for work that waits.
    let jobs =
        [("ahead", "mib=160 kernel=5000 steps=3600 ahead=512"), ("busy", "mib=160 kernel=5000 steps=2500")];
    let ahead = play(jobs);
    assert_eq!(ahead.failed_drains, 0, "{ahead:?}");
}

#[test]
fn a_program_that_never_waits_has_little_under_way_while_others_wait() {
    // The driver has room for 50 s of the one's work, and for 400 s of the other's.
    for (kernel, steps) in [(50_000, 160), (400_000, 20)] {
        let ahead = format!("mib=160 kernel={kernel} steps={steps} never=1");
        let ahead = play([("busy", "mib=160 kernel=5000 steps=1500"), ("ahead", &ahead)]);
        assert_eq!(ahead.failed_drains, 0, "{ahead:?}");
        assert!(ahead.switches >= 3, "{ahead:?}");
    }
}

/// Both run to their end beside each other, the second from when the first has memory: how the first fared.
fn play(jobs: [(&str, &str); 2]) -> EndedJob {
    let stage = Stage::with("1x64MiB", "rhythm", "stir_kernel");
    let manager = Manager::start("1x256MiB", &[]);
    let start = |(name, words): (&str, &str)| -> Child {
        let mut command = manager.run(&["--name", name], &stage.program);
        command.arg(&stage.kernels).args(words.split(' '));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = start(jobs[0]);
    manager.status_when(|status| status.jobs.iter().any(|job| job.temporary_bytes > 0));
    for program in [first, start(jobs[1])] {
        let output = finish_within(PATIENCE, program);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let status = manager.status_when(|status| jobs.iter().all(|(name, _)| status.has_ended(name)));
    let ahead = status.ended_job("ahead");
    assert!(ahead.switches >= 1, "{ahead:?}");
    ahead.clone()
}
