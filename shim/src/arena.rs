//! Places allocations in one class's reserved address range of a tenant.
//!
//! ```text
//! slots      ┌ backed ┬ backed ┬ claimed ┬ claimed ┬ unbacked ┬ …
//! used       [ A ][B]     [ C ][        D         ]
//! free cache          ····                             (backed and not used)
//! ```
//! Invariants: places do not overlap and never move (I3); *free* is exactly what is backed and
//! not used; a claimed slot belongs to one place, whose thread is getting a piece for it.
//!
//! The arena knows offsets and slots, no pieces and no driver. No call of it waits: whoever
//! needs pieces takes a [`Place`] with claims, gets them without holding the arena, and comes
//! back to [`Arena::settle`].
#![forbid(unsafe_code)]

use crate::extents::Extents;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tidegate_ffi::units::{SlotIndex, Units};

/// Every place starts at, and is rounded up to, a multiple of this, as the driver's do.
pub const ALIGNMENT: u64 = 512;

/// What is behind a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nothing: a piece may be asked for.
    Unbacked,
    /// Nothing yet: a place has claimed it and its thread is getting a piece.
    Claimed,
    /// A mapped piece.
    Backed,
    /// Nothing while the job is stopped: the manager may map a piece here again.
    Away,
    /// A piece that is being given back.
    Leaving,
    /// Nothing: it keeps the slots on one side apart from those on the other.
    Between,
}

/// Consecutive slots that a place needs pieces for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The first slot.
    pub first: SlotIndex,
    /// How many are needed.
    pub units: Units,
    /// How many more directly behind are claimed too, in case the manager has pieces to spare.
    pub ahead: Units,
}

/// Where an allocation goes. With claims, it is the allocation's only once these are backed.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset of its first byte.
    pub start: u64,
    /// What is to be backed first.
    pub claims: Vec<Claim>,
}

/// One class's address range.
#[derive(Debug)]
pub struct Arena {
    unit: u64,
    slots_in_range: u32,
    /// Grown to the highest slot ever touched; beyond it all are unbacked.
    slots: Vec<Slot>,
    /// Start to end, rounded up.
    used: BTreeMap<u64, u64>,
    /// The starts of places that have slots of their own, empty ones around them.
    apart: BTreeSet<u64>,
    free: Extents,
    backed: u32,
    leaving: u32,
    /// Backed slots in which no place has been since they came.
    unused: BTreeSet<u32>,
}

impl Arena {
    /// An empty range of `range_bytes` in slots of `unit_bytes`.
    pub fn new(unit_bytes: u64, range_bytes: u64) -> Self {
        let unit = unit_bytes.max(ALIGNMENT);
        Self {
            unit,
            slots_in_range: u32::try_from(range_bytes / unit).unwrap_or(u32::MAX),
            slots: Vec::new(),
            used: BTreeMap::new(),
            apart: BTreeSet::new(),
            free: Extents::default(),
            backed: 0,
            leaving: 0,
            unused: BTreeSet::new(),
        }
    }

    /// Finds room for `bytes` (at least 1): in the backed free space where it fits best, else
    /// where the fewest new slots are needed. Of equally good places it prefers one that begins with a slot, so that
    /// freeing it leaves whole slots. Up to `ahead` slots more are claimed behind the
    /// last. `None`: the address range is full.
    pub fn place(&mut self, bytes: u64, ahead: Units) -> Option<Place> {
        if let Some(start) = self.place_backed(bytes) {
            return Some(Place { start, claims: Vec::new() });
        }
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let start = self.cheapest_start(bytes)?;
        self.occupy(start, bytes);
        let claims = self.claim(start, start + bytes, ahead);
        Some(Place { start, claims })
    }

    /// Finds room for `bytes` in the backed free space, where it fits best.
    pub fn place_backed(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        // Other sizes would leave a part of a slot unused.
        let whole = bytes.is_multiple_of(self.unit);
        let from_slot = self.free.best_fit_from_multiple_of(self.unit, bytes).filter(|_| whole);
        let start = from_slot.or_else(|| self.free.best_fit(bytes))?;
        self.occupy(start, bytes);
        Some(start)
    }

