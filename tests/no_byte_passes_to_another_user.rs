//! I8: memory that passes to another user is destroyed and made anew; within one user it is
//! scrubbed. A spy looks at every byte that it is ever given, at once, and goes on looking through
//! descriptors that it should have closed.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{Jobs, Manager, Probe};

/// A group that both users are in, and the users.
const GROUP: u32 = 20_000;
const OWNER: u32 = 20_001;
const SPY: u32 = 20_002;
/// More than half of the GPU. The last unit is leased for itself, so it is a piece of its own however the others come.
const UNITS: u32 = 73;
const SWITCHES: u64 = 40;

fn manager() -> Manager {
    // SAFETY: it has no arguments and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    assert!(root, "this test starts programs of two other users: run it as root");
    let sizes = ["--unit", "64KiB", "--piece", "512KiB", "--offset", "64KiB", "--group", "20000"];
    let times = ["--slice", "5ms", "--boundary-deadline", "5ms"];
    let manager = Manager::start("1x8MiB", &[&sizes[..], &times[..]].concat());
    // What the users need: the way to the socket, and a program.
    let directory = manager.socket().parent().unwrap().to_owned();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    support::copy_program(Path::new(support::client(&manager).get_program()), &directory.join("client"));
    manager
}

fn client_of(manager: &Manager, user: u32, name: &str) -> Probe {
    let mut command = Command::new(manager.socket().with_file_name("client"));
    command.env("TIDEGATE_SOCKET", manager.socket()).uid(user).gid(GROUP);
    let mut client = Probe::start(command);
    client.tell(&format!("hello {name} {}", manager.status().gpus[0].uuid));
    client
}

/// Two clients that take turns, each with its word all over its memory; if they are of different
/// users, the second one keeps what it can. What each of them has found of the other at the end.
fn take_turns(users: [u32; 2]) -> [String; 2] {
    let manager = manager();
    let [mut owner, mut spy] =
        [(users[0], "owner"), (users[1], "spy")].map(|(user, name)| client_of(&manager, user, name));
    if users[0] != users[1] {
        spy.tell("keep");
    }
    for client in [&mut owner, &mut spy] {
        client.tell(&format!("lease 0 {}", UNITS - 1));
        client.tell(&format!("lease {} 1", UNITS - 1));
    }
    manager.work_until_switched(&["owner", "spy"], SWITCHES, || {
        owner.tell("mark OWNERS-SECRET-");
        spy.tell("mark SPYS-WORD-");
        let found = spy.tell("scan OWNERS-SECRET-");
        assert!(found.starts_with("0 "), "the spy found the other's bytes in memory: {found}");
    });
    let status = manager.status();
    for name in ["owner", "spy"] {
        println!("users {users:?}: {name} {:?}", status.job(name).figures.switch_micros);
    }
    [owner.tell("scan SPYS-WORD-"), spy.tell("scan OWNERS-SECRET-")]
}

fn number(answer: &str, index: usize) -> u64 {
    answer.split_whitespace().nth(index).unwrap().parse().unwrap()
}

#[test]
fn no_byte_passes_to_another_user() {
    let [owner, spy] = take_turns([OWNER, SPY]);
    assert_eq!((number(&owner, 0), number(&spy, 0)), (0, 0), "a word was found: {owner}, {spy}");
    assert!(number(&spy, 2) >= 10, "the spy kept too little for this to be a test: {spy}");
}

#[test]
fn memory_is_scrubbed_when_jobs_of_one_user_take_turns() {
    let [owner, spy] = take_turns([OWNER, OWNER]);
    assert_eq!((number(&owner, 0), number(&spy, 0)), (0, 0), "a word was found: {owner}, {spy}");
}

#[test]
fn memory_is_clean_when_it_passes_to_another_job_of_the_same_user() {
    let manager = manager();
    let mut first = client_of(&manager, OWNER, "first");
    first.tell(&format!("lease 0 {UNITS}"));
    first.tell("mark FIRSTS-WORD-");
    first.end();
    // Its memory is kept for the user's next job.
    manager.status_when(|status| status.has_ended("first") && status.gpus[0].spare_bytes > 0);
    let mut second = client_of(&manager, OWNER, "second");
    second.tell(&format!("lease 0 {UNITS}"));
    let found = second.tell("scan FIRSTS-WORD-");
    assert_eq!(number(&found, 0), 0, "memory was handed on as it was: {found}");
}
