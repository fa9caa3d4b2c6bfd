//! Names: what programs link with is there, under the version that they ask for.

use std::ffi::{CStr, CString, c_void};

use cudarc::runtime::sys::cudaDriverEntryPointQueryResult as Status;

use crate::support::*;

/// The runtime's functions that PyTorch 2.11 is linked with.
const OF_PYTORCH: &str = include_str!("pytorch_names.txt");

/// What a compiler makes `kernel<<<…>>>`, `__global__` and `__device__` into.
const OF_COMPILERS: [&CStr; 10] = [
    c"__cudaGetKernel",
    c"__cudaLaunchKernel",
    c"__cudaLaunchKernel_ptsz",
    c"__cudaPushCallConfiguration",
    c"__cudaPopCallConfiguration",
    c"__cudaRegisterFatBinary",
    c"__cudaRegisterFatBinaryEnd",
    c"__cudaUnregisterFatBinary",
    c"__cudaRegisterFunction",
    c"__cudaRegisterVar",
];

/// A library that is open already, by the name that programs open it by.
fn opened(name: &CStr) -> *mut c_void {
    // SAFETY: a string; nothing is loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "{name:?} is open");
    library
}

fn is_versioned(name: &CStr) -> bool {
    symbol(c"cudaMalloc"); // the library is open from now on
    let runtime = opened(c"libcudart.so.13");
    // SAFETY: an open library and strings.
    let found = unsafe { libc::dlvsym(runtime, name.as_ptr(), c"libcudart.so.13".as_ptr()) };
    !found.is_null()
}

promise! {
    fn all_that_pytorch_is_linked_with_is_exported() on 1; {
        let missing: Vec<&str> =
            OF_PYTORCH.lines().filter(|name| !is_versioned(&CString::new(*name).unwrap())).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(OF_PYTORCH.lines().count(), 93);
    }
}

promise! {
    fn all_that_compilers_call_is_exported() on 1; {
        for name in OF_COMPILERS {
            assert!(is_versioned(name), "{name:?}");
        }
    }
}

promise! {
    fn the_drivers_functions_can_be_asked_for() on 1; {
        let (mut at, mut status) = (std::ptr::null_mut(), Status::cudaDriverEntryPointSymbolNotFound);
        ok!(cudaGetDriverEntryPointByVersion(c"cuMemAlloc".as_ptr(), &mut at, 12000, 0, &mut status));
        assert_eq!(status, Status::cudaDriverEntryPointSuccess);
        // SAFETY: an open library and a string.
        let own = unsafe { libc::dlsym(opened(c"libcuda.so.1"), c"cuMemAlloc_v2".as_ptr()) };
        assert_eq!(at, own);
        ok!(cudaGetDriverEntryPointByVersion(c"cuNoSuchThing".as_ptr(), &mut at, 12000, 0, &mut status));
        assert_eq!((at, status), (std::ptr::null_mut(), Status::cudaDriverEntryPointSymbolNotFound));
    }
}