    /// Finds room for `bytes` in slots of their own, behind which there is nothing: in pieces of their
    /// own, then. The slots before and behind stay empty, so that what lies there never touches other
    /// memory, and never comes back in one piece with it. `None`: the address range is full.
    pub fn place_apart(&mut self, bytes: u64) -> Option<Place> {
        let bytes = bytes.max(1).checked_next_multiple_of(self.unit)?;
        let is_empty = |first: u64| {
            let end = first.checked_add(bytes)?.checked_add(2 * self.unit)?;
            let fits = end <= self.slots_in_range as u64 * self.unit && !self.is_used(first, end);
            (fits && self.slots_over(first, end).all(|slot| self.slot(slot) == Slot::Unbacked))
                .then_some(first)
        };
        let first = self.unbacked_runs().find_map(is_empty)?;
        let start = first + self.unit;
        self.occupy(start, bytes);
        self.apart.insert(start);
        self.set((first / self.unit) as u32, Slot::Between);
        self.set(((start + bytes) / self.unit) as u32, Slot::Between);
        let claims = self.claim(start, start + bytes, Units(0));
        Some(Place { start, claims })
    }

    /// Ends a place's claims: what was claimed and not backed is unclaimed. True when all of the
    /// place is backed; else the place is given up (a piece was taken away meanwhile) and the
    /// caller must look for another.
    #[must_use]
    pub fn settle(&mut self, place: &Place) -> bool {
        self.unclaim(place);
        let whole = self.is_whole(place.start);
        if !whole {
            self.free(place.start);
        }
        whole
    }

    /// Whether all of the place at `start` is backed.
    pub fn is_whole(&self, start: u64) -> bool {
        let is_backed = |end: u64| self.slots_over(start, end).all(|slot| self.slot(slot) == Slot::Backed);
        self.used.get(&start).is_some_and(|&end| is_backed(end))
    }

    /// Gives a place up, with its claims.
    pub fn abandon(&mut self, place: &Place) {
        self.unclaim(place);
        self.free(place.start);
    }

    /// Frees the place at `start`; what of it is backed can be used again at once.
    pub fn free(&mut self, start: u64) {
        let Some(end) = self.used.remove(&start) else { return };
        if self.apart.remove(&start) {
            self.unguard(start, end);
        }
        for slot in self.slots_over(start, end) {
            if self.slot(slot) == Slot::Backed {
                let (slot_start, slot_end) = self.bytes_of(slot);
                self.free.insert(start.max(slot_start), end.min(slot_end));
            }
        }
    }

    /// The length of the place at `start`, rounded up.
    pub fn length(&self, start: u64) -> Option<u64> {
        self.used.get(&start).map(|end| end - start)
    }

    /// A piece is mapped behind these slots.
    pub fn back(&mut self, first: SlotIndex, units: Units) {
        for slot in self.run(first, units) {
            if self.slot(slot) != Slot::Backed {
                self.set(slot, Slot::Backed);
                self.backed += 1;
                let (start, end) = self.bytes_of(slot);
                if !self.is_used(start, end) {
                    self.unused.insert(slot);
                }
                self.free_unused_of(slot);
            }
        }
    }

    /// The pieces behind these slots were taken away while the job is stopped.
    pub fn send_away(&mut self, first: SlotIndex, units: Units) {
        self.strip(first, units, Slot::Away);
    }

    /// The job runs again: what did not come back will not come by itself.
    pub fn reopen(&mut self) {
        for slot in &mut self.slots {
            if *slot == Slot::Away {
                *slot = Slot::Unbacked;
            }
        }
    }

    /// Whether a piece is being given back: no place can be where it was.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// Whether a slot is backed and no place touches it.
    pub fn has_idle(&self) -> bool {
        self.free.iter().any(|(start, end)| start.next_multiple_of(self.unit) + self.unit <= end)
    }

    /// Takes these slots out of use, if all are backed and no place touches them: the piece
    /// behind them is going to be given back. Ends with [`Arena::left`], or [`Arena::back`].
    #[must_use]
    pub fn start_leaving(&mut self, first: SlotIndex, units: Units) -> bool {
        let (start, end) = self.bytes_of_run(first, units);
        let idle =
            self.run(first, units).all(|slot| self.slot(slot) == Slot::Backed) && !self.is_used(start, end);
        if idle {
            self.strip(first, units, Slot::Leaving);
        }
        idle
    }

