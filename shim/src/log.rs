//! Words to the user: single lines on stderr, as `TIDEGATE_LOG` allows (off, warn, info, debug).
//!
//! Invariant: nothing is ever written to stdout, a line is one `write`, and a failure to write
//! is ignored: the program's own life does not depend on our words.
//!
//! By default (`warn`) a user hears what they must know. Of the calls that are refused that is the
//! first one, by its name: a program that is refused a call mostly fails, without saying for which.
//! The others are named at `info`.

use crate::settings;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_ffi::os;

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is said.
    Off,
    /// What the user must know (the default).
    Warn,
    /// What happens at each switch.
    Info,
    /// What happens at each call that is not the fast path.
    Debug,
}

/// Says one line, if the level is wanted.
pub fn say(level: Level, words: fmt::Arguments<'_>) {
    if level <= settings::log_level() {
        let line = format!("tidegate: {words}\n");
        // SAFETY: 2 is the process's stderr by convention, and not -1; if the program has closed
        // it, the write fails and nothing else happens.
        let stderr = unsafe { BorrowedFd::borrow_raw(2) };
        let _ = os::without_sigxfsz(|| rustix::io::write(stderr, line.as_bytes()));
    }
}

/// Says something at most once for each `Once`.
pub struct Once(AtomicBool);

impl Once {
    /// Not yet said.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Says it, unless it was said before.
    pub fn say(&self, level: Level, words: fmt::Arguments<'_>) {
        if self.is_first() {
            say(level, words);
        }
    }

    /// Whether it was not said before; from now on it counts as said.
    pub fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// `warning!("…")`: what the user must know.
macro_rules! warning {
    ($($words:tt)*) => { $crate::log::say($crate::log::Level::Warn, format_args!($($words)*)) };
}

/// `info!("…")`: what happens at each switch.
macro_rules! info {
    ($($words:tt)*) => { $crate::log::say($crate::log::Level::Info, format_args!($($words)*)) };
}

/// `debug!("…")`: what happens at each call that is not the fast path.
macro_rules! debug {
    ($($words:tt)*) => { $crate::log::say($crate::log::Level::Debug, format_args!($($words)*)) };
}

pub(crate) use {debug, info, warning};
