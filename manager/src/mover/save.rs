//! Save and restore: a tenant's live bytes, from pieces to a tier and back.
//!
//! ```text
//! save     plan ─► map pieces ─► extents ─► copies, waited for ─► zeros ─► journal ─► index ─► zeros' room is free
//! restore  plan ─► find in the index ─► poison ─► zeros, copies, waited for ─► journal ─► forgotten
//!                                                 (to and from disk through lanes: `staging`)
//! ```
//! A save and the restore after it can be carried out at once, where both lie in DRAM: an `exchange`. Its copies are
//! waited for together.
//!
//! The journal is the index as the next mover finds it, should this one die: an order that was not
//! answered has, for the next, not been carried out.
//!
//! Invariant: an extent is in the index, or free; on every error it is what it was before.

#![forbid(unsafe_code)]

use super::copy::{DeviceRange, Gpu, Transfer};
use super::error::OrderError;
use super::exchange::{Exchange, Order, Save};
use super::index::Index;
use super::journal::{self, Journal};
use super::pieces::Pieces;
use super::plan::{Part, deal, in_steps, plan};
use super::progress;
use super::rates::{Rates, Way};
use super::staging::Staging;
use super::tier::{ARENA, BLOCK_BYTES, Extent, Room, Seal, SlabId, Tiers, ZEROS, in_blocks};
use super::turns::{STEP, SharedTier, Turns};
use super::zeros;
use crate::death;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tidegate_ffi::units::{PieceId, Step, TenantId};
use tidegate_ffi::wire::message::Move;

/// What poison fills pieces with: no float, no plausible integer.
const POISON: u8 = 0xFF;

/// The saved bytes of all tenants: the tiers, and the index of what lies in them.
pub struct Store {
    pub(super) tiers: Tiers,
    pub(super) staging: Staging,
    pub(super) index: Index,
    pub(super) journal: Journal,
    pub(super) turns: Option<Turns>,
    /// How fast bytes went between the GPU and the host's memory.
    pub(super) rates: Rates,
}

impl Store {
    /// A store that holds nothing.
    pub fn new(tiers: Tiers, staging: Staging) -> io::Result<Self> {
        let (index, journal) = (Index::default(), Journal::new()?);
        Ok(Self { tiers, staging, index, journal, turns: None, rates: Rates::default() })
    }

    /// From now on others move bytes of the same CXL memory and disk.
    pub fn share_tiers(&mut self, turns: Turns) {
        self.turns = Some(turns);
    }

    /// Takes over the slabs and the index of a mover that died, without what was done by the orders in
    /// `again`. The journal begins anew.
    pub fn adopt(
        &mut self,
        slabs: Vec<(SlabId, OwnedFd)>,
        journal: OwnedFd,
        again: &[Step],
    ) -> Result<(), OrderError> {
        let (index, seals) = journal::replay(&File::from(journal), again)?;
        let saved = index.entries().map(|(_, _, _, extent)| extent).filter(|extent| extent.slab != ZEROS);
        let saved = saved.collect();
        self.tiers.adopt(slabs, saved, &seals)?;
        self.index = index;
        self.journal = Journal::of(&self.index, self.tiers.disk.seals())?;
        Ok(())
    }

    /// A descriptor of the journal.
    pub fn share_journal(&self) -> io::Result<OwnedFd> {
        self.journal.share()
    }

    /// Begins the journal anew if most of it does not count any more: then the result is a descriptor
    /// of the new one. On an error the old one stays the journal: what the manager holds and what is
    /// written to is one file.
    pub fn tidy(&mut self) -> io::Result<Option<OwnedFd>> {
        if !self.journal.is_stale(&self.index, self.tiers.disk.seals()) {
            return Ok(None);
        }
        let journal = Journal::of(&self.index, self.tiers.disk.seals())?;
        let shared = journal.share()?;
        self.journal = journal;
        Ok(Some(shared))
    }

