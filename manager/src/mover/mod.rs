//! The mover: the only process that makes a GPU's memory and moves saved bytes, one per GPU.
//!
//! ```text
//! manager ═ Connection ═ run ─► orders ─┬─► pieces ── what was made, under the manager's names
//!                                       ├─► bandwidth    how fast bytes go
//!                                       ├─► exchange     which two orders go both ways at once     (pure)
//!                                       ├─► rates        how fast they went lately             (pure)
//!                                       ├─► warmth       which memory is got ahead of need      (pure)
//!                                       └─► save ──┬─ plan, index   which byte goes where   (pure)
//!                                                  ├─ tier/         where saved bytes lie
//!                                                  ├─ zeros         what takes no room there        (pure)
//!                                                  ├─ staging       between pieces and the disk
//!                                                  ├─ progress      how far it has come, for the manager
//!                                                  ├─ turns         whose bytes go to a shared tier next
//!                                                  └─ copy/         the driver: all unsafe code; tiny ranges are
//!                                                                   gathered on the GPU where that is faster
//! ```
//! A fatal CUDA error stays in this process, and so does a fatal mistake: the manager never loads
//! CUDA. After an error of the driver that may be the context's this process ends, and the next one
//! tries once more. Orders are carried out in the order in which they come, each answered before the next is begun:
//! so an answered order is over. But a save and the restore after it go both ways at once, and are answered together,
//! where that was measured to be faster.
//!
//! It may die at any moment, and lose nothing: the manager holds a descriptor of every piece, of
//! every slab of the tier and of the save index (`journal`). The next mover is handed them, and the
//! orders that were not answered are given again (I7). The manager may die too: the mover keeps
//! everything, its manager's state file among it, for the next one (`link`, `orphan`, `heir`).
//!
//! Invariants:
//! - an order that fails changes nothing: no piece is made, no byte is kept or forgotten (poison
//!   and scrubs apart, whose pieces hold no bytes of value);
//! - the write order of a save: bytes first, then the index, then the answer (DESIGN §8);
//! - no tenant's bytes are read out under another tenant's name: the index has one entry for each
//!   saved byte, and only its bytes are copied back;
//! - the tier's memory never exceeds its share (I6).

mod bandwidth;
mod copy;
mod error;
mod exchange;
mod heir;
mod index;
mod journal;
mod link;
mod orders;
mod orphan;
mod pieces;
mod plan;
pub mod progress;
mod rates;
mod save;
mod staging;
#[cfg(test)]
mod tests;
mod tier;
pub mod turns;
mod vacate;
mod warmth;
mod zeros;

pub use bandwidth::measure_host;

use crate::numa::cxl::CxlPlace;
use anyhow::Context as _;
use copy::Gpu;
use exchange::Exchange;
use link::{Link, LinkError};
use orders::{Answer, Mover, Useless};
use orphan::Orphanage;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{FromMover, TierRates, ToMover};
use warmth::Chore;

/// So many pages are looked at to see whether a node keeps what it has.
const TRIAL_PAGES: u64 = 16;

/// What a mover is started with.
#[derive(Clone, Debug)]
pub struct MoverConfig {
    /// The GPU.
    pub gpu: GpuUuid,
    /// This GPU's share of the DRAM tier to begin with, in bytes (I6); rounded down to whole pages.
    pub dram_bytes: u64,
    /// Its part of the CXL tier.
    pub cxl: Option<CxlPart>,
    /// Where its arena of the disk tier is made.
    pub disk: Option<PathBuf>,
    /// Its share of the disk tier, in bytes (I6); rounded down to whole blocks.
    pub disk_bytes: u64,
    /// The driver library's name or path: `libcuda.so.1`, or a software GPU's.
    pub driver: CString,
}

/// A GPU's part of CXL memory.
#[derive(Clone, Debug)]
pub struct CxlPart {
    /// The node or device.
    pub place: CxlPlace,
    /// Where its part of a device begins.
    pub start: u64,
    /// Its share of the CXL tier, in bytes (I6).
    pub bytes: u64,
}

/// As much of some bytes as a share of the disk tier can be.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % tier::BLOCK_BYTES
}

/// Whether a directory can hold saved bytes: a file without a name is made there, written and read.
///
/// # Errors
/// Why not.
pub fn check_disk(directory: &Path) -> io::Result<()> {
    tier::Disk::check(directory)
}

/// How fast saved bytes go to a directory of the disk tier and back, for a moment: past the page cache where the file
/// system lets them.
///
/// # Errors
/// No file can be made there, written or read.
pub fn measure_disk(directory: &Path) -> io::Result<TierRates> {
    tier::Disk::measure_in(directory)
}

