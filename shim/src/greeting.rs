//! Finding a manager for the process, and saying hello to it.
//!
//! ```text
//! connect ─► prepare: control page, threads ─► Hello ─► Welcome | Refused
//!    ▲                                           │ the connection ends
//!    └─── a manager appears, or a while ─────────┘
//! ```
//! Invariant: who has said hello has all that it takes to answer a manager; and who cannot have
//! that, though a manager is there, does not run beside it.

use crate::link::{Gone, Order};
use crate::orders;
use crate::outgoing::Letter;
use crate::process::Process;
use crate::reunion::{self, HANDSHAKE, TICK, Watch, appears_within, is_lack};
use crate::settings::Settings;
use crate::threads;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tidegate_ffi::wire::line::{Line, Numbered};
use tidegate_ffi::wire::message::{FromShim, JobClaim, Ticket, ToManager, ToShim};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Mapped, ReceiveError, SendError, UntrustedManager, socket_candidates};

/// Why the process runs without Tidegate.
#[derive(Debug, thiserror::Error)]
pub enum NoManager {
    #[error("no manager answers at {0} (start one with `tidegate manager`, or use `tidegate run`)")]
    Nobody(String),
    #[error("{0} is not used: {1}")]
    Untrusted(String, UntrustedManager),
    #[error("the manager refused this process: {0}")]
    Refused(String),
    #[error("the manager at {0} did not answer: {1}")]
    Silent(String, String),
    #[error("the manager at {0} has ended, and no other has taken its place")]
    Dead(String),
    #[error(
        "the manager at {0} closes every new connection: it is at its connection limit (see its log; ulimit -n)"
    )]
    AtConnectionLimit(String),
    #[error("this process could not be prepared: {0}")]
    Unprepared(String),
}

impl NoManager {
    /// The system gives the process less than it needs to speak to a manager.
    fn unprepared(error: impl fmt::Display) -> Self {
        Self::Unprepared(error.to_string())
    }
}

/// Finds a manager and says hello to it. A program that was announced to one, or whose hello one may
/// have heard, does not go without because that manager has died just now: it greets the next one.
pub fn meet(settings: &Settings) -> Result<Met, NoManager> {
    let end = Instant::now() + HANDSHAKE;
    let mut expected = matches!(settings.claim, JobClaim::Token(_));
    let mut kit = None;
    loop {
        // Before it is tried: what comes after that is seen.
        let watch = socket_candidates().first().and_then(|path| Watch::of(path).ok());
        let met = try_to_meet(settings, &mut kit);
        match &met {
            Err(NoManager::Dead(_)) => expected = true,
            Err(NoManager::Nobody(_)) if expected => {}
            _ => return met,
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // A manager accepts connections and closes them.
            return met.map_err(|error| match error {
                NoManager::Dead(path) => NoManager::AtConnectionLimit(path),
                other => other,
            });
        }
        appears_within(watch.as_ref(), left.min(TICK));
    }
}

/// A manager that has welcomed the process.
pub struct Met {
    pub connection: Connection,
    pub path: PathBuf,
    pub kit: Kit,
    pub welcome: Welcome,
}

/// What a process needs before it says hello: a manager waits for the answers of who has.
pub struct Kit {
    pub page: Mapped<Page>,
    pub page_file: OwnedFd,
    pub crew: Crew,
}

impl Kit {
    fn prepare() -> Result<Self, NoManager> {
        let (page, page_file) = Page::create().map_err(NoManager::unprepared)?;
        let crew = Crew::start().map_err(NoManager::unprepared)?;
        Ok(Self { page, page_file, crew })
    }
}

/// The process's own threads, which wait for what they serve; without that, they end.
pub struct Crew {
    gate: Sender<&'static Process>,
    link: Sender<(&'static Process, Arc<reunion::Connection>)>,
}

impl Crew {
    fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel::<Order>();
        let (gate, begun) = channel::<&'static Process>();
        threads::spawn("tidegate-gate", move || {
            if let Ok(process) = begun.recv() {
                orders::carry_out(process, &receiver);
            }
        })?;
        let (link, begun) = channel::<(&'static Process, _)>();
        threads::spawn("tidegate-link", move || {
            let Ok((process, connection)) = begun.recv() else { return };
            if catch_unwind(AssertUnwindSafe(|| process.link.read(connection, &sender))).is_err() {
                // A reader that failed is as good as a manager that has refused the process.
                process.link.hang_up(&Gone::because("it cannot be heard any more"));
            }
        })?;
        Ok(Self { gate, link })
    }