    /// The tiers.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The tiers, to be changed.
    pub fn tiers_mut(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    /// Copies live bytes out of pieces, and leaves `spared` bytes of the first tier free where it can; returns how
    /// many. Nothing of a failed save is kept.
    pub fn save(&mut self, gpu: &Gpu, pieces: &mut Pieces, order: Save<'_>) -> Result<u64, OrderError> {
        let leaving = self.prepare_save(gpu, pieces, order)?;
        let saved = self.copy_out(gpu, pieces, &leaving.parts);
        self.finish_save(leaving, saved)
    }

    fn prepare_save(
        &mut self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        Save { order: Order { step, tenant, moves }, spared }: Save<'_>,
    ) -> Result<Leaving, OrderError> {
        let moves = plan(moves)?;
        moves.iter().try_for_each(|m| self.check_not_saved(tenant, m))?;
        pieces.map_for(gpu, &moves)?;
        let extents = self.tiers.allocate(total(&moves), spared)?;
        let parts = deal(&moves, &extents);
        Ok(Leaving { step, tenant, extents, parts })
    }

    fn finish_save(&mut self, leaving: Leaving, saved: Result<Saved, OrderError>) -> Result<u64, OrderError> {
        let Leaving { step, tenant, extents, .. } = leaving;
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        let noted = saved.and_then(|saved| {
            self.journal.saved(step, tenant, &saved.parts, &saved.seals)?;
            Ok(saved)
        });
        match noted {
            Ok(saved) => {
                self.enter(tenant, saved);
                Ok(bytes)
            }
            Err(error) => {
                self.free(extents);
                Err(error)
            }
        }
    }

    fn copy_out(&mut self, gpu: &Gpu, pieces: &Pieces, parts: &[Part]) -> Result<Saved, OrderError> {
        let ByTier { in_memory, on_disk, .. } = ByTier::of(parts);
        let began = Instant::now();
        self.in_turns(&in_memory, |parts| Ok(gpu.copy_out(&self.transfers(pieces, parts)?)?))?;
        self.note_rate(Way::Out, &in_memory, began);
        let mut saved = Saved::default();
        in_memory.into_iter().try_for_each(|part| self.find_zeros(part, &mut saved))?;
        if !on_disk.is_empty() {
            let stay = self.turns.as_ref().map(|turns| turns.enter(SharedTier::Disk));
            saved.seals = self.staging.save(&self.tiers.disk, pieces, &on_disk, stay.as_ref())?;
            saved.add_on_disk(on_disk);
        }
        death::point("save:bytes");
        Ok(saved)
    }

    fn copy_in(&mut self, gpu: &Gpu, pieces: &Pieces, parts: &[Part]) -> Result<(), OrderError> {
        let ByTier { zeros, in_memory, on_disk } = ByTier::of(parts);
        self.clear(gpu, pieces, &zeros)?;
        let began = Instant::now();
        self.in_turns(&in_memory, |parts| Ok(gpu.copy_in(&self.transfers(pieces, parts)?)?))?;
        self.note_rate(Way::Back, &in_memory, began);
        if !on_disk.is_empty() {
            let stay = self.turns.as_ref().map(|turns| turns.enter(SharedTier::Disk));
            self.staging.restore(&self.tiers.disk, pieces, &on_disk, stay.as_ref())?;
        }
        death::point("restore:bytes");
        Ok(())
    }

    /// Takes note of how long a copy took that began then, if all of it lies in DRAM.
    fn note_rate(&mut self, way: Way, parts: &[Part], began: Instant) {
        let took = began.elapsed();
        if self.are_in_dram(parts) {
            self.rates.note(way, parts.iter().map(|part| part.extent.bytes).sum(), took);
        }
    }

    /// Takes note of what has been copied to memory, and of which of it are zeros.
    fn find_zeros(&self, part: Part, saved: &mut Saved) -> Result<(), OrderError> {
        saved.add(part, &self.tiers.memory(part.extent)?.zeros());
        progress::step();
        Ok(())
    }

    /// Writes zeros where they were.
    fn clear(&self, gpu: &Gpu, pieces: &Pieces, zeros: &[Part]) -> Result<(), OrderError> {
        if zeros.is_empty() {
            return Ok(());
        }
        Ok(gpu.fill(&device_ranges(pieces, zeros)?, 0)?)
    }

    /// Copies parts in memory: those in CXL memory step by step, where others move bytes of it too.
    pub(super) fn in_turns(
        &self,
        parts: &[Part],
        copy: impl Fn(&[Part]) -> Result<(), OrderError>,
    ) -> Result<(), OrderError> {
        let (in_cxl, in_dram): (Vec<Part>, Vec<Part>) =
            parts.iter().partition(|part| self.tiers.cxl.has(part.extent.slab));
        let Some(turns) = self.turns.as_ref().filter(|_| !in_cxl.is_empty()) else { return copy(parts) };
        let stay = turns.enter(SharedTier::Cxl);
        if stay.is_alone() {
            stay.take(in_cxl.iter().map(|part| part.extent.bytes).sum());
            return copy(parts);
        }
        copy(&in_dram)?;
        in_steps(&in_cxl, STEP).iter().try_for_each(|step| {
            stay.take(step.iter().map(|part| part.extent.bytes).sum());
            copy(step)
        })
    }

    /// Copies saved bytes back into pieces, after filling `poison` with 0xFF, and forgets the
    /// saved copy; returns how many bytes. A failed restore keeps the saved copy.
    pub fn restore(
        &mut self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        order: Order<'_>,
        poison: &[PieceId],
    ) -> Result<u64, OrderError> {
        let coming = self.prepare_restore(gpu, pieces, order)?;
        pieces.fill(gpu, poison, POISON)?;
        self.copy_in(gpu, pieces, &coming.parts)?;
        self.finish_restore(coming)
    }

    fn prepare_restore(
        &self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        Order { step, tenant, moves }: Order<'_>,
    ) -> Result<Coming, OrderError> {
        let moves = plan(moves)?;
        let extents = self.find_all(tenant, &moves)?;
        pieces.map_for(gpu, &moves)?;
        let parts = deal(&moves, &extents);
        Ok(Coming { step, tenant, moves, parts })
    }

    fn finish_restore(&mut self, coming: Coming) -> Result<u64, OrderError> {
        let Coming { step, tenant, moves, .. } = coming;
        self.journal.restored(step, tenant, &moves).map_err(OrderError::Unnoted)?;
        self.remove(tenant, &moves);
        Ok(total(&moves))
    }

    /// Saves and restores at once, where both lie in DRAM; returns how many bytes each. `None`: neither is carried out;
    /// each alone may be, or says why not.
    pub fn exchange(
        &mut self,
        gpu: &Gpu,
        pieces: &mut Pieces,
        Exchange { save, restore }: &Exchange<'_>,
    ) -> Result<Option<[u64; 2]>, OrderError> {
        let out = total(save.order.moves);
        // What comes leaves room for what goes only afterwards.
        if self.tiers.dram.room() < out.saturating_add(save.spared) {
            return Ok(None);
        }
        let Ok(coming) = self.prepare_restore(gpu, pieces, *restore) else { return Ok(None) };
        if !self.are_in_dram(&coming.parts) {
            return Ok(None);
        }
        let Ok(leaving) = self.prepare_save(gpu, pieces, *save) else { return Ok(None) };
        if !self.are_in_dram(&leaving.parts) {
            self.free(leaving.extents);
            return Ok(None);
        }
        let saved = self.copy_both(gpu, pieces, &leaving.parts, &coming.parts);
        match self.finish_save(leaving, saved) {
            Ok(saved) => {
                // Where this cannot be noted the next mover is given both orders again, and undoes the first.
                Ok(Some([saved, self.finish_restore(coming)?]))
            }
            Err(error) => {
                tracing::warn!(%error, "a save and a restore could not be carried out at once");
                Ok(None)
            }
        }
    }

    fn are_in_dram(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| part.extent.slab == ZEROS || self.tiers.dram.has(part.extent.slab))
    }

