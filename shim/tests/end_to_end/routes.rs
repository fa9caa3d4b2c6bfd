//! The ways in which a program gets the driver's functions: all lead here.

use crate::guest::look_up;
use crate::manager::Manager;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

promise! {
    fn every_route_to_a_driver_function_leads_here() {
        let manager = Manager::start();
        let guest = manager.guest(&[]);
        let mut line = guest.line();
        for route in ["soname", "name", "path", "default", "address-v1", "address-v2", "address-of-address"] {
            assert_eq!(line.ask(&format!("route {route}")), "ours", "{route}");
        }
        for route in ["passed", "unknown"] {
            assert_eq!(line.ask(&format!("route {route}")), "theirs", "{route}");
        }
        guest.end();
    }
}

/// Asked of a guest: whose function a route leads to.
pub fn of(route: &str) -> String {
    let driver = open(c"libcuda.so.1");
    let found = match route {
        "soname" => look_up(driver, c"cuMemAlloc_v2"),
        "name" => look_up(open(c"libcuda.so"), c"cuLaunchKernel"),
        "path" => look_up(open(&path_of(look_up(driver, c"cuDeviceGet"))), c"cuMemFree_v2"),
        "default" => look_up(libc::RTLD_DEFAULT, c"cuMemcpyHtoD_v2"),
        "address-v1" => address(look_up(driver, c"cuGetProcAddress"), c"cuMemAlloc", false),
        "address-v2" => address(look_up(driver, c"cuGetProcAddress_v2"), c"cuLaunchKernel", true),
        "address-of-address" => {
            let first = address(look_up(driver, c"cuGetProcAddress_v2"), c"cuGetProcAddress", true);
            address(first, c"cuMemFree", true)
        }
        "passed" => look_up(driver, c"cuStreamCreate"),
        "unknown" => look_up(driver, c"cuNoSuchFunction"),
        other => panic!("no route {other}"),
    };
    let ours = !found.is_null() && path_of(found).to_bytes().ends_with(b"libtidegate.so");
    if ours { "ours".into() } else { "theirs".into() }
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; the library is the software driver.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{name:?}");
    library
}

/// The file that an address was loaded from.
fn path_of(address: *mut c_void) -> CString {
    // SAFETY: plain pointers and numbers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; the result goes to our own variable.
    assert_ne!(unsafe { libc::dladdr(address, &mut info) }, 0);
    // SAFETY: a C string of the linker, for a library that stays loaded.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_owned()
}

fn address(route: *mut c_void, name: &CStr, second: bool) -> *mut c_void {
    type V1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
    type V2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
    assert!(!route.is_null());
    let mut found = std::ptr::null_mut();
    let code = if second {
        // SAFETY: the driver's cuGetProcAddress_v2.
        let function = unsafe { std::mem::transmute::<*mut c_void, V2>(route) };
        // SAFETY: a C string, our own variable, and no wish for a status.
        unsafe { function(name.as_ptr(), &mut found, 12000, 0, std::ptr::null_mut()) }
    } else {
        // SAFETY: the driver's cuGetProcAddress of CUDA 11.
        let function = unsafe { std::mem::transmute::<*mut c_void, V1>(route) };
        // SAFETY: a C string and our own variable.
        unsafe { function(name.as_ptr(), &mut found, 11030, 0) }
    };
    assert_eq!(code, 0, "{name:?}");
    found
}
