//! I8: a process that is expelled and lives on may still reach its memory. That memory is nobody's
//! until the process is dead; its job is over at once, and others go on.

mod support;

use support::{Jobs, MIB, Manager, Probe, Status};

const SIZES: [&str; 6] = ["--unit", "64KiB", "--piece", "512KiB", "--offset", "64KiB"];
const UNITS_OF_A_MIB: u64 = 16;

fn retired(status: &Status) -> u64 {
    status.gpus[0].retired_bytes
}

/// A client with `mib` MiB, all of it written to.
fn client_with(manager: &Manager, name: &str, mib: u64) -> Probe {
    let mut client = Probe::start(support::client(manager));
    client.tell(&format!("hello {name} {}", manager.status().gpus[0].uuid));
    client.tell(&format!("lease 0 {}", mib * UNITS_OF_A_MIB));
    client.tell("mark MINE");
    client
}

#[test]
fn what_an_expelled_process_keeps_is_given_to_nobody() {
    let manager = Manager::start("1x6MiB", &SIZES);
    let mut keeper = client_with(&manager, "keeper", 3);
    keeper.order("lie");
    keeper.answer().unwrap();
    let status = manager.status_when(|status| status.has_ended("keeper"));
    assert_eq!(retired(&status), 3 * MIB);
    let mut honest = manager.probe(&["--name", "honest"]);
    honest.tell("device 0");
    honest.tell(&format!("alloc t {}", 2 * MIB));
    honest.tell("fill t 1");
    assert_eq!(retired(&manager.status()), 3 * MIB, "it lives, and keeps what it has");
    assert_eq!(keeper.tell("scan MINE"), "6 6 0", "its memory is its own: nobody wrote to it");
    keeper.process.kill().unwrap();
    keeper.process.wait().unwrap();
    manager.status_when(|status| retired(status) == 0);
    honest.tell(&format!("alloc more {}", 3 * MIB));
    honest.tell("check t 1");
}

#[test]
fn who_does_not_give_its_memory_back_loses_it_and_others_go_on() {
    let times = ["--slice", "10ms", "--boundary-deadline", "10ms", "--answer-limit", "100ms"];
    let manager = Manager::start("1x6MiB", &[&SIZES[..], &times[..]].concat());
    let mut keeper = client_with(&manager, "keeper", 2);
    keeper.tell("deaf");
    let mut honest = manager.probe(&["--name", "honest", "--need", "0,5MiB"]);
    honest.tell("device 0");
    honest.tell(&format!("alloc t {}", 3 * MIB));
    honest.tell("fill t 1");
    let status = manager.status_when(|status| status.has_ended("keeper"));
    assert_eq!(retired(&status), 2 * MIB);
    honest.tell("check t 1");
}

#[test]
fn who_is_expelled_is_killed_where_that_is_the_policy() {
    let manager = Manager::start("1x6MiB", &[&SIZES[..], &["--evict", "kill"]].concat());
    let mut keeper = client_with(&manager, "keeper", 3);
    keeper.order("lie");
    manager.status_when(|status| status.has_ended("keeper") && retired(status) == 0);
    let ended = keeper.process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL));
}
