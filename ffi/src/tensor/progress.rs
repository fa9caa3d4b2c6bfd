//! Operations that work through their regions in parts (R2.5).
//!
//! ```text
//!   earlier  ▓▓▓▓▓▓▓▓▓▓▓▓│ now │ · · · · · · · │      ▓ done; an operation's region of operation is `now`
//!                        └──────── left ───────┘
//!   later    ▓▓▓▓│ now │ · · · · · · · · · · · ·│      may work on its `now` if that is apart from `left`
//! ```
//!
//! Each step both operations' present parts are compared ([`Progress::overlap_now`]). That they are apart keeps
//! two operations from touching a byte at the same time; it does not keep the later one from overtaking. What does
//! is [`Progress::blocks`]: nothing that the earlier one has left, its present part included, is in the later one's
//! present part. Both change with every step, since either may be faster: the comparison is repeated at each.

#![forbid(unsafe_code)]

use super::overlap::Overlap;
use super::parts::Parts;
use super::region::Region;
use std::num::NonZeroU64;
use std::ops::Range;

/// How far an operation has come with a region: it works through the elements in row-major order, so many at
/// each tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    region: Region,
    speed: NonZeroU64,
    done: u64,
}

/// How long an operation is in another one's way, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Exactly so long; 0: it is not.
    Exactly(u64),
    /// So long at most: some comparisons before that say [`Overlap::MayMeet`].
    AtMost(u64),
}

impl Wait {
    /// The most ticks.
    pub fn ticks(self) -> u64 {
        match self {
            Wait::Exactly(ticks) | Wait::AtMost(ticks) => ticks,
        }
    }
}

impl Progress {
    /// An operation that has not begun, with a region and a speed in elements per tick.
    pub fn new(region: Region, speed: NonZeroU64) -> Self {
        Self { region, speed, done: 0 }
    }

    /// So many ticks later.
    pub fn after(self, ticks: u64) -> Self {
        let done = self.done.saturating_add(ticks.saturating_mul(self.speed.get()));
        Self { done: done.min(self.region.elements()), ..self }
    }

    /// The region, whole.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Elements per tick.
    pub fn speed(&self) -> NonZeroU64 {
        self.speed
    }

    /// Whether nothing is left.
    pub fn is_finished(&self) -> bool {
        self.done == self.region.elements()
    }

    /// Ticks until nothing is left.
    pub fn ticks_left(&self) -> u64 {
        (self.region.elements() - self.done).div_ceil(self.speed.get())
    }

    /// The elements being worked on, counted in row-major order.
    pub fn present(&self) -> Range<u64> {
        self.done..self.after(1).done
    }

    /// What is done.
    pub fn done(&self) -> Parts {
        self.region.parts(0..self.done)
    }

    /// The present part: the operation region. Nothing once the operation is finished.
    pub fn now(&self) -> Parts {
        self.region.parts(self.present())
    }

    /// The present part and all behind it.
    pub fn left(&self) -> Parts {
        self.region.parts(self.done..self.region.elements())
    }

    /// Whether the parts that two operations work on now share a byte (R2.5).
    pub fn overlap_now(&self, other: &Progress) -> Overlap {
        overlap(self.now(), other.now())
    }

    /// Whether a later operation must not work on its present part now: this one has some of it left.
    pub fn blocks(&self, later: &Progress) -> Overlap {
        overlap(self.left(), later.now())
    }

    /// Ticks until this operation no longer blocks the present part of a later one that waits: found in the
    /// binary search that a shrinking region allows.
    pub fn wait(&self, later: &Progress) -> Wait {
        let (mut blocked, mut free) = (0, self.ticks_left());
        let now = self.blocks(later);
        if now == Overlap::Apart {
            return Wait::Exactly(0);
        }
        let mut last = now;
        while free - blocked > 1 {
            let middle = blocked + (free - blocked) / 2;
            match self.after(middle).blocks(later) {
                Overlap::Apart => free = middle,
                told => (blocked, last) = (middle, told),
            }
        }
        if last == Overlap::Meets { Wait::Exactly(free) } else { Wait::AtMost(free) }
    }
}

fn overlap(ours: Parts, theirs: Parts) -> Overlap {
    let pairs = ours.flat_map(|ours| theirs.clone().map(move |theirs| (ours, theirs)));
    Overlap::any(pairs.map(|(ours, theirs)| ours.overlap(&theirs)))
}

