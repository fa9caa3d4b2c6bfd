//! The mover: the only process that makes a GPU's memory and moves saved bytes, one per GPU.
//!
//! ```text
//! manager ═ Connection ═ run ─► orders ─┬─► pieces ── what was made, under the manager's names
//!                                       └─► save ──┬─ plan, index   which byte goes where   (pure)
//!                                                  ├─ tier/         where saved bytes lie
//!                                                  └─ copy/         the driver: all unsafe code
//! ```
//! A fatal CUDA error stays in this process, and so does a fatal mistake: the manager never loads
//! CUDA. Orders are handled one by one, in the order in which they come; each is answered before
//! the next is read, so an answered order is over.
//!
//! It may die at any moment, and lose nothing: the manager holds a descriptor of every piece, of
//! every slab of the tier and of the save index (`journal`). The next mover is handed them, and the
//! orders that were not answered are given again (I7).
//!
//! Invariants:
//! - an order that fails changes nothing: no piece is made, no byte is kept or forgotten (poison
//!   and scrubs apart, whose pieces hold no bytes of value);
//! - the write order of a save: bytes first, then the index, then the answer (DESIGN §8);
//! - no tenant's bytes are read out under another tenant's name: the index has one entry for each
//!   saved byte, and only its bytes are copied back;
//! - the tier's memory never exceeds its share (I6).

mod copy;
pub mod death;
mod error;
mod index;
mod journal;
mod orders;
mod pieces;
mod plan;
mod save;
#[cfg(test)]
mod tests;
mod tier;

use anyhow::Context as _;
use copy::Gpu;
use orders::{Answer, Mover};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::rc::Rc;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::message::{FromMover, ToMover};
use tidegate_ffi::wire::{Connection, ReceiveError, SendError};

/// What a mover is started with.
#[derive(Clone, Debug)]
pub struct MoverConfig {
    /// The GPU.
    pub gpu: GpuUuid,
    /// This GPU's share of the DRAM tier, in bytes (I6); rounded down to whole pages.
    pub dram_bytes: u64,
    /// The driver library's name or path: `libcuda.so.1`, or a software GPU's.
    pub driver: CString,
}

/// Serves the manager until it closes the connection. Sends `Ready` first, or `Unusable` and ends.
///
/// # Errors
/// The manager broke the protocol or is gone. What the driver refuses is no error of the mover:
/// it is answered with `Failed`.
pub fn run(connection: Connection, config: MoverConfig) -> anyhow::Result<()> {
    match Gpu::open(&config.driver, config.gpu) {
        Ok(gpu) => serve(&connection, Rc::new(gpu), config.dram_bytes),
        Err(error) => refuse(&connection, &error),
    }
}

fn refuse(connection: &Connection, error: &dyn std::error::Error) -> anyhow::Result<()> {
    tracing::warn!(%error, "the GPU is not usable");
    let message = FromMover::Unusable { reason: error.to_string() };
    connection.send(&message, &[]).context("the manager cannot be told that its GPU is not usable")
}

fn serve(connection: &Connection, gpu: Rc<Gpu>, dram_bytes: u64) -> anyhow::Result<()> {
    connection.send(&ready(&gpu), &[]).context("the manager cannot be told that its GPU is ready")?;
    let mut mover = Mover::new(gpu, dram_bytes).context("the save index cannot be made")?;
    loop {
        match connection.receive::<ToMover>() {
            Ok((order, fds)) => match mover.handle(order, fds) {
                Ok(answers) => match answers.iter().try_for_each(|answer| tell(connection, answer)) {
                    // The manager has ended before it could hear the answer.
                    Err(SendError::Socket(Errno::PIPE)) => return Ok(()),
                    told => told.context("an order cannot be answered")?,
                },
                Err(error) => return refuse(connection, &error),
            },
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error).context("the manager's orders cannot be read"),
        }
    }
}

fn ready(gpu: &Gpu) -> FromMover {
    let properties = gpu.properties();
    FromMover::Ready {
        name: properties.name.clone(),
        total_bytes: properties.total_bytes,
        granularity_bytes: properties.granularity_bytes,
    }
}

fn tell(connection: &Connection, answer: &Answer) -> Result<(), SendError> {
    let fds: Vec<_> = answer.fds.iter().map(AsFd::as_fd).collect();
    connection.send(&answer.message, &fds)?;
    death::point("answered");
    Ok(())
}
