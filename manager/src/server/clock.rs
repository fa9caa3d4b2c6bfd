//! The manager's clock: time since it, or the first of those before it, started.

use crate::scheduler::Time;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A moment zero on the system's monotonic clock, which all processes share: times that one
/// manager wrote down mean the same to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Duration);

impl Clock {
    /// Starts now.
    pub(super) fn start() -> Self {
        Self(monotonic())
    }

    /// The clock of a manager that has died.
    pub(super) fn go_on(started: Duration) -> Self {
        Self(started)
    }

    /// One that shows this time.
    #[cfg(test)]
    pub(super) fn showing(now: Time) -> Self {
        Self(monotonic() - now)
    }

    /// Its moment zero.
    pub(super) fn started(self) -> Duration {
        self.0
    }

    /// The time since then.
    pub(super) fn now(self) -> Time {
        monotonic().saturating_sub(self.0)
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
