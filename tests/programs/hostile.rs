//! A client that attacks the manager at `TIDEGATE_SOCKET` until it is killed, or the manager is gone, from one connection after the other: garbage, floods,
//! lies, guesses at sessions, large files, messages that it never acknowledges; with the word `keep` also memory that it keeps though
//! it was expelled.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{Class, GpuUuid, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{
    Drained, FromCommand, FromShim, JobClaim, JobSpec, LeaseRequest, Resume, Ticket, ToManager, ToShim, When,
};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Header};

/// It ends when no manager has answered for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// What it keeps of its last so many sessions.
const KEPT: usize = 16;

fn main() {
    let (Some(socket), Some(gpu)) = (std::env::var_os("TIDEGATE_SOCKET"), std::env::args().nth(1)) else {
        panic!("TIDEGATE_SOCKET=SOCKET hostile GPU [keep]");
    };
    let gpu: GpuUuid = gpu.parse().expect("a GPU's UUID");
    let keeps = std::env::args().any(|word| word == "keep");
    let mut kept: Vec<Vec<OwnedFd>> = Vec::new();
    let mut connected = Instant::now();
    for round in 0.. {
        // A manager that has no room for it, or is being succeeded, has some later; one that has ended never.
        let Ok(connection) = Connection::connect(Path::new(&socket)) else {
            if connected.elapsed() > PATIENCE {
                return;
            }
            continue;
        };
        connected = Instant::now();
        // Whatever becomes of it: the next one follows.
        match round % 12 {
            0 => garbage(&socket, round),
            1 => flood(&connection, |_| ToManager::Command(FromCommand::Status { when: When::Now })),
            2 => flood(&connection, |_| ToManager::Command(FromCommand::Register(JobSpec::default()))),
            3 => flood(&connection, |n| words(n + 1, FromShim::Idle)),
            4 => lie(&connection, round),
            5 => flood(&connection, |n| words(n + 1, lies(n)[n as usize % 8].clone())),
            6 => drop(connection.send(&words(1, hello()), &vec![std::io::stdin().as_fd(); 100])),
            7 => flood(&connection, guess),
            8 if !keeps => {}
            8 => {
                kept.extend(grab(&connection, gpu));
                kept.drain(..kept.len().saturating_sub(KEPT));
            }
            9 => never_acknowledge(&connection, gpu),
            10 => large_file(&connection),
            _ => flood(&connection, |n| words(n + 1, hello())),
        }
    }
}

/// Leases memory, breaks the protocol, and keeps the descriptors.
fn grab(connection: &Connection, gpu: GpuUuid) -> Option<Vec<OwnedFd>> {
    let (_page, file) = Page::create().ok()?;
    connection.send(&words(1, hello()), &[file.as_fd()]).ok()?;
    connection.send(&words(2, FromShim::Attach { step: Step(1), gpu }), &[]).ok()?;
    let (first, units, ahead) = (SlotIndex(0), Units(16), Units(0));
    loop {
        match connection.receive::<Numbered<ToShim>>().ok()? {
            (Numbered { message: ToShim::Attached { tenant, .. }, .. }, _) => {
                let (step, class) = (Step(2), Class::Temporary);
                let request = LeaseRequest { step, tenant, class, first, units, ahead, whole: false };
                connection.send(&words(3, FromShim::Lease(request)), &[]).ok()?;
            }
            (Numbered { message: ToShim::Leased { .. }, .. }, files) => {
                let tenant = TenantId(u64::MAX);
                let lie = FromShim::Return { tenant, pieces: Vec::new(), unused: Units(0), recalled: true };
                connection.send(&words(4, lie), &[]).ok()?;
                return Some(files);
            }
            (Numbered { message: ToShim::Refused { .. } | ToShim::LeaseRefused { .. }, .. }, _) => {
                return None;
            }
            _ => {}
        }
    }
}

/// Asks for what is refused, in a message each, and reads none.
fn never_acknowledge(connection: &Connection, gpu: GpuUuid) {
    let Ok((_page, file)) = Page::create() else { return };
    let _ = connection.send(&words(1, hello()), &[file.as_fd()]);
    let _ = connection.send(&words(2, FromShim::Attach { step: Step(1), gpu }), &[]);
    flood(connection, |n| {
        let (tenant, class, first, units) = (TenantId(n), Class::Temporary, SlotIndex(0), Units(1));
        words(n + 3, FromShim::Borrow { step: Step(n), tenant, class, first, units })
    });
}

/// A control page of a gigabyte.
fn large_file(connection: &Connection) {
    let Ok(file) = memfd_create("large", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) else { return };
    let sealed = ftruncate(&file, 1 << 30).and_then(|()| fcntl_add_seals(&file, SealFlags::all()));
    if sealed.is_ok() {
        let _ = connection.send(&words(1, hello()), &[file.as_fd()]);
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
