//! The driver and the memory it copies between: all of the mover's unsafe code.
//!
//! - [`Gpu`]: a device, what it can do, its context when that is needed;
//! - [`Piece`]: GPU memory, and its [`Window`] in this process's addresses;
//! - [`HostMemory`]: page-locked memory for saved bytes;
//! - [`Lane`]: page-locked memory on the way to and from files;
//! - [`Transfer`]: one copy between the two, inside the bounds of both;
//! - `gather`: how many tiny ones become one, where a `trial` has shown that it is faster.
//!
//! Why it is sound: everything has one owner that releases it when dropped; ranges borrow what they
//! lie in, so it outlives them; each batch of copies is waited for before the function that takes
//! the borrowed ranges returns, also after an error; and no Rust reference into memory that copies
//! write is made, but for a lane's, which copies borrow as long, and between copies, to look for zeros.
//! A process has one GPU (DESIGN §2), used by one thread.

mod gather;
mod gpu;
mod host;
mod lane;
mod piece;
mod steps;
mod trial;

pub use gpu::{Gpu, has_leaked};
pub use host::{HostMemory, HostMemoryError, HostRange, Place, page_bytes};
pub use lane::Lane;
pub use piece::{DeviceRange, ExportError, Piece, Window};

use super::progress::Pace;
use gather::Gather;
use gpu::Context;
use steps::in_steps;
use tidegate_ffi::cuda::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUresult,
    CUstream,
};
use tidegate_ffi::cuda::{Driver, DriverError};

/// Copies of so many bytes are worth a call each.
const LARGE: usize = 1 << 20;

/// The smallest step of a copy that is divided: a link that needs longer for it than the response timeout is as
/// good as none.
const LEAST_STEP: u64 = 1 << 20;
/// The largest one: waiting for it costs a link of 50 GB/s less than a hundredth.
const MOST_STEP: u64 = 256 << 20;

/// A driver does not take such a batch. ◇ What it says of memory that could not be page-locked is not known.
const REFUSALS: [CUresult; 2] = [CUresult::CUDA_ERROR_NOT_SUPPORTED, CUresult::CUDA_ERROR_INVALID_VALUE];

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
#[derive(Clone, Copy)]
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

    /// The first so many bytes (all, if there are fewer), and the rest.
    fn split(self, at: usize) -> (Self, Self) {
        let at = at.min(self.bytes);
        let (device, host) = (self.device.split(at as u64), self.host.split(at as u64));
        let first = Self { device: device.0, host: host.0, bytes: at };
        (first, Self { device: device.1, host: host.1, bytes: self.bytes - at })
    }

    fn submit(&self, way: Way, driver: &Driver, stream: CUstream) -> Result<(), DriverError> {
        let (host, device) = (self.host.address(), self.device.address());
        match way {
            // SAFETY: `bytes` bytes from each address lie in the borrowed ranges. The GPU may read its
            // side: a window is mapped with access. Nobody refers to the host's side, and it stays
            // mapped: the borrow ends after Gpu::copy_out has waited for the stream.
            Way::Out => unsafe {
                driver.cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), device, self.bytes, stream)
            },
            // SAFETY: as above, with the sides exchanged; a window is mapped for writing too.
            Way::In => unsafe {
                driver.cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), self.bytes, stream)
            },
        }
    }

    /// Where it copies to, and from where.
    fn ends(&self, way: Way) -> (CUdeviceptr, CUdeviceptr) {
        let (host, device) = (self.host.address().as_ptr() as CUdeviceptr, self.device.address());
        match way {
            Way::Out => (host, device),
            Way::In => (device, host),
        }
    }
}

/// How much is copied, or overwritten, in one step: what differs in speed is measured apart.
struct Paces {
    out: Pace,
    back: Pace,
    both: Pace,
    fill: Pace,
}

