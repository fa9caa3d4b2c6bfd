//! Allocations, copies, memsets, host memory, and what is told about addresses.

use cudarc::driver::sys::{self, CUresult};

use crate::support::*;

promise! {
    fn what_is_written_is_read_back() on PLAIN; {
        start();
        let (one, other) = (alloc(4096), alloc(4096));
        write(one, &(0..1024u32).collect::<Vec<_>>());
        ok!(cuMemcpyDtoD_v2(other + 64, one, 1024));
        assert_eq!(read::<u32>(other + 64, 256), (0..256).collect::<Vec<u32>>());
        ok!(cuMemFree_v2(one));
        ok!(cuMemFree_v2(other));
    }
}

promise! {
    fn memory_holds_what_it_says_and_no_more() on PLAIN; {
        start();
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (MEMORY, MEMORY));
        let at = alloc(MEMORY - 4096);
        assert_eq!(free_memory(), 4096);
        let mut more = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut more, 4097)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        ok!(cuMemFree_v2(at));
        assert_eq!(free_memory(), MEMORY);
    }
}

promise! {
    fn frees_of_what_was_not_allocated_are_refused() on PLAIN; {
        start();
        let at = alloc(4096);
        assert_eq!(cu!(cuMemFree_v2(at + 8)), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuMemFree_v2(at));
        assert_eq!(cu!(cuMemFree_v2(at)), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuMemFree_v2(0));
        let mut nothing = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut nothing, 0)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn memsets_fill_elements_and_rectangles() on PLAIN; {
        start();
        let at = alloc(4096);
        ok!(cuMemsetD8_v2(at, 0xAB, 4096));
        ok!(cuMemsetD32_v2(at, 7, 4));
        ok!(cuMemsetD16Async(at + 16, 9, 2, std::ptr::null_mut()));
        ok!(cuMemsetD2D8_v2(at + 32, 16, 1, 4, 2));
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(at, 5), [7, 7, 7, 7, 0x0009_0009]);
        assert_eq!(read::<u32>(at + 32, 6)[..], [0x0101_0101, 0xABAB_ABAB, 0xABAB_ABAB, 0xABAB_ABAB, 0x0101_0101, 0xABAB_ABAB]);
        assert_eq!(cu!(cuMemsetD32_v2(at + 2, 7, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn memsets_and_copies_within_device_memory_return_before_they_are_done() on PLAIN; {
        start();
        let (at, other) = (alloc(8), zeroes(8));
        let held = hold(std::ptr::null_mut());
        ok!(cuMemsetD8_v2(at, 1, 8));
        ok!(cuMemcpyDtoD_v2(other, at, 4));
        assert_eq!(cu!(cuStreamQuery(std::ptr::null_mut())), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        assert_eq!(read::<u8>(other, 8)[..], [1, 1, 1, 1, 0, 0, 0, 0]);
    }
}

promise! {
    fn memsets_of_host_memory_are_done_when_they_return() on PLAIN; {
        start();
        let host = pinned(16);
        nap(std::ptr::null_mut(), 20);
        ok!(cuMemsetD8_v2(host as u64, 3, 16));
        // SAFETY: pinned memory of that size, and nothing writes it any more.
        assert_eq!(unsafe { host.cast::<[u8; 16]>().read_volatile() }, [3; 16]);
    }
}

promise! {
    fn memory_that_was_asked_to_be_synchronous_is_set_when_a_memset_returns() on PLAIN; {
        start();
        let (at, on) = (alloc(16), 1u32);
        ok!(cuPointerSetAttribute(arg(&on), sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
        nap(std::ptr::null_mut(), 20);
        ok!(cuMemsetD8_v2(at, 3, 16));
        ok!(cuStreamQuery(std::ptr::null_mut()));
    }
}

promise! {
    fn rectangles_are_copied_row_by_row() on PLAIN; {
        start();
        let mut pitch = 0;
        let mut at = 0;
        ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 12, 3, 4));
        assert!(pitch >= 12);
        let source: Vec<u32> = (0..9).collect();
        let mut back = vec![0u32; 4];
        let mut copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: source.as_ptr().cast(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: 12,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: at,
            dstArray: std::ptr::null_mut(),
            dstPitch: pitch,
            WidthInBytes: 12,
            Height: 3,
        };
        ok!(cuMemcpy2D_v2(&copy));
        (copy.srcMemoryType, copy.dstMemoryType) = (copy.dstMemoryType, copy.srcMemoryType);
        (copy.srcDevice, copy.srcPitch, copy.srcXInBytes, copy.srcY) = (at, pitch, 4, 1);
        (copy.dstHost, copy.dstPitch) = (back.as_mut_ptr().cast(), 8);
        (copy.WidthInBytes, copy.Height) = (8, 2);
        ok!(cuMemcpy2DAsync_v2(&copy, std::ptr::null_mut()));
        assert_eq!(back, [4, 5, 7, 8]);
    }
}

promise! {
    fn pageable_sources_are_read_at_the_call_and_pinned_ones_when_it_runs() on PLAIN; {
        start();
        let lane = stream(1);
        let (at, pin) = (alloc(8), pinned(4).cast::<u32>());
        let mut page = 1u32;
        // SAFETY: four bytes of our own.
        unsafe { pin.write(1) };
        let held = hold(lane);
        ok!(cuMemcpyHtoDAsync_v2(at, arg(&page), 4, lane));
        ok!(cuMemcpyHtoDAsync_v2(at + 4, pin.cast(), 4, lane));
        page += 1;
        // SAFETY: as above; the copy has not run.
        unsafe { pin.write(page) };
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(at, 2), [1, 2]);
    }
}

promise! {
    fn copies_to_pageable_memory_are_done_when_they_return() on PLAIN; {
        start();
        let lane = stream(1);
        let at = alloc(4);
        write(at, &[5u32]);
        nap(lane, 30);
        let mut back = 0u32;
        ok!(cuMemcpyDtoHAsync_v2((&raw mut back).cast(), at, 4, lane));
        assert_eq!(back, 5);
        ok!(cuStreamQuery(lane));
    }
}

promise! {
    fn addresses_are_known_for_what_they_are() on PLAIN; {
        use sys::CUpointer_attribute as Attribute;
        let context = start();
        let at = alloc(1000);
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, at + 100));
        assert_eq!((base, size), (at, 1000));
        let mut kind = 0u32;
        ok!(cuPointerGetAttribute((&raw mut kind).cast(), Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
        assert_eq!(kind, 2);
        let mut owner = std::ptr::null_mut::<sys::CUctx_st>();
        ok!(cuPointerGetAttribute((&raw mut owner).cast(), Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, at + 9));
        assert_eq!(owner, context);
        let host = pinned(64) as u64;
        ok!(cuPointerGetAttribute((&raw mut kind).cast(), Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host));
        assert_eq!(kind, 1);
        let mut unknown = [Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE];
        let mut places = [(&raw mut kind).cast()];
        ok!(cuPointerGetAttributes(1, unknown.as_mut_ptr(), places.as_mut_ptr(), &raw const host as u64));
        assert_eq!(kind, 0);
        let none = cu!(cuPointerGetAttribute((&raw mut kind).cast(), Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 8));
        assert_eq!(none, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn host_memory_is_registered_once() on PLAIN; {
        start();
        let mut own = vec![0u8; 10000];
        let at = own.as_mut_ptr().cast();
        ok!(cuMemHostRegister_v2(at, 10000, 0));
        let again = cu!(cuMemHostRegister_v2(at, 10000, 0));
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        ok!(cuMemHostUnregister(at));
        let gone = cu!(cuMemHostUnregister(at));
        assert_eq!(gone, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        let nowhere = cu!(cuMemHostRegister_v2(4096 as *mut _, 4096, 0));
        assert_eq!(nowhere, CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuMemFreeHost(pinned(100)));
    }
}

promise! {
    fn allocations_use_no_descriptors() on PLAIN; {
        start();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let all: Vec<_> = (0..2000).map(|_| alloc(64)).collect();
        assert_eq!((open(), free_memory()), (before, MEMORY - 2000 * 4096));
        all.into_iter().for_each(|at| ok!(cuMemFree_v2(at)));
        assert_eq!(free_memory(), MEMORY);
    }
}

promise! {
    fn cudarc_programs_run_unchanged() on PLAIN; {
        let context = cudarc::driver::CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let there = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let twin = stream.clone_dtod(&there).unwrap();
        assert_eq!(stream.clone_dtoh(&twin).unwrap(), [1.0, 2.0, 3.0]);
        let zeros = stream.alloc_zeros::<u8>(100).unwrap();
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [0; 100]);
        drop((there, twin, zeros));
        context.synchronize().unwrap();
        if on_software() {
            assert_eq!(context.mem_get_info().unwrap(), (MEMORY, MEMORY));
        }
    }
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

promise! {
    fn a_free_waits_for_the_work_before_it() on PLAIN; {
        start();
        let (lane, at, value) = (stream(1), alloc(4096), 3u32);
        nap(lane, 20);
        assert_eq!(launch(kernel(c"poke"), lane, &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        ok!(cuMemFree_v2(at));
        ok!(cuStreamSynchronize(lane));
    }
}

promise! {
    fn copies_and_memsets_of_nothing_succeed() on PLAIN; {
        start();
        let (at, mut byte) = (alloc(64), 1u8);
        ok!(cuMemcpyDtoD_v2(at, at + 8, 0));
        ok!(cuMemcpyHtoD_v2(at, (&raw const byte).cast(), 0));
        ok!(cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), at, 0, std::ptr::null_mut()));
        ok!(cuMemsetD8_v2(at, 1, 0));
    }
}

promise! {
    fn more_than_there_is_is_out_of_memory() on PLAIN; {
        start();
        let (mut free, mut total, mut at) = (0, 0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        assert!(free <= total);
        assert_eq!(cu!(cuMemAlloc_v2(&mut at, total + (2 << 20))), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        alloc(64);
    }
}

promise! {
    fn rows_of_a_pitched_allocation_are_aligned_alike() on PLAIN; {
        start();
        let (mut at, mut pitch) = (0, 0);
        ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 100, 4, 16));
        assert!(pitch >= 100 && pitch.is_multiple_of(16));
        assert_eq!(cu!(cuMemAllocPitch_v2(&mut at, &mut pitch, 100, 4, 5)), INVALID);
        assert_eq!(cu!(cuMemAllocPitch_v2(&mut at, &mut pitch, 0, 4, 4)), INVALID);
    }
}

promise! {
    fn allocations_are_aligned_for_anything() on PLAIN; {
        start();
        for bytes in [1, 3, 1000, 1 << 20] {
            assert_eq!(alloc(bytes) % 256, 0);
        }
    }
}

promise! {
    fn a_pitch_smaller_than_the_row_is_refused() on PLAIN; {
        start();
        let at = alloc(4096);
        let mut copy = volume([64, 2, 1]);
        (copy.srcDevice, copy.dstDevice, copy.srcPitch) = (at, at + 2048, 32);
        assert_eq!(cu!(cuMemcpy3D_v2(&copy)), INVALID);
    }
}

promise! {
    fn a_unified_copy_finds_out_where_its_ends_are() on PLAIN; {
        start();
        let (at, source, mut back) = (alloc(16), [1u32, 2, 3, 4], [0u32; 4]);
        ok!(cuMemcpy(at, source.as_ptr() as u64, 16));
        ok!(cuMemcpy(back.as_mut_ptr() as u64, at, 16));
        assert_eq!(back, source);
    }
}

promise! {
    fn memory_that_was_not_made_here_is_not_freed_as_host_memory() on PLAIN; {
        start();
        let mut own = [0u8; 64];
        assert_eq!(cu!(cuMemFreeHost(own.as_mut_ptr().cast())), INVALID);
    }
}
