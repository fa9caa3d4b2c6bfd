//! I10: beside a client that attacks from many connections, two honest trainings give the results
//! they give alone, and the manager keeps its size.

mod support;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::patience::output;
use support::training::{Training, alone};
use support::{Jobs, Manager, files_but_memory, train_digits};
use tidegate_ffi::units::{Class, GpuUuid, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{
    Drained, FromCommand, FromShim, JobClaim, JobSpec, LeaseRequest, Resume, Ticket, ToManager, When,
};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Header};

const SOCKET: &str = "HOSTILE_SOCKET";
const SEEDS: [&str; 2] = ["1", "2"];
/// What a manager may grow by: its allocator's and its threads' share.
const GROWTH_KIB: u64 = 64 << 10;

/// The attacker: this file, run by itself as a process of its own.
#[test]
#[ignore = "it is run by the other test"]
fn attack() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    for round in 0.. {
        let Ok(connection) = Connection::connect(Path::new(&socket)) else { return };
        // Whatever becomes of it: the next one follows.
        match round % 9 {
            0 => garbage(&socket, round),
            1 => flood(&connection, |_| ToManager::Command(FromCommand::Status { when: When::Now })),
            2 => flood(&connection, |_| ToManager::Command(FromCommand::Register(JobSpec::default()))),
            3 => flood(&connection, |n| words(n + 1, FromShim::Idle)),
            4 => lie(&connection, round),
            5 => flood(&connection, |n| words(n + 1, lies(n)[n as usize % 8].clone())),
            6 => drop(connection.send(&words(1, hello()), &vec![std::io::stdin().as_fd(); 100])),
            7 => flood(&connection, guess),
            _ => flood(&connection, |n| words(n + 1, hello())),
        }
    }
}

fn words(number: u64, message: FromShim) -> ToManager {
    ToManager::Shim(Numbered { number, heard: 0, message })
}

/// A ticket of a session that is another's.
fn guess(n: u64) -> ToManager {
    ToManager::Resume(Resume { ticket: Ticket { session: SessionId(n), secret: n.into() }, heard: n })
}

fn hello() -> FromShim {
    FromShim::Hello(JobClaim::Own(JobSpec { name: "hostile\n".repeat(1000), ..JobSpec::default() }))
}

fn garbage(socket: &std::ffi::OsStr, round: u64) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let header = Header { length: 1000, fds: 0 }.encode();
    let body: Vec<u8> = (0..1000).map(|byte: u64| (byte * (round + 7) / 3) as u8).collect();
    let _ = stream.write_all(&header).and_then(|()| stream.write_all(&body));
}

fn flood(connection: &Connection, message: impl Fn(u64) -> ToManager) {
    (0..2000).map(&message).map_while(|message| connection.send(&message, &[]).ok()).count();
}

/// Says hello as it should be said, then what is not so.
fn lie(connection: &Connection, round: u64) {
    let Ok((_page, file)) = Page::create() else { return };
    let _ = connection.send(&words(1, hello()), &[file.as_fd()]);
    let lies = lies(round);
    let _ = connection.send(&words(2, lies[round as usize / 9 % lies.len()].clone()), &[]);
}

fn lies(n: u64) -> [FromShim; 8] {
    let (step, tenant, gpu) = (Step(n), TenantId(n % 9), GpuUuid([n as u8; 16]));
    let (first, units) = (SlotIndex(n as u32), Units(u32::MAX));
    let drained = Drained {
        step,
        at_boundary: true,
        drain_micros: u64::MAX,
        tenants: vec![tenant],
        outstanding: vec![step; 1000],
        boundaries: n,
    };
    [
        FromShim::Attach { step, gpu },
        FromShim::MakeRoom { step, gpu, units },
        FromShim::Lease(LeaseRequest {
            step,
            tenant,
            class: Class::Temporary,
            first,
            units,
            ahead: units,
            whole: n.is_multiple_of(2),
        }),
        FromShim::Return {
            tenant,
            pieces: (0..10_000).map(PieceId).collect(),
            unused: Units(u32::MAX),
            recalled: true,
        },
        FromShim::Drained(drained),
        FromShim::Done { step },
        FromShim::Failed { step, reason: "x\n".repeat(100_000) },
        FromShim::NotDrained { step, reason: String::new() },
    ]
}

/// Processes that attack until they are dropped.
struct Attackers(Vec<Child>);

impl Attackers {
    fn start(manager: &Manager, count: usize) -> Self {
        let start = |_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "--ignored", "attack"]).env(SOCKET, manager.socket());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        Self((0..count).map(start).collect())
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for attacker in &mut self.0 {
            let _ = attacker.kill();
            let _ = attacker.wait();
        }
    }
}

fn arguments(seed: &str) -> [&str; 8] {
    ["--hidden", "128", "--batch", "120", "--steps", "120", "--seed", seed]
}

/// Resident KiB and open file descriptors of the manager, without pieces: in how many of these the free
/// memory lies is the ledger's affair.
fn size(manager: &Manager) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", manager.pid())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (rss.trim().trim_end_matches(" kB").parse().unwrap(), files_but_memory(manager.pid()))
}

fn trainings_beside_attackers(until: Duration) {
    let solo = SEEDS.map(|seed| alone(&arguments(seed)));
    let manager = Manager::start("1x4MiB", &["--unit", "64KiB", "--slice", "20ms"]);
    let run = || {
        let command = |seed| manager.run(&["--name", seed], &train_digits());
        SEEDS.map(|seed| Training::start(command(seed), &arguments(seed))).map(Training::result)
    };
    assert_eq!(run(), solo);
    manager.status_when(|status| status.jobs.is_empty());
    let before = size(&manager);
    let began = Instant::now();
    let attackers = Attackers::start(&manager, 2);
    loop {
        assert_eq!(run(), solo);
        let (rss, _) = size(&manager);
        assert!(rss < before.0 + GROWTH_KIB, "the manager grows from {} to {rss} KiB", before.0);
        if began.elapsed() >= until {
            break;
        }
    }
    drop(attackers);
    let mut wait = Command::new(support::tidegate());
    wait.args(["status", "--wait-idle", "--socket"]).arg(manager.socket());
    assert!(output(wait).status.success());
    let end = Instant::now() + support::patience::PATIENCE;
    while size(&manager).1 != before.1 {
        assert!(Instant::now() < end, "descriptors: {} before, {} after", before.1, size(&manager).1);
        let _ = manager.status().has_ended("hostile");
    }
    println!("KiB and descriptors: {before:?} before, {:?} after", size(&manager));
}

#[test]
fn a_hostile_client_changes_nothing() {
    trainings_beside_attackers(Duration::ZERO);
}

/// Minutes in `MINUTES` (5).
#[test]
#[ignore = "takes as long as it is told to: tests/long/hostile"]
fn nor_does_it_in_the_long_run() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(5.0);
    trainings_beside_attackers(Duration::from_secs_f64(60.0 * minutes));
}
