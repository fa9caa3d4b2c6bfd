//! Kernels and variables of the program's own images.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::runtime::sys::cudaMemcpyKind::*;
use cudarc::runtime::sys::*;

use crate::support::*;

fn axpy() -> Program {
    Program::with(c"axpy", c"counters", 32)
}

/// y = 1 + 2 x, by one launch; gives y.
fn compute(launch: impl FnOnce(&[*const c_void])) -> Vec<f32> {
    let (x, y) = (alloc(16), alloc(16));
    write(x, &[0f32, 1.0, 2.0, 3.0]);
    write(y, &[1f32; 4]);
    launch(&[arg(&4u32), arg(&2f32), arg(&x), arg(&y)]);
    read(y, 4)
}

promise! {
    fn a_registered_kernel_is_launched() on 1; {
        let program = axpy();
        let got = compute(|arguments| assert_eq!(program.launch(null_mut(), arguments), 0));
        assert_eq!(got, [1.0, 3.0, 5.0, 7.0]);
    }
}

promise! {
    fn a_kernel_is_launched_in_every_form() on 1; {
        let (program, stream) = (axpy(), stream());
        let expected = [1.0, 3.0, 5.0, 7.0];
        let pointers = |arguments: &[*const c_void]| -> Vec<*mut c_void> {
            arguments.iter().map(|at| at.cast_mut()).collect()
        };
        let cooperative = compute(|arguments| {
            let mut arguments = pointers(arguments);
            ok!(cudaLaunchCooperativeKernel(program.kernel(), ONE, ONE, arguments.as_mut_ptr(), 0, stream));
            ok!(cudaStreamSynchronize(stream));
        });
        assert_eq!(cooperative, expected);
                let config = cudaLaunchConfig_t { gridDim: ONE, blockDim: ONE, dynamicSmemBytes: 0, stream, attrs: null_mut(), numAttrs: 0 };
        let configured = compute(|arguments| {
            ok!(cudaLaunchKernelExC(&config, program.kernel(), pointers(arguments).as_mut_ptr()));
            ok!(cudaDeviceSynchronize());
        });
        assert_eq!(configured, expected);
        let by_handle = compute(|arguments| {
            let mut kernel = null_mut();
            ok!(cudaGetKernel(&mut kernel, program.kernel()));
            ok!(cudaLaunchKernel(kernel.cast(), ONE, ONE, pointers(arguments).as_mut_ptr(), 0, null_mut()));
        });
        assert_eq!(by_handle, expected);
    }
}

promise! {
    fn configurations_wait_for_their_launch() on 1; {
        let push = undeclared!(c"__cudaPushCallConfiguration", fn(dim3, dim3, usize, *mut c_void) -> u32);
        let pop = undeclared!(
            c"__cudaPopCallConfiguration",
            fn(*mut dim3, *mut dim3, *mut usize, *mut *mut c_void) -> u32
        );
        let (mut grid, mut block, mut shared, mut stream) = (ONE, ONE, 0, null_mut());
        let wide = dim3 { x: 7, y: 1, z: 2 };
        // SAFETY: numbers; the stream is not looked at.
        let pushed = unsafe { push(wide, ONE, 3, 2 as _) };
        // SAFETY: four places of ours.
        let popped = unsafe { pop(&mut grid, &mut block, &mut shared, &mut stream) };
        assert_eq!((pushed, popped, grid, block, shared, stream as usize), (0, 0, wide, ONE, 3, 2));
        // SAFETY: as above.
        let missing = unsafe { pop(&mut grid, &mut block, &mut shared, &mut stream) };
        assert_eq!(missing, cudaError::cudaErrorMissingConfiguration as u32);
    }
}

promise! {
    fn impossible_shapes_are_refused() on 1; {
        let program = axpy();
        for block in [dim3 { x: 0, y: 1, z: 1 }, dim3 { x: 1025, y: 1, z: 1 }] {
            let code = rt!(cudaLaunchKernel(program.kernel(), ONE, block, null_mut(), 0, null_mut()));
            assert_eq!(code, cudaError::cudaErrorInvalidConfiguration);
        }
    }
}

promise! {
    fn variables_are_written_and_read_by_their_host_address() on 1; {
        let program = axpy();
        let (symbol, mut size, mut at) = (program.variable(), 0, null_mut());
        ok!(cudaGetSymbolSize(&mut size, symbol));
        ok!(cudaGetSymbolAddress(&mut at, symbol));
        assert_eq!((size, read::<u32>(at, 8)), (32, vec![7; 8]));
        ok!(cudaMemcpyToSymbol(symbol, arg(&9u32), 4, 4, cudaMemcpyHostToDevice));
        let mut back = [0u32; 2];
        ok!(cudaMemcpyFromSymbol(back.as_mut_ptr().cast(), symbol, 8, 0, cudaMemcpyDeviceToHost));
        assert_eq!(back, [7, 9]);
        let beyond = rt!(cudaMemcpyToSymbol(symbol, arg(&9u32), 4, 30, cudaMemcpyHostToDevice));
        assert_eq!(beyond, cudaError::cudaErrorInvalidValue);
    }
}

promise! {
    fn an_unregistered_image_is_gone() on 1; {
        let program = axpy();
        compute(|arguments| assert_eq!(program.launch(null_mut(), arguments), 0));
        let kernel = program.unregister();
        let code = rt!(cudaLaunchKernel(kernel, ONE, ONE, null_mut(), 0, null_mut()));
        assert_eq!(code, cudaError::cudaErrorInvalidDeviceFunction);
    }
}

promise! {
    fn what_a_kernel_needs_is_known() on 1; {
        let program = axpy();
        // SAFETY: numbers, all of which may be 0.
        let mut attributes: cudaFuncAttributes = unsafe { std::mem::zeroed() };
        let shared = cudaFuncAttribute::cudaFuncAttributeMaxDynamicSharedMemorySize;
        ok!(cudaFuncSetAttribute(program.kernel(), shared, 100 << 10));
        ok!(cudaFuncGetAttributes(&mut attributes, program.kernel()));
        assert_eq!((attributes.maxThreadsPerBlock, attributes.maxDynamicSharedSizeBytes), (1024, 100 << 10));
        let (mut offset, mut size) = (0, 0);
        ok!(cudaFuncGetParamInfo(program.kernel(), 3, &mut offset, &mut size));
        assert_eq!((offset, size), (16, 8));
        let mut blocks = 0;
        ok!(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, program.kernel(), 256, 0));
        assert_eq!(blocks, 8);
    }
}
