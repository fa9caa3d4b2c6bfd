//! Names: the library's own, and what `cuGetProcAddress` answers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Found, CUresult, CUstream};

use crate::support::*;

const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

fn address(name: &CStr, version: i32) -> (CUresult, *mut c_void, Found) {
    address_by(name, version, 0)
}

fn address_by(name: &CStr, version: i32, flags: u64) -> (CUresult, *mut c_void, Found) {
    let (mut at, mut status) = (null_mut(), Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    let code = cu!(cuGetProcAddress_v2(name.as_ptr(), &mut at, version, flags, &mut status));
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
            let not_found = Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            assert_eq!((code, at.is_null(), status), (CUresult::CUDA_SUCCESS, true, not_found));
            // The older form tells by its code, and leaves the place as it is.
            let mut at = std::ptr::dangling_mut();
            let old = own(c"cuGetProcAddress");
            // SAFETY: the driver's function of that name, as CUDA 11 declares it.
            let old: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult = unsafe { std::mem::transmute(old) };
            // SAFETY: a string, and a place for the answer.
            let code = unsafe { old(name.as_ptr(), &mut at, version, 0) };
            assert_eq!((code, at), (CUresult::CUDA_ERROR_NOT_FOUND, std::ptr::dangling_mut()));
        }
    }
}

promise! {
    fn every_name_the_runtime_asks_for_has_the_function_of_that_version() on PLAIN; {
        ok!(cuInit(0));
        let mut own_version = 0;
        ok!(cuDriverGetVersion(&mut own_version));
        let names = include_str!("runtime_names.txt").lines().filter(|line| !line.starts_with('#'));
        for line in names {
            let [name, version, flags, symbol] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let (name, symbol) = (CString::new(name).unwrap(), CString::new(symbol).unwrap());
            let version: i32 = version.parse().unwrap();
            if version <= own_version {
                let (code, at, _) = address_by(&name, version, flags.parse().unwrap());
                assert_eq!(code, CUresult::CUDA_SUCCESS, "{line}");
                assert_eq!(at, own(&symbol), "{line}");
            }
        }
    }
}

promise! {
    fn a_version_before_a_function_existed_is_not_sufficient() on PLAIN; {
        for (name, version) in [(c"cuStreamGetCaptureInfo", 10000), (c"cuGraphAddDependencies", 9000)] {
            let (_, at, status) = address(name, version);
            assert!(at.is_null());
            assert_eq!(status, Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        }
    }
}

promise! {
    fn flags_of_a_lookup_choose_the_default_stream() on PLAIN; {
        let plain = address_by(c"cuMemcpyAsync", 12000, LEGACY).1;
        let per_thread = address_by(c"cuMemcpyAsync", 12000, PER_THREAD).1;
        assert_eq!((plain, per_thread), (own(c"cuMemcpyAsync"), own(c"cuMemcpyAsync_ptsz")));
        assert_eq!(address_by(c"cuMemcpy", 12000, PER_THREAD).1, own(c"cuMemcpy_ptds"));
        assert_eq!(address_by(c"cuMemAlloc", 12000, PER_THREAD).1, own(c"cuMemAlloc_v2"));
        assert_eq!(address_by(c"cuMemcpy", 12000, 8).0, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

/// The form of a function whose default stream is the thread's own.
fn per_thread(name: &CStr) -> *mut c_void {
    let (code, at, _) = address_by(name, 12000, PER_THREAD);
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    at
}

type Query = unsafe extern "C" fn(CUstream) -> CUresult;
type Set = unsafe extern "C" fn(u64, u8, usize) -> CUresult;
type SetAsync = unsafe extern "C" fn(u64, u8, usize, CUstream) -> CUresult;

promise! {
    fn per_thread_forms_take_the_threads_own_stream_for_none() on PLAIN; {
        let context = start() as usize;
        // SAFETY: these are the types of cuStreamQuery and cuMemsetD8Async in cuda.h.
        let query = unsafe { std::mem::transmute::<*mut c_void, Query>(per_thread(c"cuStreamQuery")) };
        // SAFETY: as above.
        let set = unsafe { std::mem::transmute::<*mut c_void, SetAsync>(per_thread(c"cuMemsetD8Async")) };
        let (own_stream, at) = (2 as CUstream, alloc(4));
        let held = hold(own_stream);
        // SAFETY: four bytes of device memory.
        assert_eq!(unsafe { set(at, 1, 4, null_mut()) }, CUresult::CUDA_SUCCESS);
        // SAFETY: the default stream.
        let here = unsafe { query(null_mut()) };
        assert_eq!(here, CUresult::CUDA_ERROR_NOT_READY);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            // SAFETY: the default stream.
            assert_eq!(unsafe { query(null_mut()) }, CUresult::CUDA_SUCCESS);
            assert_eq!(cu!(cuStreamQuery(null_mut())), CUresult::CUDA_ERROR_NOT_READY);
        }).join().unwrap();
        held.let_go();
        ok!(cuStreamSynchronize(own_stream));
        assert_eq!(read::<u32>(at, 1), [0x0101_0101]);
    }
}

promise! {
    fn per_thread_forms_do_not_wait_for_the_streams_of_other_threads() on PLAIN; {
        let context = start() as usize;
        // SAFETY: this is the type of cuMemsetD8 in cuda.h.
        let set = unsafe { std::mem::transmute::<*mut c_void, Set>(per_thread(c"cuMemsetD8")) };
        let at = alloc(4);
        let held = hold(2 as CUstream);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            // SAFETY: four bytes of device memory.
            assert_eq!(unsafe { set(at, 5, 4) }, CUresult::CUDA_SUCCESS);
            ok!(cuStreamSynchronize(2 as CUstream));
        }).join().unwrap();
        held.let_go();
        assert_eq!(read::<u8>(at, 4), [5; 4]);
    }
}

promise! {
    fn what_is_lacking_is_refused() on PLAIN; {
        start();
        let mut table = std::ptr::null();
        let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        assert_eq!(cu!(cuGetExportTable(&mut table, std::ptr::null())), refused);
        assert_eq!(cu!(cuTexObjectDestroy(0)), refused);
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
    fn a_code_that_is_none_has_no_name() on PLAIN; {
        type Name = unsafe extern "C" fn(u32, *mut *const c_char) -> CUresult;
        // SAFETY: this is the type of cuGetErrorName in cuda.h, with the enum as the number it is.
        let name = unsafe { std::mem::transmute::<*mut c_void, Name>(address(c"cuGetErrorName", 12000).1) };
        let mut text = c"".as_ptr();
        // SAFETY: a code and a place for an address.
        assert_eq!(unsafe { name(123_456, &mut text) }, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(text.is_null());
    }
}

promise! {
    fn every_error_has_a_text_of_its_own() on PLAIN; {
        let (mut one, mut other) = (std::ptr::null(), std::ptr::null());
        ok!(cuGetErrorString(CUresult::CUDA_SUCCESS, &mut one));
        ok!(cuGetErrorString(CUresult::CUDA_ERROR_INVALID_VALUE, &mut other));
        // SAFETY: the driver gave strings that stay.
        assert_ne!(unsafe { CStr::from_ptr(one) }, unsafe { CStr::from_ptr(other) });
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
