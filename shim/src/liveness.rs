//! Which bytes are alive: allocated and not freed, with what is known about how long they live.
//!
//! An allocation is alive as a whole, unless a framework tells what it does with it ([`blocks`]).
//!
//! Invariants: allocations do not overlap; `live` is what is alive of them. The map errs on the
//! side of life only (I1): a byte that it leaves out belongs to no allocation, or to one that is dealt
//! out in blocks, and there to no block.
//!
//! [`blocks`]: crate::blocks
#![forbid(unsafe_code)]

use crate::blocks::{Block, Blocks, Mismatch};
use crate::gate::Stamp;
use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::live::{Life, LiveRange, MAX_RANGES};

/// Boundaries (or switches) that an allocation must survive to count as long-lived.
const LONG_LIFE: u64 = 2;

/// How much is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// All of it.
    pub live: u64,
    /// What the program, or its framework, calls persistent.
    pub persistent: u64,
}

/// When the job was stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// In the counts by which allocations age.
    pub now: Moment,
    /// The thread that is between two iterations: what it has freed it has used.
    pub at_boundary: Option<Stamp>,
}

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
    allocations: BTreeMap<u64, Known<Owner>>,
    allocated_bytes: u64,
    live: Bytes,
    /// What was told of blocks cannot be believed.
    is_blind: bool,
}

/// What is known of an allocation.
#[derive(Debug)]
struct Known<Owner> {
    allocation: Allocation<Owner>,
    /// It is dealt out in blocks.
    blocks: Option<Blocks>,
}

impl<Owner> Known<Owner> {
    /// The blocks that are all that is alive of it.
    fn blocks(&self, is_blind: bool) -> Option<&Blocks> {
        self.blocks.as_ref().filter(|blocks| !is_blind && blocks.live_bytes().is_some())
    }

    fn live_bytes(&self, is_blind: bool) -> Bytes {
        let Allocation { bytes, persistent, .. } = self.allocation;
        let blocks = self.blocks(is_blind).and_then(Blocks::live_bytes);
        let whole = Bytes { live: bytes, persistent: if persistent { bytes } else { 0 } };
        blocks.unwrap_or(whole)
    }
}

impl<Owner> Default for Liveness<Owner> {
    fn default() -> Self {
        Self { allocations: BTreeMap::new(), allocated_bytes: 0, live: Bytes::default(), is_blind: false }
    }
}

impl<Owner: Copy + PartialEq> Liveness<Owner> {
    /// Notes an allocation at `start`, where nothing is alive.
    pub fn insert(&mut self, start: u64, allocation: Allocation<Owner>) {
        let known = Known { allocation, blocks: None };
        self.allocated_bytes += allocation.bytes;
        self.count(Bytes::default(), known.live_bytes(self.is_blind));
        let before = self.allocations.insert(start, known);
        debug_assert!(before.is_none(), "two allocations at {start:#x}");
    }

    /// Forgets the allocation that starts at `start`.
    pub fn remove(&mut self, start: u64) -> Option<Allocation<Owner>> {
        let gone = self.allocations.remove(&start)?;
        self.allocated_bytes -= gone.allocation.bytes;
        self.count(gone.live_bytes(self.is_blind), Bytes::default());
        Some(gone.allocation)
    }

    /// So much of what is alive is so much now.
    fn count(&mut self, before: Bytes, after: Bytes) {
        self.live.live = self.live.live - before.live + after.live;
        self.live.persistent = self.live.persistent - before.persistent + after.persistent;
    }

    /// The allocation that the byte at `at` belongs to, with its start.
    pub fn containing(&self, at: u64) -> Option<(u64, Allocation<Owner>)> {
        let (&start, known) = self.allocations.range(..=at).next_back()?;
        (at - start < known.allocation.bytes).then_some((start, known.allocation))
    }

    fn known_at(&mut self, at: u64) -> Option<(u64, &mut Known<Owner>)> {
        let (&start, known) = self.allocations.range_mut(..=at).next_back()?;
        (at - start < known.allocation.bytes).then_some((start, known))
    }

    /// Changes the blocks of the allocation that these bytes lie in.
    fn change_blocks(
        &mut self,
        bytes: Range<u64>,
        change: impl FnOnce(&mut Blocks) -> Result<(), Mismatch>,
    ) -> Result<(), Mismatch> {
        let is_blind = self.is_blind;
        let (start, known) = self.known_at(bytes.start).ok_or(Mismatch::Outside)?;
        if bytes.end - start > known.allocation.bytes {
            return Err(Mismatch::Outside);
        }
        let before = known.live_bytes(is_blind);
        let changed = change(known.blocks.get_or_insert_default());
        let after = known.live_bytes(is_blind);
        self.count(before, after);
        changed
    }

