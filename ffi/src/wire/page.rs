//! The control page: what a shim publishes, readable by the manager at any time (R4.9).
//!
//! It carries only the shim's word; the manager sends messages, never writes here. Numbers are
//! published one by one and may be of slightly different moments: they inform, they decide
//! nothing that I1–I10 rest on.

use super::{Mapped, SharedMemoryError};
use crate::units::Class;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// How many GPUs one process may use.
pub const MAX_TENANTS: usize = 16;

/// What one process publishes.
#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes, KnownLayout)]
pub struct Page {
    /// The gate: 0 open, 1 closing, 2 closed.
    pub gate: AtomicU32,
    reserved: AtomicU32,
    /// Boundaries seen since the start.
    pub boundaries: AtomicU64,
    /// The number of the last of them, by which a job's processes compare where they are. Some may be left out.
    pub last_boundary: AtomicU64,
    /// While it has seen no boundary, but moments of a loop of which one will be: the number of the last boundary that
    /// another process of its job may have seen at this moment. 0: no loop is known. Read only while `last_boundary`
    /// is 0.
    pub learning: AtomicU64,
    /// Collectives that its threads have begun to launch since the start.
    pub collectives: AtomicU64,
    /// One row per GPU of the process, in the order of attaching.
    pub tenants: [TenantRow; MAX_TENANTS],
}

/// What one tenant publishes.
#[repr(C)]
#[derive(Debug, Default, FromBytes, IntoBytes, KnownLayout)]
pub struct TenantRow {
    /// The tenant's id, 0 for an unused row.
    pub tenant: AtomicU64,
    /// Live bytes, by the class of the range that they lie in.
    pub live_bytes: [AtomicU64; 2],
    /// Bytes of the pieces that are mapped, by class.
    pub mapped_bytes: [AtomicU64; 2],
    /// The most bytes in allocations so far, by class.
    pub peak_bytes: [AtomicU64; 2],
    /// The most live bytes at once that the program, or its framework, called persistent, wherever they lie.
    pub labelled_bytes: AtomicU64,
}

impl TenantRow {
    /// Publishes how many bytes of a class are live, of how many in allocations.
    pub fn publish_live(&self, class: Class, live: u64, allocated: u64) {
        self.live_bytes[class.index()].store(live, Ordering::Relaxed);
        raise(&self.peak_bytes[class.index()], allocated);
    }

    /// Publishes how many live bytes are called persistent.
    pub fn publish_labelled(&self, bytes: u64) {
        raise(&self.labelled_bytes, bytes);
    }
}

/// Raises a maximum. It is seldom raised: to look costs less than to write.
fn raise(most: &AtomicU64, bytes: u64) {
    if most.load(Ordering::Relaxed) < bytes {
        most.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl Page {
    /// A new page, and the file through which others map it.
    pub fn create() -> Result<(Mapped<Self>, OwnedFd), SharedMemoryError> {
        Mapped::create("tidegate-page")
    }

    /// Somebody else's page.
    pub fn open(file: BorrowedFd<'_>) -> Result<Mapped<Self>, SharedMemoryError> {
        Mapped::open(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_reader_sees_what_the_shim_publishes() {
        let (mine, file) = Page::create().unwrap();
        let theirs = Page::open(file.as_fd()).unwrap();
        mine.boundaries.store(41, Ordering::Relaxed);
        mine.tenants[3].publish_live(Class::Temporary, 9, 9);
        mine.tenants[3].publish_live(Class::Temporary, 5, 7);
        assert_eq!(theirs.boundaries.load(Ordering::Relaxed), 41);
        assert_eq!(theirs.tenants[3].live_bytes[1].load(Ordering::Relaxed), 5);
        assert_eq!(theirs.tenants[3].peak_bytes[1].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn a_page_that_could_shrink_or_is_too_small_is_refused() {
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(size_of::<Page>() as u64).unwrap();
        assert!(matches!(Page::open(plain.as_fd()), Err(SharedMemoryError::NotSealed)));
        let small = super::super::create_sealed("small", 8).unwrap();
        assert!(matches!(Page::open(small.as_fd()), Err(SharedMemoryError::WrongSize { .. })));
    }
}
