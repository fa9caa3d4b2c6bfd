//! How the queue's threads meet. `tests/interleavings` has another one, of `loom`'s types.

pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{JoinHandle, scope};

use std::io;
use std::thread::{Builder, Scope};

/// Starts a lane's thread.
pub(super) fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    named().spawn(run)
}

/// Starts a lane's thread that ends in a scope.
pub(super) fn spawn_scoped<'scope>(
    threads: &'scope Scope<'scope, '_>,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    named().spawn_scoped(threads, run).map(drop)
}

fn named() -> Builder {
    Builder::new().name("tidegate-lane".into())
}
