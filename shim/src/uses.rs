//! Which slots of a tenant described work is the first to use, slice by slice: the order in which its memory is to
//! come back.
//!
//! Invariant: a slice names a slot once, and no order has more than [`MAX_USES`] runs, however much is used.
#![forbid(unsafe_code)]

use std::ops::Range;
use tidegate_ffi::units::{Class, SlotIndex, Units};
use tidegate_ffi::wire::message::{MAX_USES, SlotRun};

/// See the module.
#[derive(Debug, Default)]
pub struct Uses {
    /// Of this slice, first first.
    slice: Vec<SlotRun>,
    /// Which these are, by class.
    seen: [Slots; 2],
    /// The order that was told last.
    earlier: Vec<SlotRun>,
}

/// A set of slots.
#[derive(Debug, Default)]
struct Slots(Vec<u64>);

impl Uses {
    /// Described work uses these slots.
    pub fn note(&mut self, class: Class, slots: Range<u32>) {
        for slot in slots {
            if self.seen[class.index()].insert(slot) {
                append(&mut self.slice, class, slot);
            }
        }
    }

    /// The slice has ended: its order, and behind it what slices before it used and it did not.
    pub fn end_slice(&mut self) -> Vec<SlotRun> {
        let mut order = std::mem::take(&mut self.slice);
        for run in &self.earlier {
            let unseen = slots_of(run).filter(|slot| !self.seen[run.class.index()].contains(*slot));
            unseen.for_each(|slot| append(&mut order, run.class, slot));
        }
        self.seen = Default::default();
        self.earlier.clone_from(&order);
        order
    }
}

fn slots_of(run: &SlotRun) -> Range<u32> {
    run.first.0..run.first.0.saturating_add(run.units.0)
}

/// Adds a slot: to the last run, if it goes on there.
fn append(runs: &mut Vec<SlotRun>, class: Class, slot: u32) {
    let has_room = runs.len() < MAX_USES;
    match runs.last_mut() {
        Some(last) if last.class == class && slots_of(last).end == slot => last.units.0 += 1,
        _ if has_room => runs.push(SlotRun { class, first: SlotIndex(slot), units: Units(1) }),
        _ => {}
    }
}

impl Slots {
    /// Whether it was not there before.
    fn insert(&mut self, slot: u32) -> bool {
        let (word, bit) = Self::place(slot);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let before = self.0[word];
        self.0[word] |= bit;
        before & bit == 0
    }

    fn contains(&self, slot: u32) -> bool {
        let (word, bit) = Self::place(slot);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn place(slot: u32) -> (usize, u64) {
        ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Persistent, Temporary};

    fn told(uses: &mut Uses) -> Vec<(Class, u32, u32)> {
        uses.end_slice().iter().map(|run| (run.class, run.first.0, run.units.0)).collect()
    }

    #[test]
    fn slots_are_told_in_the_order_of_their_first_use_neighbours_in_one_run() {
        let mut uses = Uses::default();
        uses.note(Temporary, 5..7);
        uses.note(Temporary, 7..8);
        uses.note(Persistent, 8..9);
        uses.note(Temporary, 4..9);
        uses.note(Temporary, 6..7);
        let expected = [(Temporary, 5, 3), (Persistent, 8, 1), (Temporary, 4, 1), (Temporary, 8, 1)];
        assert_eq!(told(&mut uses), expected);
    }

    #[test]
    fn what_earlier_slices_used_comes_behind_what_this_one_did() {
        let mut uses = Uses::default();
        assert_eq!(told(&mut uses), []);
        uses.note(Temporary, 0..4);
        assert_eq!(told(&mut uses), [(Temporary, 0, 4)]);
        uses.note(Temporary, 9..10);
        uses.note(Temporary, 1..2);
        let second = [(Temporary, 9, 1), (Temporary, 1, 1), (Temporary, 0, 1), (Temporary, 2, 2)];
        assert_eq!(told(&mut uses), second);
        assert_eq!(told(&mut uses), second, "a slice that uses nothing forgets nothing");
    }

    #[test]
    fn an_order_has_no_more_runs_than_may_be_told() {
        let mut uses = Uses::default();
        let scattered = |uses: &mut Uses, from: u32| {
            (0..MAX_USES as u32)
                .for_each(|index| uses.note(Temporary, from + 2 * index..from + 2 * index + 1));
        };
        scattered(&mut uses, 0);
        uses.note(Temporary, 1 << 20..1 << 21);
        let first = uses.end_slice();
        assert_eq!((first.len(), first[0].first), (MAX_USES, SlotIndex(0)));
        scattered(&mut uses, 1 << 21);
        let second = uses.end_slice();
        assert_eq!((second.len(), second[0].first), (MAX_USES, SlotIndex(1 << 21)));
    }
}
