//! A connection's way out: a bounded queue and the thread that empties it.

use crossbeam_channel::{Sender, bounded};
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tidegate_ffi::wire::Connection;
use tracing::warn;

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
            connection.send(&message, &borrowed).inspect_err(|error| warn!(%error, "cannot send")).is_ok()
        });
        if self.queue.try_send(delivery).is_err() {
            warn!("a client reads too slowly, or is gone");
            self.connection.shut_down();
        }
    }

    /// Ends the connection once everything queued is sent.
    pub(crate) fn close(&self) {
        if self.queue.try_send(Box::new(|_| false)).is_err() {
            self.connection.shut_down();
        }
    }
}
