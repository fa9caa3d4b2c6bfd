//! Modules, functions, launches.

use std::ptr::null_mut;

use cudarc::driver::sys::{CUfunction, CUresult};

use crate::support::*;

promise! {
    fn parameters_are_copied_at_the_launch() on PLAIN; {
        start();
        let (lane, x, y) = (stream(1), alloc(16), alloc(16));
        write(x, &[1.0f32, 2.0, 3.0, 4.0]);
        write(y, &[1.0f32; 4]);
        let held = hold(lane);
        let (mut count, mut a) = (4u32, 2.0f32);
        let done = launch(kernel(c"axpy"), lane, &[arg(&count), arg(&a), arg(&x), arg(&y)]);
        assert_eq!(done, CUresult::CUDA_SUCCESS);
        (count, a) = (0, 0.0);
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<f32>(y, 4), [3.0, 5.0, 7.0, 9.0], "{count} {a}");
    }
}

promise! {
    fn parameters_may_come_in_one_buffer() on PLAIN; {
        start();
        let (x, y) = (alloc(8), alloc(8));
        write(x, &[1.0f32, 2.0]);
        write(y, &[0.0f32; 2]);
        let mut buffer = Vec::new();
        buffer.extend_from_slice(&2u32.to_ne_bytes());
        buffer.extend_from_slice(&3.0f32.to_ne_bytes());
        buffer.extend_from_slice(&x.to_ne_bytes());
        buffer.extend_from_slice(&y.to_ne_bytes());
        let mut size = buffer.len();
        let mut extra = [std::ptr::without_provenance_mut(1), buffer.as_mut_ptr().cast(), std::ptr::without_provenance_mut(2), (&raw mut size).cast(), null_mut()];
        let axpy = kernel(c"axpy");
        ok!(cuLaunchKernel(axpy, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), extra.as_mut_ptr()));
        assert_eq!(read::<f32>(y, 2), [3.0, 6.0]);
        // Hardware accepts a buffer that is too short, too. What the kernel finds for the last byte is open;
        // that of an address is zero.
        size -= 1;
        ok!(cuLaunchKernel(axpy, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), extra.as_mut_ptr()));
        if on_software() {
            assert_eq!(read::<f32>(y, 2), [6.0, 12.0], "{size}");
        }
    }
}

