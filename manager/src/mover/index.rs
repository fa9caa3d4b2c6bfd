//! Where the saved bytes lie: one entry for each run of bytes of a tenant's address range. Pure.
//!
//! Invariant: the entries of an address range do not overlap, and no two entries of any ranges
//! share a byte of the tier. Entries that continue each other on both sides are one, up to 4 GiB.

#![forbid(unsafe_code)]

use super::tier::{Extent, SlabId};
use std::collections::BTreeMap;
use tidegate_ffi::units::{Class, TenantId};

/// The saved bytes of all tenants.
#[derive(Debug, Default)]
pub struct Index {
    ranges: BTreeMap<(TenantId, Class), Ranges>,
}

/// The saved bytes of one address range: place in the range → place in the tier.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, Place>);

/// An extent of at most [`MOST`] bytes, in two thirds of its room: there may be a million of them.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    slab: SlabId,
    bytes: u32,
}

/// The most bytes of one entry.
const MOST: u64 = u32::MAX as u64;

impl Place {
    /// Of an extent that is not larger.
    fn of(extent: Extent) -> Self {
        debug_assert!(extent.bytes <= MOST);
        Self { start: extent.start, slab: extent.slab, bytes: extent.bytes as u32 }
    }

    fn extent(self) -> Extent {
        Extent { slab: self.slab, start: self.start, bytes: self.bytes.into() }
    }
}

impl Index {
    /// Whether any of the bytes `at .. at + bytes` is saved.
    pub fn holds_any(&self, tenant: TenantId, class: Class, at: u64, bytes: u64) -> bool {
        let ranges = self.ranges.get(&(tenant, class));
        ranges.is_some_and(|ranges| ranges.overlapping(at, at + bytes).next().is_some())
    }

    /// Where the bytes `at .. at + bytes` lie, in order; `None` unless all of them are saved.
    pub fn find(&self, tenant: TenantId, class: Class, at: u64, bytes: u64) -> Option<Vec<Extent>> {
        self.ranges.get(&(tenant, class))?.find(at, at + bytes)
    }

    /// Enters bytes that are not saved yet.
    pub fn insert(&mut self, tenant: TenantId, class: Class, at: u64, extent: Extent) {
        self.ranges.entry((tenant, class)).or_default().insert(at, extent);
    }

    /// Forgets which of the bytes `at .. at + bytes` are saved; returns where they lay.
    pub fn remove(&mut self, tenant: TenantId, class: Class, at: u64, bytes: u64) -> Vec<Extent> {
        let Some(ranges) = self.ranges.get_mut(&(tenant, class)) else { return Vec::new() };
        let removed = ranges.remove(at, at + bytes);
        if ranges.0.is_empty() {
            self.ranges.remove(&(tenant, class));
        }
        removed
    }

    /// All entries: whose, in which address range, at which place of it, and where they lie.
    pub fn entries(&self) -> impl Iterator<Item = (TenantId, Class, u64, Extent)> + '_ {
        let entries = |(&(tenant, class), ranges): (&(TenantId, Class), &'_ Ranges)| {
            let of_range: Vec<_> =
                ranges.0.iter().map(|(at, place)| (tenant, class, *at, place.extent())).collect();
            of_range
        };
        self.ranges.iter().flat_map(entries)
    }

    /// Whether any of a tenant's bytes are saved.
    pub fn knows(&self, tenant: TenantId) -> bool {
        Class::ALL.into_iter().any(|class| self.ranges.contains_key(&(tenant, class)))
    }

    /// Forgets all of a tenant's bytes; returns where they lay.
    pub fn forget(&mut self, tenant: TenantId) -> Vec<Extent> {
        let ranges = Class::ALL.into_iter().filter_map(|class| self.ranges.remove(&(tenant, class)));
        ranges.flat_map(|ranges| ranges.0.into_values()).map(Place::extent).collect()
    }
}

impl Ranges {
    fn overlapping(&self, at: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let before = self.0.range(..=at).next_back();
        let first = before
            .filter(|(start, place)| *start + u64::from(place.bytes) > at)
            .map_or(at, |(start, _)| *start);
        self.0.range(first..end).map(|(start, place)| (*start, place.extent()))
    }

