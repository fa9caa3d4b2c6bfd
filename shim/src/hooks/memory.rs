//! Device memory: allocated in our ranges, freed when the work before has ended.

use super::abi::{Out, Real};
use crate::capi;
use crate::driver::{Context, current_context};
use crate::process::{self, Process};
use crate::status::{Answer, Status};
use std::ffi::c_uint;
use tidegate_ffi::cuda::sys::{CUdeviceptr, CUresult};

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;

/// `cuMemAlloc_v2`.
pub fn allocate(
    process: &'static Process,
    _real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
) -> Answer {
    address.set(allocate_bytes(process, bytes)?);
    Ok(())
}

/// `cuMemAllocPitch_v2`.
pub fn allocate_pitch(
    process: &'static Process,
    _real: Real<'_>,
    address: Out<'_, CUdeviceptr>,
    pitch: Out<'_, usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Answer {
    if !matches!(element, 4 | 8 | 16) {
        return Err(Status::INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(Status::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(Status::INVALID_VALUE)?;
    address.set(allocate_bytes(process, bytes)?);
    pitch.set(row);
    Ok(())
}

fn allocate_bytes(process: &'static Process, bytes: usize) -> Result<CUdeviceptr, Status> {
    if bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let owner = owner()?;
    let tenant = process.current_tenant()?;
    tenant.allocate(process, capi::birth_class(), bytes as u64, owner)
}

/// The context that memory is allocated in: the current one, or the one that it is a part of.
pub fn owner() -> Result<Context, Status> {
    let current = current_context().ok_or(Status(CUresult::CUDA_ERROR_INVALID_CONTEXT))?;
    Ok(process::active().map_or(current, |process| process.contexts.home_of(current)))
}

/// `cuMemFree_v2`. Memory that is not ours (the driver's own) is the driver's to free.
pub fn free(process: &'static Process, real: Real<'_>, address: CUdeviceptr) -> Answer {
    let Some(tenant) = process.tenants.with_address(address) else {
        real()?;
        process.managed.forget(address);
        return Ok(());
    };
    if process.graphs.free(address) {
        return Ok(());
    }
    tenant.free(process, address)?;
    process.graphs.forget(address);
    process.pools.freed(address);
    Ok(())
}
