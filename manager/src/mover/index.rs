//! Where the saved bytes lie: one entry for each run of bytes of a tenant's address range. Pure.
//!
//! Invariant: the entries of an address range do not overlap, and no two entries of any ranges
//! share a byte of the tier. Entries that continue each other on both sides are one.

#![forbid(unsafe_code)]

use super::tier::Extent;
use std::collections::BTreeMap;
use tidegate_ffi::units::{Class, TenantId};

/// The saved bytes of all tenants.
#[derive(Debug, Default)]
pub struct Index {
    ranges: BTreeMap<(TenantId, Class), Ranges>,
}

/// The saved bytes of one address range: place in the range → place in the tier.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, Extent>);

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
                ranges.0.iter().map(|(at, extent)| (tenant, class, *at, *extent)).collect();
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
        ranges.flat_map(|ranges| ranges.0.into_values()).collect()
    }
}

impl Ranges {
    fn overlapping(&self, at: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let before = self.0.range(..=at).next_back();
        let first =
            before.filter(|(start, extent)| *start + extent.bytes > at).map_or(at, |(start, _)| *start);
        self.0.range(first..end).map(|(start, extent)| (*start, *extent))
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

    fn insert(&mut self, mut at: u64, mut extent: Extent) {
        if let Some((&before, &earlier)) = self.0.range(..at).next_back()
            && before + earlier.bytes == at
            && earlier.continues_with(extent)
        {
            at = before;
            extent = earlier.joined(extent);
        }
        if let Some(&later) = self.0.get(&(at + extent.bytes))
            && extent.continues_with(later)
        {
            self.0.remove(&(at + extent.bytes));
            extent = extent.joined(later);
        }
        self.0.insert(at, extent);
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
            self.0.insert(start, extent.slice(0, from));
        }
        if to < extent.bytes {
            self.0.insert(end, extent.slice(to, extent.bytes));
        }
        extent.slice(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::tier::SlabId;
    use proptest::prelude::*;

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
