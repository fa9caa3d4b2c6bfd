//! Errors: which, for how long, and what they are called.

use std::ffi::CStr;
use std::thread;

use cudarc::runtime::sys::cudaError::{self, *};

use crate::support::*;

fn last() -> cudaError {
    rt!(cudaGetLastError())
}

promise! {
    fn the_last_error_is_kept_until_it_is_asked_for() on 1; {
        let mut at = std::ptr::null_mut();
        assert_eq!(rt!(cudaMalloc(&mut at, 1 << 40)), cudaErrorMemoryAllocation);
        alloc(64);
        thread::spawn(|| assert_eq!(last(), cudaSuccess)).join().unwrap();
        assert_eq!(rt!(cudaPeekAtLastError()), cudaErrorMemoryAllocation);
        assert_eq!([last(), last()], [cudaErrorMemoryAllocation, cudaSuccess]);
    }
}

promise! {
    fn what_ends_a_context_stays_until_the_device_is_reset() on 1; {
        let program = Program::with(c"poke", c"counters", 32);
        let (nowhere, value) = (8usize, 1u32);
        assert_eq!(program.launch(std::ptr::null_mut(), &[arg(&nowhere), arg(&value)]), 0);
        assert_eq!(rt!(cudaDeviceSynchronize()), cudaErrorIllegalAddress);
        assert_eq!([last(), last()], [cudaErrorIllegalAddress; 2]);
        let mut at = std::ptr::null_mut();
        assert_eq!(rt!(cudaMalloc(&mut at, 64)), cudaErrorIllegalAddress);
        ok!(cudaDeviceReset());
        assert_eq!(last(), cudaSuccess);
        let somewhere = alloc(64);
        assert_eq!(program.launch(std::ptr::null_mut(), &[arg(&somewhere), arg(&value)]), 0);
        assert_eq!(read::<u32>(somewhere, 1), [value]);
    }
}

promise! {
    fn bad_arguments_are_named() on 1; {
        let at = alloc(64);
        let kind = cudarc::runtime::sys::cudaMemcpyKind::cudaMemcpyDeviceToHost;
        assert_eq!(rt!(cudaMemcpy(std::ptr::null_mut(), at, 64, kind)), cudaErrorInvalidValue);
        assert_eq!(rt!(cudaMalloc(std::ptr::null_mut(), 64)), cudaErrorInvalidValue);
        assert_eq!(rt!(cudaStreamSynchronize(0x99 as _)), cudaErrorInvalidResourceHandle);
        let none = std::ptr::null_mut();
        assert_eq!(rt!(cudaLaunchKernel(at, ONE, ONE, none, 0, none.cast())), cudaErrorInvalidDeviceFunction);
        assert_eq!(rt!(cudaMemcpyToSymbol(at, at, 4, 0, kind)), cudaErrorInvalidMemcpyDirection);
        assert_eq!(rt!(cudaGetSymbolAddress(&mut std::ptr::null_mut(), at)), cudaErrorInvalidSymbol);
    }
}

promise! {
    fn where_no_gpu_is_visible_every_call_says_so() on 1; {
        // SAFETY: this process has one thread that looks at the environment.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "-1") };
        let mut count = 7;
        assert_eq!(rt!(cudaGetDeviceCount(&mut count)), cudaErrorNoDevice);
        assert_eq!(count, 0);
        assert_eq!(rt!(cudaFree(std::ptr::null_mut())), cudaErrorNoDevice);
        assert_eq!(rt!(cudaDriverGetVersion(&mut count)), cudaSuccess);
        assert_eq!(count, 13000);
    }
}

promise! {
    fn errors_have_names_and_texts() on 1; {
        // SAFETY: the runtime gives strings that stay.
        let text = |at: *const std::ffi::c_char| unsafe { CStr::from_ptr(at) };
        assert_eq!(text(rt!(cudaGetErrorName(cudaErrorMemoryAllocation))), c"cudaErrorMemoryAllocation");
        assert_eq!(text(rt!(cudaGetErrorString(cudaErrorMemoryAllocation))), c"out of memory");
        assert_eq!(text(rt!(cudaGetErrorString(cudaErrorInvalidDeviceFunction))), c"invalid device function");
        assert_eq!(text(rt!(cudaGetErrorString(cudaSuccess))), c"no error");
        assert_eq!(last(), cudaSuccess);
    }
}

promise! {
    fn what_is_lacking_is_refused() on 1; {
        let mut table = std::ptr::null();
        assert_eq!(rt!(cudaGetExportTable(&mut table, std::ptr::null())), cudaErrorNotSupported);
    }
}
