//! The free bytes of a tier's slabs: best fit, with coalescing. Pure.
//!
//! Extents are as long as what they hold, to the byte: what a framework saves is aligned by its
//! own allocator, and so stays aligned here, where saved ranges lie end to end.
//!
//! Invariant: holes do not overlap and no two of them touch; `bytes` is their sum.

#![forbid(unsafe_code)]

use super::{Extent, SlabId};
use std::collections::{BTreeMap, BTreeSet};

/// All free bytes.
#[derive(Debug, Default)]
pub struct FreeList {
    /// Place of a hole → its length.
    holes: BTreeMap<(SlabId, u64), u64>,
    /// The same holes: length, then place.
    by_length: BTreeSet<(u64, SlabId, u64)>,
    bytes: u64,
}

impl FreeList {
    /// How many bytes are free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes `bytes` bytes: the smallest hole that is large enough, else the largest ones until it
    /// is. `None` when fewer are free.
    pub fn take(&mut self, bytes: u64) -> Option<Vec<Extent>> {
        if bytes > self.bytes {
            return None;
        }
        let mut taken = Vec::new();
        let mut wanted = bytes;
        while wanted > 0 {
            let (extent, rest) = self.best(wanted)?.split(wanted);
            self.remove(rest.map_or(extent, |rest| extent.joined(rest)));
            rest.into_iter().for_each(|rest| self.insert(rest));
            wanted -= extent.bytes;
            taken.push(extent);
        }
        Some(taken)
    }

    /// Gives bytes to the list that are not in it.
    pub fn give(&mut self, extent: Extent) {
        let before = self.holes.range(..(extent.slab, extent.start)).next_back();
        let before = before.map(|(&(slab, start), &bytes)| Extent { slab, start, bytes });
        let after = self.holes.get(&(extent.slab, extent.end()));
        let after = after.map(|&bytes| Extent { slab: extent.slab, start: extent.end(), bytes });
        let mut whole = extent;
        if let Some(before) = before.filter(|before| before.continues_with(extent)) {
            self.remove(before);
            whole = before.joined(whole);
        }
        if let Some(after) = after {
            self.remove(after);
            whole = whole.joined(after);
        }
        self.insert(whole);
    }

    /// Whether exactly this is a hole.
    pub fn is_hole(&self, extent: Extent) -> bool {
        self.holes.get(&(extent.slab, extent.start)) == Some(&extent.bytes)
    }

    /// Removes exactly this hole; `false` when it is not one.
    pub fn take_hole(&mut self, hole: Extent) -> bool {
        let free = self.is_hole(hole);
        if free {
            self.remove(hole);
        }
        free
    }

    /// The smallest hole of at least `bytes` bytes, else the largest.
    fn best(&self, bytes: u64) -> Option<Extent> {
        let fitting = self.by_length.range((bytes, SlabId(0), 0)..).next();
        let &(bytes, slab, start) = fitting.or_else(|| self.by_length.last())?;
        Some(Extent { slab, start, bytes })
    }

    /// How many bytes of a slab are free.
    pub fn bytes_in(&self, slab: SlabId) -> u64 {
        self.holes_in(slab).map(|hole| hole.bytes).sum()
    }

    /// Takes all holes of a slab.
    pub fn take_all_in(&mut self, slab: SlabId) -> Vec<Extent> {
        let holes: Vec<Extent> = self.holes_in(slab).collect();
        holes.iter().for_each(|hole| self.remove(*hole));
        holes
    }

    fn holes_in(&self, slab: SlabId) -> impl Iterator<Item = Extent> + '_ {
        let holes = self.holes.range((slab, 0)..=(slab, u64::MAX));
        holes.map(|(&(slab, start), &bytes)| Extent { slab, start, bytes })
    }

    fn insert(&mut self, hole: Extent) {
        self.holes.insert((hole.slab, hole.start), hole.bytes);
        self.by_length.insert((hole.bytes, hole.slab, hole.start));
        self.bytes += hole.bytes;
    }

    fn remove(&mut self, hole: Extent) {
        self.holes.remove(&(hole.slab, hole.start));
        self.by_length.remove(&(hole.bytes, hole.slab, hole.start));
        self.bytes -= hole.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(slab: u32, start: u64, bytes: u64) -> Extent {
        Extent { slab: SlabId(slab), start, bytes }
    }

    fn list(holes: &[Extent]) -> FreeList {
        let mut list = FreeList::default();
        holes.iter().for_each(|hole| list.give(*hole));
        list
    }

    #[test]
    fn the_smallest_hole_that_is_large_enough_is_taken() {
        let mut list = list(&[extent(0, 0, 10), extent(0, 20, 6), extent(1, 0, 30)]);
        assert_eq!(list.take(5), Some(vec![extent(0, 20, 5)]));
        assert_eq!(list.take(12), Some(vec![extent(1, 0, 12)]));
        assert_eq!(list.bytes(), 29);
    }

    #[test]
    fn several_holes_are_taken_only_when_no_single_one_is_large_enough() {
        let mut list = list(&[extent(0, 0, 10), extent(0, 20, 6), extent(1, 0, 7)]);
        assert_eq!(list.take(24), None);
        assert_eq!(list.take(15), Some(vec![extent(0, 0, 10), extent(0, 20, 5)]));
        assert_eq!(list.take(0), Some(vec![]));
    }

    #[test]
    fn neighbours_become_one_hole_again() {
        let mut list = list(&[extent(0, 0, 4), extent(0, 8, 4), extent(1, 0, 4)]);
        list.give(extent(0, 4, 4));
        assert!(list.take_hole(extent(0, 0, 12)));
        assert!(!list.take_hole(extent(1, 0, 3)));
        assert_eq!(list.bytes(), 4);
    }

    proptest! {
        #[test]
        fn every_byte_is_free_or_taken_once(
            steps in proptest::collection::vec((any::<bool>(), 0u64..30, any::<prop::sample::Index>()), 1..100),
        ) {
            let mut list = list(&[extent(0, 0, 50), extent(1, 0, 50)]);
            let mut taken: Vec<Extent> = Vec::new();
            for (takes, bytes, which) in steps {
                if takes {
                    taken.extend(list.take(bytes).unwrap_or_default());
                } else if !taken.is_empty() {
                    let extent = taken.swap_remove(which.index(taken.len()));
                    let (first, rest) = extent.split(bytes.max(1));
                    list.give(first);
                    taken.extend(rest);
                }
                let holes = list.holes.iter().map(|(&(slab, start), &bytes)| Extent { slab, start, bytes });
                let mut all: Vec<Extent> = taken.iter().copied().chain(holes).collect();
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|p| p[0].slab != p[1].slab || p[0].continues_with(p[1])));
                prop_assert_eq!(all.iter().map(|extent| extent.bytes).sum::<u64>(), 100);
                let held: u64 = taken.iter().map(|extent| extent.bytes).sum();
                prop_assert_eq!(list.bytes(), 100 - held);
                prop_assert_eq!(list.holes.len(), list.by_length.len());
            }
            taken.drain(..).for_each(|extent| list.give(extent));
            prop_assert!(list.take_hole(extent(0, 0, 50)) && list.take_hole(extent(1, 0, 50)));
        }
    }
}
