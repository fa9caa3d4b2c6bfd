//! A manager that says anything: garbage, halves of messages, messages that fit nothing, files of odd kinds. It is believed, for it is of the
//! same user; so it may lie, but not crash or hang: a command refuses it in words, and a program goes on without sharing, or ends.

use crate::random::Random;
use crate::support::patience::finish_within;
use crate::support::{command, probe};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{Reunion, ToCommand, ToShim};
use tidegate_ffi::wire::{Connection, Header};
use tidegate_manager::artifacts;
use tidegate_manager::software_gpu::{NODE_VARIABLE, SoftwareNode};

/// After so many connections it is gone, and its socket with it.
const CONNECTIONS: usize = 3;
/// What it does on each at most.
const WORDS: u64 = 12;
/// A process that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Not `manager stop`, which is told that the manager ends, and waits for that: the liar lives on.
const COMMANDS: [&[&str]; 4] =
    [&["status"], &["status", "--json"], &["run", "--", "/bin/true"], &["evict", "1"]];

/// Lies from one connection after the other, and ends once there were enough.
fn lie(listener: UnixListener, socket: &Path, seed: u64) -> JoinHandle<()> {
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        let mut random = Random::new(seed);
        for stream in listener.incoming().take(CONNECTIONS) {
            talk(&stream.unwrap(), &mut random);
        }
        let _ = std::fs::remove_file(socket);
    })
}

fn talk(stream: &UnixStream, random: &mut Random) {
    let connection = Connection::from(stream.try_clone().unwrap());
    let mut number = 0;
    for _ in 0..random.between(0, WORDS) {
        let said = match random.index(8) {
            0 | 1 => listen(stream),
            2 => {
                let garbage: Vec<u8> =
                    (0..random.between(1, 300)).map(|_| random.between(0, 255) as u8).collect();
                let length = random.between(0, 1000) as u32;
                let header = Header { length, fds: random.between(0, 3) as u16 }.encode();
                let mut to = stream;
                to.write_all(&header).and_then(|()| to.write_all(&garbage)).is_ok()
            }
            3 => say(&connection, &message::<ToCommand>(random), random),
            4 => say(&connection, &message::<Reunion>(random), random),
            5 => say(&connection, &message::<Numbered<ToShim>>(random), random),
            _ => {
                number += 1;
                let (heard, message) = (random.between(0, number), message::<ToShim>(random));
                say(&connection, &Numbered { number, heard, message }, random)
            }
        };
        if !said {
            return;
        }
    }
}

/// What the other side says, if it says something soon; `false`: it is gone.
fn listen(stream: &UnixStream) -> bool {
    let mut some = [0; 4096];
    let mut from = stream;
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    from.read(&mut some).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |read| read > 0)
}

/// Any message: bytes that happen to be one.
fn message<M: DeserializeOwned>(random: &mut Random) -> M {
    loop {
        let bytes: Vec<u8> =
            (0..64).map(|at| random.between(0, if at == 0 { 31 } else { 255 }) as u8).collect();
        if let Ok(message) = postcard::from_bytes(&bytes) {
            return message;
        }
    }
}

/// With files, at times: ones that are no memory, or cannot be read, or have no bytes. Whether it could be sent.
fn say(connection: &Connection, message: &impl Serialize, random: &mut Random) -> bool {
    let count = if random.chance(30) { random.index(4) } else { 0 };
    let files: Vec<OwnedFd> = (0..count).map(|_| file(random)).collect();
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    connection.send(message, &files).is_ok()
}

fn file(random: &mut Random) -> OwnedFd {
    match random.index(4) {
        0 => File::open("/dev/null").unwrap().into(),
        1 => File::open("/").unwrap().into(),
        2 => UnixStream::pair().unwrap().0.into(),
        _ => memfd_create("any", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap(),
    }
}

/// Lies to a command, or to a program that has the library preloaded, as it is with a software GPU.
fn deceive(seed: u64, mut deceived: Command) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let liar = lie(UnixListener::bind(&socket).unwrap(), &socket, seed);
    deceived.env("TIDEGATE_SOCKET", &socket).stdin(Stdio::piped());
    deceived.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = deceived.spawn().unwrap();
    let words = b"device 0\nalloc t 100000\nfill t 1\ncheck t 1\n";
    // A command reads none of them.
    let _ = process.stdin.take().unwrap().write_all(words);
    let pid = process.id();
    let ended = catch_unwind(AssertUnwindSafe(|| finish_within(PATIENCE, process))).unwrap_or_else(|fault| {
        println!("seed {seed}: {deceived:?}, process {pid}, did not end");
        resume_unwind(fault)
    });
    // It listens until it has had its connections, which may have been fewer.
    while !liar.is_finished() {
        drop(UnixStream::connect(&socket));
    }
    liar.join().unwrap();
    assert!(ended.status.signal().is_none(), "seed {seed}: {ended:?}");
}

fn lie_to_commands(seed: u64) {
    let words = COMMANDS[seed as usize % COMMANDS.len()];
    let mut deceived = command();
    deceived.args(words);
    deceive(seed, deceived);
}

fn lie_to_programs(seed: u64, node: &SoftwareNode) {
    let mut program = Command::new(probe());
    program.env("LD_PRELOAD", artifacts::shim().unwrap());
    program.env(NODE_VARIABLE, node.path()).env("LD_LIBRARY_PATH", node.path().join("lib"));
    deceive(seed, program);
}

fn node() -> SoftwareNode {
    SoftwareNode::create(&"1x8MiB".parse().unwrap(), 64 << 10).unwrap()
}

#[test]
fn a_manager_that_says_anything_hangs_and_crashes_no_command() {
    (0..60).for_each(lie_to_commands);
}

#[test]
fn a_manager_that_says_anything_hangs_and_crashes_no_program() {
    let node = node();
    (0..20).for_each(|seed| lie_to_programs(seed, &node));
}

/// Minutes for each in `MINUTES` (10).
#[test]
#[ignore = "takes as long as it is told to: tests/long/fuzz"]
fn new_lies_hang_and_crash_nothing() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let node = node();
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_micros() as u64);
    let lies: [(&str, &dyn Fn(u64)); 2] =
        [("command", &lie_to_commands), ("program", &|seed| lie_to_programs(seed, &node))];
    for (name, lie) in lies {
        let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
        let count = (first..).take_while(|_| Instant::now() < end).inspect(|seed| lie(*seed)).count();
        println!("{name}: {count} managers, no finding");
    }
}
