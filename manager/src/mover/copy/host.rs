//! Host memory for saved bytes: a memory file, touched ahead, page-locked for the GPU's copies.

use super::gpu::log_release;
use super::{Gpu, OutOfBounds, check_bounds};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::os;

/// Host memory that copies may read and write. The fields are dropped in this order: memory is
/// unlocked before it is unmapped.
pub struct HostMemory {
    lock: Option<PageLock>,
    mapping: Mapping,
}

/// The system gave no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no {bytes} bytes of memory ({errno})")]
pub struct HostMemoryError {
    bytes: u64,
    errno: Errno,
}

impl HostMemory {
    /// `bytes` bytes in whole pages, all of them present.
    pub fn new(bytes: u64) -> Result<Self, HostMemoryError> {
        let mapping = Mapping::make(bytes as usize).and_then(|mapping| mapping.touch().map(|()| mapping));
        let mapping = mapping.map_err(|errno| HostMemoryError { bytes, errno })?;
        Ok(Self { lock: None, mapping })
    }

    /// The memory that another process made, by its file.
    pub fn adopt(file: OwnedFd) -> Result<Self, HostMemoryError> {
        let mapping = Mapping::adopt(file).map_err(|errno| HostMemoryError { bytes: 0, errno })?;
        Ok(Self { lock: None, mapping })
    }

    /// A descriptor by which another process has the memory too.
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        os::duplicate(&self.mapping.file)
    }

    /// Page-locks it, so that copies run at the link's speed and asynchronously.
    pub fn lock(&mut self, gpu: &Rc<Gpu>) -> Result<(), DriverError> {
        if self.lock.is_none() {
            self.lock = Some(PageLock::make(gpu, &self.mapping)?);
        }
        Ok(())
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Some of its bytes.
    pub fn range(&self, start: u64, bytes: u64) -> Result<HostRange<'_>, OutOfBounds> {
        HostRange::new(self.mapping.address, self.bytes()).slice(start, bytes)
    }

    /// Where it lies in this process.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.mapping.address
    }
}

/// Bytes of host memory.
#[derive(Clone, Copy)]
pub struct HostRange<'a> {
    address: NonNull<u8>,
    bytes: u64,
    within: PhantomData<&'a HostMemory>,
}

impl<'a> HostRange<'a> {
    /// Bytes at an address, which stay there as long as the result is used.
    pub(super) fn new(address: NonNull<u8>, bytes: u64) -> Self {
        Self { address, bytes, within: PhantomData }
    }

    /// Some of its bytes.
    pub fn slice(self, start: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        check_bounds(start, bytes, self.bytes)?;
        // SAFETY: the result is inside the range, or one past its end (just checked).
        Ok(Self::new(unsafe { self.address.add(start as usize) }, bytes))
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The memory of a page.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A mapped memory file: named in /proc, and such that it can be passed to another process.
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

/// The size of the file stays what it is.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    fn make(bytes: usize) -> Result<Self, Errno> {
        let file = os::memory_file("tidegate-saved")?;
        os::set_size(&file, bytes as u64)?;
        os::seal(&file, SEALS)?;
        Self::map(file, bytes)
    }

    fn adopt(file: OwnedFd) -> Result<Self, Errno> {
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(Errno::PERM);
        }
        let bytes = fstat(&file)?.st_size as usize;
        Self::map(file, bytes)
    }

    fn map(file: OwnedFd, bytes: usize) -> Result<Self, Errno> {
        Ok(Self { address: os::map_shared(&file, bytes)?.cast(), bytes, file })
    }

    /// Makes all pages present, huge ones where the system has them: a page that is missing later
    /// would end the process instead of the order.
    fn touch(&self) -> Result<(), Errno> {
        // SAFETY: the whole mapping is ours; the advice changes no bytes.
        let _huge = unsafe { madvise(self.address.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        // SAFETY: the whole mapping is ours.
        match unsafe { os::populate(self.address.cast(), self.bytes) } {
            // Kernels before 5.14 cannot; page-locking or the first copy touches the pages then.
            Err(Errno::INVAL) => Ok(()),
            outcome => outcome,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `make` got. Nobody uses it any more: ranges borrow the
        // HostMemory, copies end before their ranges do, and its page lock is dropped before.
        if let Err(errno) = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) } {
            tracing::warn!(%errno, "saved bytes' memory cannot be unmapped");
        }
    }
}

/// The driver's lock on memory. Keeps the GPU, and so its context, until it is undone.
struct PageLock {
    gpu: Rc<Gpu>,
    address: NonNull<u8>,
}

impl PageLock {
    fn make(gpu: &Rc<Gpu>, mapping: &Mapping) -> Result<Self, DriverError> {
        gpu.engage()?;
        // SAFETY: the whole mapping, which stays until this lock is undone (HostMemory's order).
        unsafe { gpu.driver().cuMemHostRegister_v2(mapping.address.as_ptr().cast(), mapping.bytes, 0) }?;
        Ok(Self { gpu: gpu.clone(), address: mapping.address })
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // SAFETY: registered by `make`, undone once, here; no copy uses the memory any more.
        let undone = unsafe { self.gpu.driver().cuMemHostUnregister(self.address.as_ptr().cast()) };
        log_release("a page lock", undone);
    }
}
