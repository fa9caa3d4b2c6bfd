//! What is told about addresses and streams, one by one, and the linker.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const DEVICE: u32 = 2;
const HOST: u32 = 1;

/// An attribute that is a number or an address.
fn of<T: Default>(at: u64, attribute: Attribute) -> T {
    let mut value = T::default();
    ok!(cuPointerGetAttribute((&raw mut value).cast(), attribute, at));
    value
}

fn asked(at: u64, attribute: Attribute) -> CUresult {
    let mut value = 0u64;
    cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, at))
}

fn mapped() -> u64 {
    let at = crate::vmm::range(2 * unit());
    crate::vmm::map(at, unit(), crate::vmm::piece(unit()));
    at
}

promise! {
    fn device_memory_has_no_host_pointer_and_host_memory_has() on PLAIN; {
        start();
        assert_eq!(asked(alloc(64), Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER), INVALID);
        let host = pinned(64) as u64;
        assert_eq!(of::<u64>(host + 4, Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER), host + 4);
    }
}

promise! {
    fn device_pointers_of_addresses_are_themselves() on PLAIN; {
        start();
        for at in [alloc(64), pinned(64) as u64] {
            assert_eq!(of::<u64>(at + 16, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER), at + 16);
        }
    }
}

promise! {
    fn memory_tells_its_device() on PLAIN; {
        start();
        for at in [alloc(64), mapped()] {
            assert_eq!(of::<i32>(at, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
            assert_eq!(of::<u32>(at, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), DEVICE);
        }
        assert_eq!(of::<u32>(pinned(8) as u64, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), HOST);
    }
}

promise! {
    fn buffers_have_numbers_of_their_own() on PLAIN; {
        start();
        let (one, other) = (alloc(64), alloc(64));
        let id = |at| of::<u64>(at, Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID);
        assert_eq!(id(one), id(one + 8));
        assert_ne!(id(one), id(other));
    }
}

promise! {
    fn an_allocation_tells_its_range() on PLAIN; {
        start();
        let at = alloc(5000);
        assert_eq!(of::<u64>(at + 100, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), at);
        assert_eq!(of::<usize>(at + 100, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE), 5000);
        assert_eq!(of::<u32>(at, Attribute::CU_POINTER_ATTRIBUTE_MAPPED), 1);
    }
}

promise! {
    fn a_mapped_piece_tells_the_reserved_range_and_its_own_mapping() on PLAIN; {
        start();
        let (at, step) = (crate::vmm::range(4 * unit()), unit() as u64);
        crate::vmm::map(at, unit(), crate::vmm::piece(unit()));
        crate::vmm::map(at + step, unit(), crate::vmm::piece(unit()));
        let told = |attribute| of::<u64>(at + step + 4096, attribute);
        assert_eq!(told(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), at);
        assert_eq!(told(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * step);
        assert_eq!(told(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR), at + step);
        assert_eq!(told(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE), step);
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, at + step + 4096));
        assert_eq!((base, size), (at + step, unit()));
    }
}

promise! {
    fn plain_memory_can_be_shared_by_legacy_handles_and_mapped_memory_cannot() on PLAIN; {
        start();
        let capable = |at| of::<u32>(at, Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
        assert_eq!((capable(alloc(64)), capable(mapped())), (1, 0));
    }
}

promise! {
    fn mapped_memory_tells_how_it_can_be_exported() on PLAIN; {
        start();
        let kinds = |at| of::<u64>(at, Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
        const BY_DESCRIPTOR: u64 = 1;
        assert_eq!(kinds(mapped()) & BY_DESCRIPTOR, BY_DESCRIPTOR);
        assert_eq!(kinds(alloc(64)), 0);
        let (at, made) = (crate::vmm::range(unit()), crate::vmm::piece(unit()));
        crate::vmm::map(at, unit(), crate::vmm::import(crate::vmm::export(made)));
        assert_eq!(kinds(at), 0, "an imported piece");
    }
}

promise! {
    fn memory_of_no_pool_names_none() on PLAIN; {
        start();
        assert_eq!(of::<usize>(alloc(64), Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), 0);
    }
}

promise! {
    fn synchronous_operations_can_be_asked_for() on PLAIN; {
        start();
        let (at, on) = (alloc(64), 1u32);
        let told = || of::<u32>(at, Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        ok!(cuPointerSetAttribute(arg(&on), Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
        assert_eq!(told() & 1, 1);
        let other = cu!(cuPointerSetAttribute(arg(&on), Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, at));
        assert_eq!(other, INVALID);
        let nowhere = cu!(cuPointerSetAttribute(arg(&on), Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 8));
        assert_eq!(nowhere, INVALID);
    }
}

promise! {
    fn freed_memory_is_unknown() on PLAIN; {
        start();
        let at = alloc(4 << 20);
        ok!(cuMemFree_v2(at));
        assert_eq!(asked(at, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), INVALID);
        let (mut base, mut size) = (0, 0);
        assert_ne!(cu!(cuMemGetAddressRange_v2(&mut base, &mut size, at)), CUresult::CUDA_SUCCESS);
    }
}

promise! {
    fn a_range_may_be_asked_for_in_part() on PLAIN; {
        start();
        let at = alloc(4096);
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, null_mut(), at + 9));
        ok!(cuMemGetAddressRange_v2(null_mut(), &mut size, at + 9));
        assert_eq!((base, size), (at, 4096));
    }
}

promise! {
    fn registered_memory_is_pinned_host_memory() on PLAIN; {
        start();
        let mut own = vec![0u8; 1 << 16];
        let at = own.as_mut_ptr();
        ok!(cuMemHostRegister_v2(at.cast(), 1 << 16, 0));
        assert_eq!(of::<u32>(at as u64, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), HOST);
        let mut device = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut device, at.cast(), 0));
        ok!(cuMemsetD8_v2(device, 3, 16));
        ok!(cuCtxSynchronize());
        // SAFETY: the vector's own bytes.
        assert_eq!(unsafe { at.cast::<[u8; 16]>().read_volatile() }, [3; 16]);
        ok!(cuMemHostUnregister(at.cast()));
        assert_eq!(asked(at as u64, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER), INVALID);
    }
}

promise! {
    fn flags_of_host_memory_are_told() on PLAIN; {
        const PORTABLE: u32 = 1;
        start();
        let (mut at, mut flags) = (null_mut::<c_void>(), 0);
        ok!(cuMemHostAlloc(&mut at, 64, PORTABLE));
        ok!(cuMemHostGetFlags(&mut flags, at));
        assert_eq!(flags & PORTABLE, PORTABLE);
        ok!(cuMemFreeHost(at));
        assert_eq!(cu!(cuMemHostGetFlags(&mut flags, at)), INVALID);
    }
}

promise! {
    fn a_stream_tells_its_flags_priority_context_and_device() on PLAIN; {
        let context = start();
        let (mut least, mut greatest) = (9, 9);
        ok!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(greatest <= least);
        let mut lane = null_mut();
        ok!(cuStreamCreateWithPriority(&mut lane, 1, greatest));
        let (mut flags, mut priority, mut owner, mut device) = (0, 9, null_mut(), 9);
        ok!(cuStreamGetFlags(lane, &mut flags));
        ok!(cuStreamGetPriority(lane, &mut priority));
        ok!(cuStreamGetCtx(lane, &mut owner));
        ok!(cuStreamGetDevice(lane, &mut device));
        assert_eq!((flags, priority, owner, device), (1, greatest, context, 0));
        ok!(cuStreamCreateWithPriority(&mut lane, 0, greatest - 100));
        ok!(cuStreamGetPriority(lane, &mut priority));
        assert_eq!(priority, greatest);
    }
}

promise! {
    fn streams_have_numbers_of_their_own() on PLAIN; {
        start();
        let id = |lane| {
            let mut id = 0;
            ok!(cuStreamGetId(lane, &mut id));
            id
        };
        let (one, other) = (stream(0), stream(0));
        assert_eq!(id(one), id(one));
        assert_ne!(id(one), id(other));
        assert_eq!(id(null_mut()), id(1 as sys::CUstream));
    }
}

promise! {
    fn attributes_of_a_stream_are_copied() on PLAIN; {
        use sys::CUstreamAttrID as Name;
        start();
        let (one, other) = (stream(1), stream(1));
        // SAFETY: plain C data.
        let mut value: sys::CUstreamAttrValue = unsafe { std::mem::zeroed() };
        value.syncPolicy = sys::CUsynchronizationPolicy::CU_SYNC_POLICY_YIELD;
        ok!(cuStreamSetAttribute(one, Name::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
        ok!(cuStreamCopyAttributes(other, one));
        // SAFETY: plain C data.
        let mut told: sys::CUstreamAttrValue = unsafe { std::mem::zeroed() };
        ok!(cuStreamGetAttribute(other, Name::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &mut told));
        // SAFETY: the driver wrote this attribute.
        assert_eq!(unsafe { told.syncPolicy }, sys::CUsynchronizationPolicy::CU_SYNC_POLICY_YIELD);
    }
}

promise! {
    fn what_the_linker_makes_is_loaded() on PLAIN; {
        start();
        let (mut link, mut image, mut size) = (null_mut(), null_mut(), 0);
        ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
        let mut text = *b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n\0";
        let kind = sys::CUjitInputType::CU_JIT_INPUT_PTX;
        ok!(cuLinkAddData_v2(link, kind, text.as_mut_ptr().cast(), text.len(), c"text".as_ptr(), 0, null_mut(), null_mut()));
        ok!(cuLinkComplete(link, &mut image, &mut size));
        assert!(size > 0);
        let (mut module, mut function) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, image));
        ok!(cuLinkDestroy(link));
        ok!(cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()));
        assert_eq!(launch(function, null_mut(), &[]), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
    }
}