/// Whether saved bytes can lie on a NUMA node, and stay there when they are page-locked.
///
/// # Errors
/// Why not, and what to do.
pub fn check_node(node: u32) -> Result<(), impl std::error::Error + Send + Sync + 'static> {
    copy::HostMemory::new(TRIAL_PAGES * copy::page_bytes(), copy::Place::Node(node))
        .and_then(|memory| memory.verify_pinned())
}

/// Serves the manager, and those after it, until one ends in order, or dies with no other to come.
/// Sends `Ready` first, or `Unusable` and ends.
///
/// # Errors
/// The manager broke the protocol, or the next one cannot be found. What the driver refuses is no
/// error of the mover: it is answered with `Failed`.
pub fn run(connection: Connection, config: MoverConfig) -> anyhow::Result<()> {
    let mut link = Link::new(connection);
    match Gpu::open(&config.driver, config.gpu) {
        Ok(gpu) => serve(&mut link, Rc::new(gpu), &config),
        Err(error) => refuse(&mut link, &error),
    }
}

fn refuse(link: &mut Link, error: &dyn std::error::Error) -> anyhow::Result<()> {
    tracing::warn!(%error, "this mover is of no use, and ends");
    let message = FromMover::Unusable { reason: error.to_string() };
    Ok(link.say(Answer { message, fds: Vec::new() })?)
}

fn serve(link: &mut Link, gpu: Rc<Gpu>, config: &MoverConfig) -> anyhow::Result<()> {
    let page = progress::page().context("the page that shows how far the mover has come")?;
    link.say(Answer { message: ready(&gpu), fds: vec![page] })?;
    let mut mover = Mover::new(gpu, config).context("the save index cannot be made")?;
    let mut orphanage = None;
    loop {
        do_chores(&mut mover, link)?;
        match link.hear() {
            Ok((ToMover::End, _)) => return Ok(()),
            Ok((ToMover::Will(will), fds)) => {
                let state = fds.into_iter().next().context("a will came without its state file")?;
                mover.share_tiers(config.gpu, &state);
                orphanage = Some(Orphanage::of(config.gpu, will, state, link));
            }
            Ok((order, fds)) => {
                match carry_out(&mut mover, link, order, fds) {
                    Ok(answers) => answers.into_iter().try_for_each(|answer| link.say(answer))?,
                    Err(Useless::CannotTakeOver(error)) => return refuse(link, &error),
                    Err(useless) => return Err(useless.into()),
                }
                // Its death gives back what the driver did not take; the next one loses nothing.
                anyhow::ensure!(!copy::has_leaked(), "the driver keeps memory that was released");
            }
            Err(LinkError::Ended) => match &mut orphanage {
                Some(orphanage) => orphanage.reunite(link, &mover)?,
                // It has died before it could leave anything to anybody.
                None => return Ok(()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// What is to be done while no order waits, until one does.
fn do_chores(mover: &mut Mover, link: &mut Link) -> Result<(), LinkError> {
    while !link.comes_within(Duration::ZERO) {
        match mover.next_chore() {
            Chore::Rest => break,
            Chore::LookAgain(due) => {
                if link.comes_within(due.saturating_duration_since(Instant::now())) {
                    break;
                }
            }
            Chore::Get => mover.get_ahead().into_iter().try_for_each(|news| link.say(news))?,
            Chore::GiveBack => mover.give_back().into_iter().try_for_each(|news| link.say(news))?,
        }
    }
    Ok(())
}

/// Carries out an order, and the next one with it where both can go at once. Else nothing of the next is begun before
/// this one is answered: the mover after this one undoes all that was not.
fn carry_out(
    mover: &mut Mover,
    link: &mut Link,
    order: ToMover,
    fds: Vec<OwnedFd>,
) -> Result<Vec<Answer>, Useless> {
    if mover.may_exchange(&order)
        && let Some(exchange) = link.peek().and_then(|next| Exchange::of(&order, next))
        && let Some(answers) = mover.exchange(&exchange)?
    {
        link.skip();
        return Ok(answers);
    }
    mover.handle(order, fds, &mut |answer| link.say(answer))
}

fn ready(gpu: &Gpu) -> FromMover {
    let properties = gpu.properties();
    FromMover::Ready {
        name: properties.name.clone(),
        total_bytes: properties.total_bytes,
        granularity_bytes: properties.granularity_bytes,
    }
}