    /// A framework deals out a block of an allocation of its own. `is_capturing`: a graph is being
    /// captured, and may use all of the allocation whenever it is launched.
    pub fn deal_out(&mut self, start: u64, block: Block, is_capturing: bool) -> Result<(), Mismatch> {
        self.change_blocks(start..start + block.bytes, |blocks| {
            if is_capturing {
                blocks.capture();
            }
            blocks.add(start, block)
        })
    }

    /// A block is taken back, by a thread that has come so far.
    pub fn take_back(
        &mut self,
        start: u64,
        bytes: u64,
        by: Stamp,
        is_capturing: bool,
    ) -> Result<(), Mismatch> {
        self.change_blocks(start..start + bytes, |blocks| {
            if is_capturing {
                blocks.capture();
            }
            blocks.free(start, bytes, by)
        })
    }

    /// From now on allocations are alive as a whole, whatever is told of blocks.
    pub fn disbelieve(&mut self) {
        self.is_blind = true;
        self.live = Bytes::default();
        let all: Vec<Bytes> = self.allocations.values().map(|known| known.live_bytes(true)).collect();
        all.into_iter().for_each(|bytes| self.count(Bytes::default(), bytes));
    }

    /// All blocks that are dealt out: start and length.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let blocks = self.allocations.values().filter_map(|known| known.blocks.as_ref());
        blocks.flat_map(Blocks::iter).map(|(start, block)| (start, block.bytes))
    }

    /// Re-classes the block, or else the allocation, that `at` belongs to; false when there is none.
    /// Called temporary, it starts to age anew.
    pub fn tag(&mut self, at: u64, class: Class, now: Moment) -> bool {
        let is_blind = self.is_blind;
        let Some((_, known)) = self.known_at(at) else { return false };
        let before = known.live_bytes(is_blind);
        let is_block = known.blocks.as_mut().is_some_and(|blocks| blocks.tag(at, class, now));
        if !is_block {
            known.allocation.persistent = class == Class::Persistent;
            if class == Class::Temporary {
                known.allocation.born = now;
            }
        }
        let after = known.live_bytes(is_blind);
        self.count(before, after);
        true
    }

    /// The allocation that `at` belongs to must stay where it is. Returned is its extent, unless it
    /// was held before.
    pub fn hold(&mut self, at: u64) -> Option<Range<u64>> {
        let (start, Known { allocation, .. }) = self.known_at(at)?;
        let before = std::mem::replace(&mut allocation.held, true);
        (!before).then(|| start..start + allocation.bytes)
    }

    /// The allocation that `at` belongs to may move again.
    pub fn release(&mut self, at: u64) {
        if let Some((_, Known { allocation, .. })) = self.known_at(at) {
            allocation.held = false;
        }
    }

    /// Whether anything that touches these bytes is held.
    pub fn holds_any_of(&self, bytes: Range<u64>) -> bool {
        let before = self.containing(bytes.start).map(|(_, allocation)| allocation.held);
        before == Some(true) || self.allocations.range(bytes).any(|(_, known)| known.allocation.held)
    }

    /// The starts of what lives in the context `owner`.
    pub fn owned_by(&self, owner: Owner) -> Vec<u64> {
        let its = |(_, known): &(&u64, &Known<Owner>)| known.allocation.owner == owner;
        self.allocations.iter().filter(its).map(|(&start, _)| start).collect()
    }

    /// The sum of all allocations.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// What is alive of them: where blocks are known, the blocks.
    pub fn live_bytes(&self) -> Bytes {
        self.live
    }

    /// Appends the map's ranges in address order, as the manager is told them; of live ones at most half
    /// of what one map may hold. `unit` bytes is the size of a slot.
    pub fn append_ranges(&self, class: Class, unit: u64, stop: Stop, ranges: &mut Vec<LiveRange>) {
        let live = bounded(self.ranges(class, stop), unit, MAX_RANGES / Class::ALL.len() / 2);
        let dead = self.dead_slots(class, unit, &live);
        let first = ranges.len();
        ranges.extend(live.into_iter().chain(dead));
        ranges[first..].sort_unstable_by_key(|range| range.start);
    }

    fn ranges(&self, class: Class, stop: Stop) -> Vec<LiveRange> {
        let now = stop.now;
        let range = |start, bytes, persistent: bool, born| {
            let is_long = persistent || now.is_long_after(born);
            LiveRange { class, start, bytes, life: if is_long { Life::Long } else { Life::Short } }
        };
        let mut ranges = Vec::with_capacity(self.allocations.len());
        for (&start, known) in &self.allocations {
            let Allocation { bytes, persistent: is_persistent, born, .. } = known.allocation;
            let Some(blocks) = known.blocks(self.is_blind) else {
                ranges.push(range(start, bytes, is_persistent, born));
                continue;
            };
            let first = ranges.len();
            ranges.extend(
                blocks.iter().map(|(start, block)| range(start, block.bytes, block.persistent, block.born)),
            );
            let freed = blocks.just_freed(stop.at_boundary);
            ranges.extend(freed.map(|freed| range(freed.start, freed.end - freed.start, false, now)));
            without_overlaps(&mut ranges, first);
        }
        ranges
    }

    /// The slots of allocations in which nothing is alive: the program may write there as soon as it runs
    /// again, without a word to the driver.
    fn dead_slots(&self, class: Class, unit: u64, live: &[LiveRange]) -> Vec<LiveRange> {
        let slots = |range: &LiveRange| range.start / unit..(range.start + range.bytes).div_ceil(unit);
        let (mut dead, mut live) = (Vec::new(), live.iter().map(slots).peekable());
        // Up to here, in slots, everything is said.
        let mut said = 0;
        for (&start, known) in &self.allocations {
            said = said.max(start / unit);
            let end = (start + known.allocation.bytes).div_ceil(unit);
            while said < end {
                while live.next_if(|alive| alive.end <= said).is_some() {}
                let alive = live.peek().filter(|alive| alive.start < end).cloned().unwrap_or(end..end);
                if said < alive.start {
                    let bytes = (alive.start - said) * unit;
                    dead.push(LiveRange { class, start: said * unit, bytes, life: Life::Dead });
                }
                said = alive.end;
            }
        }
        dead
    }
}

