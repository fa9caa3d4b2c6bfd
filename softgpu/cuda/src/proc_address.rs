//! `cuGetProcAddress`: the functions by the names and versions that headers give them.

use std::ffi::c_void;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Found, CUresult};

use crate::abi::{Answer, Maybe, Out, Text};
use crate::functions;

/// Functions whose signature changed: base name, since which version, the name of that signature.
/// Newest first. All others have one signature, under the name with the highest suffix.
const CHANGED: &[(&str, i32, &str)] = &[
    ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
    ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
    ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
    ("cuGetProcAddress", 11030, "cuGetProcAddress"),
    ("cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"),
    ("cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"),
    ("cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"),
    ("cuCtxGetDevice", 2000, "cuCtxGetDevice"),
    ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
    ("cuCtxSynchronize", 2000, "cuCtxSynchronize"),
];

/// `cuGetProcAddress_v2`; the flags choose between default streams, which stream handles do here.
pub fn get(name: Text, out: Out<*mut c_void>, version: i32, _flags: u64, status: Maybe<Found>) -> Answer {
    let found = address(&name.0, version).filter(|_| !name.0.is_empty());
    out.set(found.unwrap_or(std::ptr::null()).cast_mut());
    status.set(match found {
        Some(_) => Found::CU_GET_PROC_ADDRESS_SUCCESS,
        None => Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    });
    found.map(drop).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

/// `cuGetProcAddress` of CUDA 11.
pub fn get_v1(name: Text, out: Out<*mut c_void>, version: i32, flags: u64) -> Answer {
    get(name, out, version, flags, Maybe::unwanted())
}

fn address(name: &str, version: i32) -> Option<*const c_void> {
    let mut changed = CHANGED.iter().filter(|(base, ..)| *base == name).peekable();
    if changed.peek().is_some() {
        let (.., symbol) = changed.find(|(_, since, _)| *since <= version)?;
        return functions::address(symbol);
    }
    let suffixes = ["_v4", "_v3", "_v2", ""];
    suffixes.iter().find_map(|suffix| functions::address(&format!("{name}{suffix}")))
}
