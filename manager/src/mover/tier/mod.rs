//! Where saved bytes lie: in the host's memory first, then in CXL memory, then on disk; handed out in extents.
//!
//! Invariant (I6): a tier never takes more than its share; all of it is in extents that were handed out, or free.

mod disk;
mod free_list;
mod memory;
mod shortage;

pub use disk::{ARENA, BLOCK_BYTES, Disk, Seal, in_blocks, padded};
pub use memory::Memory;

use super::copy::{HostMemoryError, HostRange};
use shortage::Shortage;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use tidegate_ffi::units::Tier;

/// A piece of a tier's memory, counted up for the life of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlabId(pub u32);

/// In the place of a slab: the bytes are zeros, and lie nowhere. They begin where they are in the tenant's address
/// range, so that neighbours continue each other.
pub const ZEROS: SlabId = SlabId(u32::MAX - 1);

/// A run of bytes in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The slab.
    pub slab: SlabId,
    /// The first byte.
    pub start: u64,
    /// Length, at least 1.
    pub bytes: u64,
}

/// What every tier is, whatever its bytes lie in.
pub trait Room {
    /// Whether anything may lie there.
    fn is_there(&self) -> bool;

    /// Whether a slab of this number would be its own.
    fn has(&self, slab: SlabId) -> bool;

    /// Bytes that are not handed out, and can be.
    fn room(&self) -> u64;

    /// Bytes that are handed out, or kept for it: what others cannot have.
    fn used(&self) -> u64;

    /// Changes the share to `bytes`, or as near to it as what is handed out allows. What it is then.
    fn set_share(&mut self, bytes: u64) -> u64;

