//! I10: a malformed message, another version, a lying client: an error for that one, and nobody
//! else notices.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use support::patience::{PATIENCE, within};
use support::{Jobs, MIB, Manager};
use tidegate_ffi::units::{Class, GpuUuid, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{
    FromCommand, FromShim, JobClaim, JobSpec, LeaseRequest, Orphan, Resume, Ticket, ToManager, ToShim, When,
};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Header};

/// Sends raw bytes and waits until the manager ends the connection.
fn insult(manager: &Manager, bytes: &[u8]) {
    let mut stream = UnixStream::connect(manager.socket()).unwrap();
    stream.write_all(bytes).unwrap();
    // However it ends, it ends: the manager does not wait for more.
    let ended = within(PATIENCE, move || drop(stream.read_to_end(&mut Vec::new())));
    assert!(ended.is_ok(), "the manager waits for more of {bytes:?}");
}

fn other_version() -> Vec<u8> {
    let mut header = Header { length: 0, fds: 0 }.encode();
    header[6] = 0xee;
    header.to_vec()
}

/// The message of a process that has this number among those that it says.
fn words(number: u64, message: FromShim) -> ToManager {
    ToManager::Shim(Numbered { number, heard: 0, message })
}

/// What a process is told next, if anything.
fn hear(connection: &Connection) -> Option<ToShim> {
    connection.receive::<Numbered<ToShim>>().ok().map(|(letter, _)| letter.message)
}

/// A client that says hello properly and then asks for what is not its own.
fn lie(manager: &Manager) -> ToShim {
    let connection = Connection::connect(&manager.socket()).unwrap();
    let (_page, file) = Page::create().unwrap();
    let hello = FromShim::Hello(JobClaim::Own(JobSpec { name: "liar".into(), ..JobSpec::default() }));
    connection.send(&words(1, hello), &[file.as_fd()]).unwrap();
    assert!(matches!(hear(&connection), Some(ToShim::Welcome { .. })));
    let request = LeaseRequest {
        step: Step(1),
        tenant: TenantId(1),
        class: Class::Persistent,
        first: SlotIndex(0),
        units: Units(u32::MAX),
        ahead: Units(u32::MAX),
        whole: true,
    };
    connection.send(&words(2, FromShim::Lease(request)), &[]).unwrap();
    let refusal = move || loop {
        match hear(&connection) {
            Some(answer @ ToShim::Refused { .. }) => return answer,
            Some(_) => {}
            None => panic!("it was not told why"),
        }
    };
    within(PATIENCE, refusal).expect("the liar is not refused")
}

#[test]
fn bad_input_hurts_only_its_sender() {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB"]);
    let mut honest = manager.probe(&["--name", "honest"]);
    honest.tell("device 0");
    honest.tell(&format!("alloc t {MIB}"));
    honest.tell("fill t 5");
    insult(&manager, &other_version());
    insult(
        &manager,
        &Header { length: 3, fds: 0 }.encode().iter().copied().chain([255; 3]).collect::<Vec<_>>(),
    );
    let mut long = other_version();
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    long[6..8].copy_from_slice(&tidegate_ffi::wire::VERSION.to_le_bytes());
    insult(&manager, &long);
    assert!(matches!(lie(&manager), ToShim::Refused { reason } if reason.contains("may not")));
    honest.tell("check t 5");
    honest.tell(&format!("alloc more {MIB}"));
    assert_eq!(manager.job("honest").figures.slices, 1);
    assert!(manager.status().jobs.iter().any(|job| job.figures.name == "honest"));
    honest.end();
}

fn connect(manager: &Manager) -> Connection {
    Connection::connect(&manager.socket()).unwrap()
}

fn command(question: FromCommand) -> ToManager {
    ToManager::Command(question)
}

/// Says hello with a proper page.
fn say_hello(connection: &Connection, claim: JobClaim) {
    say_hello_as(1, connection, claim);
}

fn say_hello_as(number: u64, connection: &Connection, claim: JobClaim) {
    let (_page, file) = Page::create().unwrap();
    connection.send(&words(number, FromShim::Hello(claim)), &[file.as_fd()]).unwrap();
}

/// Waits until the manager has ended the connection.
#[track_caller]
fn ends(connection: Connection, why: &str) {
    let stream = UnixStream::from(std::os::fd::OwnedFd::from(connection));
    let ended = within(PATIENCE, move || drop((&stream).read_to_end(&mut Vec::new())));
    assert!(ended.is_ok(), "the manager goes on with who {why}");
}

/// A manager with an honest job that works before and after an attack.
fn beside_an_honest_job(attack: impl FnOnce(&Manager)) {
    let manager = Manager::start("1x8MiB", &["--unit", "64KiB"]);
    let mut honest = manager.probe(&["--name", "honest"]);
    honest.tell("device 0");
    honest.tell(&format!("alloc t {MIB}"));
    honest.tell("fill t 5");
    attack(&manager);
    honest.tell("check t 5");
    assert_eq!(manager.job("honest").figures.slices, 1);
    honest.end();
}

