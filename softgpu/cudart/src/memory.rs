//! Memory: of devices, of the host, in the order of streams.

use cudarc::runtime::sys::{cudaExtent, cudaPitchedPtr};

use crate::abi::{Address, HostMut, Out, Pool, Stream};
use crate::driver::{Driver, HandleType};
use crate::error::{Answer, Error};

/// What rows of pitched memory are aligned for: any element up to this size.
const ELEMENT: u32 = 16;

/// `cudaMalloc`: nothing lies at the null address.
pub fn alloc(driver: &Driver, mut out: Out<Address>, bytes: usize) -> Answer {
    out.set(Address::default());
    if bytes == 0 { Ok(()) } else { driver.cuMemAlloc(out, bytes) }
}

/// `cudaFree`
pub fn free(driver: &Driver, address: Address) -> Answer {
    if address == Address::default() { Ok(()) } else { driver.cuMemFree(address) }
}

/// `cudaMallocPitch`
pub fn alloc_pitch(
    driver: &Driver,
    mut out: Out<Address>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
) -> Answer {
    out.set(Address::default());
    if width == 0 || height == 0 {
        return Ok(());
    }
    driver.cuMemAllocPitch(out, pitch, width, height, ELEMENT)
}

/// `cudaMalloc3D`
pub fn alloc_3d(driver: &Driver, mut out: Out<cudaPitchedPtr>, extent: cudaExtent) -> Answer {
    let (mut address, mut pitch) = (Address::default(), 0);
    let rows = extent.height.checked_mul(extent.depth).ok_or(Error::INVALID_VALUE)?;
    alloc_pitch(driver, Out::to(&mut address), Out::to(&mut pitch), extent.width, rows)?;
    out.set(cudaPitchedPtr { ptr: address.0 as *mut _, pitch, xsize: extent.width, ysize: extent.height });
    Ok(())
}

/// `cudaMallocHost`
pub fn alloc_host(driver: &Driver, out: Out<HostMut>, bytes: usize) -> Answer {
    alloc_host_with(driver, out, bytes, 0)
}

/// `cudaHostAlloc`
pub fn alloc_host_with(driver: &Driver, mut out: Out<HostMut>, bytes: usize, flags: u32) -> Answer {
    out.set(HostMut(0));
    if bytes == 0 { Ok(()) } else { driver.cuMemHostAlloc(out, bytes, flags) }
}

/// `cudaFreeHost`
pub fn free_host(driver: &Driver, at: HostMut) -> Answer {
    if at.0 == 0 { Ok(()) } else { driver.cuMemFreeHost(at) }
}

/// `cudaMallocAsync`
pub fn alloc_async(driver: &Driver, mut out: Out<Address>, bytes: usize, stream: Stream) -> Answer {
    out.set(Address::default());
    if bytes == 0 { Ok(()) } else { driver.cuMemAllocAsync(out, bytes, stream) }
}

/// `cudaMallocFromPoolAsync`
pub fn alloc_from_pool(
    driver: &Driver,
    mut out: Out<Address>,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Answer {
    out.set(Address::default());
    if bytes == 0 { Ok(()) } else { driver.cuMemAllocFromPoolAsync(out, bytes, pool, stream) }
}

/// `cudaFreeAsync`
pub fn free_async(driver: &Driver, address: Address, stream: Stream) -> Answer {
    if address == Address::default() { Ok(()) } else { driver.cuMemFreeAsync(address, stream) }
}

/// `cudaMemPoolExportToShareableHandle`
pub fn export_pool(driver: &Driver, out: HostMut, pool: Pool, kind: HandleType, flags: u32) -> Answer {
    driver.cuMemPoolExportToShareableHandle(out, pool, kind, flags.into())
}

/// `cudaMemPoolImportFromShareableHandle`
pub fn import_pool(driver: &Driver, out: Out<Pool>, handle: HostMut, kind: HandleType, flags: u32) -> Answer {
    driver.cuMemPoolImportFromShareableHandle(out, handle, kind, flags.into())
}