    /// Lets them begin.
    pub fn serve(self, process: &'static Process, connection: Arc<reunion::Connection>) {
        // Both wait for it.
        let _ = self.gate.send(process);
        let _ = self.link.send((process, connection));
    }
}

/// Connects, prepares the process the first time, and says hello.
fn try_to_meet(settings: &Settings, spare: &mut Option<Kit>) -> Result<Met, NoManager> {
    let (connection, path) = connect()?;
    let kit = spare.take().map_or_else(Kit::prepare, Ok)?;
    match greet(&connection, settings, kit.page_file.as_fd()) {
        Ok(welcome) => Ok(Met { connection, path, kit, welcome }),
        Err(error) => {
            *spare = Some(kit);
            Err(error.at(path.display().to_string()))
        }
    }
}

fn connect() -> Result<(Connection, PathBuf), NoManager> {
    let candidates = socket_candidates();
    let mut untrusted = None;
    for path in &candidates {
        match Connection::connect(path) {
            Ok(connection) => return Ok((connection, path.clone())),
            Err(error) => match UntrustedManager::of(&error) {
                Some(reason) => {
                    untrusted.get_or_insert(NoManager::Untrusted(path.display().to_string(), reason));
                }
                // Whether a manager is there cannot be known.
                None if is_lack(&error) => return Err(NoManager::unprepared(error)),
                None => {}
            },
        }
    }
    let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    Err(untrusted.unwrap_or_else(|| NoManager::Nobody(tried.join(" or "))))
}

/// How the first exchange failed.
enum Unwelcome {
    Refused(String),
    Silent(String),
    /// The connection has ended.
    Dead,
}

impl Unwelcome {
    fn at(self, path: String) -> NoManager {
        match self {
            Self::Refused(reason) => NoManager::Refused(reason),
            Self::Silent(reason) => NoManager::Silent(path, reason),
            Self::Dead => NoManager::Dead(path),
        }
    }
}

/// What the manager said to the hello.
pub struct Welcome {
    /// Whether the gate starts closed.
    pub closed: bool,
    pub ticket: Ticket,
    /// How long the process looks for another manager.
    pub answer_limit: Duration,
    pub line: Line<Letter>,
}

/// Says hello.
fn greet(connection: &Connection, settings: &Settings, page: BorrowedFd<'_>) -> Result<Welcome, Unwelcome> {
    let silent = |error: &dyn std::fmt::Display| Unwelcome::Silent(error.to_string());
    set_socket_timeout(connection, Timeout::Recv, Some(HANDSHAKE)).map_err(|error| silent(&error))?;
    let mut line = Line::new();
    let hello = FromShim::Hello(settings.claim.clone());
    let said = line.say(Letter::new(hello.clone(), Vec::new())).map_err(|error| silent(&error))?;
    connection.send(&ToManager::Shim(said.map(|_| hello)), &[page]).map_err(|error| match error {
        SendError::Socket(_) => Unwelcome::Dead,
        other => silent(&other),
    })?;
    let (answer, _) = connection.receive::<Numbered<ToShim>>().map_err(|error| match error {
        // The time is over.
        ReceiveError::Socket(Errno::AGAIN) => silent(&error),
        ReceiveError::Closed | ReceiveError::Truncated | ReceiveError::Socket(_) => Unwelcome::Dead,
        other => silent(&other),
    })?;
    set_socket_timeout(connection, Timeout::Recv, None).map_err(|error| silent(&error))?;
    match line.hear(answer).map_err(|error| silent(&error))? {
        Some(ToShim::Welcome { closed, ticket, answer_limit_ms, .. }) => {
            Ok(Welcome { closed, ticket, answer_limit: Duration::from_millis(answer_limit_ms), line })
        }
        Some(ToShim::Refused { reason }) => Err(Unwelcome::Refused(reason)),
        other => Err(Unwelcome::Silent(format!("it said {other:?} where a welcome was expected"))),
    }
}
