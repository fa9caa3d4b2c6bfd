//! The disk tier: an arena of blocks in one file without a name.
//!
//! ```text
//! arena   ├── block 0 ──┼── block 1 ──┼── block 2 ──┼─ …        preallocated, read and written past the page cache
//!         │ saved bytes, end to end ──┼── ▒▒│       │           a seal each: length and checksum
//! ```
//! A block is written once, by one save, and free when none of its bytes is saved any more; then it is written
//! anew, with another seal. A block that does not match its seal is never read out: whatever lies there, flipped
//! bits or an older block, the saved bytes are lost, and who owns them is told.
//!
//! The lowest free blocks are written first, so that the arena's end is the first to be free: of that a share that
//! becomes smaller is given back. One that becomes larger takes nothing yet: the arena grows ahead of each write that
//! needs it, and says in words what the file system does not give.
//!
//! Invariant (I6): the arena is no longer than its share, of which it uses whole blocks.

#![forbid(unsafe_code)]

use super::shortage::Shortage;
use super::{Extent, Room, SlabId, SlabNews, TierError};
use crate::mover::{bandwidth, whole_blocks};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tidegate_ffi::os;
use tidegate_ffi::wire::message::TierRates;
use twox_hash::XxHash3_64;

/// What is written and read, sealed and freed at once.
pub const BLOCK_BYTES: u64 = 256 << 10;
/// The arena's name among slabs.
pub const ARENA: SlabId = SlabId(u32::MAX);
/// What a file past the page cache is written in multiples of; blocks are multiples of it.
const SECTOR: u64 = 4096;
/// By how much the arena grows at least.
const GROWTH: u64 = 64 << 20;

/// What a block was when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Its first byte in the arena.
    pub start: u64,
    /// How many bytes were written, without padding.
    pub bytes: u64,
    /// Of these bytes.
    pub checksum: u64,
}

impl Seal {
    /// Of the bytes of the block at `start`.
    pub fn of(start: u64, bytes: &[u8]) -> Self {
        // The place is the seed: what was written elsewhere has another checksum.
        Self { start, bytes: bytes.len() as u64, checksum: XxHash3_64::oneshot_with_seed(start, bytes) }
    }
}

/// So many bytes and what is written behind them for the sake of whole sectors.
pub fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR)
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// How many of its bytes are handed out.
    used: u64,
    /// What was written to it: length and checksum.
    seal: Option<(u64, u64)>,
}

/// A file for saved bytes, up to a share.
pub struct Disk {
    directory: Option<PathBuf>,
    /// In bytes; the last ones are not used where they are no block.
    share: u64,
    file: Option<File>,
    blocks: Vec<Block>,
    /// Blocks of which nothing is handed out.
    free: BTreeSet<usize>,
    shortage: Shortage,
    news: Vec<SlabNews>,
}

impl Disk {
    /// A tier of at most `share` bytes in a directory; without one, none that could grow.
    pub fn new(directory: Option<PathBuf>, share: u64) -> Self {
        let (file, blocks, free, news) = (None, Vec::new(), BTreeSet::new(), Vec::new());
        let shortage = Shortage::new("disk".into(), "jobs stay where they are");
        Self { directory, share, file, blocks, free, shortage, news }
    }

    /// Takes over the arena of a mover that died, with the saved bytes in it and their seals.
    pub fn adopt(&mut self, file: OwnedFd, saved: &[Extent], seals: &[Seal]) -> Result<(), TierError> {
        let file = File::from(file);
        let bytes = file.metadata().map_err(TierError::Disk)?.len();
        self.blocks = vec![Block::default(); (bytes / BLOCK_BYTES) as usize];
        self.share = self.share.max(bytes);
        for extent in saved {
            if extent.end() > self.held() {
                return Err(TierError::Contradiction(*extent));
            }
            in_blocks(*extent).for_each(|part| self.blocks[block_of(part.start)].used += part.bytes);
        }
        for seal in seals {
            if let Some(block) = self.blocks.get_mut(block_of(seal.start)) {
                block.seal = Some((seal.bytes, seal.checksum));
            }
        }
        self.free = (0..self.blocks.len()).filter(|block| self.blocks[*block].used == 0).collect();
        self.file = Some(file);
        Ok(())
    }

    /// The arena.
    pub fn file(&self) -> Result<&File, TierError> {
        self.file.as_ref().ok_or(TierError::NoArena)
    }

