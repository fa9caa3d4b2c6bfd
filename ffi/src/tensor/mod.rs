//! Descriptors of tensors, and whether the memory of two overlaps (R2).
//!
//! ```text
//!  base ──► ┌───────────── storage ─────────────┐
//!           │        ▲ offset, rows             │   a region: the bytes of a box in its storage,
//!           │        ▼                          │   or of any mapping position → address
//!           │◄──────►┌──────── size ────────┐   │
//!           │ offset,│ first element        │   │   address of a position =
//!           │ columns│        region        │   │     base + Σ (offset + position) · stride
//!           │        └──────────────────────┘   │
//!           └──────────── row pitch ────────────┘   stride of the rows = row pitch · element
//! ```
//!
//! - [`region`]: where a tensor lies: base, sizes, strides, element; its addresses and its hull;
//! - [`form`]: the four ways to say it: in a storage, by corners, by a mapping, as a range;
//! - [`task`]: descriptors that leave out what their task or a parent says;
//! - [`overlap`]: whether two regions share a byte, exactly, without looking at elements;
//! - `sums`: the arithmetic behind it;
//! - [`descriptor`]: a tensor's name, region and access: what an operation is compared by;
//! - [`parts`], [`progress`]: operations that work through their regions in parts.
//!
//! Conventions: positions, offsets, corners and dimensions count from 0 (the source counts rows from 1). Sizes and
//! offsets are in elements; addresses, strides and element sizes are in bytes (the source's are in elements).
//! Dimensions are listed slowest first: `[rows, columns]`, `[planes, rows, columns]`.
//!
//! Invariants: everything is a plain value, nothing is allocated; an overlap is never missed. A tensor without
//! elements is legal: it has no bytes and overlaps nothing.

#![forbid(unsafe_code)]

pub mod descriptor;
pub mod form;
pub mod overlap;
pub mod parts;
pub mod progress;
pub mod region;
mod sums;
pub mod task;

#[cfg(test)]
mod brute_force;

pub use descriptor::{Access, Descriptor, Storage, TensorId};
pub use form::{Axis, FormError};
pub use overlap::Overlap;
pub use progress::{Progress, Wait};
pub use region::{Dimension, MOST_DIMENSIONS, Region};
pub use task::{Outline, Parent, Shape, Task, TaskError};
