//! Memory in the order of streams, and pools.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::runtime::sys::*;

use crate::support::*;

fn default_pool() -> cudaMemPool_t {
    let mut pool = null_mut();
    ok!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn attribute(pool: cudaMemPool_t, name: cudaMemPoolAttr) -> u64 {
    let mut value = 0u64;
    ok!(cudaMemPoolGetAttribute(pool, name, (&raw mut value).cast()));
    value
}

promise! {
    fn memory_is_allocated_and_freed_in_the_order_of_a_stream() on 1; {
        let (stream, mut at) = (stream(), null_mut());
        ok!(cudaMallocAsync(&mut at, 4096, stream));
        ok!(cudaMemsetAsync(at, 7, 4096, stream));
        ok!(cudaStreamSynchronize(stream));
        assert_eq!(read::<u8>(at, 4096), [7; 4096]);
        assert_eq!(attribute(default_pool(), cudaMemPoolAttr::cudaMemPoolAttrUsedMemCurrent), 4096);
        ok!(cudaFreeAsync(at, stream));
        ok!(cudaStreamSynchronize(stream));
        assert_eq!(attribute(default_pool(), cudaMemPoolAttr::cudaMemPoolAttrUsedMemCurrent), 0);
        ok!(cudaMemPoolTrimTo(default_pool(), 0));
    }
}

promise! {
    fn a_pool_of_the_programs_own_gives_memory() on 1; {
        let (stream, mut pool, mut at) = (stream(), null_mut(), null_mut());
        // SAFETY: numbers and addresses, and enums that have 0.
        let mut properties: cudaMemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = cudaMemAllocationType::cudaMemAllocationTypePinned;
        properties.location.type_ = cudaMemLocationType::cudaMemLocationTypeDevice;
        ok!(cudaMemPoolCreate(&mut pool, &properties));
        let mut keep = u64::MAX;
        let threshold = cudaMemPoolAttr::cudaMemPoolAttrReleaseThreshold;
        ok!(cudaMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast::<c_void>()));
        assert_eq!(attribute(pool, threshold), keep);
        ok!(cudaMallocFromPoolAsync(&mut at, 64, pool, stream));
        ok!(cudaMemsetAsync(at, 1, 64, stream));
        ok!(cudaStreamSynchronize(stream));
        assert_eq!(read::<u8>(at, 64), [1; 64]);
        ok!(cudaFreeAsync(at, stream));
        ok!(cudaMemPoolDestroy(pool));
    }
}
