//! `cuMemAlloc` and its kind: each allocation a piece of its own, mapped at once and kept by that
//! mapping alone, so that allocations do not use up the process's descriptors.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::sys::CUresult;

use crate::abi::{Answer, Maybe, Out};
use crate::context::{self, Context};
use crate::graph;
use crate::managed;
use crate::node::Gpu;
use crate::pool::{self, Pool};
use crate::space::{self, Kind, Region};
use crate::store::Kept;
use crate::vmm;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Allocations are whole pages.
pub const PAGE: usize = 4096;

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
    graph::check_unsafe_call()?;
    out.set(allocate(&*context::current()?, bytes)? as u64);
    Ok(())
}

/// `cuMemAllocPitch_v2`
pub fn alloc_pitch(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) -> Answer {
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(INVALID);
    }
    let row = width.checked_next_multiple_of(PITCH).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    out.set(allocate(&*context::current()?, bytes)? as u64);
    pitch.set(row);
    Ok(())
}

/// `cuMemFree_v2`: waits for the work submitted before, as the driver does.
pub fn free(address: u64) -> Answer {
    context::current()?;
    if address == 0 {
        return Ok(());
    }
    if graph::free_memory_of_a_graph(address)? {
        return context::current()?.synchronize();
    }
    if managed::find(address) {
        context::current()?.synchronize()?;
        return managed::free(address);
    }
    let (block, pool) = allocation_at(address as usize)?;
    if let Some(context) = owner_of(&block) {
        context.synchronize()?;
    }
    if pool::is_leaving(&block) {
        return Err(INVALID);
    }
    pool::free_now(block, pool);
    Ok(())
}

/// `cuMemGetAddressRange_v2`: of the allocation or of the mapping.
pub fn address_range(base: Maybe<u64>, size: Maybe<usize>, at: u64) -> Answer {
    let space = space::look();
    let region = space.find(at as usize).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    base.set(region.start as u64);
    size.set(region.size);
    Ok(())
}

/// Mapped memory of a GPU: unmapped, then given back, when nobody refers to it any more.
pub struct Block {
    pub start: usize,
    /// Bytes, whole pages.
    pub size: usize,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`
    pub synchronous: AtomicBool,
    /// What keeps it; dropped when it is unmapped.
    pub kept: Kept,
}

impl Block {
    /// A new block of zeroes.
    pub fn map(gpu: &'static Gpu, size: usize) -> Answer<Arc<Block>> {
        let held = gpu.store.create(size as u64).map_err(|e| vmm::store_error(&e))?;
        let start = space::map_anywhere(size, &held);
        let start = start.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Arc::new(Block { start, size, synchronous: AtomicBool::new(false), kept: held.by_mapping() }))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        space::release(self.start, self.size);
    }
}

/// Puts a block on the map as an allocation.
pub fn remember(block: Arc<Block>, bytes: usize, context: &Context, pool: Option<Arc<Pool>>) {
    let start = block.start;
    let kind = Kind::Allocated { block, device: context.device, context: context.handle, pool };
    space::change().add(Region { start, size: bytes, kind });
}

/// Takes a block off the map.
pub fn forget(block: &Arc<Block>) {
    let this =
        |region: &Region| matches!(&region.kind, Kind::Allocated { block: of, .. } if Arc::ptr_eq(of, block));
    let region = space::change().take(block.start, this);
    drop(region); // unmaps: not under the lock
}

/// The allocation that begins at an address.
pub fn allocation_at(address: usize) -> Answer<(Arc<Block>, Option<Arc<Pool>>)> {
    let space = space::look();
    match space.find(address).filter(|region| region.start == address).map(|region| &region.kind) {
        Some(Kind::Allocated { block, pool, .. }) => Ok((block.clone(), pool.clone())),
        _ => Err(INVALID),
    }
}

/// Unmaps a region that has been taken off the map and belongs to this library.
pub fn give_back(region: Region) {
    match &region.kind {
        Kind::Pinned { registered: false, .. } | Kind::Managed { .. } | Kind::Opened { .. } => {
            space::release(region.start, round(region.size));
        }
        Kind::Allocated { .. } | Kind::Pinned { .. } | Kind::Mapped(_) | Kind::Global { .. } => {}
    }
}

/// What is held for stream-ordered allocations gives way to others.
pub fn allocate(context: &Context, bytes: usize) -> Answer<usize> {
    if bytes == 0 {
        return Err(INVALID);
    }
    let (gpu, size) = (context.gpu()?, whole_pages(bytes)?);
    let block = Block::map(gpu, size).or_else(|_| {
        pool::trim_all(context.device);
        Block::map(gpu, size)
    })?;
    let start = block.start;
    remember(block, bytes, context, None);
    Ok(start)
}

/// So many bytes in whole pages.
pub fn whole_pages(bytes: usize) -> Answer<usize> {
    bytes.checked_next_multiple_of(PAGE).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

fn owner_of(block: &Block) -> Option<Arc<Context>> {
    let owner = space::look().find(block.start).and_then(Region::context);
    owner.and_then(context::find)
}

fn round(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}
