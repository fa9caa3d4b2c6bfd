//! The exported driver functions, made of the table's rows.
//!
//! - *hooked* rows have a row in [`hooks!`](abi) below and a safe function in the file of their
//!   noun; a row that is missing, or has another signature, does not compile;
//! - *gated*, *counted* and *refused* rows are made here from the table alone;
//! - *passes* rows are the driver's own and are not exported.

#![expect(clippy::too_many_arguments, reason = "the driver's own signatures")]
#![cfg_attr(test, expect(non_snake_case, reason = "the driver's own names, exempt only as exports"))]

pub mod abi;
mod capture;
mod context;
mod init;
mod memory;
mod query;
mod room;

use crate::gate;
use crate::log::Once;
use crate::status::Status;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use tidegate_ffi::cuda::Driver;
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::driver_functions;

abi::hooks! {
    fn cuInit(flags: c_uint) => init::init(always);
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: cuuint64_t) => init::get_proc_address(always);
    fn cuGetProcAddress_v2(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult) => init::get_proc_address_v2(always);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) => query::total_memory;
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) => query::device_attribute;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => query::memory_info;
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) => context::retain_primary;
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create_v2;
    fn cuCtxCreate_v3(context: *mut CUcontext, affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice) => context::create_v3;
    fn cuCtxCreate_v4(context: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) => context::create_v4;
    fn cuCtxDestroy_v2(context: CUcontext) => context::destroy;
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) => context::release_primary;
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) => context::reset_primary;
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) => memory::allocate;
    fn cuMemAllocPitch_v2(address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::allocate_pitch;
    fn cuMemFree_v2(address: CUdeviceptr) => memory::free;
    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) => query::address_range;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr) => query::pointer_attribute;
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, address: CUdeviceptr) => query::pointer_attributes;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) => capture::begin;
    fn cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) => capture::begin_to_graph;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) => capture::end;
}

macro_rules! export {
    (gated $name:ident ($($arg:ident : $type:ty),*)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the gate, then the driver.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            let call = || match crate::driver::get().$name {
                // SAFETY: the program's own arguments, and its promise.
                Some(function) => unsafe { function($($arg),*) },
                None => CUresult::CUDA_ERROR_NOT_FOUND,
            };
            gate::submit(call, |failed| Status::from(failed).0)
        }
    };
    (counted $name:ident ($($arg:ident : $type:ty),*)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the driver, and once more when there is room.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            let real = || {
                // SAFETY: the program's own arguments, and its promise.
                let outcome = unsafe { crate::driver::get().$name($($arg),*) };
                outcome.map_err(crate::status::Status::from)
            };
            abi::enter(|process| room::for_current_gpu(process, &real), &real)
        }
    };
    (refused $name:ident ($($arg:ident : $type:ty),*)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: not supported yet.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            static SAID: Once = Once::new();
            abi::refuse(stringify!($name), &SAID, |driver| match driver.$name {
                // SAFETY: the program's own arguments, and its promise.
                Some(function) => unsafe { function($($arg),*) },
                None => CUresult::CUDA_ERROR_NOT_FOUND,
            })
        }
    };
    (hooked $name:ident ($($arg:ident : $type:ty),*)) => {
        // Every hooked row has its function, of the row's type.
        const _: tidegate_ffi::cuda::functions::signature::$name = $name;
    };
    (passes $name:ident ($($arg:ident : $type:ty),*)) => {};
}

macro_rules! ours {
    (passes $name:ident) => {
        None
    };
    ($kind:ident $name:ident) => {
        Some($name as *const () as *mut c_void)
    };
}

macro_rules! exports {
    ($( $kind:ident $([$tag:ident])? $name:ident ( $($arg:ident : $type:ty),* $(,)? ); )*) => {
        $( export!($kind $name ($($arg: $type),*)); )*

        /// Our function of that name, if the table says that ours answers.
        fn ours(name: &str) -> Option<*mut c_void> {
            match name {
                $( stringify!($name) => ours!($kind $name), )*
                _ => None,
            }
        }

        /// Our function for the driver's function at `address`, if ours is to answer.
        pub fn replacement_of(driver: &Driver, address: *mut c_void) -> Option<*mut c_void> {
            if address.is_null() {
                return None;
            }
            $(
                if driver.$name.is_some_and(|theirs| theirs as *mut c_void == address) {
                    return ours!($kind $name);
                }
            )*
            None
        }
    };
}

driver_functions!(exports);

/// Our function for a symbol that a program looks up, if ours is to answer.
pub fn address_of(name: &CStr) -> Option<*mut c_void> {
    if crate::settings::is_off() {
        return None;
    }
    ours(name.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::cuda::functions::{FUNCTIONS, Kind};

    #[test]
    fn every_row_is_ours_unless_it_passes() {
        for function in FUNCTIONS {
            assert_eq!(ours(function.name).is_some(), function.kind != Kind::Passes, "{}", function.name);
        }
        assert_eq!(ours("cuNoSuchFunction"), None);
    }

    #[test]
    fn an_answer_is_mapped_by_its_address() {
        let theirs = cuMemFree_v2 as *mut c_void;
        let resolve = |name: &CStr| if name == c"cuMemAlloc_v2" { theirs } else { std::ptr::null_mut() };
        // SAFETY: never called; only its addresses are compared.
        let driver = unsafe { Driver::with(resolve) };
        assert_eq!(replacement_of(&driver, theirs), Some(cuMemAlloc_v2 as *mut c_void));
        assert_eq!(replacement_of(&driver, std::ptr::null_mut()), None);
    }

    #[test]
    fn without_a_driver_and_a_manager_a_call_is_answered_and_nothing_is_started() {
        // SAFETY: no device memory is touched: there is no driver in unit tests, or it refuses.
        let answer = unsafe { cuMemFree_v2(0) };
        assert_ne!(answer, CUresult::CUDA_SUCCESS);
        assert!(crate::process::active().is_none());
    }
}
