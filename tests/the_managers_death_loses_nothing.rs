//! I7: the manager may be killed at any moment. Another takes over what it had written down: running
//! jobs go on, waiting ones wait, every byte is as it was, and nothing leaks.

mod support;

use rustix::process::{Pid, Signal, kill_process_group};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::deaths::{
    Killer, MESSAGES, check, kill, movers, oversubscribed, oversubscribed_on, points, signal, status_after,
    stop, will, without_successor,
};
use support::patience::Lines;
use support::training::{Bystander, Training, alone, without_boundaries};
use support::{Jobs, MIB, Manager, Probe, Status, command, nothing_is_used, probe, train_digits};

const OPTIONS: [&str; 7] = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "5ms", "--poison"];

/// What the manager takes in of a process that comes.
const ARRIVALS: [&str; 2] = ["hello", "attach"];

/// Has `work` done until the manager has died there and another has taken over.
fn die_at(killer: &Killer, point: &str, mut work: impl FnMut()) {
    let dead = killer.manager.pid();
    killer.kill_at(point, &mut work);
    status_after(&killer.manager, dead);
    work();
}

#[test]
fn a_manager_that_dies_at_any_point_is_succeeded_and_no_byte_is_lost() {
    let killer = Killer::start("1x6MiB", &OPTIONS);
    let manager = &killer.manager;
    let mut jobs = oversubscribed(manager);
    let bystander = Bystander::start(manager, killer.environment());
    check(&mut jobs);
    for point in points(&MESSAGES) {
        die_at(&killer, &point, || check(&mut jobs));
    }
    for point in points(&ARRIVALS) {
        die_at(&killer, &point, || {
            let mut late = manager.run(&["--name", "late"], &probe());
            // It does not run without a manager because one has died just now.
            late.env("TIDEGATE_REQUIRED", "1").envs([killer.environment()]);
            let mut late = Probe::start(late);
            late.tell("device 0");
            late.tell("alloc t 100000");
            late.tell("fill t 4");
            late.tell("check t 4");
            late.end();
        });
    }
    check(&mut jobs);
    println!("{} trainings beside it", bystander.end());
    let status = manager.status();
    assert_eq!(status.gpus[0].mover.replacements, 0, "the mover has outlived them all");
    manager.status_when(|status| status.gpus[0].outsider_bytes == Some(0));
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn a_manager_killed_at_random_moments_loses_no_byte() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    let mut jobs = oversubscribed(&manager);
    let mut times = Vec::new();
    for round in 0..20 {
        check(&mut jobs[..1]);
        let (dead, began) = (manager.pid(), Instant::now());
        if round % 4 == 3 {
            // A mover dies while its manager lives, and the next one knows the next mover.
            movers(&manager).into_iter().for_each(kill);
            manager.status_when(|status| status.gpus[0].mover.replacements * 4 > round);
            check(&mut jobs);
        }
        kill(dead);
        status_after(&manager, dead);
        times.push(began.elapsed());
        check(&mut jobs);
    }
    times.sort_unstable();
    println!("from a death to the next status: {:?} (median), {:?} at most", times[10], times[19]);
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn trainings_whose_managers_are_killed_end_as_alone() {
    let manager = Manager::start("1x3840KiB", &OPTIONS);
    let program = train_digits();
    let seeds = ["1", "2", "3"];
    let jobs = seeds
        .map(|seed| Training::start(manager.run(&["--name", seed], &program), &without_boundaries(seed)));
    let ended = |status: &Status| seeds.iter().any(|seed| status.has_ended(seed));
    let switches = |status: &Status| -> u64 { status.jobs.iter().map(|job| job.figures.switches).sum() };
    let (mut deaths, mut switched, mut absent) = (0, 0, Duration::ZERO);
    loop {
        // Each manager is of some use before its end.
        let status = manager.status_when(|status| switches(status) > switched || ended(status));
        if ended(&status) {
            break;
        }
        let (dead, began) = (manager.pid(), Instant::now());
        kill(dead);
        switched = switches(&status_after(&manager, dead));
        absent += began.elapsed();
        deaths += 1;
    }
    println!("{deaths} deaths, {:?} each", absent.checked_div(deaths));
    assert!(deaths > 0);
    assert_eq!(jobs.map(Training::result), seeds.map(|seed| alone(&without_boundaries(seed))));
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

/// Jobs that do not fit on a GPU together lose nothing when `end` ends their manager.
fn nothing_is_lost_when(end: impl FnOnce(&Manager)) {
    let manager = Manager::start("1x6MiB", &OPTIONS);
    let mut jobs = oversubscribed(&manager);
    check(&mut jobs);
    let dead = manager.pid();
    end(&manager);
    status_after(&manager, dead);
    check(&mut jobs);
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

#[test]
fn a_hang_up_ends_the_manager_and_costs_no_job() {
    // The manager and its movers are a process group, as in a terminal that is closed.
    let group = |manager: &Manager| Pid::from_raw(manager.pid() as i32).unwrap();
    nothing_is_lost_when(|manager| kill_process_group(group(manager), Signal::HUP).unwrap());
}

/// The kernel sends a hang-up to a process that is stopped when its parent dies.
#[test]
fn a_mover_that_is_stopped_when_its_manager_dies_goes_on() {
    nothing_is_lost_when(|manager| {
        movers(manager).into_iter().for_each(stop);
        kill(manager.pid());
    });
}

#[test]
fn a_process_that_becomes_another_program_while_there_is_no_manager_begins_anew() {
    let options = [&OPTIONS[..], &["--answer-limit", "5s", "--evict", "kill"]].concat();
    let manager = Manager::start("1x6MiB", &options);
    let mut jobs = oversubscribed(&manager);
    // What it was has the GPU, and would be asked to leave it to the other.
    check(&mut jobs[..1]);
    let dead = manager.pid();
    let nobody_rules = without_successor(dead).expect("the manager has a state file");
    kill(dead);
    jobs[0].tell("become");
    drop(nobody_rules);
    status_after(&manager, dead);
    check(&mut jobs[1..]);
    jobs[0].tell("device 0");
    jobs[0].tell(&format!("alloc t {}", 3 * MIB));
    jobs[0].tell("fill t 3");
    check(&mut jobs[1..]);
    jobs[0].tell("check t 3");
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

/// What becomes of the file of options while its manager runs, one after the other.
const CHANGES: [fn(&Path); 5] = [
    |file| std::fs::write(file, "unit = '64KiB'\nslice = 'soon'\n").unwrap(),
    |file| std::fs::write(file, "disk = '/no such directory=1GiB'\n").unwrap(),
    |file| std::fs::remove_file(file).unwrap(),
    |file| std::fs::remove_dir_all(file.parent().unwrap()).unwrap(),
    |_| {},
];

#[test]
fn a_manager_takes_over_with_the_options_that_the_one_before_has_read() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let file = place.join("manager.toml");
    // The log's directory goes with the file's.
    let options = format!(
        "unit = '64KiB'\noffset = '64KiB'\nslice = '5ms'\npoison = true\nlog = '{}'\n",
        place.join("log").display()
    );
    std::fs::write(&file, options).unwrap();
    let manager = Manager::start("1x5MiB", &["--config", file.to_str().unwrap()]);
    let mut jobs = oversubscribed(&manager);
    for change in CHANGES {
        change(&file);
        let dead = manager.pid();
        kill(dead);
        status_after(&manager, dead);
        check(&mut jobs);
    }
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty() && nothing_is_used(status));
}

/// Kills movers, and their manager before it finds time to start others.
fn kill_with_movers(manager: u32, movers: &[u32]) {
    signal(manager, Signal::STOP);
    movers.iter().copied().for_each(kill);
    kill(manager);
}

/// Starts a manager on another's socket, as `tidegate run` does where none answers.
fn start_next(manager: &Manager) -> (Lines, Child) {
    let mut next = command();
    next.args(["manager", "--software-gpu", "1x5MiB"]).args(OPTIONS).arg("--socket").arg(manager.socket());
    let mut next = next.stdout(Stdio::piped()).spawn().unwrap();
    let said = Lines::of(next.stdout.take().unwrap());
    assert_eq!(said.next().as_deref(), Some("ready"));
    (said, next)
}

#[test]
fn where_the_mover_dies_too_who_runs_goes_on_and_who_waits_is_told() {
    let manager = Manager::start("1x5MiB", &OPTIONS);
    let [mut waiting, mut running] = oversubscribed(&manager);
    running.tell("check t 2");
    // Nobody wants anything: who ran last has the GPU.
    manager.status_when(|status| status.job("b0").state == "open" && status.job("a0").state == "waiting");
    let left = will(&manager)["node"].as_str().map(PathBuf::from).unwrap();
    kill_with_movers(manager.pid(), &movers(&manager));
    waiting.order("check t 2");
    running.tell("check t 2");
    let (said, mut next) = start_next(&manager);
    let told = waiting.answer().unwrap_err();
    assert!(told.contains("NOT_READY"), "{told}");
    running.tell("check p 1");
    running.tell("check t 2");
    running.end();
    drop(waiting);
    // The new one has GPUs of its own, and knows of nobody.
    let status = manager.status();
    assert!(status.jobs.is_empty() && nothing_is_used(&status), "{status:#?}");
    signal(next.id(), Signal::TERM);
    assert!(said.ended() && next.wait().unwrap().success());
    assert!(!left.exists(), "what the first one left is removed with the second one's");
}

#[test]
fn where_one_mover_dies_too_its_gpu_is_given_up_and_the_others_go_on() {
    let manager = Manager::start("2x5MiB", &OPTIONS);
    let [mut jobs, mut unlucky] = [0, 1].map(|gpu| oversubscribed_on(&manager, gpu));
    check(&mut jobs);
    unlucky[1].tell("check t 2");
    let status =
        manager.status_when(|status| status.job("b1").state == "open" && status.job("a1").state == "waiting");
    let (lost, dead) = (status.job("b1").gpus[0].clone(), manager.pid());
    let mover = movers(&manager).into_iter().find(|mover| command_line(*mover).contains(&lost)).unwrap();
    kill_with_movers(dead, &[mover]);
    let status = status_after(&manager, dead);
    let is_lost: Vec<bool> = status.gpus.iter().map(|gpu| gpu.mover.lost).collect();
    assert_eq!(is_lost, status.gpus.iter().map(|gpu| gpu.uuid == lost).collect::<Vec<_>>());
    // Its memory is lost with the mover: who waits there does not go on with anything else.
    unlucky[0].order("check t 2");
    let told = unlucky[0].answer().unwrap_err();
    assert!(told.contains("NOT_READY"), "{told}");
    unlucky[1].tell("check t 2");
    unlucky[1].tell("check p 1");
    let before = status.job("a0").figures.switches;
    for _ in 0..5 {
        check(&mut jobs);
    }
    assert!(manager.job("a0").figures.switches > before);
    unlucky[1].tell("check t 2");
    let [waited, ran] = unlucky;
    drop(waited);
    ran.end();
    jobs.into_iter().for_each(Probe::end);
    manager.status_when(|status| status.jobs.is_empty());
}

fn command_line(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap()).into()
}

#[test]
fn where_systemd_starts_the_next_manager_the_movers_wait_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // The service manager's sign: the number of the process that it has started.
    let as_service = |program: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(r#"SYSTEMD_EXEC_PID=$$ exec "$0" "$@""#).arg(program);
        shell.args(["manager", "--software-gpu", "1x5MiB"]).args(OPTIONS).arg("--socket").arg(&socket);
        let mut manager = shell.stdout(Stdio::piped()).spawn().unwrap();
        let said = Lines::of(manager.stdout.take().unwrap());
        assert_eq!(said.next().as_deref(), Some("ready"));
        (said, manager)
    };
    let program = command().get_program().to_str().unwrap().to_owned();
    let (_, mut first) = as_service(&program);
    let mut job = command();
    job.arg("run").arg("--socket").arg(&socket).arg("--").arg(probe());
    let mut job = Probe::start(job);
    job.tell("device 0");
    job.tell("alloc t 100000");
    job.tell("fill t 4");
    first.kill().unwrap();
    first.wait().unwrap();
    // Memory that needs a manager waits for one; what is there does not.
    job.tell("check t 4");
    job.order(&format!("alloc more {MIB}"));
    let (said, mut second) = as_service(&program);
    job.answer().unwrap();
    job.tell("fill more 5");
    job.tell("check t 4");
    job.end();
    signal(second.id(), Signal::TERM);
    assert!(said.ended() && second.wait().unwrap().success());
    assert!(!socket.with_extension("will").exists(), "there is nothing to inherit");
}