impl Paces {
    const fn new() -> Self {
        const fn pace() -> Pace {
            Pace::new(LEAST_STEP, MOST_STEP)
        }
        Self { out: pace(), back: pace(), both: pace(), fill: pace() }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// From the GPU to the host.
    Out,
    /// From the host to the GPU.
    In,
}

/// Submits copies that meet nowhere: many tiny ones are gathered, if that is faster.
fn submit_all(
    transfers: &[Transfer<'_>],
    way: Way,
    gather: &Gather,
    driver: &Driver,
    stream: CUstream,
) -> Result<(), DriverError> {
    submit_copies(gather.submit(transfers, way, stream), way, driver, stream)
}

/// Submits copies: large ones each by a call, small ones all by one where the driver can (CUDA 13), for a call costs
/// as much as some 100 KiB on the link.
fn submit_copies(
    transfers: Vec<&Transfer<'_>>,
    way: Way,
    driver: &Driver,
    stream: CUstream,
) -> Result<(), DriverError> {
    let can_batch = driver.cuMemcpyBatchAsync_v2.is_some();
    let is_small = |one: &&Transfer<'_>| can_batch && one.bytes > 0 && one.bytes < LARGE;
    let (small, large): (Vec<&Transfer<'_>>, Vec<_>) = transfers.into_iter().partition(is_small);
    large.into_iter().try_for_each(|one| one.submit(way, driver, stream))?;
    match small[..] {
        [] => Ok(()),
        [one] => one.submit(way, driver, stream),
        _ => match submit_batch(&small, way, driver, stream) {
            // What was submitted of it is submitted again, and copies the same bytes.
            Err(error) if REFUSALS.contains(&error.code) => {
                small.into_iter().try_for_each(|one| one.submit(way, driver, stream))
            }
            submitted => submitted,
        },
    }
}

fn submit_batch(
    transfers: &[&Transfer<'_>],
    way: Way,
    driver: &Driver,
    stream: CUstream,
) -> Result<(), DriverError> {
    let (mut to, mut from): (Vec<_>, Vec<_>) = transfers.iter().map(|one| one.ends(way)).unzip();
    let mut bytes: Vec<usize> = transfers.iter().map(|one| one.bytes).collect();
    let nowhere = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
    let mut attributes = CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: nowhere,
        dstLocHint: nowhere,
        flags: 0,
    };
    // SAFETY: three lists of as many elements as they are said to have, and one set of attributes for all from
    // the first on, read during the call. Of each copy what Transfer::submit says of one.
    unsafe {
        driver.cuMemcpyBatchAsync_v2(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            bytes.as_mut_ptr(),
            transfers.len(),
            &mut attributes,
            &mut 0,
            1,
            stream,
        )
    }
}

impl Gpu {
    /// Copies from the GPU to the host, between ranges that meet nowhere; returns when all is there.
    pub fn copy_out(&self, transfers: &[Transfer<'_>]) -> Result<(), DriverError> {
        let (context, gather) = self.ready_for(transfers)?;
        in_steps(&self.paces().out, [transfers, &[]], |[out, _]| {
            context.stream(Way::Out).run(|driver, stream| submit_all(out, Way::Out, gather, driver, stream))
        })
    }

    /// Copies from the host to the GPU, between ranges that meet nowhere; returns when all is there.
    pub fn copy_in(&self, transfers: &[Transfer<'_>]) -> Result<(), DriverError> {
        let (context, gather) = self.ready_for(transfers)?;
        in_steps(&self.paces().back, [&[], transfers], |[_, back]| {
            context.stream(Way::In).run(|driver, stream| submit_all(back, Way::In, gather, driver, stream))
        })
    }

    /// Copies out and in at once; returns when all is there.
    pub fn copy_both(&self, out: &[Transfer<'_>], back: &[Transfer<'_>]) -> Result<(), DriverError> {
        self.ready_for(out)?;
        let (context, gather) = self.ready_for(back)?;
        in_steps(&self.paces().both, [out, back], |[out, back]| {
            context.stream(Way::Out).run(|driver, stream| {
                submit_all(out, Way::Out, gather, driver, stream)?;
                context
                    .stream(Way::In)
                    .run(|driver, stream| submit_all(back, Way::In, gather, driver, stream))
            })
        })
    }

    /// The context, and what gathers, which these transfers may be the first to need.
    fn ready_for(&self, transfers: &[Transfer<'_>]) -> Result<(&Context, &Gather), DriverError> {
        let context = self.engage()?;
        self.gather().prepare(self, context, transfers);
        Ok((context, self.gather()))
    }

    /// Overwrites ranges with `byte`; returns when all is written.
    pub fn fill(&self, ranges: &[DeviceRange<'_>], byte: u8) -> Result<(), DriverError> {
        let context = self.engage()?;
        in_steps(&self.paces().fill, [ranges, &[]], |[ranges, _]| {
            context.stream(Way::In).run(|driver, stream| {
                ranges.iter().try_for_each(|range| submit_fill(driver, stream, *range, byte))
            })
        })
    }
}

fn submit_fill(
    driver: &Driver,
    stream: CUstream,
    range: DeviceRange<'_>,
    byte: u8,
) -> Result<(), DriverError> {
    // SAFETY: the range lies in a window that is mapped for writing, and stays so until Gpu::fill
    // has waited for the stream.
    unsafe { driver.cuMemsetD8Async(range.address(), byte, range.bytes() as usize, stream) }
}
