//! `cuGetProcAddress`: the functions by the names and versions that headers give them.

use std::ffi::c_void;

use cudarc::driver::sys::{CUdriverProcAddressQueryResult as Found, CUresult};

use crate::abi::{Answer, Maybe, Out, Text};
use crate::functions;

const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// Functions of several signatures: the version of the driver's interface that brought each. The
/// first has the bare name, the second ends with `_v2` and so on. All others have one signature,
/// under the name with the highest suffix.
const SIGNATURES: &[(&str, &[i32])] = &[
    ("cuCtxCreate", &[2000, 3020, 11040, 12050]),
    ("cuCtxGetDevice", &[2000, 13000]),
    ("cuCtxSynchronize", &[2000, 13000]),
    ("cuDeviceGetUuid", &[9020, 11040]),
    ("cuDevicePrimaryCtxRelease", &[7000, 11000]),
    ("cuDevicePrimaryCtxReset", &[7000, 11000]),
    ("cuDevicePrimaryCtxSetFlags", &[7000, 11000]),
    ("cuEventElapsedTime", &[2000, 12080]),
    ("cuGetProcAddress", &[11030, 12000]),
    ("cuGraphAddDependencies", &[10000, 12030]),
    ("cuGraphAddKernelNode", &[10000, 12000]),
    ("cuGraphAddNode", &[12020, 12030]),
    ("cuGraphExecKernelNodeSetParams", &[10010, 12000]),
    ("cuGraphExecUpdate", &[10020, 12000]),
    ("cuGraphGetEdges", &[10000, 12030]),
    ("cuGraphInstantiate", &[10000, 11000]),
    ("cuGraphKernelNodeGetParams", &[10000, 12000]),
    ("cuGraphKernelNodeSetParams", &[10000, 12000]),
    ("cuGraphNodeGetDependencies", &[10000, 12030]),
    ("cuGraphNodeGetDependentNodes", &[10000, 12030]),
    ("cuGraphRemoveDependencies", &[10000, 12030]),
    ("cuIpcOpenMemHandle", &[4010, 11000]),
    ("cuLaunchHostFunc", &[10000, 13010]),
    ("cuLinkAddData", &[5050, 6050]),
    ("cuLinkAddFile", &[5050, 6050]),
    ("cuLinkCreate", &[5050, 6050]),
    ("cuMemAdvise", &[8000, 12020]),
    ("cuMemPrefetchAsync", &[8000, 12020]),
    ("cuMemcpy3DBatchAsync", &[12080, 13000]),
    ("cuMemcpyBatchAsync", &[12080, 13000]),
    ("cuStreamBatchMemOp", &[8000, 11070]),
    ("cuStreamBeginCapture", &[10000, 10010]),
    ("cuStreamGetCaptureInfo", &[10010, 11030, 12030]),
    ("cuStreamGetCtx", &[9020, 12050]),
    ("cuStreamUpdateCaptureDependencies", &[11030, 12030]),
    ("cuStreamWaitValue32", &[8000, 11070]),
    ("cuStreamWaitValue64", &[9000, 11070]),
    ("cuStreamWriteValue32", &[8000, 11070]),
    ("cuStreamWriteValue64", &[9000, 11070]),
];

/// `cuGetProcAddress_v2`: what is not found is no error, but told by the status.
pub fn get(name: Text, out: Out<*mut c_void>, version: i32, flags: u64, status: Maybe<Found>) -> Answer {
    out.set(std::ptr::null_mut());
    status.set(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    if flags > PER_THREAD_DEFAULT_STREAM {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    match find(&name.0, version, flags) {
        Ok(found) => {
            out.set(found);
            status.set(Found::CU_GET_PROC_ADDRESS_SUCCESS);
        }
        Err(why) => status.set(why),
    }
    Ok(())
}

/// `cuGetProcAddress` of CUDA 11: what is not found is an error, and leaves `out` as it is.
pub fn get_v1(name: Text, out: Out<*mut c_void>, version: i32, flags: u64) -> Answer {
    if flags > PER_THREAD_DEFAULT_STREAM {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    out.set(find(&name.0, version, flags).map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?);
    Ok(())
}

fn find(name: &str, version: i32, flags: u64) -> Result<*mut c_void, Found> {
    let symbol = symbol(name, version)?;
    let twin = if flags == PER_THREAD_DEFAULT_STREAM { twin(&symbol) } else { None };
    let found = twin.or_else(|| functions::address(&symbol));
    Ok(found.ok_or(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)?.cast_mut())
}

/// The exported name of what a header of that version calls `name`.
fn symbol(name: &str, version: i32) -> Result<String, Found> {
    if let Some((_, since)) = SIGNATURES.iter().find(|(base, _)| *base == name) {
        return match since.iter().filter(|since| **since <= version).count() {
            0 => Err(Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
            1 => Ok(name.to_owned()),
            number => Ok(format!("{name}_v{number}")),
        };
    }
    let newest = ["_v3", "_v2", ""].iter().map(|suffix| format!("{name}{suffix}"));
    let mut exported = newest.filter(|symbol| functions::address(symbol).is_some());
    exported.next().ok_or(Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
}

/// The form of a function whose default stream is the calling thread's own, if it has one.
fn twin(symbol: &str) -> Option<*const c_void> {
    ["_ptsz", "_ptds"].iter().find_map(|suffix| functions::address(&format!("{symbol}{suffix}")))
}
