//! I10: who has no file descriptors or no memory left gets an error in words, or waits; nobody else
//! notices, and what there is again is used again. Here the system itself says no.

mod support;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::path::{Path, PathBuf};
use support::deaths::{children, kill_movers};
use support::faults::{Worker, nothing_is_held};
use support::{MIB, Manager, files_but_memory, open_files};
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{FromCommand, ToManager, When};
use tidegate_manager::server::status::Status;

const TURNS: [&str; 6] = ["--unit", "256KiB", "--offset", "0", "--slice", "5ms"];

#[test]
fn a_job_without_descriptors_is_told_so_and_keeps_nobody_waiting() {
    // What it was handed and could not take counts as used until it ends: so it is ended.
    let manager = Manager::start("1x5MiB", &[&TURNS[..], &["--evict", "kill"]].concat());
    let mut honest = Worker::start(&manager, "honest", 1, None).unwrap();
    let mut victim = Worker::start(&manager, "victim", 2, None).unwrap();
    victim.ask("starve").unwrap();
    // It can be stopped, but its memory has no way back to it.
    let mut turns = (0..100).map(|_| {
        honest.check().unwrap();
        victim.check()
    });
    let error = turns.find_map(Result::err).expect("it cannot be given its memory back");
    assert!(error.contains("CUDA_ERROR_SYSTEM_NOT_READY") || error == "the program ended", "{error}");
    (0..3).for_each(|_| honest.check().unwrap());
    drop((honest, victim));
    manager.status_when(nothing_is_held);
}

#[test]
fn a_job_that_has_descriptors_again_goes_on() {
    let manager = Manager::start("1x5MiB", &TURNS);
    let mut job = Worker::start(&manager, "job", 1, None).unwrap();
    job.ask("starve").unwrap();
    let error = job.ask(&format!("alloc more {MIB}")).unwrap_err();
    assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    // Its connection too is made anew.
    job.ask("feed").unwrap();
    job.ask("cut").unwrap();
    // What it could not take may be measured as somebody else's until it is scrubbed.
    let had = (0..1000).any(|_| job.ask(&format!("alloc more {MIB}")).is_ok());
    assert!(had, "it has descriptors again, and no memory");
    job.check().unwrap();
    drop(job);
    manager.status_when(nothing_is_held);
}

#[test]
fn a_job_that_lacks_descriptors_when_its_memory_comes_back_gets_it_when_it_has_some() {
    let manager = Manager::start("1x5MiB", &TURNS);
    let mut honest = Worker::start(&manager, "honest", 1, None).unwrap();
    let mut victim = Worker::start(&manager, "victim", 2, None).unwrap();
    victim.ask("starve").unwrap();
    honest.check().unwrap();
    let is = |status: &Status, state: &str| {
        status.jobs.iter().any(|job| job.figures.name == "victim" && job.state == state)
    };
    // An idle job's turn may begin before the status is looked at.
    manager.status_when(|status| is(status, "waiting") || is(status, "restoring"));
    victim.probe.order("check t 2");
    // It is its turn, and none of its memory can be mapped.
    manager.status_when(|status| is(status, "restoring"));
    let pid = Pid::from_raw(victim.probe.process.id() as i32).unwrap();
    prlimit(Some(pid), Resource::Nofile, getrlimit(Resource::Nofile)).unwrap();
    assert_eq!(victim.probe.answer(), Ok(String::new()));
    for _ in 0..3 {
        honest.check().unwrap();
        victim.check().unwrap();
    }
    drop((honest, victim));
    manager.status_when(nothing_is_held);
}

#[test]
fn a_program_beyond_the_connection_limit_does_not_run_beside_the_managers_jobs() {
    // A manager with few descriptors has a low connection limit.
    let manager = Manager::start_limited(64, "1x64MiB", &[]);
    let mut jobs = Vec::new();
    let refused = loop {
        match Worker::start(&manager, "job", jobs.len() as u64, None) {
            Ok(job) => jobs.push(job),
            Err(error) => break error,
        }
        assert!(jobs.len() < 10, "there was a place for each");
    };
    assert!(!jobs.is_empty());
    // Each program that was not refused runs with the manager. A command may find no place for a moment.
    let is_known = |status: &Status, pid: u32| status.jobs.iter().any(|job| job.pids.contains(&(pid as i32)));
    manager.comes_to(|status| jobs.iter().all(|job| is_known(status, job.probe.process.id())));
    assert!(refused.contains("CUDA_ERROR_SYSTEM_NOT_READY") || refused == "the program ended", "{refused}");
    jobs.iter_mut().for_each(|job| job.check().unwrap());
    drop(jobs);
    manager.status_when(nothing_is_held);
}

