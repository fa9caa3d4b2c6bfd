//! I5: a gang runs as a whole or not at all, be it one process on two GPUs or two processes of one
//! job; its processes stop at the same boundary; and its launcher delays no rank.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::deaths::{kill, status_after};
use support::patience::finish_within;
use support::{Jobs, MIB, Manager, Probe, Status};
use tidegate_manager::artifacts;

const PATIENCE: Duration = Duration::from_secs(120);

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

/// Another process of the probe's job, as its own child would be.
fn another_of(probe: &Probe) -> Probe {
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", probe.process.id())).unwrap();
    let mut command = Command::new(support::probe());
    command.envs(environment.split('\0').filter_map(|variable| variable.split_once('=')));
    Probe::start(command)
}

/// One iteration of a gang whose second rank is always late: a `Close` may come between their
/// boundaries. Like ranks that communicate, neither begins the next iteration before both have
/// ended this one, so if they were stopped at different boundaries, one would wait for ever.
fn iterate([first, second]: &mut [Probe; 2]) {
    first.tell("check t 1");
    first.order("boundary");
    for _ in 0..4 {
        second.tell("check t 2");
    }
    second.order("boundary");
    first.answer().expect("the first rank passes its boundary at last");
    second.answer().expect("the second rank passes its boundary at last");
}

/// Two ranks under one `tidegate run`.
fn ranks_of_one_run(manager: &Manager) -> [Probe; 2] {
    let mut first = manager.probe(&["--name", "gang"]);
    first.tell("device 0");
    let second = another_of(&first);
    [first, second]
}

/// A rank under a `tidegate run` of its own, as a launcher starts it.
fn rank_of_launch(manager: &Manager, options: &[&str], rank: &str, port: &str) -> Command {
    let mut command = manager.run(options, &support::probe());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("WORLD_SIZE", "2").env("RANK", rank);
    command
}

fn ranks_of_two_runs(manager: &Manager) -> [Probe; 2] {
    let options = ["--name", "gang"];
    ["0", "1"].map(|rank| Probe::start(rank_of_launch(manager, &options, rank, "29500")))
}

/// Two ranks beside another job, with which they do not fit. `between` their iterations something else may happen;
/// `idle` processes of their job do nothing all the while.
fn stop_at_one_boundary(start: fn(&Manager) -> [Probe; 2], idle: usize, between: impl Fn(&Manager)) {
    let times = ["--slice", "5ms", "--boundary-deadline", "1h"];
    let sizes = ["--unit", "64KiB", "--offset", "64KiB"];
    let manager = Manager::start("1x6MiB", &[times, sizes].concat());
    let mut ranks = start(&manager);
    ranks[0].tell("device 0");
    let mut launchers: Vec<Probe> = (0..idle).map(|_| another_of(&ranks[0])).collect();
    launchers.iter_mut().for_each(|launcher| drop(launcher.tell("init")));
    for (rank, seed) in ranks.iter_mut().zip(1..) {
        rank.tell("device 0");
        rank.tell(&format!("alloc t {}", 2 * MIB));
        rank.tell(&format!("fill t {seed}"));
    }
    // A job that has told no boundary yet is not expected to reach one.
    iterate(&mut ranks);
    let mut other = manager.probe(&["--name", "other", "--need", "0,3MiB"]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let competes = scope.spawn(|| {
            // Who fails below must not leave this thread waiting for a turn: it ends in words, too.
            let mut work = |order: &str| {
                other.order(order);
                other.answer().is_ok()
            };
            let mut goes_on = work("device 0") && work(&format!("alloc t {}", 3 * MIB)) && work("fill t 3");
            while goes_on && !ended.load(Ordering::Relaxed) {
                goes_on = work("check t 3");
            }
        });
        manager.work_until_switched(&["gang"], 12, || {
            iterate(&mut ranks);
            between(&manager);
        });
        ended.store(true, Ordering::Relaxed);
        // It may need one more turn, which a gang gives at its boundary only.
        while !competes.is_finished() {
            iterate(&mut ranks);
        }
    });
    let status = manager.status();
    let gang = status.job("gang");
    assert_eq!(gang.pids.len(), 2 + idle, "processes of one job: {gang:#?}");
    assert_eq!(gang.figures.at_boundary, gang.figures.switches, "it stopped elsewhere than at its boundary");
    assert!(!overlap(&status, "gang", "other"), "one rank ran beside who does not fit: {status:#?}");
    ranks.into_iter().for_each(Probe::end);
}

