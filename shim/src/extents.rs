//! A set of byte ranges that never overlap or touch, with best-fit search.
//!
//! Invariant: both indexes hold the same extents; neighbours are merged.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

/// The extents, each `start..end`.
#[derive(Debug, Default)]
pub struct Extents {
    /// Start to end.
    by_start: BTreeMap<u64, u64>,
    /// Length and start: the first at or after `(n, 0)` is the best fit for `n` bytes.
    by_length: BTreeSet<(u64, u64)>,
}

impl Extents {
    /// Adds `start..end`, which overlaps no extent, and merges it with its neighbours.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &before_end)) = self.by_start.range(..start).next_back()
            && before_end == start
        {
            self.forget(before, before_end);
            start = before;
        }
        if let Some(&after_end) = self.by_start.get(&end) {
            self.forget(end, after_end);
            end = after_end;
        }
        self.remember(start, end);
    }

    /// Takes `start..end` out of whichever extents hold parts of it.
    pub fn remove(&mut self, start: u64, end: u64) {
        let first = self.by_start.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let touched: Vec<(u64, u64)> =
            self.by_start.range(first..end).map(|(&s, &e)| (s, e)).filter(|&(_, e)| e > start).collect();
        for (s, e) in touched {
            self.forget(s, e);
            if s < start {
                self.remember(s, start);
            }
            if end < e {
                self.remember(end, e);
            }
        }
    }

    /// The start of the smallest extent with room for `bytes`; the lowest of equals.
    pub fn best_fit(&self, bytes: u64) -> Option<u64> {
        self.by_length.range((bytes, 0)..).next().map(|&(_, start)| start)
    }

    /// The first multiple of `unit` in the smallest extent with room for `bytes` behind it; the lowest of equals.
    pub fn best_fit_from_multiple_of(&self, unit: u64, bytes: u64) -> Option<u64> {
        let fit = |&(length, start): &(u64, u64)| {
            let from = start.checked_next_multiple_of(unit)?;
            (from - start <= length - bytes).then_some(from)
        };
        self.by_length.range((bytes, 0)..).find_map(fit)
    }

    /// All extents by address, as `(start, end)`.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(&start, &end)| (start, end))
    }

    fn remember(&mut self, start: u64, end: u64) {
        self.by_start.insert(start, end);
        self.by_length.insert((end - start, start));
    }

    fn forget(&mut self, start: u64, end: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(end - start, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(ranges: &[(u64, u64)]) -> Extents {
        let mut extents = Extents::default();
        ranges.iter().for_each(|&(start, end)| extents.insert(start, end));
        extents
    }

    #[test]
    fn neighbours_become_one() {
        let merged = extents(&[(0, 10), (20, 30), (10, 20)]);
        assert_eq!(merged.iter().collect::<Vec<_>>(), [(0, 30)]);
        assert_eq!(merged.best_fit(30), Some(0));
        assert_eq!(merged.best_fit(31), None);
    }

    #[test]
    fn a_removal_may_cut_several_extents() {
        let mut cut = extents(&[(0, 10), (20, 30), (40, 50)]);
        cut.remove(5, 45);
        assert_eq!(cut.iter().collect::<Vec<_>>(), [(0, 5), (45, 50)]);
        cut.remove(1, 2);
        assert_eq!(cut.iter().collect::<Vec<_>>(), [(0, 1), (2, 5), (45, 50)]);
    }

    #[test]
    fn the_smallest_that_fits_is_chosen_then_the_lowest() {
        let choice = extents(&[(0, 100), (200, 210), (300, 310)]);
        assert_eq!(choice.best_fit(10), Some(200));
        assert_eq!(choice.best_fit(11), Some(0));
    }

    #[test]
    fn the_smallest_that_has_a_multiple_with_room_is_chosen() {
        let choice = extents(&[(1, 100), (205, 215), (308, 321), (608, 621)]);
        assert_eq!(choice.best_fit_from_multiple_of(10, 5), Some(210));
        assert_eq!(choice.best_fit_from_multiple_of(10, 6), Some(310));
        assert_eq!(choice.best_fit_from_multiple_of(10, 12), Some(10));
        assert_eq!(choice.best_fit_from_multiple_of(10, 91), None);
    }
}
