//! How the queue's threads meet. `tests/interleavings` has another one, of `loom`'s types.

pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::JoinHandle;

/// Starts a lane's thread.
pub(super) fn spawn(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("tidegate-lane".into()).spawn(run)
}
