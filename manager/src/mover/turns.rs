//! What CXL memory and the disk can move in a second is shared by the movers of all GPUs, each with the same part (R0.6):
//! who is ahead of the others waits until they have caught up, or do not move anything any more.
//!
//! ```text
//! page   owners   which GPU has which row
//!        rows     of each GPU and tier: bytes moved, until when it claims its part
//!        changes  counts up with every change: who waits sleeps on it (futex)
//! ```
//! This is start-time fair queueing without a queue. A mover that comes begins where the one that is least ahead is: so
//! nobody saves up for later. Who is alone never waits, and nobody needs to know what a tier can do. A claim ends by
//! itself a second after the last bytes: one that died, or hangs, keeps others waiting no longer.
//!
//! The page lies at the end of the manager's state file, which all its movers have, and the manager after it.

#![forbid(unsafe_code)]

use super::progress;
use rustix::fs::fstat;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::{Mapped, SharedMemoryError};
use twox_hash::XxHash3_64;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// The room of the page in a file, in bytes.
pub const BYTES: u64 = 4096;
const GPUS: usize = 64;
/// How many bytes a mover may be ahead of another: as many as are under way to a disk at once.
const LEAD: u64 = 16 << 20;
/// What is moved between two looks at the page, at most, where that can be chosen.
pub const STEP: u64 = 4 << 20;
/// How long a mover has a claim after it took its last bytes, in nanoseconds.
const CLAIM: u64 = 1_000_000_000;

const _: () = assert!(size_of::<Page>() as u64 <= BYTES);

/// A tier that movers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedTier {
    /// CXL memory.
    Cxl,
    /// The disk.
    Disk,
}

/// What all movers see.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout)]
struct Page {
    /// Names of GPUs; 0: nobody's row.
    owners: [AtomicU64; GPUS],
    rows: [[Row; 2]; GPUS],
    changes: AtomicU32,
    /// How many sleep. One that dies asleep counts for ever, which costs the others a call each time.
    waiting: AtomicU32,
}

/// One GPU at one tier.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout)]
struct Row {
    /// Bytes that it took.
    taken: AtomicU64,
    /// When its claim ends, in nanoseconds of the monotonic clock; 0: it has none.
    until: AtomicU64,
}

/// A mover's place among the others.
pub struct Turns {
    page: Mapped<Page>,
    own: usize,
}

/// There is no page, or no place in it.
#[derive(Debug, thiserror::Error)]
pub enum TurnsError {
    /// The file is none with a page.
    #[error(transparent)]
    Memory(#[from] SharedMemoryError),
    /// It has places for so many GPUs only.
    #[error("more than {GPUS} GPUs share the tiers")]
    Full,
}

impl Turns {
    /// A GPU's place in the page at the end of a sealed memory file: the same as that of a mover before it.
    ///
    /// # Errors
    /// The file is too short or not sealed, or cannot be mapped; or all places are taken.
    pub fn of(gpu: GpuUuid, file: BorrowedFd<'_>) -> Result<Self, TurnsError> {
        let bytes = fstat(file).map_err(SharedMemoryError::from)?.st_size as u64;
        let page: Mapped<Page> = Mapped::open_at(file.as_fd(), bytes.saturating_sub(BYTES))?;
        let own = page.place_of(name(gpu)).ok_or(TurnsError::Full)?;
        Ok(Self { page, own })
    }

    /// Begins to move bytes of a tier.
    pub fn enter(&self, tier: SharedTier) -> Stay<'_> {
        let own = self.row(tier);
        if let Some((least, _)) = self.page.least(tier, self.own, now()) {
            own.taken.fetch_max(least, SeqCst);
        }
        own.until.store(now() + CLAIM, SeqCst);
        Stay { turns: self, tier }
    }

    /// Whether somebody waits.
    pub fn somebody_waits(&self) -> bool {
        self.page.waiting.load(SeqCst) > 0
    }

    fn row(&self, tier: SharedTier) -> &Row {
        &self.page.rows[self.own][tier as usize]
    }

    /// How long another's claim keeps this mover waiting, if it does.
    fn patience(&self, tier: SharedTier, now: u64) -> Option<Duration> {
        let (least, until) = self.page.least(tier, self.own, now)?;
        let is_ahead = self.row(tier).taken.load(SeqCst) > least.saturating_add(LEAD);
        is_ahead.then(|| Duration::from_nanos(until - now))
    }
}

impl Page {
    /// The row of a GPU, its own from now on.
    fn place_of(&self, name: u64) -> Option<usize> {
        let is_own = |owner: &AtomicU64| match owner.compare_exchange(0, name, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(other) => other == name,
        };
        self.owners.iter().position(is_own)
    }

    /// What the one of the others took that took least, of those with a claim, and when its claim ends.
    fn least(&self, tier: SharedTier, own: usize, now: u64) -> Option<(u64, u64)> {
        let others = self.rows.iter().enumerate().filter(|(place, _)| *place != own);
        let rows = others.map(|(_, rows)| &rows[tier as usize]);
        let claims = rows.map(|row| (row.taken.load(SeqCst), row.until.load(SeqCst)));
        claims.filter(|(_, until)| *until > now).min()
    }

