//! The way to the manager, whichever it is: messages, numbered, in the order of their numbers.
//!
//! ```text
//! say ──► line (kept until heard) ──► the connection, if there is one
//!           └──── said again over the next one ────► resume
//! ```
//! Invariant: a message that is said is heard once by the manager that the process has or by the
//! one that takes over from it, with its file descriptors, after all that was said before it; or
//! the session is over, and nothing is heard any more.

use crate::link::Gone;
use crate::log::debug;
use crate::reunion::Connection;
use crate::sync::{Mutex, MutexGuard};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tidegate_ffi::wire::line::{Line, LineError, Numbered};
use tidegate_ffi::wire::message::{FromShim, ToManager, ToShim};
use tidegate_ffi::wire::{CodecError, SendError};

/// A message with the file descriptors that go with it.
#[derive(Clone)]
pub struct Letter {
    message: FromShim,
    fds: Arc<[OwnedFd]>,
}

/// See the module.
pub struct Outgoing {
    /// Held while one message is sent: so frames do not mix, and go in the order of their numbers.
    turn: Mutex<Way>,
    /// The innermost lock: held for no wait.
    line: Mutex<Line<Letter>>,
}

enum Way {
    /// A manager is at the other end.
    Open(Arc<Connection>),
    /// The manager is gone. The next one hears what is said meanwhile.
    Parted,
    /// The session is over.
    Over(Gone),
}

/// The leave to say the next message.
pub struct Turn<'a> {
    way: MutexGuard<'a, Way>,
    line: &'a Mutex<Line<Letter>>,
}

impl Letter {
    /// A message with file descriptors.
    pub fn new(message: FromShim, fds: Vec<OwnedFd>) -> Self {
        Self { message, fds: fds.into() }
    }
}

impl Outgoing {
    /// Goes on with a conversation that was begun over a connection.
    pub fn new(connection: Arc<Connection>, line: Line<Letter>) -> Self {
        Self { turn: Mutex::new(Way::Open(connection)), line: Mutex::new(line) }
    }

    /// Says a message.
    pub fn say(&self, letter: Letter) -> Result<(), Gone> {
        self.take_turn().say(letter)
    }

    /// Waits until nobody else is saying anything.
    pub fn take_turn(&self) -> Turn<'_> {
        Turn { way: self.turn.lock(), line: &self.line }
    }

    /// Takes note of a message of the manager. `None`: it was heard before.
    pub fn hear(&self, letter: Numbered<ToShim>) -> Result<Option<ToShim>, LineError> {
        let (heard, owes) = {
            let mut line = self.line.lock();
            (line.hear(letter)?, line.owes_a_word())
        };
        // Who has the turn tells the manager too; and whoever reads must not wait for them.
        if owes && let Some(way) = self.turn.try_lock() {
            // What ends the session is noticed where it is read.
            let _ = Turn { way, line: &self.line }.say(Letter::new(FromShim::Heard, Vec::new()));
        }
        Ok(heard)
    }

    /// The number of the last message of the manager.
    pub fn heard(&self) -> u64 {
        self.line.lock().heard()
    }

    /// Whether there is a manager to hear at once what is said.
    pub fn is_open(&self) -> bool {
        matches!(*self.turn.lock(), Way::Open(_))
    }

    /// The connection has ended.
    pub fn part(&self) {
        self.take_turn().part();
    }

    /// Goes on over another connection, with what the manager has not heard.
    pub fn resume(&self, connection: Arc<Connection>, their_heard: u64) -> Result<(), ResumeError> {
        let mut turn = self.take_turn();
        let again = turn.line.lock().resume(their_heard)?;
        *turn.way = Way::Open(connection);
        again.into_iter().try_for_each(|letter| turn.send(letter)).map_err(ResumeError::from)
    }

    /// The session is over.
    pub fn end(&self, gone: Gone) {
        let mut turn = self.take_turn();
        turn.part();
        *turn.way = Way::Over(gone);
        // Nobody will hear it: its file descriptors are closed.
        *turn.line.lock() = Line::new();
    }
}

/// Why a conversation cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The two sides contradict each other.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Something was said that cannot travel.
    #[error(transparent)]
    Message(#[from] CodecError),
}

impl Turn<'_> {
    /// Says a message.
    pub fn say(&mut self, letter: Letter) -> Result<(), Gone> {
        if let Way::Over(gone) = &*self.way {
            return Err(gone.clone());
        }
        debug!("to the manager: {:?}", letter.message);
        let letter = self.line.lock().say(letter).map_err(|error| Gone::because(&error.to_string()))?;
        if let Err(error) = self.send(letter) {
            // No manager can be told. The reader finds that out when it resumes.
            debug!("{error}");
            self.part();
        }
        Ok(())
    }

    /// Sends a message, if there is a connection; where that fails, there is none any more.
    fn send(&mut self, letter: Numbered<Letter>) -> Result<(), CodecError> {
        let Way::Open(connection) = &*self.way else { return Ok(()) };
        let fds = letter.message.fds.clone();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match connection.send(&ToManager::Shim(letter.map(|letter| letter.message)), &fds) {
            Ok(()) => Ok(()),
            Err(SendError::Codec(error)) => Err(error),
            Err(error) => {
                debug!("{error}");
                self.part();
                Ok(())
            }
        }
    }

    /// The connection has ended, or ends now: its reader notices.
    fn part(&mut self) {
        if let Way::Open(connection) = &*self.way {
            connection.shut_down();
            *self.way = Way::Parted;
        }
    }
}
