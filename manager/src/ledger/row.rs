//! Pieces in a row, with holes between neighbours. Each step is logarithmic in the number of pieces.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place<O> {
    /// The first unit.
    pub start: u32,
    /// One past the last unit.
    pub end: u32,
    pub owner: O,
}

/// Free units between two pieces. The order is that in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Hole<O> {
    /// Who owns the piece in front of it.
    pub behind: O,
    pub units: u32,
    pub start: u32,
}

impl<O> Hole<O> {
    pub(super) fn end(&self) -> u32 {
        self.start + self.units
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row<O: Ord> {
    /// By their starts.
    places: BTreeMap<u32, Place<O>>,
    holes: BTreeSet<Hole<O>>,
    units: u32,
}

impl<O: Copy + Ord> Row<O> {
    pub(super) fn new() -> Self {
        Self { places: BTreeMap::new(), holes: BTreeSet::new(), units: 0 }
    }

    /// Units of all pieces.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Place<O>> + '_ {
        self.places.values().copied()
    }

    pub(super) fn first(&self) -> Option<Place<O>> {
        self.places.first_key_value().map(|(_, place)| *place)
    }

    pub(super) fn last(&self) -> Option<Place<O>> {
        self.places.last_key_value().map(|(_, place)| *place)
    }

    /// The last piece in front of a unit.
    pub(super) fn before(&self, unit: u32) -> Option<Place<O>> {
        self.places.range(..unit).next_back().map(|(_, place)| *place)
    }

    /// The smallest hole behind somebody's pieces that is large enough; of equal ones the lowest.
    pub(super) fn hole(&self, behind: O, units: u32) -> Option<Hole<O>> {
        let first = self.holes.range(Hole { behind, units, start: 0 }..).next();
        first.filter(|hole| hole.behind == behind).copied()
    }

    /// Puts a piece where none is.
    pub(super) fn insert(&mut self, place: Place<O>) {
        let (before, after) = self.around(place.start);
        if let Some(hole) = hole(before, after) {
            self.holes.remove(&hole);
        }
        self.holes.extend([hole(before, Some(place)), hole(Some(place), after)].into_iter().flatten());
        self.places.insert(place.start, place);
        self.units += place.end - place.start;
    }

    /// Takes away the piece that begins at a unit.
    pub(super) fn remove(&mut self, start: u32) -> Option<Place<O>> {
        let place = self.places.remove(&start)?;
        let (before, after) = self.around(start);
        for hole in [hole(before, Some(place)), hole(Some(place), after)].iter().flatten() {
            self.holes.remove(hole);
        }
        self.holes.extend(hole(before, after));
        self.units -= place.end - place.start;
        Some(place)
    }

    fn around(&self, unit: u32) -> (Option<Place<O>>, Option<Place<O>>) {
        (self.before(unit), self.places.range(unit..).next().map(|(_, place)| *place))
    }
}

/// What is free between two neighbours.
fn hole<O: Copy>(before: Option<Place<O>>, after: Option<Place<O>>) -> Option<Hole<O>> {
    let (before, after) = (before?, after?);
    let units = after.start - before.end;
    (units > 0).then_some(Hole { behind: before.owner, units, start: before.end })
}

impl<O: Copy + Ord> FromIterator<Place<O>> for Row<O> {
    fn from_iter<I: IntoIterator<Item = Place<O>>>(places: I) -> Self {
        let mut row = Self::new();
        places.into_iter().for_each(|place| row.insert(place));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: u32 = 40;

    /// The holes of a row whose units belong to these.
    fn holes(owners: &[Option<(u8, u32)>]) -> Vec<Hole<u8>> {
        let taken: Vec<usize> = (0..owners.len()).filter(|unit| owners[*unit].is_some()).collect();
        let gap = |pair: &[usize]| {
            let (behind, _) = owners[pair[0]]?;
            let units = (pair[1] - pair[0] - 1) as u32;
            (units > 0).then_some(Hole { behind, units, start: pair[0] as u32 + 1 })
        };
        taken.windows(2).filter_map(gap).collect()
    }

    proptest! {
        #[test]
        fn a_row_agrees_with_a_table_of_single_units(
            steps in prop::collection::vec((any::<bool>(), 0u8..3, 0..UNITS, 1u32..6), 1..120),
        ) {
            let mut row = Row::new();
            let mut owners: Vec<Option<(u8, u32)>> = vec![None; UNITS as usize];
            for (is_placed, owner, start, units) in steps {
                let end = (start + units).min(UNITS);
                let run = start as usize..end as usize;
                if is_placed && owners[run.clone()].iter().all(Option::is_none) {
                    row.insert(Place { start, end, owner });
                    owners[run].fill(Some((owner, start)));
                } else if !is_placed {
                    let removed = row.remove(start);
                    let of_piece = |unit: &Option<(u8, u32)>| unit.is_some_and(|(_, first)| first == start);
                    prop_assert_eq!(removed.is_some(), owners.iter().any(of_piece));
                    owners.iter_mut().filter(|unit| of_piece(unit)).for_each(|unit| *unit = None);
                }
                prop_assert_eq!(row.units() as usize, owners.iter().flatten().count());
                for (behind, units) in (0..3).flat_map(|behind| [(behind, 1), (behind, units)]) {
                    let large = holes(&owners).into_iter().filter(|hole| hole.behind == behind && hole.units >= units);
                    prop_assert_eq!(row.hole(behind, units), large.min());
                }
            }
        }
    }
}