    fn find(&self, at: u64, end: u64) -> Option<Vec<Extent>> {
        let mut parts = Vec::new();
        let mut next = at;
        for (start, extent) in self.overlapping(at, end) {
            if start > next {
                return None;
            }
            let part = extent.slice(next - start, end - start);
            next += part.bytes;
            parts.push(part);
        }
        (next == end).then_some(parts)
    }

    fn insert(&mut self, at: u64, extent: Extent) {
        let (mut at, mut rest) = (at, Some(extent));
        while let Some(extent) = rest {
            let (first, behind) = extent.split(MOST);
            self.insert_one(at, first);
            (at, rest) = (at + first.bytes, behind);
        }
    }

    fn insert_one(&mut self, mut at: u64, mut extent: Extent) {
        let continues =
            |one: Extent, next: Extent| one.continues_with(next) && one.bytes + next.bytes <= MOST;
        let before = self.0.range(..at).next_back().map(|(start, place)| (*start, place.extent()));
        if let Some((start, earlier)) = before.filter(|(start, earlier)| start + earlier.bytes == at)
            && continues(earlier, extent)
        {
            at = start;
            extent = earlier.joined(extent);
        }
        let later = self.0.get(&(at + extent.bytes)).map(|place| place.extent());
        if let Some(later) = later.filter(|later| continues(extent, *later)) {
            self.0.remove(&(at + extent.bytes));
            extent = extent.joined(later);
        }
        self.0.insert(at, Place::of(extent));
    }

    fn remove(&mut self, at: u64, end: u64) -> Vec<Extent> {
        let touched: Vec<_> = self.overlapping(at, end).collect();
        touched.into_iter().map(|(start, extent)| self.cut_out(start, extent, at, end)).collect()
    }