#[test]
fn a_file_size_limit_is_an_error_and_ends_no_program() {
    let manager = Manager::start("1x5MiB", &TURNS);
    let mut command = std::process::Command::new("sh");
    let run = manager.run(&[], &support::probe());
    command.args(["-c", "ulimit -f 0 && exec \"$@\"", "sh"]).arg(run.get_program()).args(run.get_args());
    command.env_remove("CARGO");
    // A log line in a file would exceed the limit, too.
    let errors = tempfile::tempfile().unwrap();
    command.stderr(errors);
    let mut job = support::Probe::start(command);
    for _ in 0..2 {
        let error = job.try_tell("device 0").unwrap_err();
        assert!(error.contains("CUDA_ERROR_SYSTEM_NOT_READY"), "{error}");
    }
    job.end();
}

#[test]
fn a_file_size_limit_on_a_manager_costs_no_job() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let log = ["--log", log.to_str().unwrap()];
    let options = [&TURNS[..], &log].concat();
    // It would log each job. The memory of software GPUs is files: their mover is left alone.
    let manager = Manager::start_with("1x5MiB", &options, &[("TIDEGATE_LOG", Path::new("info"))]);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Pid::from_raw(manager.pid() as i32), Resource::Fsize, none).unwrap();
    let pid = manager.pid();
    let mut jobs = [None, None];
    Worker::each_works(&manager, &mut jobs);
    for _ in 0..3 {
        jobs.iter_mut().for_each(|job| job.as_mut().unwrap().check().unwrap());
    }
    assert_eq!(manager.pid(), pid);
    drop(jobs);
    manager.status_when(nothing_is_held);
}

#[test]
fn greedy_clients_take_no_descriptor_that_others_need() {
    let manager = Manager::start_limited(128, "1x5MiB", &TURNS);
    let mut jobs = [None, None];
    Worker::each_works(&manager, &mut jobs);
    let files = files_but_memory(manager.pid());
    // More than there are descriptors; and who waits to be told that nothing is left to do may stay.
    let greedy: Vec<Connection> = (0..200).map(|_| Connection::connect(&manager.socket()).unwrap()).collect();
    let question = ToManager::Command(FromCommand::Status { when: When::Idle });
    let stay = greedy.iter().filter(|client| client.send(&question, &[]).is_ok()).count();
    eprintln!("{stay} of {} could ask something", greedy.len());
    for _ in 0..3 {
        jobs.iter_mut().for_each(|job| job.as_mut().unwrap().check().unwrap());
    }
    let mut late = Worker::start(&manager, "late", 7, None).unwrap();
    late.check().unwrap();
    // A mover can be replaced too.
    kill_movers(&manager);
    jobs.iter_mut().for_each(|job| job.as_mut().unwrap().check().unwrap());
    drop((greedy, late));
    manager.status_when(|status| status.jobs.len() == 2 && files_but_memory(manager.pid()) <= files + 4);
    drop(jobs);
    manager.status_when(nothing_is_held);
}

#[test]
fn pieces_without_descriptors_are_no_pieces() {
    // So many pieces that the manager cannot hold a third of them.
    let manager = Manager::start_limited(128, "1x6MiB", &["--unit", "64KiB", "--offset", "0"]);
    let mut job = manager.probe(&[]);
    job.tell("device 0");
    job.tell(&format!("alloc small {MIB}"));
    job.tell("fill small 1");
    for _ in 0..3 {
        let error = job.try_tell(&format!("alloc large {}", 4 * MIB)).unwrap_err();
        assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        job.tell("check small 1");
    }
    job.tell("free small");
    job.tell(&format!("alloc small {MIB}"));
    job.end();
    manager.status_when(nothing_is_held);
}

#[test]
fn a_mover_without_memory_leaves_jobs_where_they_are_until_it_has_some() {
    let manager = Manager::start("1x5MiB", &TURNS);
    let mut open = Worker::start(&manager, "open", 1, None).unwrap();
    // A job that fits beside it: for the second on a GPU the mover gets ready to save.
    let mut small = manager.probe(&[]);
    small.tell("device 0");
    let mover = children(manager.pid())[0];
    let is_slab = |name: &PathBuf| name.to_string_lossy().contains("tidegate-saved");
    manager.status_when(|_| open_files(mover).iter().any(is_slab));
    small.end();
    let address_space = |limit| {
        let pid = Pid::from_raw(mover as i32).unwrap();
        prlimit(Some(pid), Resource::As, Rlimit { current: limit, maximum: None }).unwrap();
    };
    // What it has already, and a little: not enough to save anything.
    address_space(Some(virtual_bytes(mover) + MIB));
    let mut waiting = manager.probe(&[]);
    let orders = ["device 0".into(), format!("alloc t {}", 3 * MIB), "fill t 2".into(), "check t 2".into()];
    orders.iter().for_each(|order| waiting.order(order));
    (0..20).for_each(|_| open.check().unwrap());
    address_space(None);
    orders.iter().for_each(|order| drop(waiting.answer().unwrap_or_else(|error| panic!("{order}: {error}"))));
    open.check().unwrap();
    drop((open, waiting));
    manager.status_when(nothing_is_held);
}

/// How much address space a process has.
fn virtual_bytes(pid: u32) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}
