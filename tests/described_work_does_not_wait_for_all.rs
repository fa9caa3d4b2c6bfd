//! R2, DESIGN §9: work whose operands are described goes as soon as they are back; all other work waits for all. A wrong
//! description faults.

mod support;

use support::deaths::{kill, kill_movers, status_after};
use support::training::{Training, alone};
use support::{Jobs, KIB, MIB, Manager, Probe, nothing_is_used, train_digits};

/// The larger of the two jobs' memory, which comes back in seconds.
const LARGE: u64 = 8 * MIB;
/// What described work uses of it: two pieces at its end.
const USED: u64 = 256 * KIB;
const FROM: u64 = LARGE - USED;

fn manager() -> Manager {
    Manager::start("1x10MiB,link=4MB/s", &["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms"])
}

/// A job whose described work has used the last bytes of `x`, and that gave way to another one. That one ends when it
/// is told to.
fn closed(manager: &Manager) -> (Probe, Probe) {
    let mut large = manager.probe(&["--name", "large"]);
    large.tell("device 0");
    large.tell(&format!("alloc x {LARGE}"));
    large.tell(&format!("set x 0 {LARGE} 1"));
    large.tell(&format!("described x {FROM} {USED} set x {FROM} {USED} 7"));
    let mut other = manager.probe(&["--name", "other", "--priority", "1"]);
    other.tell("device 0");
    other.tell(&format!("alloc y {LARGE}"));
    other.tell(&format!("set y 0 {LARGE} 2"));
    (large, other)
}

#[test]
fn it_goes_when_its_own_memory_is_back_and_other_work_when_all_is() {
    let manager = manager();
    let (mut large, other) = closed(&manager);
    let before = manager.job("large").figures.clone();
    large.order(&format!("described x {FROM} {USED} set x {FROM} {USED} 8"));
    other.end();
    large.answer().expect("the work is done");
    let job = manager.job("large");
    assert_eq!((&job.state[..], job.figures.slices), ("restoring", before.slices), "{job:#?}");
    assert_eq!(job.figures.ajar, before.ajar + 1);
    assert_eq!(large.try_tell("peek x 0").unwrap(), "1");
    let job = manager.job("large");
    assert_eq!((&job.state[..], job.figures.slices), ("open", before.slices + 1), "{job:#?}");
    for at in [FROM, LARGE - 1] {
        assert_eq!(large.try_tell(&format!("peek x {at}")).unwrap(), "8", "at {at}");
    }
    large.end();
    manager.status_when(nothing_is_used);
}

#[test]
fn deaths_while_its_memory_comes_back_in_parts_lose_nothing() {
    let manager = manager();
    for (kill_one, value) in [(kill_movers as fn(&Manager), 8), (kill_manager, 9)] {
        let (mut large, other) = closed(&manager);
        large.order(&format!("described x {FROM} {USED} set x {FROM} {USED} {value}"));
        other.end();
        large.answer().expect("the work is done");
        kill_one(&manager);
        for (at, byte) in [(0, 1), (FROM - 1, 1), (FROM, value), (LARGE - 1, value)] {
            assert_eq!(large.try_tell(&format!("peek x {at}")).unwrap(), byte.to_string(), "at {at}");
        }
        large.end();
        manager.status_when(nothing_is_used);
    }
}

fn kill_manager(manager: &Manager) {
    let dead = manager.pid();
    kill(dead);
    assert_eq!(status_after(manager, dead).job("large").figures.ajar, 1, "the next one knows");
}

#[test]
fn work_that_uses_more_than_it_says_faults_and_nobody_else_notices() {
    let manager = manager();
    let (mut large, other) = closed(&manager);
    large.order(&format!("described x {FROM} {USED} set x 0 {USED} 8"));
    other.end();
    let fault = large.answer().unwrap_err();
    assert!(fault.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{fault}");
    let mut next = manager.probe(&["--name", "next"]);
    next.tell("device 0");
    next.tell(&format!("alloc z {MIB}"));
    next.tell("fill z 3");
    next.tell("check z 3");
    next.end();
}

#[test]
fn trainings_that_describe_their_kernels_end_as_alone() {
    let arguments =
        ["--hidden", "256", "--batch", "240", "--steps", "120", "--boundaries", "no", "--describe", "yes"];
    let manager = Manager::start(
        "1x4MiB,link=1GB/s",
        &["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"],
    );
    let start = |name| Training::start(manager.run(&["--name", name], &train_digits()), &arguments);
    let [a, b] = ["a", "b"].map(start);
    let solo = alone(&arguments);
    assert_eq!([a.result(), b.result()], [solo.clone(), solo]);
    let status = manager.status_when(|status| status.has_ended("a") && status.has_ended("b"));
    let ajar = ["a", "b"].map(|name| status.ended_job(name).ajar);
    assert!(ajar.iter().all(|ajar| *ajar > 0), "their memory came back in parts {ajar:?} times");
}
