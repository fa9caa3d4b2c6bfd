//! Managed memory.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUmem_advise as Advice, CUmem_range_attribute as Attribute, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const GLOBAL: u32 = 1;
const CPU: i32 = -1;
const NOWHERE: i32 = -2;

fn managed(bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, bytes, GLOBAL));
    at
}

fn device() -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

fn told(attribute: Attribute, at: u64, bytes: usize) -> i32 {
    let mut value = 77i32;
    ok!(cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, at, bytes));
    value
}

promise! {
    fn host_and_device_use_one_address() on PLAIN; {
        start();
        let at = managed(4096);
        let host = at as *mut u32;
        // SAFETY: managed memory of that size, which no work uses now.
        unsafe { host.write_volatile(1) };
        let value = 6u32;
        let second = at + 4;
        assert_eq!(launch(kernel(c"poke"), null_mut(), &[arg(&second), arg(&value)]), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        // SAFETY: as above.
        assert_eq!(unsafe { host.cast::<[u32; 2]>().read_volatile() }, [1, 6]);
        ok!(cuMemFree_v2(at));
        assert_eq!(cu!(cuMemFree_v2(at)), INVALID);
    }
}

promise! {
    fn managed_memory_is_known_as_such() on PLAIN; {
        use sys::CUpointer_attribute as Pointer;
        start();
        let at = managed(4096);
        let mut is_managed = 0u32;
        ok!(cuPointerGetAttribute((&raw mut is_managed).cast(), Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
        assert_eq!(is_managed, 1);
        let mut host = 0u64;
        ok!(cuPointerGetAttribute((&raw mut host).cast(), Pointer::CU_POINTER_ATTRIBUTE_HOST_POINTER, at + 8));
        assert_eq!(host, at + 8);
        ok!(cuPointerGetAttribute((&raw mut is_managed).cast(), Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED, alloc(8)));
        assert_eq!(is_managed, 0);
    }
}

promise! {
    fn managed_memory_is_global_or_the_hosts() on PLAIN; {
        start();
        let mut at = 0;
        assert_eq!(cu!(cuMemAllocManaged(&mut at, 4096, 4)), INVALID);
        assert_eq!(cu!(cuMemAllocManaged(&mut at, 0, GLOBAL)), INVALID);
    }
}

promise! {
    fn advice_is_told_again() on PLAIN; {
        start();
        let (at, size) = (managed(1 << 20), 1 << 20);
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, size), 0);
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, size), NOWHERE);
        ok!(cuMemAdvise_v2(at, size, Advice::CU_MEM_ADVISE_SET_READ_MOSTLY, device()));
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, size), 1);
        ok!(cuMemAdvise_v2(at, size, Advice::CU_MEM_ADVISE_UNSET_READ_MOSTLY, device()));
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, size), 0);
        ok!(cuMemAdvise_v2(at, size, Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device()));
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, size), 0);
        ok!(cuMemAdvise_v2(at, size, Advice::CU_MEM_ADVISE_SET_ACCESSED_BY, device()));
        let mut who = [9i32; 2];
        ok!(cuMemRangeGetAttribute(who.as_mut_ptr().cast(), 8, Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, size));
        assert_eq!(who, [0, NOWHERE]);
    }
}

promise! {
    fn a_prefetch_is_told_again_and_keeps_the_bytes() on PLAIN; {
        start();
        let (at, size, lane) = (managed(1 << 20), 1 << 20, stream(1));
        ok!(cuMemsetD8_v2(at, 5, size));
        ok!(cuCtxSynchronize());
        ok!(cuMemPrefetchAsync_v2(at, size, device(), 0, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, size), 0);
        let host = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 };
        ok!(cuMemPrefetchAsync_v2(at, size, host, 0, lane));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(told(Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, size), CPU);
        // SAFETY: managed memory of that size, which no work uses now.
        assert_eq!(unsafe { (at as *const [u8; 4]).read_volatile() }, [5; 4]);
    }
}

promise! {
    fn several_attributes_are_told_at_once() on PLAIN; {
        start();
        let at = managed(1 << 20);
        let (mut mostly, mut preferred) = (9i32, 9i32);
        let mut places = [(&raw mut mostly).cast(), (&raw mut preferred).cast()];
        let mut sizes = [4usize, 4];
        let mut attributes = [
            Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
            Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
        ];
        ok!(cuMemRangeGetAttributes(places.as_mut_ptr(), sizes.as_mut_ptr(), attributes.as_mut_ptr(), 2, at, 1 << 20));
        assert_eq!((mostly, preferred), (0, NOWHERE));
    }
}

promise! {
    fn managed_memory_can_be_attached_to_a_stream() on PLAIN; {
        const SINGLE: u32 = 4;
        start();
        let (at, lane) = (managed(4096), stream(1));
        ok!(cuStreamAttachMemAsync(lane, at, 0, SINGLE));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(cu!(cuStreamAttachMemAsync(lane, at, 0, 64)), INVALID);
    }
}
