//! A connection's way out: a bounded queue and the thread that empties it.

use crossbeam_channel::{Sender, TrySendError, bounded};
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tidegate_ffi::wire::{Connection, SendError};
use tracing::{debug, warn};

/// So many messages may wait for one reader; who is slower loses the connection (I10).
const QUEUE: usize = 4096;

type Delivery = Box<dyn FnOnce(&Connection) -> bool + Send>;

/// Sends messages without ever waiting.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    connection: Arc<Connection>,
    queue: Sender<Delivery>,
}

impl Outbox {
    /// Starts the writer of a connection.
    pub(crate) fn start(connection: Arc<Connection>) -> std::io::Result<Self> {
        let (queue, deliveries) = bounded::<Delivery>(QUEUE);
        let writer = connection.clone();
        std::thread::Builder::new().name("writer".into()).spawn(move || {
            for delivery in deliveries {
                if !delivery(&writer) {
                    break;
                }
            }
            writer.shut_down();
        })?;
        Ok(Self { connection, queue })
    }

    /// Queues a message with its file descriptors.
    pub(crate) fn send<M: Serialize + Clone + Send + 'static>(&self, message: &M, fds: Vec<Arc<OwnedFd>>) {
        let message = message.clone();
        let delivery = Box::new(move |connection: &Connection| {
            let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            connection.send(&message, &borrowed).inspect_err(report).is_ok()
        });
        match self.queue.try_send(delivery) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                warn!("a client reads too slowly: it loses its connection");
                self.connection.shut_down();
            }
            // The writer has said why it ended, and has shut the connection down.
            Err(TrySendError::Disconnected(_)) => debug!("a message comes after its reader's end"),
        }
    }

    /// Waits until everything queued is sent; for a reader that does not read, no longer than
    /// `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let (sent, all_sent) = bounded(1);
        let last = Box::new(move |_: &Connection| sent.send(()).is_ok());
        if self.queue.try_send(last).is_err() || all_sent.recv_timeout(patience).is_err() {
            debug!("a last message may not have been read");
        }
    }

    /// Ends the connection once everything queued is sent.
    pub(crate) fn close(&self) {
        if self.queue.try_send(Box::new(|_| false)).is_err() {
            self.connection.shut_down();
        }
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
    use tidegate_ffi::wire::{CodecError, MAX_MESSAGE_BYTES};

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
}
