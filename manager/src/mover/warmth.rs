//! Memory for saved bytes is got ahead of need, and kept: touching and page-locking it takes ten times as long as the
//! copy that goes there.
//!
//! ```text
//! Warm{bytes} ─► while no order waits ─┬─ less is held: one slab is got
//!                                      └─ more is held than was wanted for long, or memory is scarce: one slab goes
//! ```
//! An order that comes waits for one slab at most.

#![forbid(unsafe_code)]

use crate::hardware::MemorySizes;
use std::time::{Duration, Instant};

/// So long memory is kept that nothing is known to need. Jobs that come one after the other find it warm.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// So often it is looked at how much memory the host has, where that matters.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Of the host's memory, the part that is left to others: nothing is got ahead of need when less than that is available.
const LEFT_PART: u64 = 16;

/// How much of it is warm, and should be.
#[derive(Debug)]
pub struct Warmth {
    /// In bytes.
    wanted: u64,
    /// The last attempt to get more has failed: no other before more is wanted.
    has_failed: bool,
    /// Since when not more was wanted.
    less_since: Instant,
    /// So much was held when nothing of it could be given back.
    kept: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Get one slab.
    Get,
    /// Give one slab back.
    GiveBack,
    /// Look again then, unless something else is wanted before.
    LookAgain(Instant),
    /// Nothing, until something else is wanted.
    Rest,
}

fn is_scarce(host: MemorySizes) -> bool {
    host.available < host.total / LEFT_PART
}

impl Warmth {
    /// Nothing is wanted yet.
    pub fn new(now: Instant) -> Self {
        Self { wanted: 0, has_failed: false, less_since: now, kept: 0 }
    }

    /// From now on so many bytes are wanted.
    pub fn want(&mut self, bytes: u64, now: Instant) {
        if bytes < self.wanted {
            self.less_since = now;
        }
        (self.wanted, self.has_failed, self.kept) = (bytes, false, 0);
    }

    /// Of what is held nothing can be given back: it is looked at again when something else is wanted.
    pub fn keep(&mut self, held: u64) {
        self.kept = held;
    }

    /// No more can be got.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// What is to be done where so many bytes are held, and more can be got or not. The host is looked at where that matters.
    pub fn next(&self, held: u64, can_grow: bool, host: impl Fn() -> MemorySizes, now: Instant) -> Chore {
        let due = self.less_since + KEPT_FOR;
        if held < self.wanted && can_grow && !self.has_failed {
            if is_scarce(host()) { Chore::LookAgain(now + LOOKED_AT) } else { Chore::Get }
        } else if held <= self.wanted.max(self.kept) {
            Chore::Rest
        } else if due <= now || is_scarce(host()) {
            Chore::GiveBack
        } else {
            Chore::LookAgain(due.min(now + LOOKED_AT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: fn() -> MemorySizes = || MemorySizes { available: 50, total: 100 };
    const LITTLE: fn() -> MemorySizes = || MemorySizes { available: 5, total: 100 };

    #[test]
    fn memory_is_got_up_to_what_is_wanted() {
        let now = Instant::now();
        let mut warmth = Warmth::new(now);
        assert_eq!(warmth.next(0, true, PLENTY, now), Chore::Rest);
        warmth.want(10, now);
        assert_eq!(warmth.next(9, true, PLENTY, now), Chore::Get);
        assert_eq!(warmth.next(9, false, PLENTY, now), Chore::Rest, "the share ends here");
        assert_eq!(
            warmth.next(9, true, LITTLE, now),
            Chore::LookAgain(now + LOOKED_AT),
            "others need the memory"
        );
        assert_eq!(warmth.next(10, true, PLENTY, now), Chore::Rest);
        warmth.failed();
        assert_eq!(warmth.next(9, true, PLENTY, now), Chore::Rest, "not again and again");
        warmth.want(11, now);
        assert_eq!(warmth.next(9, true, PLENTY, now), Chore::Get);
    }

    #[test]
    fn memory_is_kept_from_job_to_job_and_given_back_when_it_is_scarce() {
        let began = Instant::now();
        let mut warmth = Warmth::new(began);
        warmth.want(10, began);
        let end = began + Duration::from_secs(100);
        warmth.want(0, end);
        assert_eq!(warmth.next(10, true, PLENTY, end), Chore::LookAgain(end + LOOKED_AT));
        let last = end + KEPT_FOR - LOOKED_AT / 2;
        assert_eq!(warmth.next(10, true, PLENTY, last), Chore::LookAgain(end + KEPT_FOR));
        assert_eq!(warmth.next(10, true, LITTLE, end), Chore::GiveBack);
        assert_eq!(warmth.next(10, true, PLENTY, end + KEPT_FOR), Chore::GiveBack);
        // Another job needs it before.
        warmth.want(10, end + Duration::from_secs(30));
        assert_eq!(warmth.next(10, true, PLENTY, end + 2 * KEPT_FOR), Chore::Rest);
    }
}
