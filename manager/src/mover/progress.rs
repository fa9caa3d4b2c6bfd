//! How far a mover has come, for its manager to see: counters in a page of memory that both have.
//!
//! The manager judges a mover by them alone: as long as one goes up within the response timeout (`--answer-limit`), the
//! mover works, however long its orders take. So every step that may take long counts when it is done, and steps are
//! made so small (`Pace`) that each is done soon on a slow machine too. A call of the driver or the system that cannot
//! be divided (a context, one piece of memory, the page lock of one slab) is one step.
//!
//! The mover makes the page when it starts. Its first message brings it to the manager, and what it hands over to the
//! next manager does again: so that one goes on with the same counters. A mover that takes over begins a page of its
//! own. There is one for each process, as there is one GPU; before it is made, nothing is counted.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::wire::{Mapped, SharedMemoryError};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// How long a step should take that can be divided: far less than any sensible timeout, far more than a step costs.
const STEP: Duration = Duration::from_millis(50);

/// What both sides see.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout)]
struct Page {
    /// Bytes copied or overwritten.
    bytes: AtomicU64,
    /// Orders carried out, and their steps that move no bytes.
    steps: AtomicU64,
}

static PAGE: OnceLock<(Mapped<Page>, OwnedFd)> = OnceLock::new();

/// A descriptor of the process's page, which is made at the first call.
pub fn page() -> io::Result<OwnedFd> {
    if PAGE.get().is_none() {
        let made = Mapped::create("tidegate-progress").map_err(io::Error::other)?;
        // Another thread's is as good.
        let _ = PAGE.set(made);
    }
    let (_, file) = PAGE.get().ok_or(io::ErrorKind::NotFound)?;
    os::duplicate(file)
}

/// So many bytes were copied or overwritten.
pub fn moved(bytes: u64) {
    if let Some((page, _)) = PAGE.get() {
        page.bytes.fetch_add(bytes, Relaxed);
    }
}

/// A step is done that moves no bytes.
pub fn step() {
    if let Some((page, _)) = PAGE.get() {
        page.steps.fetch_add(1, Relaxed);
    }
}

/// What the counters say: compared, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count([u64; 2]);

/// The manager's side of a mover's page.
#[derive(Debug)]
pub struct Reader(Mapped<Page>);

impl Reader {
    /// Of the page that a mover has sent.
    ///
    /// # Errors
    /// It is none, or cannot be mapped.
    pub fn open(page: BorrowedFd<'_>) -> Result<Self, SharedMemoryError> {
        Mapped::open(page).map(Self)
    }

    /// The counters now.
    pub fn count(&self) -> Count {
        Count([self.0.bytes.load(Relaxed), self.0.steps.load(Relaxed)])
    }
}

/// How many bytes to move in one step, learnt from the step before: what a slow link or disk moves in `STEP`.
#[derive(Debug)]
pub struct Pace {
    next: AtomicU64,
    least: u64,
    most: u64,
}

impl Pace {
    /// Steps of at least and at most so many bytes. The first is a small one.
    pub const fn new(least: u64, most: u64) -> Self {
        Self { next: AtomicU64::new(least), least, most }
    }

    /// How many bytes to move next: a multiple of the least.
    pub fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// So many bytes were moved in so long. It counts, too.
    pub fn moved(&self, bytes: u64, took: Duration) {
        moved(bytes);
        let in_a_step = u128::from(bytes) * STEP.as_nanos() / took.as_nanos().max(1);
        let bytes = u64::try_from(in_a_step).unwrap_or(u64::MAX).clamp(self.least, self.most);
        self.next.store(bytes - bytes % self.least, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn whoever_has_the_page_sees_what_is_counted() {
        let reader = Reader::open(page().unwrap().as_fd()).unwrap();
        // Other tests of this process may count too.
        let before = reader.count();
        step();
        let stepped = reader.count();
        assert!(stepped.0[1] > before.0[1]);
        moved(7);
        assert!(reader.count().0[0] >= stepped.0[0] + 7);
        let again = Reader::open(page().unwrap().as_fd()).unwrap();
        assert!(again.count().0[0] >= stepped.0[0] + 7, "there is one page");
        assert!(Reader::open(tempfile::tempfile().unwrap().as_fd()).is_err(), "its size could change");
    }

    #[test]
    fn steps_are_as_large_as_the_pace_allows() {
        let pace = Pace::new(4, 1000);
        assert_eq!(pace.next(), 4, "the first is small");
        pace.moved(4, Duration::from_secs(1));
        assert_eq!(pace.next(), 4);
        pace.moved(4, Duration::from_millis(1));
        assert_eq!(pace.next(), 200);
        pace.moved(4, Duration::from_micros(950));
        assert_eq!(pace.next(), 208, "a multiple of the least");
        pace.moved(200, Duration::ZERO);
        assert_eq!(pace.next(), 1000);
    }
}
