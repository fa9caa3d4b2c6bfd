//! R0.3: what a job needs beyond its GPU's memory is host memory, wherever it is read and written.

mod support;

use std::path::Path;
use std::time::Instant;
use support::deaths::{kill, kill_movers, status_after};
use support::training::{Training, alone};
use support::{Jobs, KIB, MIB, Manager, Probe, Status, nothing_is_used, train_digits};

const OPTIONS: [&str; 7] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--oversubscribe"];
/// It has some 2.7 MiB.
const TRAINING: [&str; 6] = ["--hidden", "256", "--batch", "240", "--steps", "120"];
/// Less than two thirds of that.
const GPU: u64 = 1792 * KIB;

fn train(manager: &Manager, name: &str) -> Training {
    Training::start(manager.run(&["--name", name], Path::new(&train_digits())), &TRAINING)
}

fn on(gpu: &str, options: &[&str]) -> Manager {
    Manager::start(gpu, &[&OPTIONS, options].concat())
}

/// A job that has three quarters of a GPU of 2 MiB, in `x`.
fn large(manager: &Manager) -> Probe {
    let mut job = manager.probe(&["--name", "large"]);
    job.tell("device 0");
    job.tell(&format!("alloc x {}", 1536 * KIB));
    job
}

fn hosted(status: &Status) -> u64 {
    status.jobs.iter().map(|job| job.hosted_bytes).sum()
}

#[test]
fn a_training_of_one_and_a_half_times_its_gpus_memory_ends_as_alone() {
    let solo = alone(&TRAINING);
    let run = |gpu: u64| {
        let manager = on(&format!("1x{gpu}B,link=200MB/s"), &["--dram", "8MiB"]);
        let began = Instant::now();
        assert_eq!(train(&manager, "one").result(), solo);
        let took = began.elapsed().as_secs_f64();
        let status = manager.status_when(|status| status.has_ended("one") && nothing_is_used(status));
        (status.ended_job("one").footprint_bytes, took)
    };
    let (footprint, wide) = run(8 * MIB);
    let (_, narrow) = run(GPU);
    assert!(footprint * 2 >= GPU * 3, "{footprint} bytes are no one and a half times {GPU}");
    println!("{footprint} bytes on a GPU of {GPU}: {:.2} times as long as with room for all", narrow / wide);
}

#[test]
fn two_that_are_larger_than_the_gpu_take_turns_and_survive_deaths() {
    let solo = alone(&TRAINING);
    let manager = on(&format!("1x{GPU}B"), &["--dram", "16MiB"]);
    let trainings = ["a", "b"].map(|name| train(&manager, name));
    let status = manager.status_when(|status| status.jobs.iter().all(|job| job.hosted_bytes > 0));
    let used: u64 = status.gpus[0].tiers[0].used_bytes;
    assert!(used >= hosted(&status), "what is hosted is of the share: {status:#?}");
    for _ in 0..3 {
        kill_movers(&manager);
    }
    assert_eq!(trainings.map(Training::result), [solo.clone(), solo]);
    manager.status_when(|status| status.gpus[0].tiers[0].used_bytes == 0 && nothing_is_used(status));
}

#[test]
fn what_is_read_and_written_there_is_right_over_a_managers_death() {
    let manager = on("1x2MiB", &["--dram", "8MiB"]);
    let mut job = large(&manager);
    let refused = job.try_tell(&format!("alloc y {}", 1536 * KIB)).unwrap_err();
    assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "first it is told: {refused}");
    job.tell(&format!("alloc y {}", 1536 * KIB));
    job.tell("fill x 1");
    job.tell("fill y 2");
    assert_eq!(manager.job("large").hosted_bytes, 1536 * KIB);
    let dead = manager.pid();
    kill(dead);
    job.tell("check x 1");
    job.tell("check y 2");
    status_after(&manager, dead);
    let status = manager.status_when(|status| hosted(status) == 1536 * KIB);
    assert_eq!(status.gpus[0].tiers[0].used_bytes, 1536 * KIB);
    job.end();
    manager.status_when(|status| status.gpus[0].tiers[0].used_bytes == 0 && nothing_is_used(status));
}

#[test]
fn where_there_is_no_host_memory_either_it_is_told_so() {
    let manager = on("1x2MiB", &["--dram", "1MiB"]);
    let mut job = large(&manager);
    for _ in 0..2 {
        let refused = job.try_tell(&format!("alloc y {}", 1600 * KIB)).unwrap_err();
        assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    }
    job.tell(&format!("alloc y {}", 1024 * KIB));
}

#[test]
fn a_job_that_did_not_ask_for_host_memory_has_its_gpus_size() {
    let manager = Manager::start("1x2MiB", &[&OPTIONS[..6], &["--dram", "8MiB"]].concat());
    let mut job = large(&manager);
    for _ in 0..3 {
        let refused = job.try_tell(&format!("alloc y {}", 1536 * KIB)).unwrap_err();
        assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    }
    assert_eq!(job.tell("info"), format!("{} {}", 512 * KIB, 2 * MIB), "free and total");
    let mut one = manager.probe(&["--name", "one", "--oversubscribe"]);
    one.tell("device 0");
    one.tell(&format!("alloc x {}", 64 * KIB));
    let told = one.tell("info");
    let total: u64 = told.split_once(' ').unwrap().1.parse().unwrap();
    assert_eq!(total, 2 * MIB + 8 * MIB, "it may have host memory, too: {told}");
}
