//! Which slots of a tenant described work is the first to use, slice by slice: the order in which its memory is to
//! come back.
//!
//! Invariant: a slice names a slot once, and no order has more than [`MAX_USES`] runs, however much is used. After
//! [`SLICES`] without described work all is forgotten.
#![forbid(unsafe_code)]

use std::ops::Range;
use tidegate_ffi::units::{Class, SlotIndex, Units};
use tidegate_ffi::wire::message::{MAX_USES, SlotRun};

/// After so many slices without described work none is expected any more.
const SLICES: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Uses {
    /// Of this slice, first first.
    slice: Vec<SlotRun>,
    /// Which these are, by class.
    seen: [Slots; 2],
    /// The order that was told last.
    told: Vec<SlotRun>,
    /// Slices since there was any described work.
    idle_slices: u32,
}

/// A set of slots.
#[derive(Debug, Default)]
struct Slots(Vec<u64>);

impl Uses {
    /// Described work uses these slots.
    pub fn note(&mut self, class: Class, slots: Range<u32>) {
        self.idle_slices = 0;
        let seen = &mut self.seen[class.index()];
        if seen.contains_all(&slots) {
            return;
        }
        for slot in slots {
            if !seen.contains(slot) && append(&mut self.slice, class, slot) {
                seen.insert(slot);
            }
        }
    }

    /// The slice has ended: its order, and behind it what slices before it used and it did not. `None`: that is as it
    /// was told before.
    pub fn end_slice(&mut self) -> Option<Vec<SlotRun>> {
        let mut order = std::mem::take(&mut self.slice);
        if self.idle_slices < SLICES {
            for run in &self.told {
                let unseen = slots_of(run).filter(|slot| !self.seen[run.class.index()].contains(*slot));
                unseen.for_each(|slot| _ = append(&mut order, run.class, slot));
            }
        }
        self.idle_slices += 1;
        self.seen = Default::default();
        if order == self.told {
            return None;
        }
        self.told.clone_from(&order);
        Some(order)
    }
}

fn slots_of(run: &SlotRun) -> Range<u32> {
    run.first.0..run.first.0.saturating_add(run.units.0)
}

/// Adds a slot: to the last run, if it goes on there. False: there is no room for it.
fn append(runs: &mut Vec<SlotRun>, class: Class, slot: u32) -> bool {
    let has_room = runs.len() < MAX_USES;
    match runs.last_mut() {
        Some(last) if last.class == class && slots_of(last).end == slot => last.units.0 += 1,
        _ if has_room => runs.push(SlotRun { class, first: SlotIndex(slot), units: Units(1) }),
        _ => return false,
    }
    true
}

impl Slots {
    fn insert(&mut self, slot: u32) {
        let (word, bit) = Self::place(slot);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    /// Looks at whole words, where it can.
    fn contains_all(&self, slots: &Range<u32>) -> bool {
        let mut at = slots.start;
        while at < slots.end {
            let is_full = at.is_multiple_of(u64::BITS) && self.0.get(Self::place(at).0) == Some(&u64::MAX);
            if !is_full && !self.contains(at) {
                return false;
            }
            at = at.saturating_add(if is_full { u64::BITS } else { 1 });
        }
        true
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
        uses.end_slice().unwrap_or_default().iter().map(|run| (run.class, run.first.0, run.units.0)).collect()
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
        assert_eq!(uses.end_slice(), None, "a slice that uses nothing forgets nothing");
        uses.note(Temporary, 0..1);
        assert_eq!(told(&mut uses), [(Temporary, 0, 1), (Temporary, 9, 1), (Temporary, 1, 3)]);
    }

    #[test]
    fn who_describes_nothing_any_more_is_forgotten() {
        let mut uses = Uses::default();
        uses.note(Temporary, 0..4);
        assert!(uses.end_slice().is_some());
        for _ in 1..SLICES {
            assert_eq!(uses.end_slice(), None);
        }
        assert_eq!(uses.end_slice(), Some(Vec::new()));
        assert_eq!(uses.end_slice(), None);
    }

    #[test]
    fn a_set_knows_ranges() {
        let mut slots = Slots::default();
        (3..200).for_each(|slot| slots.insert(slot));
        assert!(
            slots.contains_all(&(3..200)) && slots.contains_all(&(64..128)) && slots.contains_all(&(9..9))
        );
        assert!(
            !slots.contains_all(&(2..200))
                && !slots.contains_all(&(3..201))
                && !slots.contains_all(&(200..201))
        );
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
        let first = uses.end_slice().unwrap();
        assert_eq!((first.len(), first[0].first), (MAX_USES, SlotIndex(0)));
        scattered(&mut uses, 1 << 21);
        let second = uses.end_slice().unwrap();
        assert_eq!((second.len(), second[0].first), (MAX_USES, SlotIndex(1 << 21)));
    }
}
