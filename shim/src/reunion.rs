//! Finding the next manager when one is gone.
//!
//! ```text
//! the connection ends ─► watch the socket's directory ─► connect ─► Resume ─► Resumed | Refused
//!                              ▲    nobody answers          │
//!                              └────────────────────────────┘
//!                                the time is over ─► the session is over
//! ```
//! Invariant: it ends with a manager that has taken the session up, with the refusal of one, or when none has
//! been reached for as long as the manager before said (`Search`). Nothing is held meanwhile.

use crate::log::debug;
use crate::own::Own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{Resume, Reunion, Ticket, ToManager, ToShim};
use tidegate_ffi::wire::{self, Parcel, ReceiveError, SendError};

pub use tidegate_ffi::wire::Watch;

/// How long a manager may take to answer the first message.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// So often a manager is looked for without any sign of one: for a directory that cannot be
/// watched, and for a manager that had no place for us, and has one now.
pub const TICK: Duration = Duration::from_secs(1);

/// What it takes to go on with the session elsewhere.
pub struct Session {
    /// Where managers are found.
    pub socket: PathBuf,
    /// By what they know the process.
    pub ticket: Ticket,
    /// Its control page.
    pub page: Own<OwnedFd>,
    /// How long the next manager is looked for.
    pub answer_limit: Duration,
}

/// A connection to a manager, until the program closes it.
pub struct Connection(Own<wire::Connection>);

impl From<wire::Connection> for Connection {
    fn from(connection: wire::Connection) -> Self {
        Self(Own::new(connection))
    }
}

impl Connection {
    /// Sends a message of a shim with its file descriptors.
    pub fn send(&self, message: &ToManager, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.0.get().ok_or(SendError::Socket(Errno::BADF))?.send(message, fds)
    }

    /// Waits for a manager's message. Looks once in a second whether the connection is still there: whoever
    /// waits at a socket does not notice that the program has closed its descriptor.
    pub fn receive_parcel(&self) -> Result<Parcel<Numbered<ToShim>>, ReceiveError> {
        loop {
            let connection = self.0.get().ok_or(ReceiveError::Socket(Errno::BADF))?;
            let tick = Timespec { tv_sec: TICK.as_secs() as i64, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&tick));
            if ready != Ok(0) && self.0.get().is_some() {
                return connection.receive_parcel();
            }
        }
    }

    /// Ends it in both directions.
    pub fn shut_down(&self) {
        if let Some(connection) = self.0.get() {
            connection.shut_down();
        }
    }
}

/// A manager that has taken the session up.
pub struct Found {
    /// The way to it.
    pub connection: Connection,
    /// The number of the last message that it heard.
    pub heard: u64,
}

/// Why nobody has taken it up yet.
#[derive(Debug, thiserror::Error)]
enum NotYet {
    #[error(transparent)]
    Nobody(#[from] std::io::Error),
    #[error(transparent)]
    Deaf(#[from] SendError),
    #[error(transparent)]
    Silent(#[from] ReceiveError),
}

impl NotYet {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Nobody(error) if is_lack(error) => Outcome::Unknown,
            Self::Nobody(_) => Outcome::Absent,
            Self::Deaf(_) | Self::Silent(_) => Outcome::Silent,
        }
    }
}

/// Whether this process has too little of something to reach a manager, be it for a moment.
pub fn is_lack(error: &std::io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::AGAIN];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

impl Session {
    /// Waits for the next manager; `at_tick` is called at first, and about once in a second.
    /// `Err`: why the session is over: a manager does not take it up, or none came in time.
    pub fn find_manager(&self, heard: u64, mut at_tick: impl FnMut()) -> Result<Found, String> {
        let mut watch = None;
        let mut ticked = true;
        let mut search = Search::of(self.answer_limit);
        loop {
            // Before it is tried: what comes after that is seen.
            watch = watch.or_else(|| Watch::of(&self.socket).ok());
            let page = self.page.get().ok_or("the program has closed the file descriptors of Tidegate")?;
            let began = Instant::now();
            let outcome = match self.ask(heard, page.as_fd()) {
                Ok((connection, Reunion::Resumed { heard })) => {
                    return Ok(Found { connection: connection.into(), heard });
                }
                Ok((_, Reunion::Refused { reason })) => return Err(reason),
                Err(error) => {
                    debug!("no manager yet: {error}");
                    error.outcome()
                }
            };
            // After an attempt: a process that was stopped for long tries once more before it gives up.
            let left = search.left(outcome).ok_or_else(|| search.failure(outcome))?;
            if ticked {
                at_tick();
            }
            ticked = !appears_within(watch.as_ref(), TICK.min(left));
            search.spend(outcome, began.elapsed());
        }
    }

