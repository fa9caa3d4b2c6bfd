//! Pinned host memory: made here or registered. Its host address is its device address.

use std::ffi::c_void;

use cudarc::driver::sys::CUresult;

use crate::abi::{Answer, HostMut, Out};
use crate::context;
use crate::memory;
use crate::space::{self, Kind, Region};

/// `cuMemHostAlloc`
pub fn alloc(out: Out<*mut c_void>, bytes: usize, flags: u32) -> Answer {
    let context = context::current()?;
    if bytes == 0 || flags > 7 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let start = space::map_host(bytes).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let kind = Kind::Pinned { context: context.handle, flags, registered: false };
    space::change().add(Region { start, size: bytes, kind });
    out.set(start as *mut c_void);
    Ok(())
}

/// `cuMemAllocHost_v2`
pub fn alloc_plain(out: Out<*mut c_void>, bytes: usize) -> Answer {
    alloc(out, bytes, 0)
}

/// `cuMemFreeHost`
pub fn free(at: HostMut) -> Answer {
    context::current()?.synchronize()?;
    let made = |r: &Region| matches!(r.kind, Kind::Pinned { registered: false, .. });
    let region = space::change().take(at.0, made);
    memory::give_back(region.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?);
    Ok(())
}

/// `cuMemHostRegister_v2`
pub fn register(at: HostMut, bytes: usize, flags: u32) -> Answer {
    let context = context::current()?;
    if at.0 == 0 || bytes == 0 || !is_mapped(at.0, bytes) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kind = Kind::Pinned { context: context.handle, flags, registered: true };
    let added = space::change().add(Region { start: at.0, size: bytes, kind });
    added.then_some(()).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
}

/// `cuMemHostUnregister`
pub fn unregister(at: HostMut) -> Answer {
    context::current()?;
    let registered = |r: &Region| matches!(r.kind, Kind::Pinned { registered: true, .. });
    let region = space::change().take(at.0, registered);
    region.map(drop).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
}

/// `cuMemHostGetDevicePointer_v2`
pub fn device_pointer(out: Out<u64>, at: HostMut, _flags: u32) -> Answer {
    flags_at(at.0)?;
    out.set(at.0 as u64);
    Ok(())
}

/// `cuMemHostGetFlags`
pub fn flags(out: Out<u32>, at: HostMut) -> Answer {
    out.set(flags_at(at.0)?);
    Ok(())
}

fn flags_at(address: usize) -> Answer<u32> {
    match space::look().find(address).map(|region| &region.kind) {
        Some(Kind::Pinned { flags, .. }) => Ok(*flags),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn is_mapped(start: usize, bytes: usize) -> bool {
    let page = start & !4095;
    let Some(length) = bytes.checked_add(start - page) else { return false };
    // SAFETY: MS_ASYNC changes nothing; addresses that are not mapped give an error.
    unsafe { libc::msync(page as *mut c_void, length, libc::MS_ASYNC) == 0 }
}