#[test]
fn two_processes_of_one_job_stop_at_one_boundary() {
    stop_at_one_boundary(ranks_of_one_run, 0, |_| {});
}

/// Two ranks that sum something up again and again, with hardly a wait between.
fn steady_ranks(manager: &Manager, name: &str) -> std::process::Child {
    let mut ranks = manager.run(&["--name", name], &artifacts::example("ranks").unwrap());
    let libraries = artifacts::software_libraries().unwrap();
    ranks.args(["steady", "2"]).env("ROUNDS", "4000").env("STAND_IN", libraries);
    ranks.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn ranks_without_boundaries_stop_before_one_collective() {
    let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms"];
    let manager = Manager::start("2x6MiB", &options);
    let gangs = ["one", "two"].map(|name| steady_ranks(&manager, name));
    for gang in gangs {
        let output = finish_within(PATIENCE, gang);
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
    }
    let status = manager.status_when(|status| ["one", "two"].iter().all(|gang| status.has_ended(gang)));
    let figures = ["one", "two"].map(|gang| status.ended_job(gang).clone());
    println!("{:?}", figures.each_ref().map(|figures| (figures.switches, figures.at_boundary)));
    assert!(figures.iter().any(|figures| figures.at_boundary > 0), "{figures:#?}");
}

/// It has begun to use CUDA, as torchrun does, and reports no boundary. The deadline never comes.
#[test]
fn a_launcher_and_idle_workers_delay_nobody() {
    stop_at_one_boundary(ranks_of_one_run, 2, |_| {});
}

#[test]
fn ranks_of_one_launch_are_one_job_though_each_has_its_own_run() {
    stop_at_one_boundary(ranks_of_two_runs, 0, |_| {});
}

#[test]
fn the_ranks_of_a_launch_end_each_for_itself_and_others_are_none_of_them() {
    let manager = Manager::start("1x6MiB", &["--unit", "64KiB"]);
    let mut first =
        Probe::start(rank_of_launch(&manager, &["--name", "gang", "--priority", "1"], "0", "29500"));
    first.tell("device 0");
    let mut second = rank_of_launch(&manager, &["--name", "gang"], "1", "29500");
    second.stderr(Stdio::piped()).env_remove("TIDEGATE_LOG");
    let mut second = Probe::start(second);
    second.tell("device 0");
    let mut said = BufReader::new(second.process.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("--priority") && line.contains("gang"), "{line}");
    let mut other = Probe::start(rank_of_launch(&manager, &["--name", "other"], "0", "29501"));
    other.tell("device 0");
    let status = manager.status();
    assert_eq!((status.job("gang").pids.len(), status.job("other").pids.len()), (2, 1), "{status:#?}");
    assert_eq!(status.job("gang").figures.priority, 1, "the first rank's options count");
    first.end();
    assert_eq!(manager.job("gang").pids.len(), 1, "the job lives as long as one of its ranks");
    kill(second.process.id());
    let status = manager.status_when(|status| status.has_ended("gang"));
    assert_eq!(status.ended.len(), 1, "{status:#?}");
    // The same launch again is another job.
    let mut again = Probe::start(rank_of_launch(&manager, &["--name", "again"], "0", "29500"));
    again.tell("device 0");
    assert_eq!(manager.job("again").pids.len(), 1);
    assert!(second.process.wait().unwrap().signal().is_some(), "it died of its own");
}

/// I7: the next manager knows where they were to stop, and that they are one.
#[test]
fn they_do_though_their_managers_are_killed() {
    stop_at_one_boundary(ranks_of_one_run, 1, |manager| {
        let dead = manager.pid();
        kill(dead);
        status_after(manager, dead);
    });
}
