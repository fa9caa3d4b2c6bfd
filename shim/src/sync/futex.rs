//! Sleeping until a word changes (`futex(2)`), among the threads of the process.

use super::atomic::AtomicU32;
use rustix::thread::futex::{self, Timespec};
use std::time::Duration;

/// Sleeps while the word has this value, until it is woken; may return at any other time too: the
/// caller looks again.
pub fn wait(word: &AtomicU32, value: u32) {
    // Interrupted, or the word has changed: both are allowed for.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// The same, and for that long at most.
pub fn wait_at_most(word: &AtomicU32, value: u32, time: Duration) {
    let time = Timespec::try_from(time).ok();
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, time.as_ref());
}

/// Wakes all who sleep at the word.
pub fn wake_all(word: &AtomicU32) {
    let everybody = i32::MAX as u32;
    let _ = futex::wake(word, futex::Flags::PRIVATE, everybody);
}
