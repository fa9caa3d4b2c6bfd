//! Finding the next manager when one is gone.
//!
//! ```text
//! the connection ends ─► watch the socket's directory ─► connect ─► Resume ─► Resumed | Refused
//!                              ▲    nobody answers          │
//!                              └────────────────────────────┘
//! ```
//! Invariant: it ends with a manager that has taken the session up, or with the refusal of one;
//! nobody else is waited for, and nothing is held meanwhile.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_ffi::wire::message::{Resume, Reunion, Ticket, ToManager};
use tidegate_ffi::wire::{ReceiveError, SendError};

pub use tidegate_ffi::wire::{Connection, Watch};

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
    pub page: OwnedFd,
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
            match self.ask(heard) {
                Ok((connection, Reunion::Resumed { heard })) => return Ok(Found { connection, heard }),
                Ok((_, Reunion::Refused { reason })) => return Err(reason),
                Err(error) => crate::log::debug!("no manager yet: {error}"),
            }
            if ticked {
                at_tick();
            }
            ticked = !appears_within(watch.as_ref(), TICK);
        }
    }

    fn ask(&self, heard: u64) -> Result<(Connection, Reunion), NotYet> {
        let connection = Connection::connect(&self.socket)?;
        let resume = ToManager::Resume(Resume { ticket: self.ticket, heard });
        connection.send(&resume, &[self.page.as_fd()])?;
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
