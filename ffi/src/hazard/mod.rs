//! Orders operations by what they read and write (R2): who touches what an earlier one is not done with waits,
//! everybody else goes ahead.
//!
//! ```text
//!                  ┌────────── tracker ──────────┐
//!  submit ───────► │ conflicts? ── none ─────────┼──► ready ──► runs ──► complete
//!                  │     │                       │                          │
//!                  │     └─► buffered ── woken ──┼──► ready                 │
//!                  │            ▲                │                          │
//!                  └────────────┼────────────────┘                          │
//!                               └───────────────────────────────────────────┘
//! ```
//!
//! Two operations conflict where one writes what the other reads or writes: read after write, write after read,
//! write after write. Two that only read never do. What they touch is a [`Region`]: a [`Span`] of addresses, a
//! [tensor's](crate::tensor::Region), or whatever else has a hull and can say whether it meets another.
//!
//! - [`tracker`]: who waits for whom: pure, bounded, without allocation;
//! - [`queue`]: an out-of-order queue for programs, on lanes that the user brings.

#![forbid(unsafe_code)]

mod index;
pub mod queue;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod simulation;
mod sync;
pub mod tracker;

pub use crate::tensor::Access;

use crate::tensor;
use std::ops::Range;

/// What an operand touches.
pub trait Region: Copy {
    /// The addresses from its first byte to behind its last one; empty if it has none. The topmost address
    /// there is, `u64::MAX`, cannot be in it.
    fn hull(&self) -> Range<u64>;

    /// Whether the two have a byte in common; also where that cannot be excluded. Asked only of regions whose
    /// hulls overlap, and symmetric.
    fn meets(&self, other: &Self) -> bool;
}

/// A range of addresses: each byte of its hull (R2.6).
///
/// Where storage never overlaps unless it is the same, identifiers decide alone (R2.7): such a tensor is the
/// [`Span::id`] of its identifier, an operand that includes several is one operand for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
}

impl Span {
    /// The range between two addresses.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// A tensor known by its identifier, which is less than `u64::MAX`: meets itself and nothing else. In one
    /// tracker all spans are identifiers, or none is.
    pub const fn id(identifier: u64) -> Self {
        Self { start: identifier, end: identifier + 1 }
    }

    /// Whether there is no byte in it.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

impl Region for Span {
    fn hull(&self) -> Range<u64> {
        self.start..self.end
    }

    fn meets(&self, other: &Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }
}

/// A tensor's bytes: exact but where the comparison would take too long ([`tensor::Overlap::MayMeet`]).
impl Region for tensor::Region {
    fn hull(&self) -> Range<u64> {
        self.hull()
    }

    fn meets(&self, other: &Self) -> bool {
        self.overlap(other).is_possible()
    }
}

/// A region, and what an operation does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand<R> {
    /// Where.
    pub region: R,
    /// What.
    pub access: Access,
}

impl<R: Region> Operand<R> {
    /// A region that is read.
    pub const fn read(region: R) -> Self {
        Self { region, access: Access::Read }
    }

    /// A region that is written.
    pub const fn write(region: R) -> Self {
        Self { region, access: Access::Write }
    }

    /// A region that is read and written.
    pub const fn read_write(region: R) -> Self {
        Self { region, access: Access::Both }
    }

    /// Whether an operation with the other operand must keep its order with one that has this.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let [mine, theirs] = [&self.region, &other.region].map(Region::hull);
        let is_near = mine.start.max(theirs.start) < mine.end.min(theirs.end);
        self.access.orders(other.access) && is_near && self.region.meets(&other.region)
    }
}
