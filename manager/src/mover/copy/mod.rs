//! The driver and the memory it copies between: all of the mover's unsafe code.
//!
//! - [`Gpu`]: a device, what it can do, its context when that is needed;
//! - [`Piece`]: GPU memory, and its [`Window`] in this process's addresses;
//! - [`HostMemory`]: page-locked memory for saved bytes;
//! - [`Transfer`]: one copy between the two, inside the bounds of both.
//!
//! Why it is sound: everything has one owner that releases it when dropped; ranges borrow what they
//! lie in, so it outlives them; each batch of copies is waited for before the function that takes
//! the borrowed ranges returns, also after an error; and no Rust reference into memory that copies
//! write is ever made. A process has one GPU (DESIGN §2), used by one thread.

mod gpu;
mod host;
mod piece;

pub use gpu::{Gpu, has_leaked};
pub use host::{HostMemory, HostMemoryError, HostRange, page_bytes};
pub use piece::{DeviceRange, Piece, Window};

use tidegate_ffi::cuda::sys::CUstream;
use tidegate_ffi::cuda::{Driver, DriverError};

/// A range that leaves the memory it should lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes from byte {start} on do not lie inside its {size} bytes")]
pub struct OutOfBounds {
    start: u64,
    bytes: u64,
    size: u64,
}

fn check_bounds(start: u64, bytes: u64, size: u64) -> Result<(), OutOfBounds> {
    match start.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(OutOfBounds { start, bytes, size }),
    }
}

/// A copy between GPU and host memory, in either direction.
pub struct Transfer<'a> {
    device: DeviceRange<'a>,
    host: HostRange<'a>,
    bytes: usize,
}

impl<'a> Transfer<'a> {
    /// Between two ranges of one length (else: of the shorter's).
    pub fn new(device: DeviceRange<'a>, host: HostRange<'a>) -> Self {
        debug_assert_eq!(device.bytes(), host.bytes());
        let bytes = device.bytes().min(host.bytes()) as usize;
        Self { device, host, bytes }
    }

    fn submit_out(&self, driver: &Driver, stream: CUstream) -> Result<(), DriverError> {
        let (host, device) = (self.host.address(), self.device.address());
        // SAFETY: `bytes` bytes from each address lie in the borrowed ranges. The GPU may read its
        // side: a window is mapped with access. Nobody refers to the host's side, and it stays
        // mapped: the borrow ends after Gpu::copy_out has waited for the stream.
        unsafe { driver.cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), device, self.bytes, stream) }
    }

    fn submit_in(&self, driver: &Driver, stream: CUstream) -> Result<(), DriverError> {
        let (host, device) = (self.host.address(), self.device.address());
        // SAFETY: as in submit_out, with the sides exchanged; a window is mapped for writing too.
        unsafe { driver.cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), self.bytes, stream) }
    }
}

impl Gpu {
    /// Copies from the GPU to the host; returns when all is there.
    pub fn copy_out(&self, transfers: &[Transfer<'_>]) -> Result<(), DriverError> {
        let context = self.engage()?;
        context.saves().run(|driver, stream| transfers.iter().try_for_each(|t| t.submit_out(driver, stream)))
    }

    /// Copies from the host to the GPU; returns when all is there.
    pub fn copy_in(&self, transfers: &[Transfer<'_>]) -> Result<(), DriverError> {
        let context = self.engage()?;
        context
            .restores()
            .run(|driver, stream| transfers.iter().try_for_each(|t| t.submit_in(driver, stream)))
    }

    /// Overwrites whole windows with `byte`; returns when all is written.
    pub fn fill(&self, windows: &[&Window], byte: u8) -> Result<(), DriverError> {
        let context = self.engage()?;
        context.restores().run(|driver, stream| {
            windows.iter().try_for_each(|window| submit_fill(driver, stream, window, byte))
        })
    }
}

fn submit_fill(driver: &Driver, stream: CUstream, window: &Window, byte: u8) -> Result<(), DriverError> {
    // SAFETY: the window is mapped for writing over its whole length, and stays so until Gpu::fill
    // has waited for the stream.
    unsafe { driver.cuMemsetD8Async(window.address(), byte, window.bytes() as usize, stream) }
}