    fn copy_both(
        &mut self,
        gpu: &Gpu,
        pieces: &Pieces,
        out: &[Part],
        back: &[Part],
    ) -> Result<Saved, OrderError> {
        let ByTier { zeros, in_memory, .. } = ByTier::of(back);
        self.clear(gpu, pieces, &zeros)?;
        let began = Instant::now();
        gpu.copy_both(&self.transfers(pieces, out)?, &self.transfers(pieces, &in_memory)?)?;
        self.note_rate(Way::Both, &[out, &in_memory[..]].concat(), began);
        let mut saved = Saved::default();
        out.iter().try_for_each(|part| self.find_zeros(*part, &mut saved))?;
        Ok(saved)
    }

    /// Forgets all of a tenant's saved bytes.
    pub fn forget(&mut self, tenant: TenantId) -> Result<(), OrderError> {
        // Where it is told again, by a manager whose last mover died of it, there is less to note.
        if self.index.knows(tenant) {
            self.journal.gone(tenant).map_err(OrderError::Unnoted)?;
        }
        let extents = self.index.forget(tenant);
        self.free(extents);
        self.tiers.trim();
        Ok(())
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
        Ok(Transfer::new(device, self.tiers.memory(part.extent)?))
    }

    pub(super) fn enter(&mut self, tenant: TenantId, saved: Saved) {
        self.tiers.disk.seal(&saved.seals);
        for part in saved.parts {
            self.index.insert(tenant, part.class, part.at, part.extent);
        }
        self.free(saved.blank);
    }

