//! Bytes between pieces and the disk: through page-locked lanes, some of which are filled by the GPU while threads
//! write out what is in others; or the other way.
//!
//! ```text
//! save      GPU ─► lane ─► sealed and written by a thread, but for blocks of zeros ─► the seals
//! restore   read and compared with its seals by a thread ─► lane ─► GPU
//! ```

#![forbid(unsafe_code)]

use super::copy::{Gpu, HostMemoryError, HostRange, Lane, Transfer};
use super::error::OrderError;
use super::pieces::Pieces;
use super::plan::Part;
use super::progress::Pace;
use super::tier::{BLOCK_BYTES, Disk, Seal, TierError, in_blocks, padded};
use super::turns::Stay;
use super::zeros;
use crate::death;
use crossbeam_channel::unbounded;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::thread::Builder;
use std::time::Instant;
use tidegate_ffi::os;

/// Disks are fast with some requests of some MiB at once (FACTS §4).
const LANES: usize = 4;
const LANE_BYTES: u64 = 4 << 20;
/// How often a batch is read until an error is believed.
const READS: u32 = 3;

/// The lanes, made when the first bytes go to the disk.
pub struct Staging {
    gpu: Rc<Gpu>,
    lanes: Vec<Lane>,
}

/// Neighbouring blocks that go through a lane together.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// Where the first one begins in the arena.
    start: u64,
    /// What is copied, each inside a block, in the order of the arena.
    parts: Vec<Part>,
}

impl Batch {
    /// Of parts that lie in the arena.
    fn all_of(parts: &[Part]) -> Vec<Self> {
        let mut parts: Vec<Part> = parts.iter().flat_map(part_in_blocks).collect();
        parts.sort_unstable_by_key(|part| part.extent.start);
        let mut batches: Vec<Self> = Vec::new();
        for part in parts {
            let start = block_start(part.extent.start);
            let fits =
                |batch: &&mut Batch| start <= batch.end() && start + BLOCK_BYTES - batch.start <= LANE_BYTES;
            match batches.last_mut().filter(fits) {
                Some(batch) => batch.parts.push(part),
                None => batches.push(Self { start, parts: vec![part] }),
            }
        }
        batches
    }

    /// Where its last block ends.
    fn end(&self) -> u64 {
        self.parts.last().map_or(self.start, |last| block_start(last.extent.start) + BLOCK_BYTES)
    }

    /// Where its blocks begin.
    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let same = |a: &Part, b: &Part| block_start(a.extent.start) == block_start(b.extent.start);
        self.parts.chunk_by(same).map(|parts| block_start(parts[0].extent.start))
    }

    /// The copies between the pieces and a lane.
    fn transfers<'a>(&self, pieces: &'a Pieces, lane: &'a mut [u8]) -> Result<Vec<Transfer<'a>>, OrderError> {
        let lane = HostRange::whole(lane);
        let transfer = |part: &Part| {
            let device = pieces.range(part.piece, part.offset, part.extent.bytes)?;
            Ok(Transfer::new(device, self.place(lane, part)?))
        };
        self.parts.iter().map(transfer).collect()
    }

    /// Where a part is in the lane.
    fn place<'a>(&self, lane: HostRange<'a>, part: &Part) -> Result<HostRange<'a>, TierError> {
        let place = lane.slice(part.extent.start - self.start, part.extent.bytes);
        place.map_err(|_| TierError::Unknown(part.extent))
    }

    /// Seals the blocks and writes them, but for those of zeros.
    fn write(&self, lane: &mut [u8], file: &File) -> Result<Vec<Seal>, OrderError> {
        let used = self.parts.last().map_or(0, |last| last.extent.end() - self.start);
        let (used, all) = (used as usize, padded(used) as usize);
        lane[used..all].fill(0);
        let block = |start: u64| {
            let from = (start - self.start) as usize;
            let bytes = &lane[from..used.min(from + BLOCK_BYTES as usize)];
            (!zeros::is_zero(bytes)).then(|| Seal::of(start, bytes))
        };
        let seals: Vec<Seal> = self.blocks().filter_map(block).collect();
        for run in seals.chunk_by(|one, next| one.start + BLOCK_BYTES == next.start) {
            let (start, last) = (run[0].start, run[run.len() - 1]);
            let [from, to] =
                [start, last.start + padded(last.bytes)].map(|place| (place - self.start) as usize);
            in_steps(from..to, |from, to| {
                os::store(file, &lane[from..to], self.start + from as u64).map_err(TierError::Disk)
            })?;
        }
        Ok(seals)
    }

    /// Reads the blocks, and compares each with its seal.
    fn read(&self, lane: &mut [u8], disk: &Seals<'_>) -> Result<(), OrderError> {
        let unsealed = || TierError::Damaged { start: self.start };
        let seals = self.blocks().map(|start| (disk.seal)(start)).collect::<Option<Vec<Seal>>>();
        let seals = seals.ok_or_else(unsealed)?;
        let used = seals.last().map_or(0, |last| last.start + last.bytes - self.start);
        // What cannot be read is lost: so it is tried again.
        in_steps(0..padded(used) as usize, |from, to| {
            let mut load = || os::load(disk.file, &mut lane[from..to], self.start + from as u64);
            let first = load();
            (1..READS).fold(first, |read, _| read.or_else(|_| load())).map_err(TierError::Disk)
        })?;
        for seal in seals {
            let from = (seal.start - self.start) as usize;
            if Seal::of(seal.start, &lane[from..from + seal.bytes as usize]) != seal {
                return Err(TierError::Damaged { start: seal.start }.into());
            }
        }
        Ok(())
    }
}

