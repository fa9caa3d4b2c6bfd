//! Names: the library's own, and what `cuGetProcAddress` answers.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Found, CUresult};

use crate::support::*;

fn address(name: &CStr, version: i32) -> (CUresult, *mut c_void, Found) {
    let (mut at, mut status) = (null_mut(), Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    let code = cu!(cuGetProcAddress_v2(name.as_ptr(), &mut at, version, 0, &mut status));
    (code, at, status)
}

fn own(name: &CStr) -> *mut c_void {
    // SAFETY: the driver is loaded by now, under this name.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "the library's SONAME is libcuda.so.1");
    // SAFETY: an open handle and a string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

promise! {
    fn names_without_suffix_give_the_newest_function() on PLAIN; {
        ok!(cuInit(0));
        assert_eq!(address(c"cuMemAlloc", 13000).1, own(c"cuMemAlloc_v2"));
        assert_eq!(address(c"cuLaunchKernel", 12000).1, own(c"cuLaunchKernel"));
        assert_eq!(address(c"cuCtxCreate", 13000).1, own(c"cuCtxCreate_v4"));
        assert_eq!(address(c"cuCtxCreate", 11000).1, own(c"cuCtxCreate_v2"));
        assert_eq!(address(c"cuGetProcAddress", 13000).1, own(c"cuGetProcAddress_v2"));
    }
}

promise! {
    fn unknown_names_and_the_empty_one_are_not_found() on PLAIN; {
        for (name, version) in [(c"", 0), (c"cuNoSuchThing", 13000)] {
            let (code, at, status) = address(name, version);
            assert_eq!(code, CUresult::CUDA_ERROR_NOT_FOUND);
            assert!(at.is_null());
            assert_eq!(status, Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        }
    }
}

promise! {
    fn what_is_lacking_is_refused() on PLAIN; {
        start();
        let (mut table, mut at) = (std::ptr::null(), 0);
        let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        assert_eq!(cu!(cuGetExportTable(&mut table, std::ptr::null())), refused);
        assert_eq!(cu!(cuMemAllocAsync(&mut at, 8, null_mut())), refused);
        assert_eq!(cu!(cuMemAllocManaged(&mut at, 8, 1)), refused);
    }
}

promise! {
    fn errors_have_names() on PLAIN; {
        let mut text = std::ptr::null();
        ok!(cuGetErrorName(CUresult::CUDA_ERROR_OUT_OF_MEMORY, &mut text));
        // SAFETY: the driver gave a string that stays.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_OUT_OF_MEMORY");
    }
}

promise! {
    fn null_pointers_are_refused() on PLAIN; {
        start();
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(cu!(cuMemAlloc_v2(null_mut(), 8)), invalid);
        assert_eq!(cu!(cuMemCreate(null_mut(), 8, std::ptr::null(), 0)), invalid);
        assert_eq!(cu!(cuStreamSynchronize(0x99 as _)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cu!(cuModuleUnload(null_mut())), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}
