//! Stream-ordered memory and its pools.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUdeviceptr, CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

fn alloc_on(stream: sys::CUstream, bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, bytes, stream));
    at
}

fn default_pool() -> CUmemoryPool {
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn current_pool() -> CUmemoryPool {
    let mut pool = null_mut();
    ok!(cuDeviceGetMemPool(&mut pool, 0));
    pool
}

fn new_pool() -> CUmemoryPool {
    // SAFETY: plain C data; the enums are set below, and zero is a value of each.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let mut pool = null_mut();
    ok!(cuMemPoolCreate(&mut pool, &properties));
    pool
}

fn get(pool: CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value
}

fn set(pool: CUmemoryPool, attribute: Attribute, mut value: u64) -> CUresult {
    cu!(cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()))
}

fn keep_all(pool: CUmemoryPool) {
    assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX), CUresult::CUDA_SUCCESS);
}

promise! {
    fn a_device_with_pools_says_so() on PLAIN; {
        start();
        let mut supported = 0;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        ok!(cuDeviceGetAttribute(&mut supported, attribute, 0));
        assert_eq!(supported, 1);
    }
}

promise! {
    fn stream_ordered_memory_serves_the_work_between_its_allocation_and_its_free() on PLAIN; {
        start();
        let lane = stream(1);
        let held = hold(lane);
        let at = alloc_on(lane, 4096);
        let back = pinned(4096).cast::<u8>();
        ok!(cuMemsetD8Async(at, 7, 4096, lane));
        ok!(cuMemcpyDtoHAsync_v2(back.cast(), at, 4096, lane));
        ok!(cuMemFreeAsync(at, lane));
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        // SAFETY: pinned memory of that size, and the copy is done.
        assert_eq!(unsafe { std::slice::from_raw_parts(back, 4096) }, [7; 4096]);
    }
}

promise! {
    fn another_stream_may_use_and_free_it_after_an_event() on PLAIN; {
        start();
        let (one, other, ready) = (stream(1), stream(1), event());
        let held = hold(one);
        let at = alloc_on(one, 4096);
        ok!(cuMemsetD8Async(at, 3, 4096, one));
        ok!(cuEventRecord(ready, one));
        ok!(cuStreamWaitEvent(other, ready, 0));
        let back = pinned(4).cast::<u32>();
        ok!(cuMemcpyDtoHAsync_v2(back.cast(), at, 4, other));
        ok!(cuMemFreeAsync(at, other));
        held.let_go();
        ok!(cuStreamSynchronize(other));
        // SAFETY: pinned memory of that size, and the copy is done.
        assert_eq!(unsafe { back.read() }, 0x0303_0303);
    }
}

promise! {
    fn memory_freed_on_a_stream_serves_the_next_allocation_there_without_a_wait() on PLAIN; {
        start();
        keep_all(default_pool());
        let lane = stream(1);
        let first = alloc_on(lane, MEMORY / 2 + unit());
        let held = hold(lane);
        ok!(cuMemFreeAsync(first, lane));
        let second = alloc_on(lane, MEMORY / 2 + unit());
        ok!(cuMemsetD8Async(second, 1, 16, lane));
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u8>(second, 16), [1; 16]);
    }
}

promise! {
    fn an_allocation_on_another_stream_does_not_get_what_is_still_in_use() on PLAIN; {
        start();
        keep_all(default_pool());
        let (one, other) = (stream(1), stream(1));
        let first = alloc_on(one, 1 << 20);
        let held = hold(one);
        ok!(cuMemFreeAsync(first, one));
        let second = alloc_on(other, 1 << 20);
        assert_ne!(first, second);
        held.let_go();
    }
}

