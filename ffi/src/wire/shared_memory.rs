//! Sealed memory files: made once, fixed in size, mapped on both sides.

use crate::os;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::munmap;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use zerocopy::{FromBytes, KnownLayout};

/// Why a memory file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// A system call failed.
    #[error("shared memory: {0}")]
    System(#[from] Errno),
    /// Its size could still be changed under the reader.
    #[error("a shared memory file came without its seals")]
    NotSealed,
    /// It is of another size than expected.
    #[error("a shared memory file has {actual} bytes where {expected} are expected")]
    WrongSize {
        /// Bytes.
        actual: u64,
        /// Bytes.
        expected: u64,
    },
}

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A new memory file of `bytes` bytes whose size is sealed.
pub fn create_sealed(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let file = os::memory_file(name)?;
    os::set_size(&file, bytes)?;
    os::seal(&file, SIZE_SEALS)?;
    Ok(file)
}

/// The size of a memory file, once it is certain that it cannot shrink under a reader.
pub fn sealed_size(file: BorrowedFd<'_>) -> Result<u64, SharedMemoryError> {
    let seals = fcntl_get_seals(file).map_err(|_| SharedMemoryError::NotSealed)?;
    if !seals.contains(SIZE_SEALS) {
        return Err(SharedMemoryError::NotSealed);
    }
    Ok(fstat(file)?.st_size as u64)
}

/// Whether this is a memory file whose size nobody can change: reading or closing it waits for
/// nobody, whoever made it.
pub fn is_sealed(file: BorrowedFd<'_>) -> bool {
    sealed_size(file).is_ok()
}

/// A shared mapping of one `T`, which other processes may change at any time: `T` is made of
/// atomics.
#[derive(Debug)]
pub struct Mapped<T> {
    address: NonNull<T>,
    owned: PhantomData<T>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and T itself may be shared.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above; only shared references to T are given out.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T: FromBytes + KnownLayout + Sync> Mapped<T> {
    /// Makes a sealed memory file with a zeroed `T` in it and maps it.
    pub fn create(name: &str) -> Result<(Self, OwnedFd), SharedMemoryError> {
        let file = create_sealed(name, size_of::<T>() as u64)?;
        Ok((Self::map(file.as_fd())?, file))
    }

    /// Maps the `T` in somebody else's memory file, after checking its seals and size.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self, SharedMemoryError> {
        let (actual, expected) = (sealed_size(file)?, size_of::<T>() as u64);
        if actual != expected {
            return Err(SharedMemoryError::WrongSize { actual, expected });
        }
        Self::map(file)
    }

    /// Maps the `T` that begins at byte `start` (a whole number of pages) of somebody else's memory file, after
    /// checking its seals and size.
    pub fn open_at(file: BorrowedFd<'_>, start: u64) -> Result<Self, SharedMemoryError> {
        let (actual, expected) = (sealed_size(file)?, start.saturating_add(size_of::<T>() as u64));
        if actual < expected {
            return Err(SharedMemoryError::WrongSize { actual, expected });
        }
        let address = os::map_shared_at(file, start, size_of::<T>())?.cast();
        Ok(Self { address, owned: PhantomData })
    }

    fn map(file: BorrowedFd<'_>) -> Result<Self, SharedMemoryError> {
        let address = os::map_shared(file, size_of::<T>())?.cast();
        Ok(Self { address, owned: PhantomData })
    }
}

impl<T> std::ops::Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is page-aligned, size_of::<T>() long (the seals keep the file from
        // shrinking) and lives as long as self; every bit pattern is a T (FromBytes); other
        // processes' writes hit atomics only, by the type's contract.
        unsafe { self.address.as_ref() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping and no reference to it outlives self.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping");
    }
}