    /// What [`allocate`](Self::allocate) does, without a word about it.
    fn take(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError>;

    /// Whether it is full, and has said so.
    fn shortage(&mut self) -> &mut Shortage;

    /// Hands out `bytes` bytes in as few extents as there are large enough holes: all or none. What they hold is
    /// undefined.
    fn allocate(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError> {
        let taken = self.take(bytes);
        self.shortage().note(bytes, &taken);
        taken
    }

    /// Hands out as many of `bytes` bytes as there is room and memory for.
    fn allocate_most(&mut self, bytes: u64) -> Vec<Extent>;

    /// Takes an extent back, or a part of one.
    fn free(&mut self, extent: Extent);

    /// A tenant has gone: gives back what memory is not kept for the next, and tries again what was refused.
    fn trim(&mut self);

    /// A descriptor of each slab.
    fn share(&self) -> io::Result<Vec<(SlabId, OwnedFd)>>;

    /// What has changed in the slabs since this was asked last.
    fn news(&mut self) -> Vec<SlabNews>;
}

/// The tiers of one GPU, in the order in which they are filled (R0.4).
pub struct Tiers {
    /// Host memory.
    pub dram: Memory,
    /// CXL memory.
    pub cxl: Memory,
    /// A file.
    pub disk: Disk,
}

impl Tiers {
    /// Hands out `bytes` bytes in as few extents as there are large enough holes, of the first tiers that have
    /// room: all or none. Of the first of all, `spared` bytes stay free if there is room elsewhere. What the extents
    /// hold is undefined.
    pub fn allocate(&mut self, bytes: u64, spared: u64) -> Result<Vec<Extent>, TierError> {
        match self.try_allocate(bytes, spared) {
            Err(error) if spared > 0 && error.is_out_of_memory() => self.try_allocate(bytes, 0),
            tried => tried,
        }
    }

    fn try_allocate(&mut self, bytes: u64, spared: u64) -> Result<Vec<Extent>, TierError> {
        self.all_or_none(|tiers, extents| {
            let [dram, lower @ ..] = tiers.each_mut();
            let lower = lower.into_iter().filter(|tier| tier.is_there()).map(|tier| (tier, 0));
            fill([(dram, spared)].into_iter().chain(lower).collect(), bytes, extents)
        })
    }

    /// Hands out `bytes` bytes, all or none, for what has to leave its place in DRAM: of the slabs that there are, then
    /// of the tiers below. What the extents hold is undefined.
    pub fn allocate_again(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError> {
        self.all_or_none(|tiers, extents| {
            extents.append(&mut tiers.dram.take_held(bytes));
            let left = bytes - length(extents);
            let [_, lower @ ..] = tiers.each_mut();
            let lower = lower.into_iter().filter(|tier| tier.is_there()).map(|tier| (tier, 0)).collect();
            fill(lower, left, extents)?;
            if length(extents) == bytes { Ok(()) } else { Err(tiers.dram.full(left)) }
        })
    }

    fn all_or_none(
        &mut self,
        take: impl FnOnce(&mut Self, &mut Vec<Extent>) -> Result<(), TierError>,
    ) -> Result<Vec<Extent>, TierError> {
        let mut extents = Vec::new();
        match take(self, &mut extents) {
            Ok(()) => Ok(extents),
            Err(error) => {
                extents.into_iter().for_each(|extent| self.free(extent));
                Err(error)
            }
        }
    }

    fn each(&self) -> [&dyn Room; 3] {
        [&self.dram, &self.cxl, &self.disk]
    }

    fn each_mut(&mut self) -> [&mut dyn Room; 3] {
        [&mut self.dram, &mut self.cxl, &mut self.disk]
    }

    /// The memory of an extent that is not on disk.
    pub fn memory(&self, extent: Extent) -> Result<HostRange<'_>, TierError> {
        match self.cxl.has(extent.slab) {
            true => self.cxl.memory(extent),
            false => self.dram.memory(extent),
        }
    }

    /// Gets some memory ahead of need, as far as there is any.
    pub fn prepare(&mut self) {
        for memory in [&mut self.dram, &mut self.cxl] {
            if let Err(error) = memory.prepare() {
                tracing::warn!(%error, "no memory for saved bytes could be prepared ahead");
            }
        }
    }

    /// Takes an extent back, or a part of one. Zeros lie in no tier.
    pub fn free(&mut self, extent: Extent) {
        let tier = self.each_mut().into_iter().find(|tier| tier.has(extent.slab));
        tier.into_iter().for_each(|tier| tier.free(extent));
    }

    /// Bytes of host memory that the tiers have got from the system, handed out or not.
    pub fn held(&self) -> u64 {
        self.dram.held() + self.cxl.held()
    }

    /// Bytes of it in which something lies.
    pub fn used_memory(&self) -> u64 {
        self.dram.used() + self.cxl.used()
    }

    /// Whether more host memory can be got within the shares.
    pub fn can_grow(&self) -> bool {
        self.dram.can_grow() || self.cxl.can_grow()
    }

    /// Gets one slab more ahead of need: in the first tier whose share reaches further.
    pub fn grow_ahead(&mut self) -> Result<(), TierError> {
        match self.dram.can_grow() {
            true => self.dram.grow(),
            false => self.cxl.grow(),
        }
    }

    /// How many bytes are in the slab that would be [given back](Self::give_one_back) next; `None`: something lies in each.
    pub fn next_to_give(&self) -> Option<u64> {
        self.cxl.next_to_give().or_else(|| self.dram.next_to_give())
    }

    /// Gives one slab back in which nothing lies, if there is one.
    pub fn give_one_back(&mut self) {
        if !self.cxl.give_one_back() {
            self.dram.give_one_back();
        }
    }

    /// A tenant has gone: gives disk space back, and tries memory again that was refused.
    pub fn trim(&mut self) {
        self.each_mut().into_iter().for_each(Room::trim);
    }

    /// Changes the share of a tier to `bytes`, or as near to it as what is handed out allows. What it is then.
    pub fn set_share(&mut self, tier: Tier, bytes: u64) -> u64 {
        self.each_mut()[tier.index()].set_share(bytes)
    }

    /// Bytes that are taken of each tier: DRAM, CXL memory, disk.
    pub fn used(&self) -> [u64; 3] {
        self.each().map(Room::used)
    }

    /// A descriptor of each slab, and of the arena.
    pub fn share(&self) -> io::Result<Vec<(SlabId, OwnedFd)>> {
        let slabs = self.each().map(Room::share).into_iter().collect::<io::Result<Vec<_>>>()?;
        Ok(slabs.into_iter().flatten().collect())
    }

    /// What has changed in the slabs since this was asked last.
    pub fn news(&mut self) -> Vec<SlabNews> {
        self.each_mut().into_iter().flat_map(Room::news).collect()
    }

    /// Takes over the slabs of a mover that died, with the saved bytes in them and the seals of those on disk.
    pub fn adopt(
        &mut self,
        slabs: Vec<(SlabId, OwnedFd)>,
        saved: Vec<Extent>,
        seals: &[Seal],
    ) -> Result<(), TierError> {
        let (on_disk, in_memory): (Vec<Extent>, Vec<Extent>) =
            saved.into_iter().partition(|extent| extent.slab == ARENA);
        let (mut arena, slabs): (Vec<_>, Vec<_>) = slabs.into_iter().partition(|(slab, _)| *slab == ARENA);
        match (arena.pop(), on_disk.first()) {
            (Some((_, file)), _) => self.disk.adopt(file, &on_disk, seals)?,
            (None, Some(lost)) => return Err(TierError::Contradiction(*lost)),
            (None, None) => {}
        }
        let (cxl_slabs, dram_slabs): (Vec<_>, Vec<_>) =
            slabs.into_iter().partition(|(slab, _)| self.cxl.has(*slab));
        let (in_cxl, in_dram): (Vec<Extent>, Vec<Extent>) =
            in_memory.into_iter().partition(|extent| self.cxl.has(extent.slab));
        self.cxl.adopt(cxl_slabs, in_cxl)?;
        self.dram.adopt(dram_slabs, in_dram)
    }
}

/// What the manager, who holds each slab too, must know.
#[derive(Debug)]
pub enum SlabNews {
    /// A slab was made; a descriptor of its memory.
    Made(SlabId, OwnedFd),
    /// A slab was given back.
    GivenBack(SlabId),
}

/// Why a tier cannot hold bytes.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The share is used up.
    #[error(
        "{wanted} bytes do not fit into this GPU's share of the {tier} tier: {free} of {share} are free; raise --{tier}"
    )]
    Full {
        /// Which: the name of its option.
        tier: &'static str,
        /// Asked for.
        wanted: u64,
        /// Not handed out.
        free: u64,
        /// The share.
        share: u64,
    },
    /// The system has no more memory, though the share would allow it.
    #[error("this GPU's share of the {tier} tier cannot grow: {error}; lower --{tier}")]
    Host {
        /// Which: the name of its option.
        tier: &'static str,
        /// Why.
        error: HostMemoryError,
    },
    /// Its memory is not where it should be.
    #[error("the {tier} tier takes no more bytes: {why}")]
    Refused {
        /// Which: the name of its option.
        tier: &'static str,
        /// Why, and what to do.
        why: String,
    },
    /// The lanes to the disk have no memory.
    #[error("there is no memory for the lanes to the disk: {0}")]
    Lanes(#[source] HostMemoryError),
    /// The slab's descriptor cannot be passed on.
    #[error("a slab of memory for saved bytes cannot be shared with the manager: {0}")]
    Share(#[from] io::Error),
    /// The disk does not do what it should.
    #[error("the disk tier: {0}")]
    Disk(#[source] io::Error),
    /// There is no arena in which they could lie.
    #[error("the disk tier has no arena")]
    NoArena,
    /// What lies on the disk is not what was written.
    #[error(
        "saved bytes are damaged: the block at byte {start} of the disk tier is not what was written there"
    )]
    Damaged {
        /// Where the block begins in the arena.
        start: u64,
    },
    /// Saved bytes that lie in no slab, or on each other.
    #[error("the save index contradicts the tier's memory at {0:?}")]
    Contradiction(Extent),
    /// An extent that this tier did not hand out.
    #[error("{0:?} is no memory of the tier")]
    Unknown(Extent),
}

