//! Save and restore: a tenant's live bytes, from pieces to a tier and back.
//!
//! ```text
//! save     plan ─► map pieces ─► extents ─► copies, waited for ─► index
//! restore  plan ─► find in the index ─► poison ─► copies, waited for ─► index and extents forgotten
//! ```
//! Invariant: an extent is in the index, or free; on every error it is what it was before.

#![forbid(unsafe_code)]

use super::copy::{Gpu, Transfer};
use super::error::OrderError;
use super::index::Index;
use super::pieces::Pieces;
use super::plan::{Part, deal, plan};
use super::tier::{Extent, Tier};
use tidegate_ffi::units::{PieceId, TenantId};
use tidegate_ffi::wire::message::Move;

/// What poison fills pieces with: no float, no plausible integer.
const POISON: u8 = 0xFF;

/// The saved bytes of all tenants: a tier, and the index of what lies in it.
pub struct Store<T: Tier> {
    tier: T,
    index: Index,
}

impl<T: Tier> Store<T> {
    /// A store that holds nothing.
    pub fn new(tier: T) -> Self {
        Self { tier, index: Index::default() }
    }

    /// The tier.
    pub fn tier_mut(&mut self) -> &mut T {
        &mut self.tier
    }

    /// Bytes of saved data.
    pub fn saved_bytes(&self) -> u64 {
        self.tier.used()
    }

    /// Copies live bytes out of pieces; returns how many. Nothing of a failed save is kept.
    pub fn save(
        &mut self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        tenant: TenantId,
        moves: &[Move],
    ) -> Result<u64, OrderError> {
        let moves = plan(moves)?;
        moves.iter().try_for_each(|m| self.check_not_saved(tenant, m))?;
        pieces.map_for(gpu, &moves)?;
        let extents = self.tier.allocate(total(&moves))?;
        let parts = deal(&moves, &extents);
        match self.transfers(pieces, &parts).and_then(|copies| Ok(gpu.copy_out(&copies)?)) {
            Ok(()) => self.enter(tenant, &parts),
            Err(error) => {
                self.free(extents);
                return Err(error);
            }
        }
        Ok(total(&moves))
    }

    /// Copies saved bytes back into pieces, after filling `poison` with 0xFF, and forgets the
    /// saved copy; returns how many bytes. A failed restore keeps the saved copy.
    pub fn restore(
        &mut self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        tenant: TenantId,
        moves: &[Move],
        poison: &[PieceId],
    ) -> Result<u64, OrderError> {
        let moves = plan(moves)?;
        let extents = self.find_all(tenant, &moves)?;
        pieces.map_for(gpu, &moves)?;
        pieces.fill(gpu, poison, POISON)?;
        let parts = deal(&moves, &extents);
        gpu.copy_in(&self.transfers(pieces, &parts)?)?;
        self.remove(tenant, &moves);
        Ok(total(&moves))
    }

    /// Forgets all of a tenant's saved bytes.
    pub fn forget(&mut self, tenant: TenantId) {
        let extents = self.index.forget(tenant);
        self.free(extents);
        self.tier.trim();
    }

    fn check_not_saved(&self, tenant: TenantId, m: &Move) -> Result<(), OrderError> {
        if self.index.holds_any(tenant, m.class, m.at, m.bytes) {
            return Err(OrderError::SavedAlready { tenant, class: m.class, at: m.at, end: m.at + m.bytes });
        }
        Ok(())
    }

    /// Where all bytes of the moves lie, in their order.
    fn find_all(&self, tenant: TenantId, moves: &[Move]) -> Result<Vec<Extent>, OrderError> {
        let mut extents = Vec::new();
        for m in moves {
            let found = self.index.find(tenant, m.class, m.at, m.bytes);
            let missing = OrderError::NotSaved { tenant, class: m.class, at: m.at, end: m.at + m.bytes };
            extents.append(&mut found.ok_or(missing)?);
        }
        Ok(extents)
    }

    /// The copies that the parts ask for, each checked against its piece and its slab.
    fn transfers<'a>(&'a self, pieces: &'a Pieces, parts: &[Part]) -> Result<Vec<Transfer<'a>>, OrderError> {
        parts.iter().map(|part| self.transfer(pieces, part)).collect()
    }

    fn transfer<'a>(&'a self, pieces: &'a Pieces, part: &Part) -> Result<Transfer<'a>, OrderError> {
        let device = pieces.range(part.piece, part.offset, part.extent.bytes)?;
        Ok(Transfer::new(device, self.tier.memory(part.extent)?))
    }

    fn enter(&mut self, tenant: TenantId, parts: &[Part]) {
        for part in parts {
            self.index.insert(tenant, part.class, part.at, part.extent);
        }
    }

    fn remove(&mut self, tenant: TenantId, moves: &[Move]) {
        for m in moves {
            let extents = self.index.remove(tenant, m.class, m.at, m.bytes);
            self.free(extents);
        }
    }

    fn free(&mut self, extents: Vec<Extent>) {
        extents.into_iter().for_each(|extent| self.tier.free(extent));
    }
}

fn total(moves: &[Move]) -> u64 {
    moves.iter().map(|m| m.bytes).sum()
}
