//! Where a program's CUDA begins.

use super::abi::{Out, Real};
use crate::proc_address;
use crate::process;
use crate::status::Answer;
use std::ffi::{c_char, c_int, c_uint, c_void};
use tidegate_ffi::cuda::sys::{CUdriverProcAddressQueryResult, cuuint64_t};

/// `cuInit`: the driver, then the manager. Where a manager is required, it comes first, so that
/// without one the driver is not touched.
pub fn init(real: Real<'_>, _flags: c_uint) -> Answer {
    if process::is_required() {
        process::start()?;
        return real();
    }
    real()?;
    process::start()
}

/// `cuGetProcAddress` of CUDA 11.
pub fn get_proc_address(
    real: Real<'_>,
    symbol: *const c_char,
    found: Option<Out<'_, *mut c_void>>,
    _version: c_int,
    _flags: cuuint64_t,
) -> Answer {
    proc_address::get(real, symbol, found)
}

/// `cuGetProcAddress` since CUDA 12.
pub fn get_proc_address_v2(
    real: Real<'_>,
    symbol: *const c_char,
    found: Option<Out<'_, *mut c_void>>,
    _version: c_int,
    _flags: cuuint64_t,
    _status: *mut CUdriverProcAddressQueryResult,
) -> Answer {
    proc_address::get(real, symbol, found)
}