/// Cuts ranges, from `first` on, where they overlap; they come out in order.
fn without_overlaps(ranges: &mut Vec<LiveRange>, first: usize) {
    ranges[first..].sort_unstable_by_key(|range| range.start);
    let mut end = 0;
    for range in &mut ranges[first..] {
        let cut = range.bytes.min(end.max(range.start) - range.start);
        range.start += cut;
        range.bytes -= cut;
        end = end.max(range.start + range.bytes);
    }
    ranges.retain(|range| range.bytes > 0);
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
            Some(last) if last.life == range.life && range.start - (last.start + last.bytes) <= gap => {
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
    use proptest::prelude::*;

    fn born(boundaries: u64, switches: u64, bytes: u64) -> Allocation<u8> {
        Allocation { bytes, owner: 0, persistent: false, held: false, born: Moment { boundaries, switches } }
    }

    fn ranges(liveness: &Liveness<u8>, now: Moment) -> Vec<LiveRange> {
        map(liveness, Stop { now, at_boundary: Some(Stamp::now()) })
    }

    fn map(liveness: &Liveness<u8>, stop: Stop) -> Vec<LiveRange> {
        let mut ranges = Vec::new();
        liveness.append_ranges(Class::Temporary, 4096, stop, &mut ranges);
        ranges
    }

    const IN_MID_ITERATION: Stop = Stop { now: Moment { boundaries: 0, switches: 0 }, at_boundary: None };

    fn block(bytes: u64) -> Block {
        Block { bytes, persistent: false, born: Moment::default() }
    }

    fn named(map: &[LiveRange]) -> Vec<(u64, u64, Life)> {
        map.iter().map(|range| (range.start, range.bytes, range.life)).collect()
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
        assert_eq!(liveness.live_bytes().live, 519);
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
        liveness.release(120);
        assert!(!liveness.holds_any_of(0..500));
        assert_eq!(liveness.hold(120), Some(100..150));
    }

    #[test]
    fn what_survives_two_boundaries_is_long_lived() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(1, 0, 10));
        let after = |boundaries, switches| ranges(&liveness, Moment { boundaries, switches })[0].life;
        assert_eq!(after(2, 9), Life::Short);
        assert_eq!(after(3, 0), Life::Long);
    }

    #[test]
    fn without_boundaries_two_switches_make_it_long_lived() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(0, 1, 10));
        let after = |switches| ranges(&liveness, Moment { boundaries: 0, switches })[0].life;
        assert_eq!(after(2), Life::Short);
        assert_eq!(after(3), Life::Long);
    }

    #[test]
    fn a_tag_outweighs_age() {
        let mut liveness = Liveness::default();
        liveness.insert(0, born(0, 0, 10));
        let now = Moment { boundaries: 5, switches: 0 };
        assert!(liveness.tag(9, Class::Temporary, now));
        assert_eq!(ranges(&liveness, now)[0].life, Life::Short);
        assert!(liveness.tag(0, Class::Persistent, now));
        assert_eq!(ranges(&liveness, now)[0].life, Life::Long);
        assert!(!liveness.tag(10, Class::Persistent, now));
    }

    #[test]
    fn a_map_of_too_many_ranges_grows_only_into_small_gaps() {
        let row = |start| LiveRange { class: Class::Temporary, start, bytes: 10, life: Life::Short };
        let crowded: Vec<LiveRange> = (0..100).map(|i| row(i * 512)).collect();
        let map = bounded(crowded, 4096, 10);
        assert_eq!(map, [LiveRange { bytes: 99 * 512 + 10, ..row(0) }]);
        let apart: Vec<LiveRange> = (0..100).map(|i| row(i * 8192)).collect();
        assert_eq!(bounded(apart.clone(), 4096, 10), apart);
    }

    /// An allocation of four slots and a half, from the middle of a slot on.
    fn dealt_out() -> Liveness<u8> {
        let mut liveness = Liveness::default();
        liveness.insert(2048, born(0, 0, 18 * 1024));
        liveness
    }

    #[test]
    fn of_an_allocation_that_is_dealt_out_only_the_blocks_are_alive() {
        let mut liveness = dealt_out();
        assert_eq!(named(&ranges(&liveness, Moment::default())), [(2048, 18 * 1024, Life::Short)]);
        liveness.deal_out(9000, block(100), false).unwrap();
        assert_eq!((liveness.live_bytes().live, liveness.allocated_bytes()), (100, 18 * 1024));
        let map = named(&ranges(&liveness, Moment::default()));
        assert_eq!(map, [(0, 8192, Life::Dead), (9000, 100, Life::Short), (12288, 8192, Life::Dead)]);
        liveness.take_back(9000, 100, Stamp::now(), false).unwrap();
        assert_eq!(named(&ranges(&liveness, Moment::default())), [(0, 20480, Life::Dead)]);
        assert_eq!(liveness.remove(2048).map(|gone| gone.bytes), Some(18 * 1024));
        assert_eq!((liveness.live_bytes().live, liveness.allocated_bytes()), (0, 0));
    }

    #[test]
    fn dead_slots_are_said_once_and_never_where_something_lives() {
        let mut liveness = dealt_out();
        // Neighbours that share slots with it: one as a whole, one in blocks.
        liveness.insert(1024, born(0, 0, 1024));
        liveness.insert(20480, born(0, 0, 5000));
        liveness.deal_out(2048, block(10), false).unwrap();
        liveness.deal_out(20480, block(10), false).unwrap();
        let expected = [(1024, 1034, Life::Short), (4096, 16384, Life::Dead), (20480, 10, Life::Short)];
        let map = named(&ranges(&liveness, Moment::default()));
        assert_eq!(map, [&expected[..], &[(24576, 4096, Life::Dead)]].concat());
    }

    #[test]
    fn in_mid_iteration_what_was_freed_a_moment_ago_is_alive() {
        let mut liveness = dealt_out();
        liveness.deal_out(4096, block(3000), false).unwrap();
        liveness.take_back(4096, 3000, Stamp::now(), false).unwrap();
        liveness.deal_out(4096, block(1000), false).unwrap();
        liveness.deal_out(5500, block(1000), false).unwrap();
        let alive = |map: Vec<LiveRange>| {
            map.iter().filter(|range| range.life != Life::Dead).map(|range| range.bytes).sum::<u64>()
        };
        assert_eq!(alive(map(&liveness, IN_MID_ITERATION)), 3000);
        assert_eq!(alive(ranges(&liveness, Moment::default())), 2000);
    }

    #[test]
    fn what_a_graph_may_use_is_alive_whatever_is_told_of_it() {
        let mut liveness = dealt_out();
        liveness.deal_out(4096, block(3000), true).unwrap();
        liveness.take_back(4096, 3000, Stamp::now(), false).unwrap();
        assert_eq!(named(&ranges(&liveness, Moment::default())), [(2048, 18 * 1024, Life::Short)]);
        assert_eq!(liveness.live_bytes().live, 18 * 1024);
    }

    #[test]
    fn blocks_that_cannot_be_believed_are_not() {
        let mut liveness = dealt_out();
        liveness.deal_out(4096, block(3000), false).unwrap();
        assert_eq!(liveness.deal_out(5000, block(1), false), Err(Mismatch::Overlap));
        assert_eq!(liveness.deal_out(0, block(1), false), Err(Mismatch::Outside));
        assert_eq!(liveness.deal_out(20000, block(1000), false), Err(Mismatch::Outside));
        liveness.disbelieve();
        assert_eq!(named(&ranges(&liveness, Moment::default())), [(2048, 18 * 1024, Life::Short)]);
        assert_eq!(liveness.live_bytes().live, 18 * 1024);
        liveness.deal_out(8000, block(3000), false).unwrap();
        assert_eq!(liveness.live_bytes().live, 18 * 1024);
    }

    #[test]
    fn a_block_is_tagged_and_ages_by_itself() {
        let mut liveness = dealt_out();
        liveness.deal_out(4096, block(100), false).unwrap();
        liveness.deal_out(5000, block(100), false).unwrap();
        assert!(liveness.tag(5099, Class::Persistent, Moment::default()));
        assert_eq!(liveness.live_bytes(), Bytes { live: 200, persistent: 100 });
        let map = named(&ranges(&liveness, Moment::default()));
        assert_eq!(map[1..3], [(4096, 100, Life::Short), (5000, 100, Life::Long)]);
        let later = Moment { boundaries: 2, switches: 0 };
        assert!(ranges(&liveness, later).iter().all(|range| range.life != Life::Short));
    }

    /// What the random test does.
    #[derive(Clone, Debug)]
    enum Step {
        Deal(u64, u64),
        Take(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..40_000u64, 1..9_000u64).prop_map(|(start, bytes)| Step::Deal(start, bytes)),
            (0..100usize).prop_map(Step::Take),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn the_map_says_of_every_byte_what_it_is(
            allocations in proptest::collection::btree_map(0..8u64, 1..5_000u64, 0..6),
            steps in steps(),
        ) {
            let mut liveness = Liveness::default();
            for (place, bytes) in &allocations {
                liveness.insert(place * 5_000, born(0, 0, *bytes));
            }
            let mut dealt: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Deal(start, bytes) => {
                        let free = dealt.iter().all(|(at, of)| start + bytes <= *at || at + of <= start);
                        let place = start / 5_000;
                        let inside = allocations
                            .get(&place)
                            .is_some_and(|length| start + bytes <= place * 5_000 + length);
                        if free && inside {
                            liveness.deal_out(start, block(bytes), false).unwrap();
                            dealt.push((start, bytes));
                        }
                    }
                    Step::Take(_) if dealt.is_empty() => {}
                    Step::Take(which) => {
                        let (start, bytes) = dealt.swap_remove(which % dealt.len());
                        liveness.take_back(start, bytes, Stamp::now(), false).unwrap();
                    }
                }
            }
            let map = ranges(&liveness, Moment::default());
            for pair in map.windows(2) {
                prop_assert!(pair[0].start + pair[0].bytes <= pair[1].start, "{pair:?}");
            }
            let said = |at: u64| {
                map.iter().find(|range| (range.start..range.start + range.bytes).contains(&at)).map(|r| r.life)
            };
            let has_blocks = |place: u64| {
                liveness.allocations.get(&(place * 5_000)).is_some_and(|known| known.blocks.is_some())
            };
            for (&place, bytes) in &allocations {
                for at in (place * 5_000..place * 5_000 + bytes).step_by(61) {
                    let is_dealt = dealt.iter().any(|(start, of)| (*start..start + of).contains(&at));
                    let alive = said(at) == Some(Life::Short);
                    prop_assert_eq!(alive, is_dealt || !has_blocks(place), "byte {}", at);
                    // Somewhere in its slot there is a reason for memory to be there.
                    let slot = at / 4096 * 4096..(at / 4096 + 1) * 4096;
                    let touches = |r: &LiveRange| r.start < slot.end && slot.start < r.start + r.bytes;
                    prop_assert!(map.iter().any(touches), "slot of byte {}", at);
                }
            }
        }
    }
}