/// Writes, or reads, some bytes of a lane in whole blocks: as many at once as the disk is fast enough for.
fn in_steps(
    lane: Range<usize>,
    mut work: impl FnMut(usize, usize) -> Result<(), TierError>,
) -> Result<(), TierError> {
    static PACE: Pace = Pace::new(BLOCK_BYTES, LANE_BYTES);
    let mut from = lane.start;
    while from < lane.end {
        let to = lane.end.min(from + PACE.next() as usize);
        let began = Instant::now();
        work(from, to)?;
        PACE.moved((to - from) as u64, began.elapsed());
        from = to;
    }
    Ok(())
}

/// The arena as threads see it.
struct Seals<'a> {
    file: &'a File,
    seal: &'a (dyn Fn(u64) -> Option<Seal> + Sync),
}

fn block_start(start: u64) -> u64 {
    start - start % BLOCK_BYTES
}

fn part_in_blocks(part: &Part) -> impl Iterator<Item = Part> {
    let part = *part;
    in_blocks(part.extent).map(move |extent| {
        let done = extent.start - part.extent.start;
        Part { offset: part.offset + done, at: part.at + done, extent, ..part }
    })
}

impl Staging {
    /// No lanes yet.
    pub fn new(gpu: Rc<Gpu>) -> Self {
        Self { gpu, lanes: Vec::new() }
    }

    /// Copies out of mapped pieces to blocks that nothing else is in; the seals of those that are not all zeros.
    pub fn save(
        &mut self,
        disk: &Disk,
        pieces: &Pieces,
        parts: &[Part],
        stay: Option<&Stay<'_>>,
    ) -> Result<Vec<Seal>, OrderError> {
        let gpu = self.gpu.clone();
        self.write(disk, parts, stay, |batch, lane| Ok(gpu.copy_out(&batch.transfers(pieces, lane)?)?))
    }

