//! How many file descriptors the manager may have, and for what.
//!
//! ```text
//! all ─┬─ half      clients: a socket and a process each, and a file that one may bring
//!      ├─ a quarter pieces
//!      └─ the rest  movers, saved bytes, the manager's own files, and what is on its way
//! ```
//! Invariant: neither clients nor pieces can take what the successor of a mover needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::debug;

/// Descriptors that a client takes.
const PER_CLIENT: usize = 3;

/// How the descriptors are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// The most clients.
    pub(crate) clients: usize,
    /// The most pieces.
    pub(crate) pieces: usize,
}

impl Shares {
    /// Of so many.
    pub(crate) fn of(all: usize) -> Self {
        Self { clients: all / 2 / PER_CLIENT, pieces: all / 4 }
    }

    /// Of as many as the system gives this process, which takes them all.
    pub(crate) fn take() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            debug!(%error, "there are only so many file descriptors as there were");
        }
        let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of(usize::try_from(all).unwrap_or(usize::MAX))
    }
}