    fn remove(&mut self, tenant: TenantId, moves: &[Move]) {
        for m in moves {
            let extents = self.index.remove(tenant, m.class, m.at, m.bytes);
            self.free(extents);
        }
    }

    pub(super) fn free(&mut self, extents: Vec<Extent>) {
        extents.into_iter().for_each(|extent| self.tiers.free(extent));
    }
}

/// A save that has room in the tiers.
struct Leaving {
    step: Step,
    tenant: TenantId,
    extents: Vec<Extent>,
    parts: Vec<Part>,
}

/// A restore whose bytes are found.
struct Coming {
    step: Step,
    tenant: TenantId,
    moves: Vec<Move>,
    parts: Vec<Part>,
}

/// What a save has copied.
#[derive(Default)]
pub(super) struct Saved {
    /// As the index has it.
    pub(super) parts: Vec<Part>,
    pub(super) seals: Vec<Seal>,
    /// What was handed out for zeros.
    blank: Vec<Extent>,
}

impl Saved {
    /// Adds a part that has these runs of zeros.
    fn add(&mut self, part: Part, zeros: &[Range<u64>]) {
        self.parts.extend(part.without(zeros));
        self.blank.extend(zeros.iter().map(|run| part.extent.slice(run.start, run.end)));
    }

    /// Adds parts on disk: the blocks without a seal are zeros.
    pub(super) fn add_on_disk(&mut self, parts: Vec<Part>) {
        let sealed: BTreeSet<u64> = self.seals.iter().map(|seal| seal.start).collect();
        parts.into_iter().for_each(|part| self.add(part, &in_other_blocks(part.extent, &sealed)));
    }
}

/// Parts by where they lie.
pub(super) struct ByTier {
    /// Nowhere.
    zeros: Vec<Part>,
    pub(super) in_memory: Vec<Part>,
    pub(super) on_disk: Vec<Part>,
}

impl ByTier {
    pub(super) fn of(parts: &[Part]) -> Self {
        let (zeros, stored): (Vec<Part>, Vec<Part>) =
            parts.iter().partition(|part| part.extent.slab == ZEROS);
        let (on_disk, in_memory) = stored.into_iter().partition(|part| part.extent.slab == ARENA);
        Self { zeros, in_memory, on_disk }
    }
}

/// Where the parts are on the GPU.
fn device_ranges<'a>(pieces: &'a Pieces, parts: &[Part]) -> Result<Vec<DeviceRange<'a>>, OrderError> {
    parts.iter().map(|part| pieces.range(part.piece, part.offset, part.extent.bytes)).collect()
}

/// The bytes of an extent on disk that lie in other blocks than those that are sealed.
fn in_other_blocks(extent: Extent, sealed: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let other = |block: &Extent| !sealed.contains(&(block.start - block.start % BLOCK_BYTES));
    for block in in_blocks(extent).filter(other) {
        zeros::extend(&mut ranges, block.start - extent.start..block.end() - extent.start);
    }
    ranges
}

pub(super) fn total(moves: &[Move]) -> u64 {
    moves.iter().map(|m| m.bytes).sum()
}
