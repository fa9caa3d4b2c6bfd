//! I10: whatever driver call fails, in a job or in the mover, its owner gets an error in words or goes
//! on untouched; nobody else notices, no byte is ever wrong, and nothing is lost for good.
//!
//! `tests/long/faults` injects a hundred of each.

mod support;

use support::faults::{Faults, Worker, hurt_jobs, manager, nothing_is_held, until_struck};
use support::{Jobs, MIB, Manager};

/// What a job's process calls at each step of its life and of a switch; every how many-th call fails.
const OF_JOBS: [(&str, u32); 13] = [
    ("cuInit", 1),
    ("cuDevicePrimaryCtxRetain", 1),
    ("cuCtxSetCurrent", 1),
    ("cuMemAddressReserve", 2),
    ("cuMemImportFromShareableHandle", 3),
    ("cuMemMap", 3),
    ("cuMemSetAccess", 3),
    ("cuMemUnmap", 3),
    ("cuMemRelease", 3),
    ("cuCtxRecordEvent", 7),
    // Who cannot be drained three times in a row is never closed again.
    ("cuEventQuery", 7),
    ("cuMemcpyHtoD_v2", 1),
    ("cuMemcpyDtoH_v2", 3),
];

/// What the mover calls.
const OF_MOVERS: [(&str, u32); 11] = [
    ("cuMemCreate", 5),
    ("cuMemExportToShareableHandle", 5),
    ("cuMemAddressReserve", 5),
    ("cuMemMap", 5),
    ("cuMemSetAccess", 5),
    // Some of the saves must succeed, else nobody ever gives way.
    ("cuMemcpyBatchAsync_v2", 5),
    ("cuMemsetD8Async", 2),
    ("cuStreamSynchronize", 5),
    ("cuMemGetInfo_v2", 2),
    ("cuMemUnmap", 5),
    ("cuMemRelease", 5),
];

#[test]
fn a_fault_in_a_job_hurts_it_alone() {
    hurt_jobs(&OF_JOBS.map(|(function, nth)| Faults::of_driver(function, nth)));
}

#[test]
fn a_fault_in_a_mover_loses_no_byte() {
    let mut total = 0;
    for (function, nth) in OF_MOVERS {
        let faults = Faults::of_driver(function, nth);
        let manager = manager(Some(&faults));
        let mut jobs = [None, None];
        until_struck(&faults, || {
            // The GPU's memory is measured for it.
            manager.status();
            Worker::each_works(&manager, &mut jobs);
            // A switch leaves the pieces as they are, and overwrites them.
            if ["cuMemsetD8Async", "cuMemUnmap", "cuMemRelease"].contains(&function) {
                Worker::pass_by(&manager);
            }
        });
        total += faults.count();
        drop(jobs);
        manager.status_when(nothing_is_held);
    }
    eprintln!("{total} faults in movers");
}

/// As in a notebook: a program lives on after a kernel of its own has touched what it may not. No work of it runs any more.
#[test]
fn a_job_that_lives_on_after_a_fault_of_its_own_gives_way() {
    let manager = Manager::start("1x6MiB", &["--unit", "64KiB", "--offset", "64KiB"]);
    let start = |name| {
        let mut probe = manager.probe(&["--name", name]);
        probe.tell("device 0");
        probe
    };
    let mut faulted = start("faulted");
    faulted.tell(&format!("alloc x {}", 4 * MIB));
    let touch = format!("set x {} 64 1", 5 * MIB);
    let error = faulted.try_tell(&touch).unwrap_err();
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");

    let mut other = start("other");
    other.tell(&format!("alloc t {}", 4 * MIB));
    other.tell("fill t 1");
    assert_eq!(manager.status().job("faulted").figures.failed_drains, 0);
    // It gets its turns, and its error.
    assert_eq!(faulted.try_tell(&touch).unwrap_err(), error);
    other.tell("check t 1");
}
