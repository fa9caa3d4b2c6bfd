//! R4.1, R4.9: the shim collects class and size of each allocation; a declared need, or the one
//! of the job's last run, serves before the job runs.

mod support;

use support::{Jobs, KIB, MIB, Manager};

#[test]
fn the_manager_knows_class_and_size_of_what_is_allocated() {
    let manager = Manager::start("1x16MiB", &["--unit", "64KiB"]);
    let mut job = manager.probe(&["--name", "a"]);
    job.tell("device 0");
    job.tell(&format!("alloc p {} persistent", 640 * KIB));
    job.tell(&format!("alloc t {}", 2 * MIB));
    job.tell("free t");
    let figures = manager.job("a").figures;
    assert_eq!(figures.peak_temporary_bytes, 2 * MIB);
    assert_eq!(figures.footprint_bytes, 2 * MIB + 640 * KIB);
    assert_eq!(manager.job("a").persistent_bytes, 640 * KIB);
}

/// Two jobs that would fit one after the other, but not at once: whether the second is let
/// beside the first before it has allocated anything shows what the manager knows of it.
fn runs_beside_a_big_one(options: &[&str], run_before: bool) -> bool {
    let slices = ["--slice", "60s", "--slice-max", "60s"];
    let manager =
        Manager::start("1x8MiB", &[&["--unit", "64KiB", "--offset", "64KiB"], &slices[..]].concat());
    if run_before {
        let mut before = manager.probe(&["--name", "b"]);
        before.tell("device 0");
        before.tell(&format!("alloc t {}", 5 * MIB));
        before.end();
        manager.status_when(|status| status.has_ended("b"));
    }
    let mut big = manager.probe(&["--name", "big"]);
    big.tell("device 0");
    big.tell(&format!("alloc t {}", 5 * MIB));
    big.tell("fill t 1");
    let mut second = manager.probe(&[&["--name", "b"], options].concat());
    second.tell("device 0");
    // Granted it is at last in any case, for the first does nothing more.
    let status = manager.status_when(|status| !status.job("b").figures.grants.is_empty());
    let end_of_the_first = status.job("big").figures.grants[0].1;
    let beside = |end: u64| status.job("b").figures.grants[0].0 < end;
    end_of_the_first.is_none_or(beside)
}

#[test]
fn a_declared_need_serves_before_the_job_runs() {
    assert!(runs_beside_a_big_one(&["--need", "1MiB,1MiB"], false));
    assert!(!runs_beside_a_big_one(&["--need", "1MiB,5MiB"], false));
}

#[test]
fn the_need_of_the_last_run_is_remembered() {
    assert!(runs_beside_a_big_one(&[], false));
    assert!(!runs_beside_a_big_one(&[], true));
}

#[test]
fn what_fits_on_the_gpu_together_is_let_in_however_small_the_tiers_are() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--dram", "1MiB"];
    let manager = Manager::start("1x8MiB", &options);
    let start = |name: &str, bytes: u64| manager.probe(&["--name", name, "--need", &format!("0,{bytes}")]);
    let mut jobs = ["a", "b"].map(|name| start(name, 3 * MIB));
    for job in &mut jobs {
        job.tell("device 0");
        job.tell(&format!("alloc t {}", 3 * MIB));
    }
    // What it needs has no place beside them.
    let mut third = start("c", 4 * MIB);
    third.order("device 0");
    manager
        .status_when(|status| status.jobs.iter().any(|job| job.figures.name == "c" && job.queue_place > 0));
    let [a, b] = jobs;
    a.end();
    third.answer().unwrap();
    b.end();
}