    /// Removes the part inside `at .. end` of the entry at `start`.
    fn cut_out(&mut self, start: u64, extent: Extent, at: u64, end: u64) -> Extent {
        let (from, to) = (at.saturating_sub(start), (end - start).min(extent.bytes));
        self.0.remove(&start);
        if from > 0 {
            self.0.insert(start, Place::of(extent.slice(0, from)));
        }
        if to < extent.bytes {
            self.0.insert(end, Place::of(extent.slice(to, extent.bytes)));
        }
        extent.slice(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap;
    use crate::ledger::{Ledger, Slack};
    use proptest::prelude::*;
    use tidegate_ffi::units::{PieceId, Units};

    const TENANT: TenantId = TenantId(1);
    const CLASS: Class = Class::Temporary;

    fn extent(start: u64, bytes: u64) -> Extent {
        Extent { slab: SlabId(0), start, bytes }
    }

    #[test]
    fn a_restore_may_cut_and_merge_what_was_saved() {
        let mut index = Index::default();
        index.insert(TENANT, CLASS, 10, extent(100, 5));
        index.insert(TENANT, CLASS, 15, extent(500, 5));
        assert_eq!(index.find(TENANT, CLASS, 12, 6), Some(vec![extent(102, 3), extent(500, 3)]));
        assert_eq!(index.find(TENANT, CLASS, 12, 9), None);
        assert_eq!(index.remove(TENANT, CLASS, 12, 6), [extent(102, 3), extent(500, 3)]);
        assert!(!index.holds_any(TENANT, CLASS, 12, 6));
        assert_eq!(index.find(TENANT, CLASS, 10, 2), Some(vec![extent(100, 2)]));
        assert_eq!(index.find(TENANT, CLASS, 18, 2), Some(vec![extent(503, 2)]));
    }

    #[test]
    fn entries_that_continue_each_other_are_one() {
        let mut index = Index::default();
        for at in [0, 2, 1] {
            index.insert(TENANT, CLASS, at, extent(40 + at, 1));
        }
        assert_eq!(index.find(TENANT, CLASS, 0, 3), Some(vec![extent(40, 3)]));
    }

    #[test]
    fn what_is_larger_than_an_entry_has_several() {
        let (bytes, at) = (3 * MOST + 5, 7);
        let mut index = Index::default();
        index.insert(TENANT, CLASS, at, extent(100, bytes));
        index.insert(TENANT, CLASS, at + bytes, extent(100 + bytes, 9));
        assert_eq!(index.entries().count(), 4);
        let sum = |found: Vec<Extent>| found.iter().map(|extent| extent.bytes).sum::<u64>();
        assert_eq!(index.find(TENANT, CLASS, at, bytes + 9).map(sum), Some(bytes + 9));
        let middle = index.remove(TENANT, CLASS, at + MOST - 1, 2);
        assert_eq!(middle, [extent(99 + MOST, 1), extent(100 + MOST, 1)]);
        assert_eq!(sum(index.forget(TENANT)), bytes + 7);
    }

    #[test]
    fn tenants_and_classes_have_names_of_their_own() {
        let mut index = Index::default();
        index.insert(TENANT, CLASS, 0, extent(0, 8));
        assert_eq!(index.find(TenantId(2), CLASS, 0, 8), None);
        assert!(!index.holds_any(TENANT, Class::Persistent, 0, 8));
        index.insert(TENANT, Class::Persistent, 0, extent(8, 8));
        index.insert(TenantId(2), CLASS, 0, extent(16, 8));
        assert_eq!(index.forget(TENANT), [extent(8, 8), extent(0, 8)]);
        assert_eq!(index.find(TenantId(2), CLASS, 0, 8), Some(vec![extent(16, 8)]));
    }

    /// The bytes of extents, each by its place in the tier.
    fn bytes_of(extents: &[Extent]) -> Vec<u64> {
        extents.iter().flat_map(|extent| extent.start..extent.start + extent.bytes).collect()
    }

    /// What the bookkeeping of a GPU of 80 GiB with a million live ranges may take of the heap, in bytes.
    const BOOKS: usize = 64 << 20;

    #[test]
    fn a_million_ranges_and_the_ledger_of_a_large_gpu_take_little_memory() {
        const RANGES: u64 = 1_000_000;
        const GIB: u64 = 1 << 30;
        // Pieces of a unit each: there cannot be more.
        let (_ledger, of_ledger) = heap::held_by(|| {
            let units = (80 * GIB / (2 << 20)) as u32;
            let mut ledger = Ledger::new(Units(units), Units(0));
            for piece in 0..units {
                ledger.lease(TENANT, CLASS, &[(PieceId(piece.into()), Units(1))], Slack::Kept).unwrap();
            }
            ledger
        });
        // In the order of addresses, as they are saved; and in none.
        for scatter in [1, 7919] {
            let (index, of_index) = heap::held_by(|| {
                let mut index = Index::default();
                for number in (0..RANGES).map(|number| number * scatter % RANGES) {
                    index.insert(TENANT, CLASS, number * (80 * GIB / RANGES), extent(number * 64, 64));
                }
                index
            });
            assert_eq!(index.entries().count() as u64, RANGES);
            println!("a million ranges: {of_index} bytes; the ledger: {of_ledger}");
            assert!(of_index + of_ledger <= BOOKS, "{of_index} and {of_ledger}");
        }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_table_of_single_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, 1u64..12, 0u64..3), 1..80),
        ) {
            let mut index = Index::default();
            let mut table: [Option<u64>; 64] = [None; 64];
            let mut fresh = 0;
            for (inserts, at, bytes, gap) in steps {
                let run = at as usize..(at + bytes) as usize;
                let any = table[run.clone()].iter().any(Option::is_some);
                prop_assert_eq!(index.holds_any(TENANT, CLASS, at, bytes), any);
                if inserts && !any {
                    fresh += gap;
                    index.insert(TENANT, CLASS, at, extent(fresh, bytes));
                    table[run.clone()].iter_mut().for_each(|byte| { *byte = Some(fresh); fresh += 1; });
                } else if !inserts {
                    let removed: Vec<u64> = table[run.clone()].iter_mut().filter_map(Option::take).collect();
                    prop_assert_eq!(bytes_of(&index.remove(TENANT, CLASS, at, bytes)), removed);
                }
                let wanted: Option<Vec<u64>> = table[run].iter().copied().collect();
                prop_assert_eq!(index.find(TENANT, CLASS, at, bytes).map(|e| bytes_of(&e)), wanted);
            }
        }
    }
}
