//! I7: a mover may be killed at any moment. Another takes its place; running jobs go on, waiting
//! ones wait, every byte is as it was, and nothing leaks.

mod support;

use rustix::process::Signal;
use std::path::{Path, PathBuf};
use support::deaths::{Killer, MESSAGES, check, children, kill, kill_movers, oversubscribed, points, signal};
use support::training::{Bystander, Training, alone, without_boundaries};
use support::{Jobs, MIB, Manager, Probe, Status, files_but_memory, nothing_is_used, train_digits};

const OPTIONS: [&str; 7] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"];

/// Where a mover can be told to die, at any switch.
const POINTS: [&str; 10] = [
    "save:bytes",
    "index:torn",
    "save:index",
    "restore:bytes",
    "restore:index",
    "make",
    "scrub",
    "destroy",
    "measure",
    "answered",
];

fn replacements(status: &Status) -> u64 {
    status.gpus[0].mover.replacements
}

/// Has `work` done until the mover has died there and another has everything.
fn die_at(killer: &Killer, point: &str, mut work: impl FnMut()) {
    let before = replacements(&killer.manager.status());
    killer.kill_at(point, || {
        work();
        // Whoever wants to know how the memory is used has it measured.
        killer.manager.status();
    });
    killer.manager.status_when(|status| replacements(status) > before);
    work();
}

#[test]
fn a_mover_that_dies_at_any_point_is_replaced_and_no_byte_is_lost() {
    let killer = Killer::start("1x6MiB", &OPTIONS);
    let manager = &killer.manager;
    let mut jobs = oversubscribed(manager);
    check(&mut jobs);
    let bystander = Bystander::start(manager, killer.environment());
    for _ in 0..3 {
        for point in POINTS {
            die_at(&killer, point, || check(&mut jobs));
        }
    }
    // Where it has nothing to do with what is under way, too.
    for point in points(&MESSAGES) {
        die_at(&killer, &format!("{point} movers"), || check(&mut jobs));
    }
    // While the next one takes over, too.
    for _ in 0..3 {
        let before = replacements(&manager.status());
        killer.order("adopt");
        kill_movers(manager);
        manager.status_when(|status| replacements(status) > before && killer.is_obeyed());
        check(&mut jobs);
    }
    println!("{} trainings beside it", bystander.end());
    let status = manager.status();
    assert!(replacements(&status) >= 69, "{:?}", status.gpus[0].mover);
    println!("{:?}", status.gpus[0].mover);
    // Memory of the dead movers' contexts is back: nothing lies outside of pieces.
    manager.status_when(|status| status.gpus[0].outsider_bytes == Some(0));
    let files = files_but_memory(manager.pid());
    kill_movers(manager);
    manager.status_when(|now| replacements(now) > replacements(&status));
    check(&mut jobs);
    // Slabs and the index are held once; of a connection that is just gone, some may still be closing.
    manager.status_when(|_| files_but_memory(manager.pid()) <= files + 4);
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn a_mover_killed_at_random_moments_loses_no_byte() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    let mut jobs = oversubscribed(&manager);
    let before = files_but_memory(manager.pid());
    for _ in 0..20 {
        let count = replacements(&manager.status());
        check(&mut jobs[..1]);
        kill_movers(&manager);
        check(&mut jobs);
        manager.status_when(|status| replacements(status) > count);
    }
    // Slabs and the index are held once, however many movers had them.
    manager.status_when(|_| files_but_memory(manager.pid()) <= before + 8);
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn the_mover_of_an_idle_gpu_is_replaced_however_often_it_is_killed() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    for count in 1..=12 {
        kill_movers(&manager);
        manager.status_when(|status| replacements(status) == count);
    }
    assert!(!manager.status().gpus[0].mover.lost);
    oversubscribed(&manager).into_iter().for_each(Probe::end);
}

#[test]
fn a_training_whose_movers_are_killed_ends_as_alone() {
    let manager = Manager::start("1x3840KiB", &OPTIONS);
    let program = train_digits();
    let seeds = ["1", "2"];
    let jobs = seeds
        .map(|seed| Training::start(manager.run(&["--name", seed], &program), &without_boundaries(seed)));
    let ended = |status: &Status| seeds.iter().any(|seed| status.has_ended(seed));
    let switches = |status: &Status| -> u64 { status.jobs.iter().map(|job| job.figures.switches).sum() };
    let (mut count, mut switched) = (0, 0);
    let status = loop {
        // Each mover is of some use before its end.
        let useful = |status: &Status| replacements(status) >= count && switches(status) > switched;
        let status = manager.status_when(|status| useful(status) || ended(status));
        if ended(&status) {
            break status;
        }
        (count, switched) = (replacements(&status) + 1, switches(&status));
        kill_movers(&manager);
    };
    assert!(replacements(&status) > 0);
    println!("{:?}", status.gpus[0].mover);
    assert_eq!(jobs.map(Training::result), seeds.map(|seed| alone(&without_boundaries(seed))));
}

