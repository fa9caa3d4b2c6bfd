//! Where saved bytes lie: tiers of memory in slabs, handed out in extents.
//!
//! Invariant (I6): a tier never takes more memory than its share; all of its memory is in extents
//! that were handed out, or free.

mod dram;
mod free_list;
mod shortage;

pub use dram::Dram;

use super::copy::{HostMemoryError, HostRange};
use std::os::fd::OwnedFd;

/// A piece of a tier's memory, counted up for the life of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlabId(pub u32);

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

/// A place for saved bytes. An extent belongs to whom it was handed out to until it is freed.
pub trait Tier {
    /// Gets some memory ahead of need, if there is none yet.
    fn prepare(&mut self) -> Result<(), TierError>;
    /// Hands out `bytes` bytes in as few extents as there are large enough holes: all or none.
    /// What they hold is undefined.
    fn allocate(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError>;
    /// Takes an extent back, or a part of one.
    fn free(&mut self, extent: Extent);
    /// Gives memory back to the system that nobody is likely to need soon.
    fn trim(&mut self);
    /// The memory of an extent.
    fn memory(&self, extent: Extent) -> Result<HostRange<'_>, TierError>;
    /// Bytes handed out.
    fn used(&self) -> u64;
    /// What has changed in the slabs since this was asked last.
    fn news(&mut self) -> Vec<SlabNews>;
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
        "{wanted} bytes do not fit into this GPU's share of the DRAM tier: {free} of {share} are free; raise --dram"
    )]
    Full {
        /// Asked for.
        wanted: u64,
        /// Not handed out.
        free: u64,
        /// The share.
        share: u64,
    },
    /// The system has no more memory, though the share would allow it.
    #[error("this GPU's share of the DRAM tier cannot grow: {0}; lower --dram")]
    Host(#[from] HostMemoryError),
    /// The slab's descriptor cannot be passed on.
    #[error("a slab of the DRAM tier cannot be shared with the manager: {0}")]
    Share(#[from] std::io::Error),
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
        matches!(self, TierError::Full { .. } | TierError::Host(_))
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
