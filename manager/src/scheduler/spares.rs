//! Pieces that no tenant uses. They pass to the next tenant of the same user (I8), found by their size.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, RangeInclusive};
use tidegate_ffi::units::PieceId;

/// Whose a spare piece was, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// The user.
    pub uid: u32,
    /// Length in units.
    pub units: u32,
}

/// The spare pieces of a GPU. They are read as a map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spares {
    pieces: BTreeMap<PieceId, Spare>,
    /// User, units.
    by_size: BTreeSet<(u32, u32, PieceId)>,
}

impl Deref for Spares {
    type Target = BTreeMap<PieceId, Spare>;

    fn deref(&self) -> &Self::Target {
        &self.pieces
    }
}

impl Spares {
    pub(super) fn insert(&mut self, piece: PieceId, spare: Spare) {
        self.remove(piece);
        self.pieces.insert(piece, spare);
        self.by_size.insert((spare.uid, spare.units, piece));
    }

    pub(super) fn remove(&mut self, piece: PieceId) -> Option<Spare> {
        let spare = self.pieces.remove(&piece)?;
        self.by_size.remove(&(spare.uid, spare.units, piece));
        Some(spare)
    }

    /// A user's largest piece of so many units.
    pub(super) fn largest(&self, uid: u32, units: RangeInclusive<u32>) -> Option<(PieceId, u32)> {
        let (least, most) = units.into_inner();
        let fitting = self.by_size.range((uid, least, PieceId(0))..=(uid, most, PieceId(u64::MAX)));
        fitting.last().map(|&(_, units, piece)| (piece, units))
    }

    /// Units of a user's pieces.
    pub(super) fn units_of(&self, uid: u32) -> u32 {
        self.pieces.values().filter(|spare| spare.uid == uid).map(|spare| spare.units).sum()
    }

    /// Takes pieces, but for some, until they have so many units, or all; by user.
    pub(super) fn take(&mut self, units: u32, but: &BTreeSet<PieceId>) -> BTreeMap<u32, Vec<PieceId>> {
        let mut missing = units;
        let others = self.pieces.iter().filter(|(piece, _)| !but.contains(piece));
        let chosen = others.take_while(|(_, spare)| {
            let is_missing = missing > 0;
            missing = missing.saturating_sub(spare.units);
            is_missing
        });
        let mut by_user: BTreeMap<u32, Vec<PieceId>> = BTreeMap::new();
        chosen.for_each(|(piece, spare)| by_user.entry(spare.uid).or_default().push(*piece));
        by_user.values().flatten().for_each(|piece| _ = self.remove(*piece));
        by_user
    }

    /// Takes all, by user.
    pub(super) fn take_all(&mut self) -> BTreeMap<u32, Vec<PieceId>> {
        self.take(u32::MAX, &BTreeSet::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_not_taken_and_no_more_than_is_missing() {
        let mut spares = Spares::default();
        for nth in 1..=5 {
            spares.insert(PieceId(nth), Spare { uid: 1, units: 2 });
        }
        assert_eq!(
            spares.take(3, &BTreeSet::from([PieceId(1), PieceId(3)])),
            BTreeMap::from([(1, vec![PieceId(2), PieceId(4)])])
        );
        assert_eq!(
            spares.take(u32::MAX, &BTreeSet::from([PieceId(1)])),
            BTreeMap::from([(1, vec![PieceId(3), PieceId(5)])])
        );
        assert_eq!((spares.units_of(1), spares.units_of(2)), (2, 0));
    }
}
