//! I9, R4.4: with a single job on a GPU nothing is sliced, saved or waited for, even when it
//! runs for many slices and uses nearly all of the memory.

mod support;

use support::{Jobs, MIB, Manager};

/// Of 1 ms.
const SLICES: u64 = 50;

#[test]
fn a_job_alone_is_never_disturbed() {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB", "--slice", "1ms"]);
    let mut job = manager.probe(&["--name", "alone"]);
    job.tell("device 0");
    let mut round = 0;
    while round < 50 || manager.job("alone").figures.runtime_micros < 1000 * SLICES {
        round += 1;
        job.tell(&format!("alloc t {}", 6 * MIB));
        job.tell(&format!("fill t {round}"));
        job.tell(&format!("check t {round}"));
        job.tell("free t");
        job.tell("boundary");
    }
    let figures = manager.job("alone").figures;
    assert_eq!((figures.slices, figures.switches, figures.saved_bytes), (1, 0, 0));
    assert_eq!(figures.grants.len(), 1, "its gate was closed in between");
}

#[test]
fn what_was_leased_ahead_is_given_to_who_comes() {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB", "--offset", "64KiB"]);
    let mut first = manager.probe(&["--name", "first"]);
    first.tell("device 0");
    for index in 0..20 {
        first.tell(&format!("alloc t{index} {}", 200 << 10));
    }
    let mut second = manager.probe(&["--name", "second"]);
    second.tell("device 0");
    second.tell(&format!("alloc t {}", 3 * MIB));
    second.tell("fill t 1");
    let status = manager.status();
    assert_eq!(status.job("first").figures.switches + status.job("second").figures.switches, 0, "both fit");
}
