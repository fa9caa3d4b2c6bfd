//! Stream-ordered memory: allocated for a stream's work, free when the stream has come that far.

use super::abi::{In, Out, Real};
use super::memory::owner;
use crate::driver::{self, Context, Current, PER_THREAD, Relaxed};
use crate::graphs::User;
use crate::pools::PoolHandle;
use crate::process::Process;
use crate::raw::{Access, Location, READ_WRITE};
use crate::status::{Answer, Status};
use std::ffi::c_void;
use tidegate_ffi::cuda::sys::*;

/// `cuMemAllocAsync`.
pub fn allocate(
    process: &'static Process,
    _real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    let _current = Current::make(driver::context_of(stream)?)?;
    let pool = process.pools.current_of(driver::current_device()?);
    address.set(allocate_from(process, pool, bytes, stream)?);
    Ok(())
}

/// `cuMemAllocAsync_ptsz`.
pub fn allocate_per_thread(
    process: &'static Process,
    real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    allocate(process, real, address, bytes, per_thread(stream))
}

/// `cuMemAllocFromPoolAsync`. A pool that is not ours (of host memory) is the driver's.
pub fn allocate_from_pool(
    process: &'static Process,
    real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    let pool = PoolHandle(pool.addr());
    if process.pools.device_of(pool).is_none() {
        return real();
    }
    let _current = Current::make(driver::context_of(stream)?)?;
    address.set(allocate_from(process, pool, bytes, stream)?);
    Ok(())
}

/// `cuMemAllocFromPoolAsync_ptsz`.
pub fn allocate_from_pool_per_thread(
    process: &'static Process,
    real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    allocate_from_pool(process, real, address, bytes, pool, per_thread(stream))
}

/// The stream that a call for per-thread default streams means.
pub fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { std::ptr::without_provenance_mut(PER_THREAD) } else { stream }
}

/// Allocates for a stream, whose context is current; on the pool's device.
fn allocate_from(
    process: &'static Process,
    pool: PoolHandle,
    bytes: usize,
    stream: CUstream,
) -> Result<CUdeviceptr, Status> {
    let device = process.pools.device_of(pool).ok_or(Status::INVALID_VALUE)?;
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    if !process.pools.has_room(pool, bytes) {
        return Err(Status::OUT_OF_MEMORY);
    }
    let (owner, tenant) = (owner()?, process.attach(device)?);
    let address = match capture_of(process, stream)? {
        Some(capture) => {
            let address = allocate_for_graph(process, device, bytes, owner)?;
            process.graphs.own(User::Capture(capture), address);
            address
        }
        None => tenant.allocate_in(process, stream, bytes, owner)?,
    };
    process.pools.allocated(pool, address, bytes);
    Ok(address)
}

/// Allocates memory that a graph is going to own.
pub fn allocate_for_graph(
    process: &'static Process,
    device: CUdevice,
    bytes: u64,
    owner: Context,
) -> Result<CUdeviceptr, Status> {
    let _relaxed = Relaxed::begin();
    process.attach(device)?.allocate(process, tidegate_ffi::units::Class::Temporary, bytes, owner)
}

/// The number of the capture that a stream is part of.
pub fn capture_of(process: &Process, stream: CUstream) -> Result<Option<u64>, Status> {
    if !process.captures.any() || !driver::is_capturing(stream)? {
        return Ok(None);
    }
    Ok(Some(driver::capture_number(stream)?))
}

/// `cuMemFreeAsync`.
pub fn free(process: &'static Process, real: Real<'_>, address: CUdeviceptr, stream: CUstream) -> Answer {
    let Some(tenant) = process.tenants.with_address(address) else { return real() };
    if process.graphs.free(address) {
        return Ok(());
    }
    if let Some(capture) = capture_of(process, stream)? {
        // Only what a graph allocates can be freed in one.
        let was_left = process.graphs.free_left(User::Capture(capture), address);
        return was_left.then_some(()).ok_or(Status::INVALID_VALUE);
    }
    tenant.free_in(process, stream, address)?;
    process.graphs.forget(address);
    process.pools.freed(address);
    Ok(())
}

/// `cuMemFreeAsync_ptsz`.
pub fn free_per_thread(
    process: &'static Process,
    real: Real<'_>,
    address: CUdeviceptr,
    stream: CUstream,
) -> Answer {
    free(process, real, address, per_thread(stream))
}

/// What we read of `CUmemPoolProps`, by numbers: a program may be newer than our header.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    allocation: i32,
    handles: i32,
    location: Location,
    security: usize,
    most: usize,
}

