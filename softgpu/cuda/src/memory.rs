//! `cuMemAlloc` and its kind: each allocation a piece of its own, mapped at once and kept by that
//! mapping alone, so that allocations do not use up the process's descriptors.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::abi::{Answer, Out};
use crate::context::{self, Context};
use crate::node;
use crate::space::{self, Kind, Region};
use crate::vmm;

/// Allocations are whole pages.
const PAGE: usize = 4096;

/// Rows of a pitched allocation start at multiples of this.
const PITCH: usize = 512;

/// `cuMemGetInfo_v2`: over all processes.
pub fn info(free: Out<usize>, total: Out<usize>) -> Answer {
    let gpu = context::current()?.gpu()?;
    free.set(gpu.store.free().map_err(|e| vmm::store_error(&e))? as usize);
    total.set(gpu.store.capacity() as usize);
    Ok(())
}

/// `cuMemAlloc_v2`
pub fn alloc(out: Out<u64>, bytes: usize) -> Answer {
    out.set(allocate(&*context::current()?, bytes)? as u64);
    Ok(())
}

/// `cuMemAllocPitch_v2`
pub fn alloc_pitch(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) -> Answer {
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    out.set(allocate(&*context::current()?, bytes)? as u64);
    pitch.set(row);
    Ok(())
}

/// `cuMemFree_v2`: waits for the work submitted before, as the driver does.
pub fn free(address: u64) -> Answer {
    if address == 0 {
        return Ok(());
    }
    let owner = owner_of(address as usize)?;
    if let Some(context) = context::find(owner) {
        context.synchronize()?;
    }
    let allocated = |region: &Region| matches!(region.kind, Kind::Allocated { .. });
    let region = space::change().take(address as usize, allocated);
    give_back(region.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?);
    Ok(())
}

/// `cuMemGetAddressRange_v2`: of the allocation or of the mapping.
pub fn address_range(base: crate::abi::Maybe<u64>, size: crate::abi::Maybe<usize>, at: u64) -> Answer {
    let space = space::look();
    let region = space.find(at as usize).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    base.set(region.start as u64);
    size.set(region.size);
    Ok(())
}

/// Unmaps a region that has been taken off the map and belongs to this library.
pub fn give_back(region: Region) {
    match &region.kind {
        Kind::Allocated { .. } | Kind::Pinned { registered: false, .. } => {
            space::release(region.start, round(region.size));
        }
        Kind::Pinned { .. } | Kind::Mapped(_) | Kind::Global { .. } => {}
    }
}

fn allocate(context: &Context, bytes: usize) -> Answer<usize> {
    if bytes == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let size = bytes.checked_next_multiple_of(PAGE).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let gpu = context.gpu()?;
    let held = gpu.store.create(size as u64).map_err(|e| vmm::store_error(&e))?;
    let start = space::map_anywhere(size, &held);
    let start = start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let _memory = Arc::new(held.by_mapping());
    let kind = Kind::Allocated { _memory, device: context.device, context: context.handle };
    space::change().add(Region { start, size: bytes, kind });
    Ok(start)
}

fn owner_of(address: usize) -> Answer<usize> {
    node::node()?;
    context::current()?;
    let space = space::look();
    match space.find(address).filter(|region| region.start == address).map(|region| &region.kind) {
        Some(Kind::Allocated { context, .. }) => Ok(*context),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn round(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}