impl TierError {
    /// Whether it may help to free some.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            TierError::Full { .. }
            | TierError::Host { .. }
            | TierError::Refused { .. }
            | TierError::Lanes(_) => true,
            TierError::Disk(error) => {
                matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}

impl Extent {
    /// The byte behind the last.
    pub fn end(self) -> u64 {
        self.start + self.bytes
    }

    /// The bytes `from .. to` of the extent, `to` bounded by its length.
    pub fn slice(self, from: u64, to: u64) -> Self {
        Self { start: self.start + from, bytes: to.min(self.bytes) - from, ..self }
    }

    /// The first `bytes` bytes (all, if it has no more), and what is left.
    pub fn split(self, bytes: u64) -> (Self, Option<Self>) {
        let rest = (bytes < self.bytes).then(|| self.slice(bytes, self.bytes));
        (self.slice(0, bytes), rest)
    }

    /// Whether `next` begins where this one ends.
    pub fn continues_with(self, next: Self) -> bool {
        self.slab == next.slab && self.end() == next.start
    }

    /// Both in one, `next` being the continuation.
    pub fn joined(self, next: Self) -> Self {
        Self { bytes: self.bytes + next.bytes, ..self }
    }
}

/// Takes bytes tier by tier, and leaves in each so many free; the last takes all the rest, or says why not.
fn fill(
    mut tiers: Vec<(&mut dyn Room, u64)>,
    bytes: u64,
    extents: &mut Vec<Extent>,
) -> Result<(), TierError> {
    let (last, mut left) = (tiers.pop(), bytes);
    for (tier, spared) in tiers {
        let most = tier.room().saturating_sub(spared);
        let some = tier.allocate_most(left.min(most));
        left -= length(&some);
        extents.extend(some);
    }
    if let Some((last, _)) = last.filter(|_| left > 0) {
        extents.extend(last.allocate(left)?);
    }
    Ok(())
}

/// Bytes of extents.
fn length(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.bytes).sum()
}