/// `cuMemPoolCreate`. Pools of host memory are the driver's own.
pub fn create(
    process: &'static Process,
    real: Real<'_>,
    pool: Out<'_, CUmemoryPool>,
    properties: In<'_, CUmemPoolProps>,
) -> Answer {
    let properties: Properties = properties.read();
    let Some(device) = properties.location.device() else { return real() };
    if properties.allocation != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as i32 {
        return Err(Status::INVALID_VALUE);
    }
    if properties.handles != 0 {
        return Err(Status(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    }
    driver::uuid(device)?;
    pool.set(raw(process.pools.create(device, properties.most as u64)));
    Ok(())
}

fn raw(pool: PoolHandle) -> CUmemoryPool {
    std::ptr::without_provenance_mut(pool.0)
}

/// Our pool behind a handle, with its device; `None`: it is the driver's.
fn ours(process: &Process, pool: CUmemoryPool) -> Option<(PoolHandle, CUdevice)> {
    let pool = PoolHandle(pool.addr());
    Some((pool, process.pools.device_of(pool)?))
}

/// `cuMemPoolDestroy`.
pub fn destroy(process: &'static Process, real: Real<'_>, pool: CUmemoryPool) -> Answer {
    let Some((pool, _)) = ours(process, pool) else { return real() };
    if process.pools.destroy(pool) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// `cuMemPoolTrimTo`: what is free is not kept in the first place.
pub fn trim(process: &'static Process, real: Real<'_>, pool: CUmemoryPool, _keep: usize) -> Answer {
    match ours(process, pool) {
        Some((_, device)) => {
            process.attach(device)?.reclaim();
            Ok(())
        }
        None => real(),
    }
}

/// `cuMemPoolSetAttribute`.
pub fn set_attribute(
    process: &'static Process,
    real: Real<'_>,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: In<'_, c_void>,
) -> Answer {
    use CUmemPool_attribute::*;
    let Some((pool, _)) = ours(process, pool) else { return real() };
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let number: i32 = value.read();
            process.pools.set(pool, |settings| settings.reuse[attribute as usize - 1] = number);
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
            let bytes: u64 = value.read();
            process.pools.set(pool, |settings| settings.release_threshold = bytes);
        }
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
            if value.read::<u64>() != 0 {
                return Err(Status::INVALID_VALUE);
            }
            process.pools.reset_high(pool, attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
        }
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

/// `cuMemPoolGetAttribute`.
pub fn attribute(
    process: &'static Process,
    real: Real<'_>,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: Out<'_, c_void>,
) -> Answer {
    use CUmemPool_attribute::*;
    let Some((pool, _)) = ours(process, pool) else { return real() };
    let settings = process.pools.settings(pool).ok_or(Status::INVALID_VALUE)?;
    let [used, reserved] = process.pools.usage(pool).ok_or(Status::INVALID_VALUE)?;
    let number = match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            value.of_type::<i32>().set(settings.reuse[attribute as usize - 1]);
            return Ok(());
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => settings.release_threshold,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => reserved.current,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => reserved.high,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT => used.current,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH => used.high,
    };
    value.of_type::<u64>().set(number);
    Ok(())
}

/// `cuMemPoolSetAccess`: a pool's own device has access for ever, others get it by enabling the peer.
pub fn set_access(
    process: &'static Process,
    real: Real<'_>,
    pool: CUmemoryPool,
    list: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let Some((_, device)) = ours(process, pool) else { return real() };
    // SAFETY: the program passes `count` descriptions, by the driver's manual; ours has the same
    // layout, of plain numbers.
    let list = unsafe { super::abi::slice(list.cast::<Access>(), count) }?;
    for access in list {
        match access.location.device() {
            Some(id) if id == device && access.flags == READ_WRITE => {}
            Some(id) if id == device => return Err(Status(CUresult::CUDA_ERROR_INVALID_DEVICE)),
            Some(_) if access.flags == 0 => {}
            _ => return Err(Status(CUresult::CUDA_ERROR_NOT_SUPPORTED)),
        }
    }
    Ok(())
}

/// `cuMemPoolGetAccess`.
pub fn access(
    process: &'static Process,
    real: Real<'_>,
    flags: Out<'_, CUmemAccess_flags>,
    pool: CUmemoryPool,
    location: In<'_, CUmemLocation>,
) -> Answer {
    let Some((_, device)) = ours(process, pool) else { return real() };
    let is_its_own = location.read::<Location>().device() == Some(device);
    flags.set(match is_its_own {
        true => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        false => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
    });
    Ok(())
}

/// `cuDeviceGetDefaultMemPool`.
pub fn default_of(
    process: &'static Process,
    _real: Real<'_>,
    pool: Out<'_, CUmemoryPool>,
    device: CUdevice,
) -> Answer {
    driver::uuid(device)?;
    pool.set(raw(process.pools.default_of(device)));
    Ok(())
}

/// `cuDeviceGetMemPool`.
pub fn current_of(
    process: &'static Process,
    _real: Real<'_>,
    pool: Out<'_, CUmemoryPool>,
    device: CUdevice,
) -> Answer {
    driver::uuid(device)?;
    pool.set(raw(process.pools.current_of(device)));
    Ok(())
}

/// `cuDeviceSetMemPool`.
pub fn choose(process: &'static Process, _real: Real<'_>, device: CUdevice, pool: CUmemoryPool) -> Answer {
    driver::uuid(device)?;
    let is_its = process.pools.choose(device, PoolHandle(pool.addr()));
    if is_its { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// `cuMemGetDefaultMemPool`. What is not a device's is the driver's own.
pub fn default_at(
    process: &'static Process,
    real: Real<'_>,
    pool: Out<'_, CUmemoryPool>,
    location: In<'_, CUmemLocation>,
    _kind: CUmemAllocationType,
) -> Answer {
    match location.read::<Location>().device() {
        Some(device) => default_of(process, real, pool, device),
        None => real(),
    }
}

/// `cuMemGetMemPool`.
pub fn current_at(
    process: &'static Process,
    real: Real<'_>,
    pool: Out<'_, CUmemoryPool>,
    location: In<'_, CUmemLocation>,
    _kind: CUmemAllocationType,
) -> Answer {
    match location.read::<Location>().device() {
        Some(device) => current_of(process, real, pool, device),
        None => real(),
    }
}

/// `cuMemSetMemPool`.
pub fn choose_at(
    process: &'static Process,
    real: Real<'_>,
    location: In<'_, CUmemLocation>,
    _kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Answer {
    match location.read::<Location>().device() {
        Some(device) => choose(process, real, device, pool),
        None => real(),
    }
}