promise! {
    fn freed_memory_goes_back_at_the_next_synchronisation_unless_the_threshold_keeps_it() on PLAIN; {
        start();
        let (lane, pool) = (stream(1), default_pool());
        let reserved = || get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        assert_eq!(get(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
        let at = alloc_on(lane, 1 << 20);
        assert!(reserved() >= 1 << 20);
        ok!(cuMemFreeAsync(at, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(reserved(), 0);
        keep_all(pool);
        let at = alloc_on(lane, 1 << 20);
        ok!(cuMemFreeAsync(at, lane));
        ok!(cuStreamSynchronize(lane));
        assert!(reserved() >= 1 << 20);
        assert!(free_memory() <= MEMORY - (1 << 20));
        ok!(cuMemPoolTrimTo(pool, 0));
        assert_eq!(reserved(), 0);
        expect_free(MEMORY);
    }
}

promise! {
    fn a_pool_counts_what_is_used_and_the_most_that_was() on PLAIN; {
        start();
        let (lane, pool) = (stream(1), default_pool());
        let used = || get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        let most = || get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
        let (one, two) = (alloc_on(lane, 1 << 20), alloc_on(lane, 2 << 20));
        assert_eq!((used(), most()), (3 << 20, 3 << 20));
        ok!(cuMemFreeAsync(two, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!((used(), most()), (1 << 20, 3 << 20));
        assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1), INVALID);
        assert_eq!(set(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0), CUresult::CUDA_SUCCESS);
        assert_eq!(most(), 1 << 20);
        ok!(cuMemFreeAsync(one, lane));
    }
}

promise! {
    fn the_current_pool_serves_allocations_until_it_is_destroyed() on PLAIN; {
        start();
        let (lane, own) = (stream(1), new_pool());
        assert_eq!(current_pool(), default_pool());
        ok!(cuDeviceSetMemPool(0, own));
        assert_eq!(current_pool(), own);
        let at = alloc_on(lane, 1 << 20);
        assert!(get(own, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 1 << 20);
        let mut pool = null_mut::<sys::CUmemPoolHandle_st>();
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        ok!(cuPointerGetAttribute((&raw mut pool).cast(), attribute, at));
        assert_eq!(pool, own);
        ok!(cuMemFreeAsync(at, lane));
        ok!(cuStreamSynchronize(lane));
        ok!(cuMemPoolDestroy(own));
        assert_eq!(current_pool(), default_pool());
    }
}

promise! {
    fn allocations_may_name_their_pool() on PLAIN; {
        start();
        let (lane, own) = (stream(1), new_pool());
        let mut at = 0;
        ok!(cuMemAllocFromPoolAsync(&mut at, 1 << 20, own, lane));
        assert!(get(own, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 1 << 20);
        assert_eq!(get(default_pool(), Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        ok!(cuMemFreeAsync(at, lane));
    }
}

promise! {
    fn the_default_pool_cannot_be_destroyed() on PLAIN; {
        start();
        assert_eq!(cu!(cuMemPoolDestroy(default_pool())), INVALID);
        alloc_on(null_mut(), 64);
    }
}

promise! {
    fn plain_and_stream_ordered_frees_take_memory_of_either_kind() on PLAIN; {
        start();
        let lane = stream(1);
        let ordered = alloc_on(lane, 1 << 20);
        ok!(cuStreamSynchronize(lane));
        ok!(cuMemFree_v2(ordered));
        let plain = alloc(1 << 20);
        ok!(cuMemFreeAsync(plain, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(cu!(cuMemFree_v2(plain)), INVALID);
    }
}

promise! {
    fn stream_ordered_frees_of_what_is_no_allocation_are_refused() on PLAIN; {
        start();
        let lane = stream(1);
        let at = alloc_on(lane, 4096);
        assert_eq!(cu!(cuMemFreeAsync(at + 8, lane)), INVALID);
        ok!(cuMemFreeAsync(at, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(cu!(cuMemFreeAsync(at, lane)), INVALID);
    }
}

promise! {
    fn a_pool_that_is_full_waits_for_what_is_being_freed() on PLAIN; {
        start();
        let (one, other) = (stream(1), stream(1));
        let most = free_memory() / 4 * 3;
        let first = alloc_on(one, most);
        nap(one, 20);
        ok!(cuMemFreeAsync(first, one));
        let second = alloc_on(other, most);
        ok!(cuMemsetD8Async(second, 1, 16, other));
        ok!(cuStreamSynchronize(other));
        ok!(cuMemFreeAsync(second, other));
    }
}

promise! {
    fn more_than_there_is_is_out_of_memory() on PLAIN; {
        start();
        let mut at = 0;
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        let too_much = cu!(cuMemAllocAsync(&mut at, total + (64 << 20), null_mut()));
        assert_eq!(too_much, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        alloc_on(null_mut(), 64);
    }
}

promise! {
    fn a_pool_is_accessible_to_its_own_device_and_to_whom_it_is_granted() on PLAIN; {
        use sys::CUmemAccess_flags as Access;
        start();
        let pool = new_pool();
        let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
        let (mut flags, mut place) = (Access::CU_MEM_ACCESS_FLAGS_PROT_NONE, location);
        ok!(cuMemPoolGetAccess(&mut flags, pool, &mut place));
        assert_eq!(flags, Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        let none = sys::CUmemAccessDesc { location, flags: Access::CU_MEM_ACCESS_FLAGS_PROT_NONE };
        assert_eq!(cu!(cuMemPoolSetAccess(pool, &none, 1)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
}

promise! {
    fn policies_of_reuse_are_on_and_can_be_set() on PLAIN; {
        start();
        let pool = new_pool();
        for attribute in [
            Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ] {
            let (mut value, mut off) = (0i32, 0i32);
            ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
            assert_eq!(value, 1);
            ok!(cuMemPoolSetAttribute(pool, attribute, (&raw mut off).cast()));
            ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
            assert_eq!(value, 0);
        }
    }
}
