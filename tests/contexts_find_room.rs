//! Contexts take memory that no piece holds (R4.1, admission): it is measured and subtracted, a
//! newcomer's context has room or the newcomer waits, and nobody's bytes are lost for it.

mod support;

use support::{KIB, MIB, Manager, Probe};

/// A context takes half a MiB here, the mover's too.
fn manager() -> Manager {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--headroom", "1MiB"];
    Manager::start("1x8MiB,context=512KiB", &options)
}

fn job_with(manager: &Manager, name: &str, bytes: u64) -> Probe {
    let mut job = manager.probe(&["--name", name]);
    job.tell("device 0");
    job.tell(&format!("alloc t {bytes}"));
    job.tell(&format!("fill t {}", name.len()));
    job
}

#[test]
fn what_contexts_take_is_measured_and_given_to_nobody() {
    let manager = manager();
    let mut a = job_with(&manager, "a", 5632 * KIB);
    let mut bb = job_with(&manager, "bb", 5632 * KIB);
    let status = manager.status_when(|status| status.gpus[0].outsider_bytes == Some(1536 * KIB));
    assert_eq!(status.gpus[0].headroom_bytes, MIB);
    for _ in 0..4 {
        a.tell("check t 1");
        bb.tell("check t 2");
    }
    let switches = |name: &str| manager.job(name).figures.switches;
    assert!(switches("a") + switches("bb") >= 3, "no pressure, no test");
    bb.order(&format!("alloc more {}", 512 * KIB));
    assert!(bb.answer().is_err(), "8 MiB hold 6 MiB, three contexts and the headroom no more");
    bb.tell("check t 2");
}

#[test]
fn a_newcomer_waits_while_its_context_would_shut_somebody_out() {
    let manager = manager();
    let mut a = job_with(&manager, "a", 5632 * KIB);
    let mut bb = job_with(&manager, "bb", 5632 * KIB);
    let mut ccc = job_with(&manager, "ccc", MIB);
    let mut dddd = manager.probe(&["--name", "dddd"]);
    dddd.order("device 0");
    manager.status_when(|status| {
        status.jobs.iter().any(|job| job.figures.name == "dddd" && job.queue_place > 0)
    });
    a.tell("check t 1");
    bb.tell("check t 2");
    ccc.tell("check t 3");
    assert_eq!(manager.job("dddd").state, "queued");
    a.end();
    bb.end();
    dddd.answer().unwrap();
    dddd.tell(&format!("alloc t {MIB}"));
    ccc.tell("check t 3");
}
