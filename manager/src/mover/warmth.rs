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
    /// What was in use lately.
    lately: Use,
}

/// The most bytes that lay there at once, in this while and in the one before it.
#[derive(Debug)]
struct Use {
    peaks: [u64; 2],
    /// When this while began.
    since: Instant,
}

impl Use {
    fn new(now: Instant) -> Self {
        Self { peaks: [0; 2], since: now }
    }

    /// So many bytes lie there now.
    fn note(&mut self, used: u64, now: Instant) {
        let whiles = (now - self.since).as_secs() / KEPT_FOR.as_secs();
        if whiles > 0 {
            let [last, _] = self.peaks;
            (self.peaks, self.since) = ([0, if whiles == 1 { last } else { 0 }], now);
        }
        self.peaks[0] = self.peaks[0].max(used);
    }

    fn peak(&self) -> u64 {
        self.peaks[0].max(self.peaks[1])
    }
}

/// The memory that a mover has for saved bytes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// All of it, in bytes.
    pub bytes: u64,
    /// Bytes of it in which something lies.
    pub used: u64,
    /// The share of the tiers has room for more.
    pub can_grow: bool,
    /// How large the slab is that would be given back next; `None`: something lies in each.
    pub next_to_give: Option<u64>,
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
        Self { wanted: 0, has_failed: false, less_since: now, lately: Use::new(now) }
    }

    /// From now on so many bytes are wanted.
    pub fn want(&mut self, bytes: u64, now: Instant) {
        if bytes < self.wanted {
            self.less_since = now;
        }
        (self.wanted, self.has_failed) = (bytes, false);
    }

    /// No more can be got.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// What is to be done where so much is held. The host is looked at where that matters.
    ///
    /// A slab is given back only if as much stays as is wanted, or was in use lately: else it would be got again, and given back,
    /// without end.
    pub fn next(&mut self, held: Held, host: impl Fn() -> MemorySizes, now: Instant) -> Chore {
        self.lately.note(held.used, now);
        let due = self.less_since + KEPT_FOR;
        let with_one_less = held.next_to_give.map(|slab| held.bytes.saturating_sub(slab));
        let is_idle = with_one_less.is_some_and(|left| left >= self.lately.peak());
        if held.bytes < self.wanted && held.can_grow && !self.has_failed {
            if is_scarce(host()) { Chore::LookAgain(now + LOOKED_AT) } else { Chore::Get }
        } else if with_one_less.is_none_or(|left| left < self.wanted) {
            Chore::Rest
        } else if is_idle && due <= now || is_scarce(host()) {
            Chore::GiveBack
        } else if is_idle {
            Chore::LookAgain(due.min(now + LOOKED_AT))
        } else {
            Chore::LookAgain(now + LOOKED_AT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: fn() -> MemorySizes = || MemorySizes { available: 50, total: 100 };
    const LITTLE: fn() -> MemorySizes = || MemorySizes { available: 5, total: 100 };

    /// In slabs of 4.
    fn held(bytes: u64) -> Held {
        Held { bytes, used: 0, can_grow: true, next_to_give: (bytes >= 4).then_some(4) }
    }

    #[test]
    fn memory_is_got_up_to_what_is_wanted() {
        let now = Instant::now();
        let mut warmth = Warmth::new(now);
        assert_eq!(warmth.next(held(0), PLENTY, now), Chore::Rest);
        warmth.want(10, now);
        assert_eq!(warmth.next(held(9), PLENTY, now), Chore::Get);
        let full = Held { can_grow: false, ..held(9) };
        assert_eq!(warmth.next(full, PLENTY, now), Chore::Rest, "the share ends here");
        assert_eq!(
            warmth.next(held(9), LITTLE, now),
            Chore::LookAgain(now + LOOKED_AT),
            "others need the memory"
        );
        assert_eq!(warmth.next(held(10), PLENTY, now), Chore::Rest);
        warmth.failed();
        assert_eq!(warmth.next(held(9), PLENTY, now), Chore::Rest, "not again and again");
        warmth.want(11, now);
        assert_eq!(warmth.next(held(9), PLENTY, now), Chore::Get);
    }

    #[test]
    fn memory_is_kept_from_job_to_job_and_given_back_when_it_is_scarce() {
        let began = Instant::now();
        let mut warmth = Warmth::new(began);
        warmth.want(10, began);
        let end = began + Duration::from_secs(100);
        warmth.want(0, end);
        assert_eq!(warmth.next(held(10), PLENTY, end), Chore::LookAgain(end + LOOKED_AT));
        let last = end + KEPT_FOR - LOOKED_AT / 2;
        assert_eq!(warmth.next(held(10), PLENTY, last), Chore::LookAgain(end + KEPT_FOR));
        assert_eq!(warmth.next(held(10), LITTLE, end), Chore::GiveBack);
        assert_eq!(warmth.next(held(10), PLENTY, end + KEPT_FOR), Chore::GiveBack);
        let in_use = Held { next_to_give: None, ..held(10) };
        assert_eq!(warmth.next(in_use, PLENTY, end + KEPT_FOR), Chore::Rest, "something lies in each slab");
        // Another job needs it before.
        warmth.want(10, end + Duration::from_secs(30));
        assert_eq!(warmth.next(held(10), PLENTY, end + 2 * KEPT_FOR), Chore::Rest);
    }

    #[test]
    fn what_is_wanted_is_not_got_and_given_back_in_turns() {
        let began = Instant::now();
        let mut warmth = Warmth::new(began);
        warmth.want(10, began);
        for long in [began, began + 2 * KEPT_FOR] {
            for host in [PLENTY, LITTLE] {
                assert_eq!(
                    warmth.next(held(12), host, long),
                    Chore::Rest,
                    "with one slab less it would be 8"
                );
                assert_ne!(warmth.next(held(14), host, long), Chore::Rest, "with one less it is enough");
            }
        }
    }

    #[test]
    fn what_each_switch_uses_is_kept_though_it_was_not_expected() {
        let began = Instant::now();
        let mut warmth = Warmth::new(began);
        for switch in 0..20 {
            let now = began + switch * KEPT_FOR / 4;
            let later = Chore::LookAgain(now + LOOKED_AT);
            assert_eq!(warmth.next(Held { used: 7, ..held(8) }, PLENTY, now), later);
            assert_eq!(warmth.next(held(8), PLENTY, now), later, "it will be used again");
        }
        let last = began + 19 * KEPT_FOR / 4;
        assert_eq!(warmth.next(held(8), LITTLE, last), Chore::GiveBack);
        assert_eq!(warmth.next(held(8), PLENTY, last + 2 * KEPT_FOR), Chore::GiveBack);
    }
}
