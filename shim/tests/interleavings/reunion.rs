//! The way to the manager in a model: two queues in place of a socket. Whoever plays the manager has
//! their other ends.

use crate::sync::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{FromShim, ToManager, ToShim};
use tidegate_ffi::wire::{Parcel, ReceiveError, SendError};

/// Either end of a connection.
#[derive(Clone)]
pub struct Connection(Arc<Wire>);

struct Wire {
    under_way: Mutex<UnderWay>,
    came: Condvar,
}

#[derive(Default)]
struct UnderWay {
    to_manager: VecDeque<Numbered<FromShim>>,
    to_shim: VecDeque<Numbered<ToShim>>,
    has_ended: bool,
}

/// The shim's end.
impl Connection {
    pub fn send(&self, message: &ToManager, _: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        let ToManager::Shim(letter) = message else { panic!("in the middle of a session: {message:?}") };
        let mut under_way = self.0.under_way.lock();
        if under_way.has_ended {
            return Err(SendError::Socket(Errno::PIPE));
        }
        under_way.to_manager.push_back(letter.clone());
        self.0.came.notify_all();
        Ok(())
    }

    pub fn receive_parcel<M: From<Numbered<ToShim>>>(&self) -> Result<Parcel<M>, ReceiveError> {
        let letter = self.wait_for(|under_way| under_way.to_shim.pop_front());
        let parcel = |letter: Numbered<ToShim>| Parcel { message: letter.into(), fds: Vec::new(), lost: 0 };
        letter.map(parcel).ok_or(ReceiveError::Closed)
    }

    pub fn shut_down(&self) {
        self.0.under_way.lock().has_ended = true;
        self.0.came.notify_all();
    }
}

/// The manager's end.
impl Connection {
    pub fn new() -> Self {
        Self(Arc::new(Wire { under_way: Mutex::default(), came: Condvar::new() }))
    }

    pub fn tell(&self, letter: Numbered<ToShim>) {
        self.0.under_way.lock().to_shim.push_back(letter);
        self.0.came.notify_all();
    }

    /// Waits for a message; `None`: the connection has ended.
    pub fn take(&self) -> Option<Numbered<FromShim>> {
        self.wait_for(|under_way| under_way.to_manager.pop_front())
    }

    /// The manager is dead: what is under way to it is lost.
    pub fn cut(&self) {
        let mut under_way = self.0.under_way.lock();
        under_way.to_manager.clear();
        under_way.has_ended = true;
        self.0.came.notify_all();
    }

    /// What came is still read when the connection has ended.
    fn wait_for<L>(&self, take: impl Fn(&mut UnderWay) -> Option<L>) -> Option<L> {
        let mut under_way = self.0.under_way.lock();
        loop {
            let letter = take(&mut under_way);
            if letter.is_some() || under_way.has_ended {
                return letter;
            }
            self.0.came.wait(&mut under_way);
        }
    }
}

/// What the next manager says to one that has heard so much.
pub struct Session(pub Box<dyn Fn(u64) -> Found + Send + Sync>);

/// A manager that has taken the session up.
pub struct Found {
    pub connection: Connection,
    pub heard: u64,
}

impl Session {
    pub fn find_manager(&self, heard: u64, mut at_tick: impl FnMut()) -> Result<Found, String> {
        at_tick();
        Ok((self.0)(heard))
    }
}