promise! {
    fn a_kernel_is_told_its_shape() on PLAIN; {
        start();
        let out = alloc(28);
        let mut arguments = [arg(&out).cast_mut()];
        ok!(cuLaunchKernel(kernel(c"shape"), 2, 3, 4, 5, 6, 7, 8, null_mut(), arguments.as_mut_ptr(), null_mut()));
        assert_eq!(read::<u32>(out, 7), [2, 3, 4, 5, 6, 7, 8]);
        let shape = kernel(c"shape");
        let too_big = cu!(cuLaunchKernel(shape, 1, 1, 1, 1025, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()));
        assert_eq!(too_big, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn images_load_from_memory_and_keep_their_own_variables() on PLAIN; {
        start();
        let mut bytes = std::fs::read(kernels()).unwrap();
        bytes.push(0); // where the image is a text
        let load = || {
            let (mut module, mut at, mut size) = (null_mut(), 0, 0);
            ok!(cuModuleLoadData(&mut module, bytes.as_ptr().cast()));
            ok!(cuModuleGetGlobal_v2(&mut at, &mut size, module, c"counters".as_ptr()));
            assert_eq!(size, 32);
            (module, at)
        };
        let ((one, here), (_, there)) = (load(), load());
        write(here, &[1u32; 8]);
        assert_eq!(read::<u32>(there, 8), [7; 8]);
        ok!(cuModuleUnload(one));
        let mut function = null_mut();
        let gone = cu!(cuModuleGetFunction(&mut function, one, c"axpy".as_ptr()));
        assert_eq!(gone, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

promise! {
    fn unknown_names_are_not_found_in_images_we_can_read() on PLAIN; {
        start();
        let path = std::ffi::CString::new(kernels().to_str().unwrap()).unwrap();
        let (mut module, mut function) = (null_mut(), null_mut());
        ok!(cuModuleLoad(&mut module, path.as_ptr()));
        for name in [c"no_such", c"memcpy", c"counters"] {
            let found = cu!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
            assert_eq!(found, CUresult::CUDA_ERROR_NOT_FOUND);
        }
        let missing = cu!(cuModuleLoad(&mut module, c"/no/such/file".as_ptr()));
        assert_eq!(missing, CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    }
}

promise! {
    fn unknown_kernels_of_images_for_real_gpus_do_nothing() on PLAIN; {
        start();
        let (mut module, mut function) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, c".version 8.0 .target sm_90".as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut function, module, c"anything".as_ptr()));
        assert_eq!(launch(function, null_mut(), &[]), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
    }
}

promise! {
    fn named_libraries_give_code_to_images_for_real_gpus() on PLAIN; {
        // SAFETY: this process has one thread that uses the environment.
        unsafe { std::env::set_var("TIDEGATE_SOFTGPU_KERNELS", kernels()) };
        start();
        let (mut module, mut function) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, c".version 8.0 .target sm_90".as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut function, module, c"poke".as_ptr()));
        let (at, value) = (alloc(4), 5u32);
        assert_eq!(launch(function, null_mut(), &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        assert_eq!(read::<u32>(at, 1), [5]);
    }
}

promise! {
    fn libraries_give_kernels_that_launch() on PLAIN; {
        start();
        let path = std::ffi::CString::new(kernels().to_str().unwrap()).unwrap();
        let (mut library, mut kernel) = (null_mut(), null_mut());
        let none = null_mut();
        ok!(cuLibraryLoadFromFile(&mut library, path.as_ptr(), none, null_mut(), 0, null_mut(), null_mut(), 0));
        ok!(cuLibraryGetKernel(&mut kernel, library, c"poke".as_ptr()));
        let (mut offset, mut size) = (0, 0);
        ok!(cuKernelGetParamInfo(kernel, 1, &mut offset, &mut size));
        assert_eq!((offset, size), (8, 4));
        let (at, value) = (alloc(4), 77u32);
        assert_eq!(launch(kernel as CUfunction, null_mut(), &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        assert_eq!(read::<u32>(at, 1), [77]);
        ok!(cuLibraryUnload(library));
    }
}

promise! {
    fn occupancy_is_plausible() on PLAIN; {
        start();
        let (mut grid, mut block) = (0, 0);
        ok!(cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, kernel(c"axpy"), None, 0, 0));
        assert!(grid > 0 && block == 1024);
        let mut blocks = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel(c"axpy"), 256, 0));
        assert_eq!(blocks, 8);
    }
}

promise! {
    fn a_function_is_found_once_and_tells_its_name_module_and_parameters() on PLAIN; {
        start();
        let path = std::ffi::CString::new(kernels().to_str().unwrap()).unwrap();
        let (mut module, mut one, mut other, mut owner) = (null_mut(), null_mut(), null_mut(), null_mut());
        ok!(cuModuleLoad(&mut module, path.as_ptr()));
        ok!(cuModuleGetFunction(&mut one, module, c"poke".as_ptr()));
        ok!(cuModuleGetFunction(&mut other, module, c"poke".as_ptr()));
        ok!(cuFuncGetModule(&mut owner, one));
        assert_eq!((one, owner), (other, module));
        let (mut name, mut offset, mut size) = (std::ptr::null(), 0, 0);
        ok!(cuFuncGetName(&mut name, one));
        // SAFETY: the driver gave a string that stays as long as the function.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"poke");
        ok!(cuFuncGetParamInfo(one, 1, &mut offset, &mut size));
        assert_eq!((offset, size), (8, 4));
        let beyond = cu!(cuFuncGetParamInfo(one, 2, &mut offset, &mut size));
        assert_eq!(beyond, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn launches_of_no_blocks_or_threads_are_refused() on PLAIN; {
        start();
        let (at, value) = (alloc(4), 1u32);
        let mut arguments = [arg(&at).cast_mut(), arg(&value).cast_mut()];
        for (grid, block) in [(0, 1), (1, 0), (1, 2048)] {
            let refused = cu!(cuLaunchKernel(kernel(c"poke"), grid, 1, 1, block, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()));
            assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }
}

promise! {
    fn dynamic_shared_memory_is_granted_up_to_what_a_block_may_have() on PLAIN; {
        use cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute as Attribute};
        start();
        let (function, mut most, mut told) = (kernel(c"poke"), 0, 0);
        let limit = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        ok!(cuDeviceGetAttribute(&mut most, limit, 0));
        let name = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        ok!(cuFuncSetAttribute(function, name, most - 4096));
        ok!(cuFuncGetAttribute(&mut told, name, function));
        assert_eq!(told, most - 4096);
        assert_eq!(cu!(cuFuncSetAttribute(function, name, most + 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

/// An entry of the list that the kernel in [`COPY_RANGES`] is given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    to: u64,
    from: u64,
    bytes: u64,
}

const COPY_RANGES: &str = concat!(include_str!("../../../../manager/src/mover/copy/gather.ptx"), "\0");

promise! {
    fn ranges_of_any_size_and_alignment_are_copied_by_the_movers_kernel() on PLAIN; {
        start();
        let (mut module, mut copy_ranges) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, COPY_RANGES.as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut copy_ranges, module, c"tidegate_copy_ranges".as_ptr()));
        let (bytes, lane) = (1 << 20, stream(1));
        let (from, to, list) = (alloc(bytes), alloc(bytes), pinned(1 << 16).cast::<Range>());
        let source: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut wanted = vec![0xAAu8; bytes];
        write(from, &source);
        write(to, &wanted);
        let (mut count, mut place) = (0u32, 0);
        for size in [0, 1, 3, 4, 15, 16, 17, 31, 32, 33, 64, 511, 512, 513, 4096, 4099] {
            for shifts in [(0, 0), (4, 0), (0, 8), (1, 0), (0, 3), (1, 1), (16, 32), (12, 12)] {
                let (to_at, from_at) = (place + shifts.0, place + shifts.1);
                wanted[to_at..to_at + size].copy_from_slice(&source[from_at..from_at + size]);
                let range = Range { to: to + to_at as u64, from: from + from_at as u64, bytes: size as u64 };
                // SAFETY: the list has room for more ranges than these loops have turns.
                unsafe { list.wrapping_add(count as usize).write(range) };
                (count, place) = (count + 1, (place + size + 64).next_multiple_of(16));
            }
        }
        let mut arguments = [arg(&list).cast_mut(), arg(&count).cast_mut()];
        ok!(cuLaunchKernel(copy_ranges, 3, 1, 1, 64, 1, 1, 0, lane, arguments.as_mut_ptr(), null_mut()));
        ok!(cuStreamSynchronize(lane));
        assert!(read::<u8>(to, bytes) == wanted);
    }
}
