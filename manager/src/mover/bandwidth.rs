//! How fast bytes go between the GPU and each tier: measured once, when the mover is first asked what is free on the
//! GPU, for then several jobs share it.
//!
//! Each copy is of twice as many bytes as the one before, until one takes long enough to be timed or is as large as
//! it may be. So a fast link is measured by some MiB, a slow one by some KiB, and neither for more than some
//! milliseconds. A copy that takes so long may just have been interrupted: the best of some counts, and where they differ much,
//! as on a busy machine, of many. The GPU and the tiers lend memory for it; where they have none, nothing is measured.

#![forbid(unsafe_code)]

use super::copy::{Gpu, Piece, Transfer};
use super::error::OrderError;
use super::pieces::Pieces;
use super::progress;
use super::tier::{Extent, Memory, Room, Tiers};
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{PieceId, Tier};
use tidegate_ffi::wire::message::{Bandwidth, LinkRates, Location, TierRates};

/// A copy that takes so long is timed well enough.
const LONG_ENOUGH: Duration = Duration::from_millis(1);
/// A copy is repeated until so many of its size have taken that long,
const TRIES: usize = 16;
/// so many where the median of them takes longer than the best by such a part,
const MOST_TRIES: usize = 64;
const ALIKE: u32 = 2;
/// and so many where they have taken so long together.
const FEW_TRIES: usize = 5;
const MOST_TIME: Duration = Duration::from_millis(200);
/// How many bytes the first copy has.
const LEAST: u64 = 16 << 10;
/// No copy is of more bytes.
pub const MOST: u64 = 16 << 20;
/// Nor of a larger part of the GPU.
const PART_OF_GPU: u64 = 64;
/// The only piece of a table of its own.
const SCRATCH: PieceId = PieceId(0);

/// Measures what can be measured.
pub fn measure(gpu: &Gpu, tiers: &mut Tiers) -> Bandwidth {
    let mut bandwidth = Bandwidth::default();
    let memory = Scratch::new(gpu).and_then(|scratch| {
        let dram = scratch.measure(&mut tiers.dram)?;
        bandwidth.link = dram.map(|(_, link)| link);
        bandwidth.tiers[Tier::Dram.index()] = dram.map(|(tier, _)| tier);
        bandwidth.tiers[Tier::Cxl.index()] = scratch.measure(&mut tiers.cxl)?.map(|(tier, _)| tier);
        Ok(())
    });
    if let Err(error) = memory {
        tracing::info!(%error, "how fast bytes go to memory is not measured");
    }
    match tiers.disk.measure() {
        Ok(disk) => bandwidth.tiers[Tier::Disk.index()] = disk,
        Err(error) => tracing::info!(%error, "how fast bytes go to the disk is not measured"),
    }
    tracing::info!(?bandwidth, "measured, in bytes per second");
    bandwidth
}

/// Memory of the GPU to copy out of and into.
struct Scratch<'a> {
    gpu: &'a Gpu,
    pieces: Pieces,
    bytes: u64,
}

impl<'a> Scratch<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, OrderError> {
        let granularity = gpu.properties().granularity_bytes;
        let most = (gpu.properties().total_bytes / PART_OF_GPU).min(MOST);
        let bytes = (most - most % granularity).max(granularity);
        let mut pieces = Pieces::default();
        pieces.add(vec![(SCRATCH, Piece::make(gpu, bytes, Location::Device)?)]);
        pieces.fill(gpu, &[SCRATCH], 0)?;
        Ok(Self { gpu, pieces, bytes })
    }

    /// A tier's rates, and those of the link to it; `None` if it has no room.
    fn measure(&self, tier: &mut Memory) -> Result<Option<(TierRates, LinkRates)>, OrderError> {
        let lent = tier.allocate_most(self.bytes);
        let largest = lent.iter().copied().max_by_key(|extent| extent.bytes);
        let rates = largest.map(|extent| self.rates(tier, extent));
        lent.into_iter().for_each(|extent| tier.free(extent));
        rates.transpose()
    }

    fn rates(&self, tier: &Memory, extent: Extent) -> Result<(TierRates, LinkRates), OrderError> {
        let copy = |from, to| self.copy(tier, extent, from, to);
        let out = |bytes| -> Result<(), OrderError> { Ok(self.gpu.copy_out(&[copy(0, bytes)?])?) };
        let back = |bytes| -> Result<(), OrderError> { Ok(self.gpu.copy_in(&[copy(0, bytes)?])?) };
        let both = |bytes| -> Result<(), OrderError> {
            Ok(self.gpu.copy_both(&[copy(0, bytes / 2)?], &[copy(bytes / 2, bytes)?])?)
        };
        let (write, read) = (rate(extent.bytes, out)?, rate(extent.bytes, back)?);
        let both = rate(extent.bytes, both)?;
        Ok((TierRates { write, read }, LinkRates { to_host: write, to_gpu: read, both }))
    }

    /// Between the bytes `from .. to` of the extent and of the scratch memory.
    fn copy<'b>(
        &'b self,
        tier: &'b Memory,
        extent: Extent,
        from: u64,
        to: u64,
    ) -> Result<Transfer<'b>, OrderError> {
        let device = self.pieces.range(SCRATCH, from, to - from)?;
        Ok(Transfer::new(device, tier.memory(extent.slice(from, to))?))
    }
}

