//! Saved bytes move to another place in the tiers, where memory of the DRAM tier is wanted for pieces in a GPU's place:
//! these can lie nowhere else.
//!
//! ```text
//! wanted apart ─► the slab with the fewest saved bytes ─► other slabs' holes, then CXL memory, then disk
//!      ▲          (copy ─► journal ─► index, tenant by tenant)                                │
//!      └──────────────────────── the slab is given back ◄────────────────────────────────────┘
//! ```
//! Invariant: the journal names a tenant's old extents or its new ones, and both hold its bytes until the new ones are
//! named. The manager, from which the next mover has it all, was told by then of the slabs in which the new ones are.

#![forbid(unsafe_code)]

use super::error::OrderError;
use super::link::LinkError;
use super::plan::{Part, deal};
use super::progress;
use super::save::{ByTier, Saved, Store, total};
use super::tier::{Extent, SlabId, SlabNews};
use super::turns::SharedTier;
use crate::death;
use std::collections::BTreeMap;
use tidegate_ffi::units::{PieceId, TenantId};
use tidegate_ffi::wire::message::Move;

/// Tells the manager what has changed in the slabs.
pub type TellOfSlabs<'a> = &'a mut dyn FnMut(Vec<SlabNews>) -> Result<(), LinkError>;

impl Store {
    /// Sees that so many bytes of the DRAM tier can be set apart. The manager is told of each new slab.
    ///
    /// # Errors
    /// Neither the share nor the tiers below have room for what is saved, or the manager cannot be told.
    pub fn make_room_apart(&mut self, bytes: u64, tell: TellOfSlabs<'_>) -> Result<(), OrderError> {
        loop {
            let Err(full) = self.tiers.dram.make_room_apart(bytes) else { return Ok(()) };
            // Each slab that becomes free is given back.
            let Some(slab) = self.tiers.dram.emptiest() else { return Err(full.into()) };
            self.vacate(slab, tell)?;
        }
    }

    fn vacate(&mut self, slab: SlabId, tell: TellOfSlabs<'_>) -> Result<(), OrderError> {
        let mut free = self.tiers.dram.take_holes(slab);
        let moved = self.move_all(slab, &mut free, tell);
        free.into_iter().for_each(|extent| self.tiers.free(extent));
        moved
    }

    /// Moves what is saved in a slab whose holes were taken out; adds to `free` where it was.
    fn move_all(
        &mut self,
        slab: SlabId,
        free: &mut Vec<Extent>,
        tell: TellOfSlabs<'_>,
    ) -> Result<(), OrderError> {
        let mut saved: BTreeMap<TenantId, Vec<Move>> = BTreeMap::new();
        for (tenant, class, at, extent) in self.index.entries().filter(|entry| entry.3.slab == slab) {
            let moved = Move { piece: NO_PIECE, offset: extent.start, bytes: extent.bytes, class, at };
            saved.entry(tenant).or_default().push(moved);
        }
        for (tenant, moves) in saved {
            free.append(&mut self.move_tenant(slab, tenant, &moves, tell)?);
        }
        Ok(())
    }

    /// Where the tenant's bytes were.
    fn move_tenant(
        &mut self,
        slab: SlabId,
        tenant: TenantId,
        moves: &[Move],
        tell: TellOfSlabs<'_>,
    ) -> Result<Vec<Extent>, OrderError> {
        let extents = self.tiers.allocate_again(total(moves))?;
        let moved = self.copy_over(slab, &deal(moves, &extents)).and_then(|saved| {
            death::point("move:bytes");
            tell(self.tiers.news())?;
            self.journal.moved(tenant, &saved.parts, &saved.seals)?;
            Ok(saved)
        });
        match moved {
            Ok(saved) => {
                let cut_out = |m: &Move| self.index.remove(tenant, m.class, m.at, m.bytes);
                let before = moves.iter().flat_map(cut_out).collect();
                self.enter(tenant, saved);
                death::point("move:index");
                Ok(before)
            }
            Err(error) => {
                self.free(extents);
                Err(error)
            }
        }
    }

    /// Copies parts, whose `offset` is a place in a slab.
    fn copy_over(&mut self, slab: SlabId, parts: &[Part]) -> Result<Saved, OrderError> {
        let before = |part: &Part| Extent { slab, start: part.offset, bytes: part.extent.bytes };
        let ByTier { in_memory, on_disk, .. } = ByTier::of(parts);
        self.in_turns(&in_memory, |parts| {
            for part in parts {
                self.tiers.memory(part.extent)?.copy_from(self.tiers.memory(before(part))?);
                progress::step();
            }
            Ok(())
        })?;
        // Zeros were looked for when it was saved.
        let mut saved = Saved::default();
        saved.parts.extend(in_memory);
        if !on_disk.is_empty() {
            let stay = self.turns.as_ref().map(|turns| turns.enter(SharedTier::Disk));
            let from = |part: &Part| Ok(self.tiers.dram.memory(before(part))?);
            saved.seals = self.staging.store(&self.tiers.disk, &on_disk, stay.as_ref(), from)?;
            saved.add_on_disk(on_disk);
        }
        Ok(saved)
    }
}

/// What is moved from a tier to a tier is in no piece.
const NO_PIECE: PieceId = PieceId(0);