    /// The same out of host memory: that of a part is what `from` says.
    pub fn store<'a>(
        &mut self,
        disk: &Disk,
        parts: &[Part],
        stay: Option<&Stay<'_>>,
        from: impl Fn(&Part) -> Result<HostRange<'a>, OrderError>,
    ) -> Result<Vec<Seal>, OrderError> {
        self.write(disk, parts, stay, |batch, lane| {
            let lane = HostRange::whole(lane);
            batch.parts.iter().try_for_each(|part| {
                batch.place(lane, part)?.copy_from(from(part)?);
                Ok(())
            })
        })
    }

    fn write(
        &mut self,
        disk: &Disk,
        parts: &[Part],
        stay: Option<&Stay<'_>>,
        fill: impl FnMut(&Batch, &mut [u8]) -> Result<(), OrderError>,
    ) -> Result<Vec<Seal>, OrderError> {
        let file = disk.file()?;
        let mut seals = Vec::new();
        self.pump(
            Batch::all_of(parts),
            stay,
            fill,
            |batch, lane| batch.write(lane, file),
            |_, sealed, _| {
                death::point("save:batch");
                seals.extend(sealed);
                Ok(())
            },
        )?;
        Ok(seals)
    }

    /// Copies into mapped pieces what was saved. On an error some of it may have been.
    pub fn restore(
        &mut self,
        disk: &Disk,
        pieces: &Pieces,
        parts: &[Part],
        stay: Option<&Stay<'_>>,
    ) -> Result<(), OrderError> {
        let gpu = self.gpu.clone();
        let seals = Seals { file: disk.file()?, seal: &|start| disk.seal_of(start) };
        self.pump(
            Batch::all_of(parts),
            stay,
            |_, _| Ok(()),
            |batch, lane| batch.read(lane, &seals),
            |batch, (), lane| {
                death::point("restore:batch");
                Ok(gpu.copy_in(&batch.transfers(pieces, lane)?)?)
            },
        )
    }

    /// Each batch, when it is its turn among other GPUs', gets a lane, in which this thread does `before`, another
    /// `work`, this one `after`.
    fn pump<R: Send>(
        &mut self,
        batches: Vec<Batch>,
        stay: Option<&Stay<'_>>,
        mut before: impl FnMut(&Batch, &mut [u8]) -> Result<(), OrderError>,
        work: impl Fn(&Batch, &mut [u8]) -> Result<R, OrderError> + Sync,
        mut after: impl FnMut(&Batch, R, &mut [u8]) -> Result<(), OrderError>,
    ) -> Result<(), OrderError> {
        self.make_lanes().map_err(TierError::Lanes)?;
        let mut idle: Vec<&mut [u8]> = self.lanes.iter_mut().map(Lane::bytes).collect();
        let mut batches = batches.into_iter();
        std::thread::scope(|scope| {
            let (orders, to_do) = unbounded::<(Batch, &mut [u8])>();
            let (results, done) = unbounded();
            let start = |_: &usize| {
                let (to_do, results, work) = (to_do.clone(), results.clone(), &work);
                let serve = move || {
                    for (batch, lane) in to_do {
                        let result = work(&batch, lane);
                        // Nobody wants it after another's failure.
                        let _ = results.send((batch, lane, result));
                    }
                };
                Builder::new().name("disk".into()).spawn_scoped(scope, serve).is_ok()
            };
            let threads = (0..idle.len().min(batches.len())).filter(start).count();
            drop((to_do, results));
            let mut busy = 0;
            loop {
                while let Some(lane) = idle.pop_if(|_| batches.len() > 0) {
                    let Some(batch) = batches.next() else { break };
                    stay.into_iter().for_each(|stay| stay.take(batch.end() - batch.start));
                    before(&batch, lane)?;
                    if threads == 0 {
                        let result = work(&batch, lane)?;
                        after(&batch, result, lane)?;
                        idle.push(lane);
                    } else if orders.send((batch, lane)).is_ok() {
                        busy += 1;
                    }
                }
                if busy == 0 {
                    return Ok(());
                }
                let gone = |_| TierError::Disk(io::Error::other("the threads of the lanes are gone"));
                let (batch, lane, result) = done.recv().map_err(gone)?;
                after(&batch, result?, lane)?;
                idle.push(lane);
                busy -= 1;
            }
        })
    }

    /// All lanes, or as many as there is memory for.
    fn make_lanes(&mut self) -> Result<(), HostMemoryError> {
        while self.lanes.len() < LANES {
            match Lane::new(LANE_BYTES, &self.gpu) {
                Ok(lane) => self.lanes.push(lane),
                Err(error) if self.lanes.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier::{ARENA, Extent};
    use super::*;
    use tidegate_ffi::units::{Class, PieceId};

    const KIB: u64 = 1 << 10;

    fn part(offset: u64, start: u64, bytes: u64) -> Part {
        let extent = Extent { slab: ARENA, start, bytes };
        Part { piece: PieceId(1), offset, class: Class::Temporary, at: offset, extent }
    }

    /// In KiB: where a batch begins, and of its parts where they are in the piece and in the arena, and how long.
    type Shape = (u64, Vec<[u64; 3]>);

    fn shape(batches: &[Batch]) -> Vec<Shape> {
        let parts = |batch: &Batch| {
            let shown =
                |part: &Part| [part.offset, part.extent.start, part.extent.bytes].map(|bytes| bytes / KIB);
            (batch.start / KIB, batch.parts.iter().map(shown).collect())
        };
        batches.iter().map(parts).collect()
    }

    #[test]
    fn neighbouring_blocks_go_together_as_far_as_a_lane_reaches() {
        let parts = [part(0, 0, 300 * KIB), part(1000 * KIB, 300 * KIB, 10 * KIB), part(0, 1024 * KIB, KIB)];
        let wanted = [(0, vec![[0, 0, 256], [256, 256, 44], [1000, 300, 10]]), (1024, vec![[0, 1024, 1]])];
        assert_eq!(shape(&Batch::all_of(&parts)), wanted);
        let starts = |bytes| -> Vec<u64> {
            Batch::all_of(&[part(0, 0, bytes)]).iter().map(|batch| batch.start).collect()
        };
        assert_eq!(starts(LANE_BYTES), [0]);
        assert_eq!(starts(2 * LANE_BYTES + 1), [0, LANE_BYTES, 2 * LANE_BYTES]);
    }
}