/// How fast one thread copies the host's memory, in bytes per second.
pub fn measure_host() -> u64 {
    let (from, mut to) = (vec![1u8; MOST as usize], vec![0u8; MOST as usize]);
    let Ok(rate) = rate(MOST, |bytes| {
        to[..bytes as usize].copy_from_slice(&from[..bytes as usize]);
        std::hint::black_box(&mut to);
        Ok::<_, Infallible>(())
    });
    rate
}

/// Bytes per second of a copy of at most `most` bytes (more than none), which `copy` makes.
pub fn rate<E>(most: u64, mut copy: impl FnMut(u64) -> Result<(), E>) -> Result<u64, E> {
    rate_by(most, |bytes| {
        let began = Instant::now();
        copy(bytes).map(|()| began.elapsed())
    })
}

/// The same of a copy that says how long it took.
fn rate_by<E>(most: u64, mut copy: impl FnMut(u64) -> Result<Duration, E>) -> Result<u64, E> {
    let mut bytes = LEAST.min(most);
    loop {
        let is_timed = |took: Duration| took >= LONG_ENOUGH || bytes == most;
        let (mut took, mut tries) = (Duration::MAX, Vec::new());
        while is_timed(took) && needs_more(&mut tries) {
            tries.push(copy(bytes)?);
            took = took.min(tries[tries.len() - 1]);
            progress::step();
        }
        if is_timed(took) {
            return Ok((bytes as f64 / took.max(Duration::from_nanos(1)).as_secs_f64()) as u64);
        }
        bytes = (2 * bytes).min(most);
    }
}

/// Whether the best of these, which it sorts, may have been interrupted like the others.
fn needs_more(tries: &mut [Duration]) -> bool {
    tries.sort_unstable();
    let are_alike = || tries[tries.len() / 2] <= tries[0] + tries[0] / ALIKE;
    let are_enough = match tries.len() {
        FEW_TRIES.. if tries.iter().sum::<Duration>() >= MOST_TIME => true,
        ..TRIES => false,
        tries => tries >= MOST_TRIES || are_alike(),
    };
    !are_enough
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate of a device with so many bytes per second, and of how many bytes the copies were.
    fn measured(most: u64, bytes_per_second: u64) -> (u64, Vec<u64>) {
        let mut copies = Vec::new();
        let copy = |bytes| {
            copies.push(bytes);
            Ok::<_, Infallible>(Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64))
        };
        let Ok(rate) = rate_by(most, copy);
        (rate, copies)
    }

    #[test]
    fn copies_grow_until_one_takes_long_enough() {
        // 16 KiB take 0.25 ms, 64 KiB a whole one.
        let (rate, mut copies) = measured(MOST, LEAST * 4000);
        copies.dedup();
        assert_eq!((rate, copies), (LEAST * 4000, vec![LEAST, 2 * LEAST, 4 * LEAST]));
        assert_eq!(measured(MOST, 1000).1, [LEAST; FEW_TRIES]);
        let copies = |most| {
            let mut copies = measured(most, 1 << 40).1;
            copies.dedup();
            copies
        };
        assert_eq!(copies(MOST).last(), Some(&MOST));
        assert_eq!(copies(3 * LEAST), [LEAST, 2 * LEAST, 3 * LEAST]);
        assert_eq!(copies(7), [7]);
    }

    #[test]
    fn copies_that_are_interrupted_do_not_count() {
        // 10 GB/s, but four copies of five take 5 ms more; or 23 of 24 do, some less and some more.
        for (one_of, pauses) in [(5, [5, 5, 5]), (24, [2, 5, 9])] {
            let mut nth = 0;
            let copy = |bytes| {
                nth += 1;
                let pause = Duration::from_millis(if nth % one_of == 0 { 0 } else { pauses[nth % 3] });
                Ok::<_, Infallible>(Duration::from_secs_f64(bytes as f64 / 1e10) + pause)
            };
            let Ok(rate) = rate_by(MOST, copy);
            assert!((9.9e9..=1e10).contains(&(rate as f64)), "{rate}");
        }
    }

    #[test]
    fn what_takes_no_time_has_a_rate() {
        assert!(rate_by(LEAST, |_| Ok::<_, Infallible>(Duration::ZERO)).is_ok_and(|rate| rate > 1 << 40));
    }
}