#[cfg(test)]
mod tests {
    use super::super::form::Axis;
    use super::*;

    fn range(start: u64, bytes: u64, speed: u64) -> Progress {
        Progress::new(Region::range(start, bytes).unwrap(), NonZeroU64::new(speed).unwrap())
    }

    #[test]
    fn a_later_operation_follows_behind_an_earlier_one() {
        let earlier = range(0, 100, 10);
        let later = range(0, 100, 5);
        assert_eq!(earlier.overlap_now(&later), Overlap::Meets);
        assert_eq!(earlier.wait(&later), Wait::Exactly(1));
        let earlier = earlier.after(1);
        assert_eq!((earlier.present(), later.present()), (10..20, 0..5));
        assert_eq!(earlier.overlap_now(&later), Overlap::Apart);
        assert_eq!(earlier.blocks(&later), Overlap::Apart);
        // The later one is faster, and catches up: 35 .. 70 against 40 .. 50 at tick 4.
        let faster = range(0, 100, 35);
        let earlier = earlier.after(2);
        assert_eq!((earlier.present(), earlier.blocks(&faster)), (30..40, Overlap::Meets));
        let (earlier, faster) = (earlier.after(1), faster);
        assert_eq!(earlier.blocks(&faster), Overlap::Apart);
        let (earlier, faster) = (earlier.after(1), faster.after(1));
        assert_eq!((earlier.present(), faster.present()), (50..60, 35..70));
        assert_eq!(earlier.overlap_now(&faster), Overlap::Meets);
        assert_eq!(earlier.wait(&faster), Wait::Exactly(2));
        assert_eq!(earlier.after(2).blocks(&faster), Overlap::Apart);
    }

    #[test]
    fn who_is_ahead_of_an_earlier_operation_waits_although_no_parts_overlap_now() {
        let earlier = range(0, 100, 10);
        let later = range(50, 50, 10);
        assert_eq!(earlier.overlap_now(&later), Overlap::Apart, "0 .. 10 and 50 .. 60");
        assert_eq!(earlier.blocks(&later), Overlap::Meets);
        assert_eq!(earlier.wait(&later), Wait::Exactly(6));
    }

    #[test]
    fn a_finished_operation_is_in_nobodys_way() {
        let operation = range(8, 25, 10);
        assert_eq!(operation.ticks_left(), 3);
        let finished = operation.after(3);
        assert!(finished.is_finished() && !operation.after(2).is_finished());
        assert_eq!(finished, operation.after(u64::MAX));
        assert_eq!((finished.now().count(), finished.left().count(), finished.done().count()), (0, 0, 1));
        assert_eq!(
            (finished.blocks(&operation), finished.wait(&operation)),
            (Overlap::Apart, Wait::Exactly(0))
        );
        assert_eq!(operation.wait(&finished), Wait::Exactly(0), "who has nothing to do waits for nobody");
        assert!(range(8, 0, 1).is_finished());
    }

    #[test]
    fn a_part_that_is_not_told_apart_keeps_others_waiting_to_its_end() {
        let speed = NonZeroU64::new(4000 * 4000 * 500).unwrap();
        let scattered = |start, strides: [i64; 3]| {
            let strides = strides.map(|stride| stride + 1_000_000_000_000);
            Progress::new(Region::mapping(start, 1, &[4000; 3], &strides).unwrap(), speed)
        };
        let (earlier, later) = (scattered(1 << 30, [39, 61, 63]), scattered((1 << 30) + 15, [91, 121, 163]));
        let wait = earlier.wait(&later);
        assert!(matches!(wait, Wait::AtMost(1..=8)), "{wait:?}");
        assert_eq!(earlier.after(wait.ticks()).blocks(&later), Overlap::Apart);
    }

    #[test]
    fn rows_are_done_one_after_another() {
        let axes = [Axis { storage: 8, offset: 0, size: 8 }, Axis { storage: 16, offset: 4, size: 4 }];
        let region = Region::in_storage(0, 4, &axes).unwrap();
        let operation = Progress::new(region, NonZeroU64::new(6).unwrap()).after(1);
        let sizes = |parts: Parts| parts.map(|part| part.elements()).collect::<Vec<_>>();
        assert_eq!(sizes(operation.done()), [4, 2]);
        assert_eq!(sizes(operation.now()), [2, 4]);
        assert_eq!(sizes(operation.left()), [2, 24]);
    }
}
