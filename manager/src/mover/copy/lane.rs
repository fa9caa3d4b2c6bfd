//! Page-locked memory on the way between a GPU and a file.

use super::Gpu;
use super::host::{HostMemory, HostMemoryError, HostRange, Place};
use std::ptr::NonNull;
use std::rc::Rc;

/// Memory that copies and files use in turn.
pub struct Lane {
    /// Made here, and never shared: its pages are reached through this value alone.
    memory: HostMemory,
}

impl Lane {
    /// `bytes` bytes in whole pages. What cannot be page-locked works too, only more slowly.
    pub fn new(bytes: u64, gpu: &Rc<Gpu>) -> Result<Self, HostMemoryError> {
        let mut memory = HostMemory::new(bytes, Place::Anywhere)?;
        if let Err(error) = memory.lock(gpu) {
            tracing::warn!(%error, "a lane to the disk cannot be page-locked (ulimit -l?): saving there is slower");
        }
        Ok(Self { memory })
    }

    /// Its bytes, for files and checksums.
    pub fn bytes(&mut self) -> &mut [u8] {
        let (address, bytes) = (self.memory.address(), self.memory.bytes() as usize);
        // SAFETY: the whole mapping, present and zero or written since. It is borrowed as long as the result, so
        // nobody else reaches it: other processes do not have its file, and copies borrow the result
        // (HostRange::whole) and are waited for before their borrow ends.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), bytes) }
    }
}

impl<'a> HostRange<'a> {
    /// All bytes of a lane, for copies.
    pub fn whole(lane: &'a mut [u8]) -> Self {
        let bytes = lane.len() as u64;
        Self::new(NonNull::from(lane).cast(), bytes)
    }
}
