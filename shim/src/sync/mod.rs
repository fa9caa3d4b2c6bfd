//! What threads meet at: atomics, locks, channels, and the kernel's futexes and barriers.
//!
//! The gate and the link take all of it from here and nothing from elsewhere. So the test
//! `tests/interleavings` can compile their files, as they are, over a `sync` of its own, in which
//! a model checker decides whose turn it is and what a load sees.

pub mod futex;
pub mod membarrier;
pub mod thread_word;

pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub use std::sync::{atomic, mpsc};
pub use std::{thread, thread_local as per_thread};

/// A static of atomics and locks. (In a model each run begins with another one.)
macro_rules! global {
    ($static:item) => {
        $static
    };
}

/// A constructor for a [`global`]: a constant. (In a model it is not: there an atomic is made in a
/// run, at run time.)
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($new:tt)*) => {
        $(#[$attribute])* $visible const fn $($new)*
    };
}

pub(crate) use {constructor, global};
