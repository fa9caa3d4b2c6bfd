//! A job that is stopped (SIGSTOP, Ctrl-Z) keeps what it can still write to, and nothing else: those
//! who fit beside it go on and take turns, and when it is continued it goes on too.

mod support;

use rustix::process::Signal;
use support::deaths::{signal, stop};
use support::{MIB, Manager, Probe, Status};

fn job_with(manager: &Manager, name: &str, seed: u64) -> Probe {
    let mut job = manager.probe(&["--name", name]);
    job.tell("device 0");
    job.tell(&format!("alloc t {}", 3 * MIB));
    job.tell(&format!("fill t {seed}"));
    job
}

/// The first one, of which the GPU has nothing then.
fn is_waiting(status: &Status) -> bool {
    status.jobs.iter().any(|job| job.figures.name == "a" && job.state == "waiting")
}

#[test]
fn a_stopped_job_keeps_nobody_waiting() {
    let limits = ["--answer-limit", "200ms", "--drain-limit", "100ms", "--boundary-deadline", "50ms"];
    let sizes = ["--unit", "64KiB", "--offset", "0", "--slice", "5ms"];
    let manager = Manager::start("1x8MiB", &[&sizes[..], &limits].concat());
    let mut jobs = [("a", 1), ("b", 2), ("c", 3)].map(|(name, seed)| job_with(&manager, name, seed));
    let [a, b, c] = &mut jobs;
    // It has its memory, of which it has just read all. Two of the three fit at once.
    loop {
        a.tell("check t 1");
        stop(a.process.id());
        if !is_waiting(&manager.status()) {
            break;
        }
        signal(a.process.id(), Signal::CONT);
    }
    manager.work_until_switched(&["b", "c"], manager.switches(&["b", "c"]) + 20, || {
        b.tell("check t 2");
        c.tell("check t 3");
    });
    assert!(
        manager
            .status()
            .jobs
            .iter()
            .all(|job| job.figures.name != "a" || job.state != "waiting" || job.temporary_bytes == 0)
    );
    signal(a.process.id(), Signal::CONT);
    a.tell("check t 1");
    assert!(!manager.job("a").unsliceable, "it answers again");
    for (job, seed) in [(b, 2), (c, 3)] {
        job.tell(&format!("check t {seed}"));
    }
}

#[test]
fn a_job_that_is_stopped_while_it_waits_disturbs_nobody() {
    let manager = Manager::start("1x5MiB", &["--unit", "64KiB", "--offset", "0", "--slice", "5ms"]);
    let mut jobs = [("a", 1), ("b", 2)].map(|(name, seed)| job_with(&manager, name, seed));
    let [a, b] = &mut jobs;
    b.tell("check t 2");
    // Stopped with its gate open it would keep what it has, and the other job could only wait.
    loop {
        manager.status_when(is_waiting);
        stop(a.process.id());
        if is_waiting(&manager.status()) {
            break;
        }
        signal(a.process.id(), Signal::CONT);
    }
    // It had its turn at most once more, if it was given before it was stopped.
    b.tell("check t 2");
    let before = manager.switches(&["b"]);
    for _ in 0..50 {
        b.tell("check t 2");
    }
    assert_eq!(manager.switches(&["b"]), before);
    signal(a.process.id(), Signal::CONT);
    a.tell("check t 1");
}
