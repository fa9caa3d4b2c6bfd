//! What is alive inside an allocation that a framework deals out in blocks of its own, and tells us so.
//!
//! ```text
//! allocation   [ block │ freed, and just so │ block │ freed long ago │ never used … ]
//! alive          yes     in mid-iteration     yes     no               no
//! ```
//! Invariant: blocks do not overlap, and `bytes` is their sum.
#![forbid(unsafe_code)]

use crate::gate::Stamp;
use crate::liveness::{Bytes, Moment};
use std::ops::Range;
use tidegate_ffi::units::Class;

/// A freed block counts as alive until its thread has submitted so much work since: a program may free
/// memory before it submits what uses it (`f(x.t().contiguous().data_ptr())`), and a function that is given
/// an address may launch more than one kernel.
const SUBMISSIONS_AFTER_FREE: u64 = 8;
/// When so many freed blocks are known, it is seen which of them are dead by now; when half of them are not,
/// those of one thread are taken for one.
const MOST_FREED: usize = 256;

/// What is told does not fit what was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A block where there is one already.
    #[error("a block was dealt out twice")]
    Overlap,
    /// A block ended that had not begun, or was of another size.
    #[error("a block was freed that was not dealt out")]
    Unknown,
    /// A block that lies in no allocation, or in more than one.
    #[error("a block lies in no allocation")]
    Outside,
    /// An error of ours.
    #[error("an error in Tidegate itself")]
    Unforeseen,
    /// A list of all blocks is not ours.
    #[error("of all blocks {0} are not the same")]
    Blocks(usize),
    /// The sum of all blocks is not what the framework says it is.
    #[error("the blocks have {ours} bytes, and not {theirs}")]
    Sum {
        /// Of the blocks that we know.
        ours: i64,
        /// As told.
        theirs: i64,
    },
}

/// A block that is dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its length.
    pub bytes: u64,
    /// The program said that it is persistent.
    pub persistent: bool,
    /// When it was dealt out, or last called temporary.
    pub born: Moment,
}

#[derive(Debug)]
struct Freed {
    extent: Range<u64>,
    by: Stamp,
}

/// The blocks of one allocation.
#[derive(Debug, Default)]
pub struct Blocks {
    /// With the offset of the first byte, by which they are in order: a list, for they are few (PyTorch's
    /// segments of small blocks have 2 MiB), and each change of them is in the way of the program.
    blocks: Vec<(u64, Block)>,
    bytes: u64,
    persistent_bytes: u64,
    freed: Vec<Freed>,
    /// A graph may use all of it at any time: it was dealt out, or taken back, while one was captured.
    is_captured: bool,
}

impl Blocks {
    /// A block is dealt out, at `start`.
    pub fn add(&mut self, start: u64, block: Block) -> Result<(), Mismatch> {
        let index = self.first_from(start);
        let (before, after) = self.blocks.split_at(index);
        let is_free = before.last().is_none_or(|(at, before)| at + before.bytes <= start)
            && after.first().is_none_or(|(at, _)| start + block.bytes <= *at);
        if !is_free {
            return Err(Mismatch::Overlap);
        }
        self.blocks.insert(index, (start, block));
        self.bytes += block.bytes;
        self.persistent_bytes += block.persistent_bytes();
        Ok(())
    }

    /// A block is freed, by a thread that has come so far.
    pub fn free(&mut self, start: u64, bytes: u64, by: Stamp) -> Result<(), Mismatch> {
        let index = self.first_from(start);
        let Some((_, block)) =
            self.blocks.get(index).filter(|(at, block)| (*at, block.bytes) == (start, bytes))
        else {
            return Err(Mismatch::Unknown);
        };
        self.bytes -= bytes;
        self.persistent_bytes -= block.persistent_bytes();
        self.blocks.remove(index);
        let mut extent = start..start + bytes;
        if self.freed.len() >= MOST_FREED {
            self.freed.retain(Freed::may_be_used);
            if self.freed.len() >= MOST_FREED / 2 {
                extent = self.take_all_of(by, extent);
            }
        }
        self.freed.push(Freed { extent, by });
        Ok(())
    }

    /// The index of the first block that starts at `start` or behind it.
    fn first_from(&self, start: u64) -> usize {
        self.blocks.partition_point(|(at, _)| *at < start)
    }

    /// Forgets what a thread has freed; returned is the extent of all of it, and of `extent`.
    fn take_all_of(&mut self, by: Stamp, extent: Range<u64>) -> Range<u64> {
        let own = self.freed.extract_if(.., |freed| freed.by.is_of_same_thread(&by));
        own.fold(extent, |all, freed| all.start.min(freed.extent.start)..all.end.max(freed.extent.end))
    }

    /// From now on all of it is alive.
    pub fn capture(&mut self) {
        self.is_captured = true;
    }

    /// The sum of the blocks, and of those among them that are persistent; `None`: all of the allocation is
    /// alive.
    pub fn live_bytes(&self) -> Option<Bytes> {
        (!self.is_captured).then_some(Bytes { live: self.bytes, persistent: self.persistent_bytes })
    }

    /// Re-classes the block that a byte belongs to; false: there is none. Called temporary, it starts to age
    /// anew.
    pub fn tag(&mut self, at: u64, class: Class, now: Moment) -> bool {
        let behind = self.blocks.partition_point(|(start, _)| *start <= at);
        let Some((start, block)) = self.blocks[..behind].last_mut() else { return false };
        if at - *start >= block.bytes {
            return false;
        }
        self.persistent_bytes -= block.persistent_bytes();
        block.persistent = class == Class::Persistent;
        self.persistent_bytes += block.persistent_bytes();
        if class == Class::Temporary {
            block.born = now;
        }
        true
    }