    fn note_change(&self) {
        self.changes.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            // There is nobody to tell: who waits looks again by itself, if later.
            let _ = futex::wake(&self.changes, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Sleeps until something changes, not longer than `patience`.
    fn wait_for_change(&self, seen: u32, patience: Duration) {
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        self.waiting.fetch_add(1, SeqCst);
        // Whatever it was that ended the sleep is looked at.
        let _ = futex::wait(&self.changes, futex::Flags::empty(), seen, Some(&patience));
        self.waiting.fetch_sub(1, SeqCst);
    }
}

/// The time in which a mover moves bytes of a tier.
pub struct Stay<'a> {
    turns: &'a Turns,
    tier: SharedTier,
}

impl Stay<'_> {
    /// Waits until the next `bytes` bytes may be moved.
    pub fn take(&self, bytes: u64) {
        let page = &self.turns.page;
        loop {
            let seen = page.changes.load(SeqCst);
            match self.turns.patience(self.tier, now()) {
                // The others move on meanwhile: a mover that does keeps its claim for a second.
                Some(patience) => {
                    page.wait_for_change(seen, patience);
                    progress::step();
                }
                None => break,
            }
        }
        let own = self.turns.row(self.tier);
        own.taken.fetch_add(bytes, SeqCst);
        own.until.store(now() + CLAIM, SeqCst);
        page.note_change();
    }

    /// Whether no other mover has a claim.
    pub fn is_alone(&self) -> bool {
        self.turns.page.least(self.tier, self.turns.own, now()).is_none()
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.turns.row(self.tier).until.store(0, SeqCst);
        self.turns.page.note_change();
    }
}

/// Not 0, and as good as certainly another for another GPU.
fn name(gpu: GpuUuid) -> u64 {
    XxHash3_64::oneshot(&gpu.0) | 1
}

/// Nanoseconds of a clock that all processes of the machine have.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use tidegate_ffi::wire::create_sealed;

    pub(in crate::mover) fn file() -> OwnedFd {
        create_sealed("turns", 2 * BYTES).unwrap()
    }

    impl Turns {
        /// Claims its part for an hour, and takes nothing.
        pub fn claim_for_long(&self, tier: SharedTier) {
            self.row(tier).until.store(now() + 3600 * CLAIM, SeqCst);
        }

        /// Takes bytes without waiting for anybody.
        pub fn take_at_once(&self, tier: SharedTier, bytes: u64) {
            self.row(tier).taken.fetch_add(bytes, SeqCst);
            self.page.note_change();
        }

        fn taken(&self, tier: SharedTier) -> u64 {
            self.row(tier).taken.load(SeqCst)
        }
    }

    fn place(file: &OwnedFd, gpu: u8) -> Turns {
        Turns::of(GpuUuid([gpu; 16]), file.as_fd()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_gpus_next_mover_has_the_same_place() {
        let file = file();
        assert_eq!([1, 2, 1, 3].map(|gpu| place(&file, gpu).own), [0, 1, 0, 2]);
        let places: Vec<usize> = (4..=64).map(|gpu| place(&file, gpu).own).collect();
        assert_eq!(places, (3..GPUS).collect::<Vec<_>>());
        assert!(matches!(Turns::of(GpuUuid([0; 16]), file.as_fd()), Err(TurnsError::Full)));
    }

    #[test]
    fn who_is_alone_or_behind_does_not_wait() {
        let file = file();
        let [greedy, modest] = [1, 2].map(|gpu| place(&file, gpu));
        let tier = SharedTier::Disk;
        let stay = greedy.enter(tier);
        assert!(stay.is_alone());
        stay.take(100 * LEAD);
        stay.take(100 * LEAD);
        // Who comes begins where the other is, and at another tier there is nobody.
        let late = modest.enter(tier);
        assert_eq!(modest.taken(tier), 200 * LEAD);
        assert!(!stay.is_alone() && modest.enter(SharedTier::Cxl).is_alone());
        stay.take(LEAD);
        assert_eq!(greedy.patience(tier, now()), None);
        stay.take(1);
        assert!(greedy.patience(tier, now()).is_some_and(|patience| patience <= Duration::from_nanos(CLAIM)));
        assert_eq!(modest.patience(tier, now()), None);
        assert_eq!(
            greedy.patience(tier, now() + 2 * CLAIM),
            None,
            "its claim is over, though it did not say so"
        );
        late.take(1);
        assert_eq!(greedy.patience(tier, now()), None);
        stay.take(1);
        assert!(greedy.patience(tier, now()).is_some());
        drop(late);
        assert_eq!(greedy.patience(tier, now()), None, "it has left");
    }

    #[test]
    fn nobody_gets_further_ahead_than_the_lead() {
        let file = file();
        let [greedy, modest] = [1, 2].map(|gpu| place(&file, gpu));
        let tier = SharedTier::Cxl;
        modest.claim_for_long(tier);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stay = greedy.enter(tier);
                (0..100).for_each(|_| stay.take(STEP));
            });
            for round in 0.. {
                while greedy.taken(tier) < 100 * STEP && !modest.somebody_waits() {
                    std::thread::yield_now();
                }
                if greedy.taken(tier) == 100 * STEP {
                    assert!(round > 20, "{round} times it waited");
                    break;
                }
                assert!(greedy.taken(tier) <= modest.taken(tier) + LEAD + STEP);
                modest.take_at_once(tier, STEP);
            }
        });
    }
}