    /// Ends a place that has slots of its own: their pieces are going to be given back.
    pub fn free_apart(&mut self, start: u64) {
        let Some(&end) = self.used.get(&start) else { return };
        self.free(start);
        let slots = self.slots_over(start, end);
        self.strip(SlotIndex(slots.start), Units(slots.end - slots.start), Slot::Leaving);
    }

    /// The slots before and behind a place that had some of its own need not stay empty.
    fn unguard(&mut self, start: u64, end: u64) {
        self.set((start / self.unit) as u32 - 1, Slot::Unbacked);
        self.set((end / self.unit) as u32, Slot::Unbacked);
    }

    /// The piece behind these slots was given back.
    pub fn left(&mut self, first: SlotIndex, units: Units) {
        for slot in self.run(first, units) {
            if self.slot(slot) == Slot::Leaving {
                self.set(slot, Slot::Unbacked);
            }
        }
    }

    /// The parts of these bytes that have no mapped piece, in whole slots and in order.
    pub fn missing(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        let slots = self.slots_over(bytes.start, bytes.end);
        let touched = slots.end.min(self.slots.len() as u32).max(slots.start);
        let unmapped = (slots.start..touched).filter(|&slot| self.slot(slot) != Slot::Backed);
        let beyond = (touched < slots.end).then(|| self.bytes_of(touched).0..self.bytes_of(slots.end).0);
        for run in unmapped.map(|slot| self.bytes_of(slot)).map(|(start, end)| start..end).chain(beyond) {
            match missing.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => missing.push(run),
            }
        }
        missing
    }

    /// How many slots have a mapped piece.
    pub fn backed(&self) -> Units {
        Units(self.backed)
    }

    /// How many of these no place has touched since the piece came: leased ahead, and not used yet.
    pub fn unused(&self) -> Units {
        Units(self.unused.len() as u32)
    }

    /// Whether `units` slots from `first` lie in the range.
    pub fn contains(&self, first: SlotIndex, units: Units) -> bool {
        first.0.checked_add(units.0).is_some_and(|end| end <= self.slots_in_range)
    }

    fn occupy(&mut self, start: u64, bytes: u64) {
        self.used.insert(start, start + bytes);
        self.free.remove(start, start + bytes);
        let slots = self.slots_over(start, start + bytes);
        while let Some(&slot) = self.unused.range(slots.clone()).next() {
            self.unused.remove(&slot);
        }
    }

    /// The start, among those worth trying, that needs the fewest new slots; of equals one that begins with a slot, then the
    /// lowest.
    fn cheapest_start(&self, bytes: u64) -> Option<u64> {
        let growing = self.free.iter().filter(|&(_, end)| self.may_grow_at(end));
        let from_free = growing.flat_map(|(start, end)| {
            let slot = start.next_multiple_of(self.unit);
            [start].into_iter().chain((slot < end && slot != start).then_some(slot))
        });
        from_free
            .chain(self.unbacked_runs())
            .filter_map(|start| Some((self.cost(start, bytes)?, !start.is_multiple_of(self.unit), start)))
            .min()
            .map(|(_, _, start)| start)
    }

    /// Whether free space that ends at `end` can go on into a slot without a piece.
    fn may_grow_at(&self, end: u64) -> bool {
        end.is_multiple_of(self.unit) && self.slot((end / self.unit) as u32) == Slot::Unbacked
    }

    /// The first bytes of the runs of unbacked slots, the endless last one included.
    fn unbacked_runs(&self) -> impl Iterator<Item = u64> + '_ {
        let touched = self.slots.len() as u32;
        (0..=touched)
            .filter(|&slot| self.slot(slot) == Slot::Unbacked)
            .filter(|&slot| slot == 0 || self.slot(slot - 1) != Slot::Unbacked)
            .map(|slot| slot as u64 * self.unit)
    }

    /// How many new slots `bytes` at `start` would need; `None` when it cannot go there.
    fn cost(&self, start: u64, bytes: u64) -> Option<usize> {
        let end = start.checked_add(bytes)?;
        if end > self.slots_in_range as u64 * self.unit || self.is_used(start, end) {
            return None;
        }
        let mut new = 0;
        for slot in self.slots_over(start, end) {
            match self.slot(slot) {
                Slot::Unbacked => new += 1,
                Slot::Backed => {}
                Slot::Claimed | Slot::Away | Slot::Leaving | Slot::Between => return None,
            }
        }
        Some(new)
    }

    fn claim(&mut self, start: u64, end: u64, ahead: Units) -> Vec<Claim> {
        let mut claims: Vec<Claim> = Vec::new();
        for slot in self.slots_over(start, end).filter(|&slot| self.slot(slot) == Slot::Unbacked) {
            match claims.last_mut() {
                Some(last) if last.first.0 + last.units.0 == slot => last.units.0 += 1,
                _ => claims.push(Claim { first: SlotIndex(slot), units: Units(1), ahead: Units(0) }),
            }
        }
        if let Some(last) = claims.last_mut() {
            last.ahead = self.room_ahead(last.first.0 + last.units.0, end, ahead);
        }
        for claim in &claims {
            for slot in self.run(claim.first, Units(claim.units.0 + claim.ahead.0)) {
                self.set(slot, Slot::Claimed);
            }
        }
        claims
    }

    /// How many of the `wanted` slots from `first` on nobody uses or has claimed. Only a claim
    /// at the very end of its place has room behind it.
    fn room_ahead(&self, first: u32, place_end: u64, wanted: Units) -> Units {
        let (start, _) = self.bytes_of(first);
        if start < place_end {
            return Units(0);
        }
        let is_room = |&slot: &u32| {
            let (start, end) = self.bytes_of(slot);
            self.slot(slot) == Slot::Unbacked && !self.is_used(start, end)
        };
        let limit = self.slots_in_range.min(first.saturating_add(wanted.0));
        Units((first..limit).take_while(is_room).count() as u32)
    }

    fn unclaim(&mut self, place: &Place) {
        for claim in &place.claims {
            for slot in self.run(claim.first, Units(claim.units.0 + claim.ahead.0)) {
                if self.slot(slot) == Slot::Claimed {
                    self.set(slot, Slot::Unbacked);
                }
            }
        }
    }

    fn strip(&mut self, first: SlotIndex, units: Units, state: Slot) {
        for slot in self.run(first, units) {
            if self.slot(slot) == Slot::Backed {
                let (start, end) = self.bytes_of(slot);
                self.free.remove(start, end);
                self.backed -= 1;
                self.unused.remove(&slot);
                self.set(slot, state);
            }
        }
    }

    fn free_unused_of(&mut self, slot: u32) {
        let (mut from, end) = self.bytes_of(slot);
        let first = self.used.range(..=from).next_back().map_or(from, |(&first, _)| first);
        let in_slot: Vec<(u64, u64)> = self.used.range(first..end).map(|(&s, &e)| (s, e)).collect();
        for (used_start, used_end) in in_slot {
            self.free.insert(from, used_start);
            from = from.max(used_end);
        }
        self.free.insert(from, end);
    }

    fn is_used(&self, start: u64, end: u64) -> bool {
        self.used.range(..end).next_back().is_some_and(|(_, &used_end)| used_end > start)
    }

    fn slot(&self, slot: u32) -> Slot {
        self.slots.get(slot as usize).copied().unwrap_or(Slot::Unbacked)
    }

    fn set(&mut self, slot: u32, state: Slot) {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Slot::Unbacked);
        }
        let before = std::mem::replace(&mut self.slots[index], state);
        self.leaving -= u32::from(before == Slot::Leaving);
        self.leaving += u32::from(state == Slot::Leaving);
    }

    fn run(&self, first: SlotIndex, units: Units) -> Range<u32> {
        first.0..first.0.saturating_add(units.0).min(self.slots_in_range)
    }

    fn slots_over(&self, start: u64, end: u64) -> Range<u32> {
        (start / self.unit) as u32..end.div_ceil(self.unit) as u32
    }

    fn bytes_of(&self, slot: u32) -> (u64, u64) {
        self.bytes_of_run(SlotIndex(slot), Units(1))
    }

    fn bytes_of_run(&self, first: SlotIndex, units: Units) -> (u64, u64) {
        let start = first.0 as u64 * self.unit;
        (start, start + units.0 as u64 * self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 4096;

    fn arena() -> Arena {
        Arena::new(UNIT, 64 * UNIT)
    }

    /// Places `bytes` and backs what it claims, as a thread with a generous manager would.
    fn allocate(arena: &mut Arena, bytes: u64) -> u64 {
        let place = arena.place(bytes, Units(0)).unwrap();
        for claim in &place.claims {
            arena.back(claim.first, claim.units);
        }
        assert!(arena.settle(&place));
        place.start
    }

    fn claims(place: &Place) -> Vec<(u32, u32, u32)> {
        place.claims.iter().map(|c| (c.first.0, c.units.0, c.ahead.0)).collect()
    }

    #[test]
    fn what_is_backed_and_free_is_reused_without_claims() {
        let mut arena = arena();
        let first = allocate(&mut arena, UNIT);
        arena.free(first);
        let place = arena.place(100, Units(9)).unwrap();
        assert_eq!((place.start, place.claims.len()), (first, 0));
        assert_eq!(arena.backed(), Units(1));
    }

    #[test]
    fn a_slot_is_idle_when_no_place_touches_any_of_it() {
        let mut arena = arena();
        let places = [0, 1, 2].map(|_| allocate(&mut arena, UNIT / 2));
        assert!(!arena.has_idle(), "half of the second slot is in use");
        arena.free(places[1]);
        assert!(!arena.has_idle());
        arena.free(places[2]);
        assert!(arena.has_idle());
        assert!(arena.start_leaving(SlotIndex(1), Units(1)));
        assert!(!arena.has_idle() && arena.is_leaving(), "it is on its way");
        arena.left(SlotIndex(1), Units(1));
        assert!(!arena.is_leaving());
    }

    #[test]
    fn what_is_leased_ahead_is_unused_until_a_place_touches_it() {
        let mut arena = arena();
        let place = arena.place(UNIT, Units(3)).unwrap();
        arena.back(SlotIndex(0), Units(4));
        assert!(arena.settle(&place));
        assert_eq!(arena.unused(), Units(3));
        let second = allocate(&mut arena, UNIT + 1);
        assert_eq!(arena.unused(), Units(1));
        arena.free(second);
        assert_eq!(arena.unused(), Units(1), "what was used once stays so");
        arena.send_away(SlotIndex(3), Units(1));
        assert_eq!(arena.unused(), Units(0));
    }

    #[test]
    fn a_place_grows_from_backed_free_space() {
        let mut arena = arena();
        allocate(&mut arena, 1024);
        let place = arena.place(2 * UNIT + UNIT / 2, Units(3)).unwrap();
        assert_eq!(place.start, 1024, "from the next slot it would need three");
        assert_eq!(claims(&place), [(1, 2, 3)]);
    }

    #[test]
    fn what_fills_slots_begins_with_one_so_that_it_leaves_whole_ones() {
        let mut arena = arena();
        let small = allocate(&mut arena, 8);
        let large = [0; 3].map(|_| allocate(&mut arena, UNIT));
        assert_eq!((small, large), (0, [UNIT, 2 * UNIT, 3 * UNIT]));
        arena.free(large[1]);
        assert!(arena.has_idle());
        arena.free(small);
        // What is free ends with the first slot, and begins with the third.
        assert_eq!(allocate(&mut arena, 8), 0, "small ones share a slot");
        arena.free(large[0]);
        assert_eq!(allocate(&mut arena, UNIT), UNIT, "not at the first free byte");
        arena.free(UNIT);
        assert_eq!(allocate(&mut arena, UNIT + 512), ALIGNMENT, "what fills no slots wastes none");
    }

    #[test]
    fn two_places_never_claim_one_slot() {
        let mut arena = arena();
        let one = arena.place(UNIT + 1, Units(2)).unwrap();
        let other = arena.place(1, Units(0)).unwrap();
        assert_eq!(claims(&one), [(0, 2, 2)]);
        assert_eq!(claims(&other), [(4, 1, 0)]);
        arena.abandon(&one);
        assert_eq!(claims(&arena.place(3 * UNIT, Units(0)).unwrap()), [(0, 3, 0)]);
    }

    #[test]
    fn pieces_that_were_not_granted_can_be_claimed_again() {
        let mut arena = arena();
        let place = arena.place(UNIT, Units(4)).unwrap();
        arena.back(SlotIndex(0), Units(2));
        assert!(arena.settle(&place));
        assert_eq!(arena.place(UNIT, Units(0)).unwrap().claims, []);
        assert_eq!(claims(&arena.place(UNIT, Units(0)).unwrap()), [(2, 1, 0)]);
    }

    #[test]
    fn a_place_whose_pieces_were_taken_away_meanwhile_is_given_up() {
        let mut arena = arena();
        let place = arena.place(2 * UNIT, Units(0)).unwrap();
        arena.back(SlotIndex(0), Units(1));
        arena.send_away(SlotIndex(0), Units(1));
        arena.back(SlotIndex(1), Units(1));
        assert!(!arena.settle(&place));
        arena.reopen();
        assert_eq!(allocate(&mut arena, 2 * UNIT), 0);
    }

    #[test]
    fn while_away_slots_are_neither_free_nor_claimed_and_addresses_stay() {
        let mut arena = arena();
        let kept = allocate(&mut arena, 512);
        let freed = allocate(&mut arena, 512);
        arena.send_away(SlotIndex(0), Units(1));
        arena.free(freed);
        assert_eq!(claims(&arena.place(1, Units(0)).unwrap()), [(1, 1, 0)]);
        arena.back(SlotIndex(0), Units(1));
        arena.reopen();
        assert_eq!(arena.place(512, Units(0)).unwrap(), Place { start: freed, claims: Vec::new() });
        assert_eq!(kept, 0);
    }

    #[test]
    fn only_wholly_free_slots_leave() {
        let mut arena = arena();
        let first = allocate(&mut arena, 3 * UNIT);
        allocate(&mut arena, 1);
        arena.free(first);
        assert!(!arena.start_leaving(SlotIndex(2), Units(2)));
        assert!(arena.start_leaving(SlotIndex(0), Units(2)));
        assert_eq!(arena.place(UNIT, Units(0)).unwrap().start, 2 * UNIT);
        arena.left(SlotIndex(0), Units(2));
        assert_eq!(claims(&arena.place(UNIT, Units(0)).unwrap()), [(0, 1, 0)]);
    }

    #[test]
    fn what_has_no_mapped_piece_is_missing() {
        fn slots(arena: &Arena, bytes: Range<u64>) -> Vec<(u64, u64)> {
            arena.missing(bytes).iter().map(|run| (run.start / UNIT, run.end / UNIT)).collect()
        }
        let mut arena = arena();
        allocate(&mut arena, 4 * UNIT);
        assert_eq!(slots(&arena, 0..4 * UNIT), []);
        arena.send_away(SlotIndex(1), Units(2));
        assert_eq!(slots(&arena, 0..4 * UNIT), [(1, 3)]);
        assert_eq!(slots(&arena, UNIT - 1..UNIT), []);
        assert_eq!(slots(&arena, UNIT - 1..UNIT + 1), [(1, 2)]);
        arena.back(SlotIndex(1), Units(1));
        assert_eq!(slots(&arena, 0..64 * UNIT), [(2, 3), (4, 64)]);
        assert_eq!(slots(&arena, 50 * UNIT..50 * UNIT + 1), [(50, 51)], "never touched");
    }

    #[test]
    fn a_full_range_has_no_place() {
        let mut arena = arena();
        assert!(arena.place(65 * UNIT, Units(0)).is_none());
        assert!(arena.place(u64::MAX, Units(0)).is_none());
        allocate(&mut arena, 64 * UNIT);
        assert!(arena.place(1, Units(0)).is_none());
    }

    /// A check of the invariants by the plainest means: byte for byte, in steps of 512.
    fn check(arena: &Arena) {
        let mut free: Vec<u64> = Vec::new();
        for slot in 0..arena.slots_in_range {
            let (start, end) = arena.bytes_of(slot);
            let unused = (start..end).step_by(512).filter(|&at| !arena.is_used(at, at + 512));
            if arena.slot(slot) == Slot::Backed {
                free.extend(unused);
            }
        }
        let indexed: Vec<u64> = arena.free.iter().flat_map(|(s, e)| (s..e).step_by(512)).collect();
        assert_eq!(indexed, free);
        let ends = arena.used.values();
        assert!(arena.used.keys().skip(1).zip(ends).all(|(next, end)| end <= next), "places overlap");
        let backed = (0..arena.slots_in_range).filter(|&s| arena.slot(s) == Slot::Backed).count();
        assert_eq!(arena.backed().0 as usize, backed);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { bytes: u64, granted: u32 },
        Start { bytes: u64, ahead: u32 },
        Finish { index: usize, refused: bool },
        Free(usize),
        Away { first: u32, units: u32 },
        Return { first: u32, units: u32 },
        Reopen,
        Leave { first: u32, units: u32 },
    }

    fn steps() -> impl Strategy<Value = Step> {
        let slots = || (0u32..40, 1u32..8);
        prop_oneof![
            4 => (1..6 * UNIT, 0u32..4).prop_map(|(bytes, granted)| Step::Allocate { bytes, granted }),
            2 => (1..6 * UNIT, 0u32..4).prop_map(|(bytes, ahead)| Step::Start { bytes, ahead }),
            2 => (any::<usize>(), any::<bool>()).prop_map(|(index, refused)| Step::Finish { index, refused }),
            4 => any::<usize>().prop_map(Step::Free),
            1 => slots().prop_map(|(first, units)| Step::Away { first, units }),
            1 => slots().prop_map(|(first, units)| Step::Return { first, units }),
            1 => Just(Step::Reopen),
            1 => slots().prop_map(|(first, units)| Step::Leave { first, units }),
        ]
    }

    #[derive(Default)]
    struct Model {
        live: Vec<u64>,
        pending: Vec<Place>,
        away: Vec<u32>,
    }

    impl Model {
        fn finish(&mut self, arena: &mut Arena, place: Place, spare: u32) {
            for claim in &place.claims {
                arena.back(claim.first, Units(claim.units.0 + spare.min(claim.ahead.0)));
            }
            if arena.settle(&place) {
                self.live.push(place.start);
            }
        }

        fn step(&mut self, arena: &mut Arena, step: Step) {
            match step {
                Step::Allocate { bytes, granted } => {
                    if let Some(place) = arena.place(bytes, Units(granted)) {
                        self.finish(arena, place, granted);
                    }
                }
                Step::Start { bytes, ahead } => self.pending.extend(arena.place(bytes, Units(ahead))),
                Step::Finish { index, refused } if !self.pending.is_empty() => {
                    let place = self.pending.swap_remove(index % self.pending.len());
                    if refused { arena.abandon(&place) } else { self.finish(arena, place, 1) }
                }
                Step::Free(index) if !self.live.is_empty() => {
                    arena.free(self.live.swap_remove(index % self.live.len()));
                }
                Step::Away { first, units } => {
                    self.away.extend((first..first + units).filter(|&s| arena.slot(s) == Slot::Backed));
                    arena.send_away(SlotIndex(first), Units(units));
                }
                Step::Return { first, units } => {
                    let back = |s: &u32| (first..first + units).contains(s) && arena.slot(*s) == Slot::Away;
                    let slots: Vec<u32> = self.away.iter().copied().filter(back).collect();
                    slots.into_iter().for_each(|slot| arena.back(SlotIndex(slot), Units(1)));
                }
                Step::Reopen => arena.reopen(),
                Step::Leave { first, units } => {
                    if arena.start_leaving(SlotIndex(first), Units(units)) {
                        arena.left(SlotIndex(first), Units(units));
                    }
                }
                Step::Finish { .. } | Step::Free(_) => {}
            }
        }
    }

    proptest! {
        #[test]
        fn random_lives_keep_the_invariants(steps in proptest::collection::vec(steps(), 1..80)) {
            let (mut arena, mut model) = (arena(), Model::default());
            for step in steps {
                model.step(&mut arena, step);
                check(&arena);
                prop_assert!(model.live.iter().all(|start| arena.used.contains_key(start)));
            }
        }
    }
}
