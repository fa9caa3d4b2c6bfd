//! A barrier between threads whose whole cost is on one side (`membarrier(2)`).
//!
//! Of a [`light`] and a [`heavy`] side one comes first: what was written before it is seen after
//! the other. Two light sides promise each other nothing.

use super::atomic::{Ordering, compiler_fence};
use rustix::thread::{MembarrierCommand, membarrier};

/// Makes [`heavy`] work in this process; false where that is forbidden (seccomp).
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// The side that is passed often: no instruction, and the compiler moves nothing over it.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The other side: makes every running thread of the process execute a full barrier, wherever it
/// is. The process is [registered](register).
pub fn heavy() {
    // Cannot fail in a process that is registered.
    let _ = membarrier(MembarrierCommand::PrivateExpedited);
}
