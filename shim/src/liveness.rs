//! Which bytes are alive: allocated and not freed, with what is known about how long they live.
//!
//! Invariants: allocations do not overlap; `live_bytes` is their sum. The map errs on the side
//! of life only (I1): a byte that it leaves out belongs to no allocation.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::live::{LiveRange, MAX_RANGES};

/// Boundaries (or switches) that an allocation must survive to count as long-lived.
const LONG_LIFE: u64 = 2;

/// A moment in the job's life, in the counts by which allocations age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Boundaries that the job has told.
    pub boundaries: u64,
    /// Times that the job was stopped.
    pub switches: u64,
}

impl Moment {
    /// Whether what was born at `born` has lived long by now. A job that tells boundaries ages
    /// by them alone: it may be stopped often within one iteration.
    fn is_long_after(self, born: Moment) -> bool {
        if self.boundaries > 0 {
            self.boundaries - born.boundaries >= LONG_LIFE
        } else {
            self.switches - born.switches >= LONG_LIFE
        }
    }
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<Owner> {
    /// Bytes that the program asked for.
    pub bytes: u64,
    /// The context it was made in: it dies with it.
    pub owner: Owner,
    /// The program said that it is persistent.
    pub persistent: bool,
    /// The program said that it must stay where it is.
    pub held: bool,
    /// When it was born, or last called temporary.
    pub born: Moment,
}

/// The live allocations of one tenant and class, by the offset of their first byte.
#[derive(Debug)]
pub struct Liveness<Owner> {
    allocations: BTreeMap<u64, Allocation<Owner>>,
    live_bytes: u64,
}

impl<Owner> Default for Liveness<Owner> {
    fn default() -> Self {
        Self { allocations: BTreeMap::new(), live_bytes: 0 }
    }
}

impl<Owner: Copy + PartialEq> Liveness<Owner> {
    /// Notes an allocation at `start`, where nothing is alive.
    pub fn insert(&mut self, start: u64, allocation: Allocation<Owner>) {
        self.live_bytes += allocation.bytes;
        let before = self.allocations.insert(start, allocation);
        debug_assert!(before.is_none(), "two allocations at {start:#x}");
    }

    /// Forgets the allocation that starts at `start`.
    pub fn remove(&mut self, start: u64) -> Option<Allocation<Owner>> {
        let gone = self.allocations.remove(&start)?;
        self.live_bytes -= gone.bytes;
        Some(gone)
    }

    /// The allocation that the byte at `at` belongs to, with its start.
    pub fn containing(&self, at: u64) -> Option<(u64, Allocation<Owner>)> {
        let (&start, &allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((start, allocation))
    }

    /// Re-classes the allocation that `at` belongs to; false when there is none. Called
    /// temporary, it starts to age anew.
    pub fn tag(&mut self, at: u64, class: Class, now: Moment) -> bool {
        let Some((start, _)) = self.containing(at) else { return false };
        let Some(allocation) = self.allocations.get_mut(&start) else { return false };
        allocation.persistent = class == Class::Persistent;
        if class == Class::Temporary {
            allocation.born = now;
        }
        true
    }

    /// The allocation that `at` belongs to must stay where it is. Returned is its extent, unless it
    /// was held before.
    pub fn hold(&mut self, at: u64) -> Option<Range<u64>> {
        let (start, _) = self.containing(at)?;
        let allocation = self.allocations.get_mut(&start)?;
        let before = std::mem::replace(&mut allocation.held, true);
        (!before).then(|| start..start + allocation.bytes)
    }

    /// Whether anything that touches these bytes is held.
    pub fn holds_any_of(&self, bytes: Range<u64>) -> bool {
        let before = self.containing(bytes.start).map(|(_, allocation)| allocation.held);
        before == Some(true) || self.allocations.range(bytes).any(|(_, allocation)| allocation.held)
    }

    /// The starts of what lives in the context `owner`.
    pub fn owned_by(&self, owner: Owner) -> Vec<u64> {
        self.allocations.iter().filter(|(_, a)| a.owner == owner).map(|(&start, _)| start).collect()
    }

    /// The sum of all live allocations.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Appends the live ranges in address order, as the manager is told them; at most half of
    /// what one map may hold. `unit` bytes is the size of a slot.
    pub fn append_ranges(&self, class: Class, unit: u64, now: Moment, ranges: &mut Vec<LiveRange>) {
        let own: Vec<LiveRange> = self.ranges(class, now).collect();
        ranges.extend(bounded(own, unit, MAX_RANGES / Class::ALL.len()));
    }

    fn ranges(&self, class: Class, now: Moment) -> impl Iterator<Item = LiveRange> + '_ {
        self.allocations.iter().map(move |(&start, allocation)| LiveRange {
            class,
            start,
            bytes: allocation.bytes,
            long_lived: allocation.persistent || now.is_long_after(allocation.born),
        })
    }
}

/// At most `most` ranges: where there are more, small gaps between them are called alive too.
/// Only gaps shorter than a slot are closed, so no slot without live bytes becomes alive.
fn bounded(mut ranges: Vec<LiveRange>, unit: u64, most: usize) -> Vec<LiveRange> {
    let mut gap = 0;
    loop {
        ranges = joined(ranges, gap);
        if ranges.len() <= most || gap + 1 >= unit {
            return ranges;
        }
        gap = (2 * gap).clamp(256, unit - 1);
    }
}

/// Joins neighbours of one kind that lie at most `gap` bytes apart.
fn joined(ranges: Vec<LiveRange>, gap: u64) -> Vec<LiveRange> {
    let mut joined: Vec<LiveRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last)
                if last.long_lived == range.long_lived && range.start - (last.start + last.bytes) <= gap =>
            {
                last.bytes = range.start + range.bytes - last.start;
            }
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born(boundaries: u64, switches: u64, bytes: u64) -> Allocation<u8> {
        Allocation { bytes, owner: 0, persistent: false, held: false, born: Moment { boundaries, switches } }
    }

