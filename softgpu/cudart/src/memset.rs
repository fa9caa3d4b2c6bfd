//! Memsets.

use cudarc::runtime::sys::{cudaExtent, cudaPitchedPtr};

use crate::abi::{Address, Stream};
use crate::driver::Driver;
use crate::error::Answer;

/// `cudaMemset`; of the value its lowest byte counts.
pub fn bytes(driver: &Driver, at: Address, value: i32, count: usize) -> Answer {
    if count == 0 { Ok(()) } else { driver.cuMemsetD8(at, value as u8, count) }
}

/// `cudaMemsetAsync`
pub fn bytes_async(driver: &Driver, at: Address, value: i32, count: usize, stream: Stream) -> Answer {
    if count == 0 { Ok(()) } else { driver.cuMemsetD8Async(at, value as u8, count, stream) }
}

/// `cudaMemset2D`
pub fn plane(driver: &Driver, at: Address, pitch: usize, value: i32, width: usize, height: usize) -> Answer {
    driver.cuMemsetD2D8(at, pitch, value as u8, width, height)
}

/// `cudaMemset2DAsync`
pub fn plane_async(
    driver: &Driver,
    at: Address,
    pitch: usize,
    value: i32,
    width: usize,
    height: usize,
    stream: Stream,
) -> Answer {
    driver.cuMemsetD2D8Async(at, pitch, value as u8, width, height, stream)
}

/// `cudaMemset3D`
pub fn volume(driver: &Driver, memory: cudaPitchedPtr, value: i32, extent: cudaExtent) -> Answer {
    planes(memory, extent)
        .try_for_each(|at| plane(driver, at, memory.pitch, value, extent.width, extent.height))
}

/// `cudaMemset3DAsync`
pub fn volume_async(
    driver: &Driver,
    memory: cudaPitchedPtr,
    value: i32,
    extent: cudaExtent,
    stream: Stream,
) -> Answer {
    let (width, height) = (extent.width, extent.height);
    planes(memory, extent)
        .try_for_each(|at| plane_async(driver, at, memory.pitch, value, width, height, stream))
}

/// Where the planes of a volume begin; the driver tells what lies nowhere.
fn planes(memory: cudaPitchedPtr, extent: cudaExtent) -> impl Iterator<Item = Address> {
    let size = memory.pitch.wrapping_mul(memory.ysize);
    (0..extent.depth).map(move |plane| Address(memory.ptr.wrapping_byte_add(plane.wrapping_mul(size)) as u64))
}