    /// The arena's length.
    fn held(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    /// So many blocks more, at least.
    fn grow(&mut self, blocks: usize) -> Result<(), TierError> {
        if self.file.is_none() {
            let file = self.open().map_err(TierError::Disk)?;
            let shared = os::duplicate(&file).map_err(TierError::Share)?;
            self.news.push(SlabNews::Made(ARENA, shared));
            self.file = Some(file);
        }
        let held = self.held();
        let least = blocks as u64 * BLOCK_BYTES;
        let bytes = least.max(GROWTH).min(whole_blocks(self.share) - held);
        let file = self.file()?;
        let grown = preallocate(file, held, bytes).map(|()| bytes);
        let grown = grown.or_else(|_| preallocate(file, held, least).map(|()| least));
        let bytes = grown.map_err(TierError::Disk)?;
        let first = self.blocks.len();
        self.blocks.resize(first + (bytes / BLOCK_BYTES) as usize, Block::default());
        self.free.extend(first..self.blocks.len());
        Ok(())
    }

    /// A file without a name, past the page cache where the file system lets it.
    fn open(&self) -> io::Result<File> {
        let Some(directory) = &self.directory else { return Err(io::ErrorKind::NotFound.into()) };
        let file = os::open(|| tempfile::tempfile_in(directory))?;
        let flags = fcntl_getfl(&file)?;
        let direct = fcntl_setfl(&file, flags | OFlags::DIRECT).map_err(io::Error::from);
        // Some file systems take the flag, and then nothing.
        if let Err(error) = direct.and_then(|()| try_out(&file)) {
            let directory = directory.display();
            tracing::info!(%error, %directory, "saved bytes go through the page cache: there is no O_DIRECT");
            fcntl_setfl(&file, flags)?;
        }
        Ok(file)
    }

    /// Whether an arena could be made in a directory, written and read.
    pub fn check(directory: &Path) -> io::Result<()> {
        let file = Self::new(Some(directory.to_owned()), 0).open()?;
        preallocate(&file, 0, BLOCK_BYTES)?;
        try_out(&file)
    }

    /// How fast bytes go to a file like the arena and back, as far as there is room for one; `None`: there is none.
    pub fn measure(&self) -> io::Result<Option<TierRates>> {
        match self.room().min(bandwidth::MOST) {
            0 => Ok(None),
            most => rates(&self.open()?, most).map(Some),
        }
    }

    /// How fast bytes go to a file in a directory and back.
    pub fn measure_in(directory: &Path) -> io::Result<TierRates> {
        rates(&Self::new(Some(directory.to_owned()), 0).open()?, bandwidth::MOST)
    }

    /// Gives back what of the arena's free end lies behind so many blocks.
    fn shorten_to(&mut self, blocks: usize) {
        let in_use = self.blocks.iter().rposition(|block| block.used > 0).map_or(0, |last| last + 1);
        let kept = in_use.max(blocks);
        let Some(file) = self.file.as_ref().filter(|_| kept < self.blocks.len()) else { return };
        match os::set_size(file, kept as u64 * BLOCK_BYTES) {
            Ok(()) => {
                self.blocks.truncate(kept);
                self.free.split_off(&kept);
            }
            Err(error) => tracing::warn!(%error, "the arena of the disk tier cannot be made shorter"),
        }
    }

    /// These blocks are written.
    pub fn seal(&mut self, seals: &[Seal]) {
        for seal in seals {
            self.blocks[block_of(seal.start)].seal = Some((seal.bytes, seal.checksum));
        }
    }

    /// What was written to the block at `start`.
    pub fn seal_of(&self, start: u64) -> Option<Seal> {
        let (bytes, checksum) = self.blocks.get(block_of(start))?.seal?;
        Some(Seal { start: start - start % BLOCK_BYTES, bytes, checksum })
    }

    /// The seals of all blocks in use.
    pub fn seals(&self) -> impl Iterator<Item = Seal> + '_ {
        (0..self.blocks.len()).filter_map(|block| self.seal_of(block as u64 * BLOCK_BYTES))
    }
}

/// What is handed out begins with a block; a block of which any byte is handed out is used, whole.
impl Room for Disk {
    fn is_there(&self) -> bool {
        whole_blocks(self.share) > 0
    }

    fn has(&self, slab: SlabId) -> bool {
        slab == ARENA
    }

    fn room(&self) -> u64 {
        whole_blocks(self.share) - self.used()
    }

    fn used(&self) -> u64 {
        self.held() - self.free.len() as u64 * BLOCK_BYTES
    }