    fn ranges(liveness: &Liveness<u8>, now: Moment) -> Vec<LiveRange> {
        let mut ranges = Vec::new();
        liveness.append_ranges(Class::Temporary, 4096, now, &mut ranges);
        ranges
    }

    #[test]
    fn every_live_byte_is_in_the_map_and_no_other() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(0, 0, 100));
        liveness.insert(512, born(0, 0, 512));
        liveness.insert(1024, born(0, 0, 7));
        liveness.remove(0);
        let map = ranges(&liveness, Moment::default());
        assert_eq!(map.iter().map(|r| (r.start, r.bytes)).collect::<Vec<_>>(), [(512, 519)]);
        assert_eq!(liveness.live_bytes(), 519);
        assert_eq!(liveness.remove(0), None);
    }

    #[test]
    fn a_byte_finds_its_allocation() {
        let mut liveness = Liveness::default();
        liveness.insert(512, born(0, 0, 100));
        assert_eq!(liveness.containing(611).map(|(start, a)| (start, a.bytes)), Some((512, 100)));
        assert_eq!(liveness.containing(612), None);
        assert_eq!(liveness.containing(511), None);
    }

    #[test]
    fn what_is_held_is_held_once_and_with_all_its_bytes() {
        let mut liveness = Liveness::default();
        liveness.insert(100, born(0, 0, 50));
        liveness.insert(300, born(0, 0, 50));
        assert_eq!(liveness.hold(149), Some(100..150));
        assert_eq!((liveness.hold(100), liveness.hold(150)), (None, None));
        let held = |from, to| liveness.holds_any_of(from..to);
        assert!(held(0, 101) && held(149, 200) && held(120, 130) && held(0, 500));
        assert!(!held(0, 100) && !held(150, 500));
    }

    #[test]
    fn what_survives_two_boundaries_is_long_lived() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(1, 0, 10));
        let after = |boundaries, switches| ranges(&liveness, Moment { boundaries, switches })[0].long_lived;
        assert!(!after(2, 9));
        assert!(after(3, 0));
    }

    #[test]
    fn without_boundaries_two_switches_make_it_long_lived() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(0, 1, 10));
        let after = |switches| ranges(&liveness, Moment { boundaries: 0, switches })[0].long_lived;
        assert!(!after(2));
        assert!(after(3));
    }

    #[test]
    fn a_tag_outweighs_age() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(0, 0, 10));
        let now = Moment { boundaries: 5, switches: 0 };
        assert!(liveness.tag(9, Class::Temporary, now));
        assert!(!ranges(&liveness, now)[0].long_lived);
        assert!(liveness.tag(0, Class::Persistent, now));
        assert!(ranges(&liveness, now)[0].long_lived);
        assert!(!liveness.tag(10, Class::Persistent, now));
    }

    #[test]
    fn a_map_of_too_many_ranges_grows_only_into_small_gaps() {
        let row = |start| LiveRange { class: Class::Temporary, start, bytes: 10, long_lived: false };
        let crowded: Vec<LiveRange> = (0..100).map(|i| row(i * 512)).collect();
        let map = bounded(crowded, 4096, 10);
        assert_eq!(map, [LiveRange { bytes: 99 * 512 + 10, ..row(0) }]);
        let apart: Vec<LiveRange> = (0..100).map(|i| row(i * 8192)).collect();
        assert_eq!(bounded(apart.clone(), 4096, 10), apart);
    }
}
