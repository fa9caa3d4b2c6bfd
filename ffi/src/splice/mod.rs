//! Feeds records of any size to a GPU, in few large pieces (R3).
//!
//! ```text
//!  source          preprocessor             splicer                    GPU
//!  ══════► direct ─────────────► launching ─────────────► working ─────────────► results
//!   fill   buffer   read, parse   buffer     at a cursor   buffer    when full    buffer
//!          data set               block                    blocks
//! ```
//!
//! - [`cursor`]: how a buffer is filled: its index from the head, its data from the end;
//! - [`data_set`]: what the source writes: data and an index that says where each lies;
//! - [`block`]: a data set as the GPU wants it: the parsed data and their places;
//! - [`feed`]: the pipeline: parsing, copying and computing at the same time, by the
//!   [out-of-order queue](crate::hazard::queue).
//!
//! The first three are pure: no driver, no threads, no clock. `examples/feeder` is a program to copy from.

/// An error of the user's own: of a source, a parse function or a device.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

pub mod block;
pub mod cursor;
pub mod data_set;
pub mod feed;

#[cfg(test)]
mod memory_gpu;
