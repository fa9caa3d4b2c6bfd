//! Finding the next manager when one is gone.
//!
//! ```text
//! the connection ends ─► watch the socket's directory ─► connect ─► Resume ─► Resumed | Refused
//!                              ▲    nobody answers          │
//!                              └────────────────────────────┘
//! ```
//! Invariant: it ends with a manager that has taken the session up, or with the refusal of one;
//! nobody else is waited for, and nothing is held meanwhile.

use crate::own::Own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
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

impl Session {
    /// Waits for the next manager; `at_tick` is called at first, and about once in a second.
    /// `Err`: a manager does not take the session up; its reason.
    pub fn find_manager(&self, heard: u64, mut at_tick: impl FnMut()) -> Result<Found, String> {
        let mut watch = None;
        let mut ticked = true;
        loop {
            // Before it is tried: what comes after that is seen.
            watch = watch.or_else(|| Watch::of(&self.socket).ok());
            let page = self.page.get().ok_or("the program has closed the file descriptors of Tidegate")?;
            match self.ask(heard, page.as_fd()) {
                Ok((connection, Reunion::Resumed { heard })) => {
                    return Ok(Found { connection: connection.into(), heard });
                }
                Ok((_, Reunion::Refused { reason })) => return Err(reason),
                Err(error) => crate::log::debug!("no manager yet: {error}"),
            }
            if ticked {
                at_tick();
            }
            ticked = !appears_within(watch.as_ref(), TICK);
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