#[test]
fn words_at_the_wrong_time_end_the_connection() {
    let own = || JobClaim::Own(JobSpec::default());
    let register = || command(FromCommand::Register(JobSpec { name: "x".into(), ..JobSpec::default() }));
    beside_an_honest_job(|manager| {
        let twice = connect(manager);
        say_hello(&twice, own());
        say_hello_as(2, &twice, own());
        ends(twice, "says hello twice");
        let skipping = connect(manager);
        say_hello_as(2, &skipping, own());
        ends(skipping, "leaves out a message");
        let foreseeing = connect(manager);
        let letter = Numbered { number: 1, heard: 9, message: FromShim::Hello(own()) };
        foreseeing.send(&ToManager::Shim(letter), &[]).unwrap();
        ends(foreseeing, "has heard what was not said");
        let thief = connect(manager);
        let ticket = Ticket { session: SessionId(1), secret: 0 };
        thief.send(&ToManager::Resume(Resume { ticket, heard: 0 }), &[]).unwrap();
        ends(thief, "guesses a ticket");
        let orphan = connect(manager);
        orphan.send(&ToManager::Orphan(Orphan { gpu: GpuUuid([0; 16]), heard: 0 }), &[]).unwrap();
        ends(orphan, "is nobody's mover");
        let both = connect(manager);
        both.send(&register(), &[]).unwrap();
        say_hello(&both, own());
        ends(both, "announces a job and is one");
        let commanding = connect(manager);
        say_hello(&commanding, own());
        commanding.send(&command(FromCommand::Status { when: When::Now }), &[]).unwrap();
        ends(commanding, "is a job and commands");
        let greedy = connect(manager);
        greedy.send(&register(), &[]).unwrap();
        greedy.send(&register(), &[]).unwrap();
        ends(greedy, "announces two jobs");
        let stranger = connect(manager);
        say_hello(&stranger, JobClaim::Token(7));
        ends(stranger, "guesses a token");
        manager.status_when(|status| status.jobs.iter().all(|job| job.figures.name != "x"));
    });
}

#[test]
fn who_brings_wrong_files_loses_the_connection() {
    let plain = tempfile::tempfile().unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    let hello = words(1, FromShim::Hello(JobClaim::Own(JobSpec::default())));
    beside_an_honest_job(|manager| {
        for fds in [vec![], vec![plain.as_fd()], vec![pipe.as_fd()], vec![plain.as_fd(); 200]] {
            let connection = connect(manager);
            connection.send(&hello, &fds).unwrap();
            ends(connection, "brings no page");
        }
    });
}

#[test]
fn who_begins_and_does_not_go_on_loses_the_connection() {
    beside_an_honest_job(|manager| {
        let silent = connect(manager);
        let mut half = UnixStream::connect(manager.socket()).unwrap();
        half.write_all(&Header { length: 100, fds: 0 }.encode()).unwrap();
        let all = std::thread::spawn(move || ends(half.into(), "does not finish a message"));
        ends(silent, "says nothing");
        all.join().unwrap();
    });
}

#[test]
fn who_asks_and_does_not_read_loses_the_connection() {
    beside_an_honest_job(|manager| {
        let deaf = connect(manager);
        let question = command(FromCommand::Status { when: When::Now });
        let asks = move || while deaf.send(&question, &[]).is_ok() {};
        assert!(within(PATIENCE, asks).is_ok(), "the manager keeps answers for ever");
    });
}

#[test]
fn a_process_has_only_so_many_connections() {
    beside_an_honest_job(|manager| {
        let mut crowd: Vec<Connection> = (0..32).map(|_| connect(manager)).collect();
        for connection in &crowd {
            say_hello(connection, JobClaim::Own(JobSpec::default()));
            assert!(matches!(hear(connection), Some(ToShim::Welcome { .. })));
        }
        ends(connect(manager), "has too many connections");
        crowd.clear();
    });
}

#[test]
fn nobody_but_the_user_may_connect() {
    use std::os::unix::fs::PermissionsExt;
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB"]);
    let mode = std::fs::metadata(manager.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let _ = manager.status().has_ended("nobody");
}

#[test]
fn a_group_that_is_named_may_connect_too() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let group = another_group();
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB", "--group", &group.to_string()]);
    let socket = std::fs::metadata(manager.socket()).unwrap();
    assert_eq!((socket.permissions().mode() & 0o777, socket.gid()), (0o660, group));
}

/// A group that a file of ours does not get by itself, if we may give it one.
fn another_group() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    let own = unsafe { libc::getegid() };
    // SAFETY: as above.
    if unsafe { libc::geteuid() } == 0 {
        return own + 1;
    }
    let mut groups = [0; 256];
    // SAFETY: the array has room for as many as it is told.
    let count = unsafe { libc::getgroups(groups.len() as i32, groups.as_mut_ptr()) };
    let all = &groups[..usize::try_from(count).unwrap_or(0)];
    all.iter().copied().find(|group| *group != own).unwrap_or(own)
}
