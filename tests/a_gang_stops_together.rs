//! I5: one process on two GPUs has one grant: it runs on both or on none.

mod support;

use support::{Jobs, MIB, Manager, Status};

/// Who holds the GPU is written down at each opening and closing: jobs that do not fit together
/// must never have been open at once.
fn overlap(status: &Status, one: &str, other: &str) -> bool {
    let grants = |name: &str| status.job(name).figures.grants.clone();
    grants(one).iter().any(|(from, to)| {
        grants(other).iter().any(|(other_from, other_to)| {
            *from < other_to.unwrap_or(u64::MAX) && *other_from < to.unwrap_or(u64::MAX)
        })
    })
}

#[test]
fn a_process_on_two_gpus_runs_on_both_or_on_none() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms"];
    let manager = Manager::start("2x6MiB", &options);
    let need = ["--need", "0,4MiB"];
    let mut gang = manager.probe(&[&["--name", "gang"], &need[..]].concat());
    let mut left = manager.probe(&[&["--name", "left"], &need[..]].concat());
    let mut right = manager.probe(&[&["--name", "right"], &need[..]].concat());
    for device in 0..2 {
        gang.tell(&format!("device {device}"));
        gang.tell(&format!("alloc t{device} {}", 4 * MIB));
        gang.tell(&format!("fill t{device} {device}"));
    }
    for (device, job) in [&mut left, &mut right].into_iter().enumerate() {
        job.tell(&format!("device {device}"));
        job.tell(&format!("alloc t {}", 4 * MIB));
        job.tell("fill t 7");
    }
    manager.work_until_switched(&["gang"], 5, || {
        left.tell("check t 7");
        right.tell("check t 7");
        for device in 0..2 {
            gang.tell(&format!("device {device}"));
            gang.tell(&format!("check t{device} {device}"));
        }
    });
    let status = manager.status();
    assert!(!overlap(&status, "gang", "left"), "the gang ran beside who does not fit on GPU 0: {status:#?}");
    assert!(!overlap(&status, "gang", "right"), "the gang ran beside who does not fit on GPU 1: {status:#?}");
}