    /// The blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        self.blocks.iter().copied()
    }

    /// What was freed and may be used all the same; not by a thread that is at a boundary.
    pub fn just_freed(&self, at_boundary: Option<Stamp>) -> impl Iterator<Item = Range<u64>> + '_ {
        let is_at_boundary =
            move |freed: &&Freed| at_boundary.is_some_and(|thread| freed.by.is_of_same_thread(&thread));
        let freed = self.freed.iter().filter(move |freed| freed.may_be_used() && !is_at_boundary(freed));
        freed.map(|freed| freed.extent.clone())
    }
}

impl Block {
    fn persistent_bytes(&self) -> u64 {
        if self.persistent { self.bytes } else { 0 }
    }
}

impl Freed {
    fn may_be_used(&self) -> bool {
        self.by.submissions_since() < SUBMISSIONS_AFTER_FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Record;

    fn block(bytes: u64) -> Block {
        Block { bytes, persistent: false, born: Moment::default() }
    }

    fn submit(times: u64) {
        for _ in 0..times {
            let record = Record::of_thread_or_new();
            record.enter();
            record.leave();
        }
    }

    #[test]
    fn blocks_are_what_was_dealt_out_and_not_taken_back() {
        let mut blocks = Blocks::default();
        blocks.add(512, block(1024)).unwrap();
        blocks.add(0, block(512)).unwrap();
        assert_eq!(blocks.live_bytes(), Some(Bytes { live: 1536, persistent: 0 }));
        blocks.free(0, 512, Stamp::now()).unwrap();
        assert_eq!(blocks.iter().collect::<Vec<_>>(), [(512, block(1024))]);
        let now = Moment::default();
        let mut tag = |at| blocks.tag(at, Class::Persistent, now);
        assert_eq!((tag(1536), tag(511), tag(1535)), (false, false, true));
        assert_eq!(blocks.live_bytes(), Some(Bytes { live: 1024, persistent: 1024 }));
        blocks.free(512, 1024, Stamp::now()).unwrap();
        assert_eq!(blocks.live_bytes(), Some(Bytes::default()));
    }

    #[test]
    fn what_does_not_fit_is_noticed() {
        let mut blocks = Blocks::default();
        blocks.add(512, block(1024)).unwrap();
        for (start, bytes) in [(512, 1024), (0, 513), (1535, 1), (600, 10), (0, 4096)] {
            assert_eq!(blocks.add(start, block(bytes)), Err(Mismatch::Overlap), "{start} {bytes}");
        }
        for (start, bytes) in [(512, 512), (0, 512), (513, 1023)] {
            assert_eq!(blocks.free(start, bytes, Stamp::now()), Err(Mismatch::Unknown), "{start} {bytes}");
        }
        blocks.add(0, block(512)).unwrap();
        blocks.add(1536, block(1)).unwrap();
    }

    #[test]
    fn a_freed_block_may_be_used_by_what_its_thread_submits_next() {
        let mut blocks = Blocks::default();
        blocks.add(0, block(100)).unwrap();
        blocks.free(0, 100, Stamp::now()).unwrap();
        std::thread::spawn(|| submit(2 * SUBMISSIONS_AFTER_FREE)).join().unwrap();
        submit(SUBMISSIONS_AFTER_FREE - 1);
        assert!(blocks.just_freed(None).eq(std::iter::once(0..100)));
        let other = std::thread::spawn(Stamp::now).join().unwrap();
        assert_eq!(blocks.just_freed(Some(other)).count(), 1, "another thread is at its boundary");
        assert_eq!(blocks.just_freed(Some(Stamp::now())).count(), 0);
        submit(1);
        assert_eq!(blocks.just_freed(None).count(), 0);
    }

    #[test]
    fn what_was_freed_long_ago_is_forgotten() {
        let mut blocks = Blocks::default();
        for _ in 0..10 * MOST_FREED {
            blocks.add(0, block(100)).unwrap();
            blocks.free(0, 100, Stamp::now()).unwrap();
            submit(1);
        }
        assert!(blocks.freed.len() <= MOST_FREED, "{}", blocks.freed.len());
        assert_eq!(blocks.just_freed(None).count() as u64, SUBMISSIONS_AFTER_FREE - 1);
    }

    #[test]
    fn of_very_much_that_was_freed_a_moment_ago_nothing_is_lost() {
        let (mut blocks, starts) = (Blocks::default(), (0..3 * MOST_FREED as u64).map(|index| index * 1000));
        for start in starts.clone().rev() {
            blocks.add(start, block(100)).unwrap();
            blocks.free(start, 100, Stamp::now()).unwrap();
        }
        assert!(blocks.freed.len() <= MOST_FREED, "{}", blocks.freed.len());
        for start in starts {
            let is_kept = |freed: Range<u64>| freed.start <= start && start + 100 <= freed.end;
            assert!(blocks.just_freed(None).any(is_kept), "{start}");
        }
    }

    #[test]
    fn what_a_graph_may_use_is_alive_as_a_whole() {
        let mut blocks = Blocks::default();
        blocks.add(0, block(100)).unwrap();
        blocks.capture();
        assert_eq!(blocks.live_bytes(), None);
    }
}
