//! What the mover says to its manager and hears from it, over whichever connection.
//!
//! Invariant: what was said is kept, with its descriptors, until the manager has said that it was
//! heard: a manager that takes over is told it again.

#![forbid(unsafe_code)]

use super::orders::Answer;
use crate::death;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::wire::line::{Line, LineError, Numbered};
use tidegate_ffi::wire::message::{FromMover, ToMover};
use tidegate_ffi::wire::{CodecError, Connection, ReceiveError, SendError};

/// The conversation with the manager.
pub struct Link {
    connection: Connection,
    line: Line<FromMover>,
    /// The descriptors of the messages that are not known to be heard, in order.
    fds: VecDeque<Vec<OwnedFd>>,
    /// What was heard, and `hear` answers next.
    next: Option<Result<Order, LinkError>>,
}

/// What the manager says, with its descriptors.
pub type Order = (ToMover, Vec<OwnedFd>);

/// Why a conversation is interrupted, or over.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection has ended: the manager is gone.
    #[error("the manager is gone")]
    Ended,
    /// A message is none.
    #[error("the manager's orders cannot be read")]
    Unreadable(#[source] ReceiveError),
    /// The conversation is broken.
    #[error(transparent)]
    Broken(#[from] LineError),
    /// The manager is there, and does not hear this mover: it starts another.
    #[error("the manager cannot be told something")]
    Unheard(#[source] SendError),
    /// A message cannot travel.
    #[error("an order cannot be answered: {0}")]
    Unsayable(#[from] CodecError),
}

impl From<ReceiveError> for LinkError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Closed | ReceiveError::Truncated => Self::Ended,
            other => Self::Unreadable(other),
        }
    }
}

impl Link {
    /// A conversation that begins.
    pub fn new(connection: Connection) -> Self {
        Self { connection, line: Line::new(), fds: VecDeque::new(), next: None }
    }

    /// Says something. Who is gone does not hear it now, but when the conversation goes on.
    pub fn say(&mut self, answer: Answer) -> Result<(), LinkError> {
        let letter = self.line.say(answer.message)?;
        let sent = send(&self.connection, &letter, &answer.fds);
        self.fds.push_back(answer.fds);
        sent?;
        death::point("answered");
        Ok(())
    }

    /// Waits for the next message.
    pub fn hear(&mut self) -> Result<Order, LinkError> {
        if let Some(next) = self.next.take() {
            return next;
        }
        loop {
            if let Some(order) = self.hear_one()? {
                return Ok(order);
            }
        }
    }

    /// What `hear` will answer next, if that has come.
    pub fn peek(&mut self) -> Option<&ToMover> {
        while self.next.is_none() && self.connection.has_come() {
            self.next = self.hear_one().transpose();
        }
        self.next.as_ref().and_then(|next| next.as_ref().ok()).map(|(order, _)| order)
    }

    /// Waits until something comes, at most so long; whether it has.
    pub fn comes_within(&self, patience: Duration) -> bool {
        self.next.is_some() || self.connection.comes_within(patience)
    }

    /// What was seen by `peek` is done.
    pub fn skip(&mut self) {
        self.next = None;
    }

    /// `None`: it was heard before.
    fn hear_one(&mut self) -> Result<Option<Order>, LinkError> {
        let (letter, fds) = self.connection.receive::<Numbered<ToMover>>()?;
        let heard = self.line.hear(letter)?;
        self.forget();
        if self.line.owes_a_word() {
            self.say(Answer { message: FromMover::Heard, fds: Vec::new() })?;
        }
        Ok(heard.map(|message| (message, fds)))
    }

    /// The manager's process, if it lives, by the kernel's word.
    pub fn manager(&self) -> Option<OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(&self.connection).ok()?;
        os::process_handle(peer.pid).ok()
    }

    /// The number of the last message heard.
    pub fn heard(&self) -> u64 {
        self.line.heard()
    }

    /// The number of the last message said.
    pub fn said(&self) -> u64 {
        self.line.sent()
    }

    /// Goes on over another connection, whose other side has heard so much.
    pub fn resume(&mut self, connection: Connection, heard: u64) -> Result<(), LinkError> {
        let again = self.line.resume(heard)?;
        self.forget();
        self.connection = connection;
        for (letter, fds) in again.iter().zip(&self.fds) {
            send(&self.connection, letter, fds)?;
        }
        Ok(())
    }

    /// Closes the descriptors of what was heard.
    fn forget(&mut self) {
        let unheard = self.line.unheard();
        self.fds.drain(..self.fds.len() - unheard);
    }
}

fn send(connection: &Connection, letter: &Numbered<FromMover>, fds: &[OwnedFd]) -> Result<(), LinkError> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    match connection.send(letter, &fds) {
        Ok(()) => Ok(()),
        Err(SendError::Codec(error)) => Err(error.into()),
        // That the manager is gone is noticed where it is heard.
        Err(SendError::Socket(Errno::PIPE | Errno::CONNRESET)) => Ok(()),
        Err(error) => Err(LinkError::Unheard(error)),
    }
}
