//! A connection's way out: a bounded queue and the thread that empties it.
//!
//! What is sent is held until it is released: nobody hears of anything that the core has not
//! written down (`legacy`).

use crossbeam_channel::{RecvTimeoutError, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_ffi::os;
use tidegate_ffi::wire::{CodecError, Connection, Frame, SendError};
use tracing::{debug, warn};

/// So many messages may wait for one reader; who is slower loses the connection (I10).
const QUEUE: usize = 4096;
/// A client for whom so many bytes wait gets no more: what waits for it is bounded by this and
/// one answer.
const QUEUED_BYTES: usize = 1 << 20;

/// What is sent without anything between: one message, or all parts of an answer.
struct Letter {
    frames: Arc<[Frame]>,
    fds: Vec<Arc<OwnedFd>>,
    /// Who waits until this letter is gone hears the end of it.
    _held: Option<Sender<()>>,
}

/// Sends messages without ever waiting.
#[derive(Clone)]
pub(crate) struct Outbox {
    connection: Arc<Connection>,
    /// `None` ends the connection.
    queue: Sender<Option<Letter>>,
    /// What is not released yet.
    held: Arc<Mutex<Vec<Option<Letter>>>>,
    queued: Arc<AtomicUsize>,
    most: usize,
}

impl Outbox {
    /// Starts the writer of a connection to a process of our own.
    pub(crate) fn start(connection: Arc<Connection>) -> std::io::Result<Self> {
        Self::bounded(connection, usize::MAX, None)
    }

    /// The same for a stranger, who must read each message within `patience`.
    pub(crate) fn for_client(connection: Arc<Connection>, patience: Duration) -> std::io::Result<Self> {
        Self::bounded(connection, QUEUED_BYTES, Some(patience))
    }

    fn bounded(
        connection: Arc<Connection>,
        most: usize,
        patience: Option<Duration>,
    ) -> std::io::Result<Self> {
        let (queue, letters) = bounded::<Option<Letter>>(QUEUE);
        let queued = Arc::new(AtomicUsize::new(0));
        let (writer, waiting) = (connection.clone(), queued.clone());
        os::start_thread(Builder::new().name("writer".into()), move || {
            for letter in letters.iter().map_while(|letter| letter) {
                let sent = letter.send(&writer, patience);
                waiting.fetch_sub(letter.bytes(), Ordering::Relaxed);
                if sent.inspect_err(report).is_err() {
                    break;
                }
            }
            writer.shut_down();
        })?;
        Ok(Self { connection, queue, held: Arc::default(), queued, most })
    }

    /// Holds a message with its file descriptors. `false`: it is none that could ever be sent.
    pub(crate) fn send<M: Serialize>(&self, message: &M, fds: Vec<Arc<OwnedFd>>) -> bool {
        match Frame::of(message, fds.len()) {
            Ok(frame) => {
                self.queue(Letter { frames: Arc::new([frame]), fds, _held: None });
                true
            }
            Err(error) => {
                self.give_up(&error);
                false
            }
        }
    }

    /// Whether neither side has ended the connection.
    pub(crate) fn is_connected(&self) -> bool {
        let ended = PollFlags::RDHUP;
        let mut fds = [PollFd::new(&*self.connection, ended)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Holds all parts of an answer.
    pub(crate) fn send_all(&self, frames: Arc<[Frame]>) {
        self.queue(Letter { frames, fds: Vec::new(), _held: None });
    }

    fn queue(&self, letter: Letter) {
        let bytes = letter.bytes();
        if self.queued.load(Ordering::Relaxed) >= self.most {
            return self.lose_slow();
        }
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        self.held.lock().push(Some(letter));
    }

    /// Sends what is held.
    pub(crate) fn release(&self) {
        for letter in std::mem::take(&mut *self.held.lock()) {
            match self.queue.try_send(letter) {
                Ok(()) => {}
                Err(TrySendError::Full(Some(_))) => self.lose_slow(),
                Err(TrySendError::Full(None)) => self.lose(),
                // The writer has said why it ended, and has shut the connection down.
                Err(TrySendError::Disconnected(_)) => debug!("a message comes after its reader's end"),
            }
        }
    }

    /// Releases everything and waits until it is sent; for a reader that does not read, no longer
    /// than `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let (held, all_sent) = bounded(0);
        self.queue(Letter { frames: Arc::new([]), fds: Vec::new(), _held: Some(held) });
        self.release();
        if all_sent.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            debug!("a last message may not have been read");
        }
    }

    fn lose_slow(&self) {
        warn!("a client reads too slowly: it loses its connection");
        self.lose();
    }

    /// Ends the connection at once.
    pub(crate) fn lose(&self) {
        self.connection.shut_down();
    }

    fn give_up(&self, error: &CodecError) {
        warn!(%error, "cannot send");
        self.connection.shut_down();
    }

    /// Waits until the connection, which was closed, has sent everything; for a reader that does not
    /// read, no longer than until `end`.
    pub(crate) fn wait_for_end(&self, end: Instant) {
        let mut fds = [PollFd::new(&*self.connection, PollFlags::RDHUP)];
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        while let Err(Errno::INTR) = poll(&mut fds, Some(&left)) {}
    }

    /// Ends the connection once everything held is released and sent.
    pub(crate) fn close(&self) {
        self.held.lock().push(None);
    }
}

impl Letter {
    fn bytes(&self) -> usize {
        self.frames.iter().map(Frame::bytes).sum()
    }

    fn send(&self, connection: &Connection, patience: Option<Duration>) -> Result<(), SendError> {
        let fds: Vec<_> = self.fds.iter().map(|fd| fd.as_fd()).collect();
        self.frames.iter().try_for_each(|frame| connection.send_frame(frame, &fds, patience))
    }
}

fn report(error: &SendError) {
    if is_end(error) {
        debug!(%error, "the reader of a message has ended");
    } else {
        warn!(%error, "cannot send");
    }
}

/// Whether the other side simply ended: clients come and go. That of a mover is noticed, and
/// said, where its messages are read.
fn is_end(error: &SendError) -> bool {
    matches!(error, SendError::Socket(Errno::PIPE | Errno::CONNRESET))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::wire::MAX_MESSAGE_BYTES;

    #[test]
    fn a_reader_that_ended_is_no_fault() {
        let (here, there) = Connection::pair().unwrap();
        drop(there);
        assert!(is_end(&here.send(&1u8, &[]).unwrap_err()));
    }

    #[test]
    fn a_message_that_cannot_travel_is_a_fault() {
        let (here, _there) = Connection::pair().unwrap();
        let error = here.send(&vec![0u8; MAX_MESSAGE_BYTES + 1], &[]).unwrap_err();
        assert!(matches!(error, SendError::Codec(CodecError::TooLong(_))) && !is_end(&error), "{error}");
    }

    #[test]
    fn nothing_is_sent_before_it_is_released() {
        let (here, there) = Connection::pair().unwrap();
        let outbox = Outbox::start(Arc::new(here)).unwrap();
        outbox.send(&1u8, Vec::new());
        outbox.close();
        let mut ready = [rustix::event::PollFd::new(&there, rustix::event::PollFlags::IN)];
        let a_while = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        assert_eq!(rustix::event::poll(&mut ready, Some(&a_while)), Ok(0));
        outbox.release();
        assert_eq!(there.receive::<u8>().unwrap().0, 1);
        assert!(there.receive::<u8>().is_err(), "it ends behind what was sent");
    }

    #[test]
    fn what_waits_for_a_client_is_bounded() {
        let (here, there) = Connection::pair().unwrap();
        let outbox = Outbox::for_client(Arc::new(here), Duration::from_secs(60)).unwrap();
        for _ in 0..20 {
            outbox.send(&vec![0u8; QUEUED_BYTES / 2], Vec::new());
        }
        outbox.release();
        assert!(outbox.queued.load(Ordering::Relaxed) < 2 * QUEUED_BYTES);
        // It has lost its connection: behind what the kernel has taken, there is nothing.
        while there.receive::<Vec<u8>>().is_ok() {}
    }
}
