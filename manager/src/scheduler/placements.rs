//! The pieces that a tenant has: by their names, and by the slots that they lie behind.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use tidegate_ffi::units::{Class, PieceId};
use tidegate_ffi::wire::message::Placed;

/// No two lie behind one slot. They are read as a map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Placements {
    pieces: BTreeMap<PieceId, Placed>,
    by_slot: BTreeMap<(Class, u32), PieceId>,
}

impl Deref for Placements {
    type Target = BTreeMap<PieceId, Placed>;

    fn deref(&self) -> &Self::Target {
        &self.pieces
    }
}

impl Placements {
    pub(super) fn remove(&mut self, piece: &PieceId) -> Option<Placed> {
        let placed = self.pieces.remove(piece)?;
        self.by_slot.remove(&(placed.class, placed.slot.0));
        Some(placed)
    }

    /// The pieces that touch the slots `first .. end`, in slot order.
    pub(super) fn behind(&self, class: Class, first: u32, end: u32) -> impl Iterator<Item = Placed> + '_ {
        let before = self.by_slot.range((class, 0)..(class, first)).next_back();
        let from = before.map_or(first, |(&(_, slot), _)| slot);
        let near = self.by_slot.range((class, from)..(class, end.max(from)));
        let near = near.filter_map(|(_, piece)| self.pieces.get(piece)).copied();
        near.skip_while(move |placed| placed.slot.0 + placed.units.0 <= first)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let by_slot: BTreeMap<_, _> =
            self.pieces.values().map(|placed| ((placed.class, placed.slot.0), placed.piece)).collect();
        if by_slot != self.by_slot {
            return Err("pieces are not behind the slots that are kept".into());
        }
        let placed: Vec<&Placed> = by_slot.values().map(|piece| &self.pieces[piece]).collect();
        for pair in placed.windows(2) {
            if pair[0].class == pair[1].class && pair[0].slot.0 + pair[0].units.0 > pair[1].slot.0 {
                return Err(format!("{} and {} share a slot", pair[0].piece, pair[1].piece));
            }
        }
        Ok(())
    }
}

impl Extend<Placed> for Placements {
    fn extend<I: IntoIterator<Item = Placed>>(&mut self, placed: I) {
        for placed in placed {
            self.remove(&placed.piece);
            self.by_slot.insert((placed.class, placed.slot.0), placed.piece);
            self.pieces.insert(placed.piece, placed);
        }
    }
}