    fn ask(&self, heard: u64, page: BorrowedFd<'_>) -> Result<(wire::Connection, Reunion), NotYet> {
        let connection = wire::Connection::connect(&self.socket)?;
        let resume = ToManager::Resume(Resume { ticket: self.ticket, heard });
        connection.send(&resume, &[page])?;
        set_socket_timeout(&connection, Timeout::Recv, Some(HANDSHAKE)).map_err(std::io::Error::from)?;
        let (reunion, _) = connection.receive()?;
        set_socket_timeout(&connection, Timeout::Recv, None).map_err(std::io::Error::from)?;
        Ok((connection, reunion))
    }
}

/// What an attempt to reach a manager has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No manager listens.
    Absent,
    /// One listens, and has not taken the session up: it may be waiting for its movers, or have no place for this
    /// process yet.
    Silent,
    /// This process has too little of something to find out.
    Unknown,
}

/// How long managers have been looked for in vain.
///
/// Only time counts in which this process has looked: of each attempt, and the pause after it, a second at most, or
/// what a manager may take to answer. So a process that was stopped for an hour, or found no processor, has not used
/// up its time when it goes on.
pub struct Search {
    limit: Duration,
    absent: Duration,
    silent: Duration,
}

impl Search {
    /// Nothing was tried yet.
    pub fn of(limit: Duration) -> Self {
        Self { limit, absent: Duration::ZERO, silent: Duration::ZERO }
    }

    /// An attempt took so long, with the pause after it.
    pub fn spend(&mut self, outcome: Outcome, took: Duration) {
        match outcome {
            Outcome::Absent => self.absent = self.absent.saturating_add(took.min(TICK)),
            Outcome::Silent => self.silent = self.silent.saturating_add(took.min(HANDSHAKE + TICK)),
            Outcome::Unknown => {}
        }
    }

    /// How much of the time is left for what was seen last; `None`: nothing.
    ///
    /// A manager that takes over may wait for its movers as long as the limit before it answers: one that listens gets
    /// that time twice, and that of one answer.
    pub fn left(&self, outcome: Outcome) -> Option<Duration> {
        let left = match outcome {
            Outcome::Absent => self.limit.saturating_sub(self.absent),
            Outcome::Silent => (self.limit.saturating_mul(2) + HANDSHAKE).saturating_sub(self.silent),
            Outcome::Unknown => return Some(TICK),
        };
        Some(left).filter(|left| !left.is_zero())
    }

    /// Why the session is over.
    fn failure(&self, outcome: Outcome) -> String {
        match outcome {
            Outcome::Silent => format!("the next one has not taken this process up in {:?}", self.silent),
            _ => format!("no other has taken its place within {:?} (--answer-limit)", self.limit),
        }
    }
}

/// Waits until a manager appears, no longer than `patience`; whether one did. What cannot be watched
/// appears unseen.
pub fn appears_within(watch: Option<&Watch>, patience: Duration) -> bool {
    match watch {
        Some(watch) => watch.sees_within(patience),
        None => {
            std::thread::sleep(patience);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn managers_are_looked_for_as_long_as_the_limit_and_no_longer() {
        let mut search = Search::of(LIMIT);
        for _ in 0..2 {
            search.spend(Outcome::Absent, TICK);
        }
        assert_eq!(search.left(Outcome::Absent), Some(TICK));
        search.spend(Outcome::Absent, TICK);
        assert_eq!(search.left(Outcome::Absent), None);
        assert!(search.failure(Outcome::Absent).contains("3s"));
    }

    #[test]
    fn time_in_which_a_process_was_stopped_does_not_count() {
        let mut search = Search::of(LIMIT);
        search.spend(Outcome::Absent, HOUR);
        assert_eq!(search.left(Outcome::Absent), Some(LIMIT - TICK));
        search.spend(Outcome::Unknown, HOUR);
        assert_eq!(search.left(Outcome::Absent), Some(LIMIT - TICK));
    }

    #[test]
    fn a_manager_that_waits_for_its_movers_has_time_for_that_and_not_for_ever() {
        let mut search = Search::of(LIMIT);
        search.spend(Outcome::Silent, HANDSHAKE);
        assert_eq!(search.left(Outcome::Silent), Some(LIMIT * 2));
        assert_eq!(search.left(Outcome::Absent), Some(LIMIT), "that it was there is no absence");
        search.spend(Outcome::Silent, HANDSHAKE);
        assert_eq!(search.left(Outcome::Silent), None);
    }
}