#[test]
fn a_mover_whose_driver_fails_is_replaced_and_nobody_notices() {
    // In each mover a call fails, and all that follow, as in a broken context. It comes so far that the
    // order is not too much for another one.
    for rule in [
        "cuMemcpyBatchAsync_v2@4+=UNKNOWN",
        "cuMemcpyBatchAsync_v2@1+=NOT_SUPPORTED,cuMemcpyHtoDAsync_v2@100+=UNKNOWN",
        "cuMemcpyBatchAsync_v2@1+=NOT_SUPPORTED,cuMemcpyDtoHAsync_v2@100+=UNKNOWN",
        "cuMemsetD8Async@100+=UNKNOWN",
    ] {
        let faults = [("TIDEGATE_SOFTGPU_FAULTS", Path::new(rule))];
        let manager = Manager::start_with("1x5MiB", &OPTIONS, &faults);
        let mut jobs = oversubscribed(&manager);
        manager.work_until_switched(&["a0", "b0"], 10, || check(&mut jobs));
        assert!(replacements(&manager.status()) > 0, "{rule}");
        jobs.into_iter().for_each(Probe::end);
        manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
    }
}

#[test]
fn a_mover_that_hangs_is_replaced_and_no_byte_is_lost() {
    let manager = Manager::start("1x5MiB", &[&OPTIONS[..], &["--answer-limit", "200ms"]].concat());
    let mut jobs = oversubscribed(&manager);
    check(&mut jobs);
    for round in 1..4 {
        children(manager.pid()).into_iter().for_each(|mover| signal(mover, Signal::STOP));
        // One of the two must give way, which takes a mover.
        check(&mut jobs);
        manager.status_when(|status| replacements(status) >= round);
    }
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn a_mover_that_stops_in_the_middle_of_a_save_is_replaced_whatever_was_measured() {
    // 1 MB/s, so that a save takes seconds, and a prediction from it would be patient for long.
    let options = [&OPTIONS[..], &["--answer-limit", "1500ms"]].concat();
    let manager = Manager::start("1x5MiB,link=1MB/s", &options);
    let mut jobs = oversubscribed(&manager);
    check(&mut jobs[1..]);
    for round in 1..3 {
        assert_eq!(replacements(&manager.status()), round - 1, "none that moves bytes is killed");
        jobs[0].order("check t 2");
        manager.status_when(|status| status.job("b0").state == "leaving");
        children(manager.pid()).into_iter().for_each(|mover| signal(mover, Signal::STOP));
        manager.status_when(|status| replacements(status) == round);
        jobs[0].answer().unwrap();
        check(&mut jobs[1..]);
    }
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn a_mover_that_works_for_long_is_left_alone() {
    // Each switch takes much longer than the limit.
    let options = [&OPTIONS[..], &["--answer-limit", "1s"]].concat();
    let manager = Manager::start("1x5MiB,link=2MB/s", &options);
    let mut jobs = oversubscribed(&manager);
    manager.work_until_switched(&["a0", "b0"], 4, || check(&mut jobs));
    assert_eq!(replacements(&manager.status()), 0, "none was killed");
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

/// What comes after `option` on a process's command line.
fn option_of(pid: u32, option: &str) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|w| String::from_utf8_lossy(w).into()).collect();
    let at = words.iter().position(|word| word == option).unwrap();
    words[at + 1].clone()
}

#[test]
fn a_gpu_whose_movers_cannot_live_is_given_up_and_the_others_go_on() {
    let manager = Manager::start("2x5MiB", &OPTIONS);
    let mut jobs = ["0", "1"].map(|gpu| {
        let mut job = manager.probe(&["--name", gpu]);
        job.tell(&format!("device {gpu}"));
        job.tell(&format!("alloc t {MIB}"));
        job.tell("fill t 2");
        job
    });
    let lost = manager.status().job("0").gpus[0].clone();
    let mover = children(manager.pid()).into_iter().find(|mover| option_of(*mover, "--gpu") == lost).unwrap();
    // No other mover will find its driver.
    let driver = PathBuf::from(option_of(mover, "--driver"));
    let aside = driver.with_extension("aside");
    std::fs::rename(&driver, &aside).unwrap();
    kill(mover);
    manager.status_when(|status| status.gpus.iter().any(|gpu| gpu.uuid == lost && gpu.mover.lost));
    std::fs::rename(&aside, &driver).unwrap();
    // Who runs keeps what it has; new memory there is none.
    jobs.iter_mut().for_each(|job| drop(job.tell("check t 2")));
    jobs[0].order(&format!("alloc more {}", 4 * MIB));
    assert!(jobs[0].answer().unwrap_err().contains("OUT_OF_MEMORY"));
    jobs[1].tell(&format!("alloc more {}", 3 * MIB));
    jobs[1].tell("fill more 3");
    // Who comes is told at once.
    let mut late = manager.probe(&["--name", "late"]);
    late.order("device 0");
    late.answer().unwrap_err();
    jobs.iter_mut().for_each(|job| drop(job.tell("check t 2")));
    jobs.into_iter().for_each(Probe::end);
    drop(late);
    manager.status_when(|status| status.jobs.is_empty());
}