    fn set_share(&mut self, bytes: u64) -> u64 {
        self.shorten_to(block_of(bytes));
        self.share = bytes.max(self.held());
        self.shortage.note_room(self.room());
        self.share
    }

    fn take(&mut self, bytes: u64) -> Result<Vec<Extent>, TierError> {
        let wanted = bytes.div_ceil(BLOCK_BYTES) as usize;
        if wanted as u64 * BLOCK_BYTES > self.room() {
            let (free, share) = (self.room(), self.share);
            return Err(TierError::Full { tier: "disk", wanted: bytes, free, share });
        }
        if self.free.len() < wanted {
            self.grow(wanted - self.free.len())?;
        }
        let mut extents: Vec<Extent> = Vec::new();
        let mut rest = bytes;
        for block in self.free.iter().copied().take(wanted).collect::<Vec<_>>() {
            let start = block as u64 * BLOCK_BYTES;
            let extent = Extent { slab: ARENA, start, bytes: rest.min(BLOCK_BYTES) };
            self.free.remove(&block);
            self.blocks[block] = Block { used: extent.bytes, seal: None };
            rest -= extent.bytes;
            match extents.last_mut().filter(|last| last.continues_with(extent)) {
                Some(last) => *last = last.joined(extent),
                None => extents.push(extent),
            }
        }
        Ok(extents)
    }

    fn shortage(&mut self) -> &mut Shortage {
        &mut self.shortage
    }

    fn allocate_most(&mut self, bytes: u64) -> Vec<Extent> {
        match bytes.min(self.room()) {
            0 => Vec::new(),
            some => self.allocate(some).unwrap_or_default(),
        }
    }

    fn free(&mut self, extent: Extent) {
        for part in in_blocks(extent) {
            let index = block_of(part.start);
            let Some(block) = self.blocks.get_mut(index) else { continue };
            block.used = block.used.saturating_sub(part.bytes);
            if block.used == 0 {
                block.seal = None;
                self.free.insert(index);
            }
        }
    }

    fn trim(&mut self) {
        self.shorten_to(0);
    }

    fn share(&self) -> io::Result<Vec<(SlabId, OwnedFd)>> {
        self.file.iter().map(|file| Ok((ARENA, os::duplicate(file)?))).collect()
    }

    fn news(&mut self) -> Vec<SlabNews> {
        std::mem::take(&mut self.news)
    }
}

/// Gets room on the disk behind `at` bytes of a file: all or none.
fn preallocate(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    os::preallocate(file, at, bytes).inspect_err(|_| {
        // The system may have kept what it had got.
        if let Err(error) = os::set_size(file, at) {
            tracing::warn!(%error, "disk space that was got in vain cannot be given back");
        }
    })
}

/// Writes and reads a file's first sector.
fn try_out(file: &File) -> io::Result<()> {
    with_aligned(SECTOR, |sector| {
        file.write_all_at(sector, 0)?;
        file.read_exact_at(sector, 0)
    })
}

/// Lends memory that is as aligned as lanes are.
fn with_aligned<R>(bytes: u64, work: impl FnOnce(&mut [u8]) -> R) -> R {
    const ALIGN: usize = SECTOR as usize;
    let mut room = vec![0; bytes as usize + ALIGN];
    let start = room.as_ptr().align_offset(ALIGN);
    work(&mut room[start..start + bytes as usize])
}

/// How fast at most `most` bytes, in whole sectors, are written to an empty file and read again.
fn rates(file: &File, most: u64) -> io::Result<TierRates> {
    preallocate(file, 0, most)?;
    with_aligned(most, |bytes| {
        // A disk may know zeros.
        bytes.fill(0xA5);
        let mut written = 0;
        let mut write = || {
            bandwidth::rate(most, |some| {
                written = some.max(written);
                file.write_all_at(&bytes[..some as usize], 0)
            })
        };
        // What is written for the first time takes longer (FACTS §6).
        let write = write()?.max(write()?);
        // What was not written is not read from the disk either.
        let read = bandwidth::rate(written, |some| file.read_exact_at(&mut bytes[..some as usize], 0))?;
        Ok(TierRates { write, read })
    })
}

fn block_of(start: u64) -> usize {
    (start / BLOCK_BYTES) as usize
}

/// An extent, cut where blocks end.
pub fn in_blocks(extent: Extent) -> impl Iterator<Item = Extent> {
    let mut rest = Some(extent);
    std::iter::from_fn(move || {
        let (first, behind) = rest?.split(BLOCK_BYTES - rest?.start % BLOCK_BYTES);
        rest = behind;
        Some(first)
    })
}
