//! Names and texts of the driver's error codes.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::CUresult;

use crate::abi::{Answer, Enum, Out};

macro_rules! codes {
    ($($code:ident $text:literal;)*) => {
        /// Every code with its name and its text, both as C wants them.
        static CODES: &[(CUresult, &CStr, &CStr)] = &[$((
            CUresult::$code,
            c_str(concat!(stringify!($code), "\0")),
            c_str(concat!($text, "\0")),
        )),*];
    };
}

const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text of the table contains a zero"),
    }
}

codes! {
    CUDA_SUCCESS "no error";
    CUDA_ERROR_INVALID_VALUE "invalid argument";
    CUDA_ERROR_OUT_OF_MEMORY "out of memory";
    CUDA_ERROR_NOT_INITIALIZED "initialization error";
    CUDA_ERROR_DEINITIALIZED "driver shutting down";
    CUDA_ERROR_PROFILER_DISABLED "profiler disabled";
    CUDA_ERROR_PROFILER_NOT_INITIALIZED "profiler not initialized";
    CUDA_ERROR_PROFILER_ALREADY_STARTED "profiler already started";
    CUDA_ERROR_PROFILER_ALREADY_STOPPED "profiler already stopped";
    CUDA_ERROR_STUB_LIBRARY "stub library";
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER "call requires newer driver";
    CUDA_ERROR_DEVICE_UNAVAILABLE "device unavailable";
    CUDA_ERROR_NO_DEVICE "no CUDA-capable device is detected";
    CUDA_ERROR_INVALID_DEVICE "invalid device ordinal";
    CUDA_ERROR_DEVICE_NOT_LICENSED "device not licensed";
    CUDA_ERROR_INVALID_IMAGE "device kernel image is invalid";
    CUDA_ERROR_INVALID_CONTEXT "invalid device context";
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT "context already current";
    CUDA_ERROR_MAP_FAILED "map failed";
    CUDA_ERROR_UNMAP_FAILED "unmap failed";
    CUDA_ERROR_ARRAY_IS_MAPPED "array is mapped";
    CUDA_ERROR_ALREADY_MAPPED "already mapped";
    CUDA_ERROR_NO_BINARY_FOR_GPU "no binary for gpu";
    CUDA_ERROR_ALREADY_ACQUIRED "already acquired";
    CUDA_ERROR_NOT_MAPPED "not mapped";
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY "not mapped as array";
    CUDA_ERROR_NOT_MAPPED_AS_POINTER "not mapped as pointer";
    CUDA_ERROR_ECC_UNCORRECTABLE "ecc uncorrectable";
    CUDA_ERROR_UNSUPPORTED_LIMIT "unsupported limit";
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE "context already in use";
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "peer access unsupported";
    CUDA_ERROR_INVALID_PTX "invalid ptx";
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "invalid graphics context";
    CUDA_ERROR_NVLINK_UNCORRECTABLE "nvlink uncorrectable";
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND "jit compiler not found";
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION "unsupported ptx version";
    CUDA_ERROR_JIT_COMPILATION_DISABLED "jit compilation disabled";
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "unsupported exec affinity";
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "unsupported devside sync";
    CUDA_ERROR_CONTAINED "contained";
    CUDA_ERROR_INVALID_SOURCE "invalid source";
    CUDA_ERROR_FILE_NOT_FOUND "file not found";
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "shared object symbol not found";
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "shared object init failed";
    CUDA_ERROR_OPERATING_SYSTEM "OS call failed or operation not supported on this OS";
    CUDA_ERROR_INVALID_HANDLE "invalid resource handle";
    CUDA_ERROR_ILLEGAL_STATE "illegal state";
    CUDA_ERROR_LOSSY_QUERY "lossy query";
    CUDA_ERROR_NOT_FOUND "named symbol not found";
    CUDA_ERROR_NOT_READY "device not ready";
    CUDA_ERROR_ILLEGAL_ADDRESS "an illegal memory access was encountered";
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "launch out of resources";
    CUDA_ERROR_LAUNCH_TIMEOUT "launch timeout";
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "launch incompatible texturing";
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access already enabled";
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access not enabled";
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "primary context active";
    CUDA_ERROR_CONTEXT_IS_DESTROYED "context is destroyed";
    CUDA_ERROR_ASSERT "assert";
    CUDA_ERROR_TOO_MANY_PEERS "too many peers";
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "host memory already registered";
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "host memory not registered";
    CUDA_ERROR_HARDWARE_STACK_ERROR "hardware stack error";
    CUDA_ERROR_ILLEGAL_INSTRUCTION "illegal instruction";
    CUDA_ERROR_MISALIGNED_ADDRESS "misaligned address";
    CUDA_ERROR_INVALID_ADDRESS_SPACE "invalid address space";
    CUDA_ERROR_INVALID_PC "invalid pc";
    CUDA_ERROR_LAUNCH_FAILED "launch failed";
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "cooperative launch too large";
    CUDA_ERROR_TENSOR_MEMORY_LEAK "tensor memory leak";
    CUDA_ERROR_NOT_PERMITTED "not permitted";
    CUDA_ERROR_NOT_SUPPORTED "operation not supported";
    CUDA_ERROR_SYSTEM_NOT_READY "system not yet initialized";
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "system driver mismatch";
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "compat not supported on device";
    CUDA_ERROR_MPS_CONNECTION_FAILED "mps connection failed";
    CUDA_ERROR_MPS_RPC_FAILURE "mps rpc failure";
    CUDA_ERROR_MPS_SERVER_NOT_READY "mps server not ready";
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "mps max clients reached";
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "mps max connections reached";
    CUDA_ERROR_MPS_CLIENT_TERMINATED "mps client terminated";
    CUDA_ERROR_CDP_NOT_SUPPORTED "cdp not supported";
    CUDA_ERROR_CDP_VERSION_MISMATCH "cdp version mismatch";
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "stream capture unsupported";
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "stream capture invalidated";
    CUDA_ERROR_STREAM_CAPTURE_MERGE "stream capture merge";
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "stream capture unmatched";
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED "stream capture unjoined";
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION "stream capture isolation";
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "stream capture implicit";
    CUDA_ERROR_CAPTURED_EVENT "captured event";
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "stream capture wrong thread";
    CUDA_ERROR_TIMEOUT "timeout";
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "graph exec update failure";
    CUDA_ERROR_EXTERNAL_DEVICE "external device";
    CUDA_ERROR_INVALID_CLUSTER_SIZE "invalid cluster size";
    CUDA_ERROR_FUNCTION_NOT_LOADED "function not loaded";
    CUDA_ERROR_INVALID_RESOURCE_TYPE "invalid resource type";
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "invalid resource configuration";
    CUDA_ERROR_KEY_ROTATION "key rotation";
    CUDA_ERROR_UNKNOWN "unknown error";
}

/// `cuGetErrorName`: null for a code that is none.
pub fn name(error: Enum<CUresult>, out: Out<*const c_char>) -> Answer {
    out.set(std::ptr::null());
    out.set(find(error.0)?.1.as_ptr());
    Ok(())
}

/// `cuGetErrorString`: null for a code that is none.
pub fn text(error: Enum<CUresult>, out: Out<*const c_char>) -> Answer {
    out.set(std::ptr::null());
    out.set(find(error.0)?.2.as_ptr());
    Ok(())
}

/// The code of a name, with or without `CUDA_ERROR_`.
pub fn by_name(name: &str) -> Option<CUresult> {
    let name = name.trim_start_matches("CUDA_ERROR_");
    let same = |code: &CStr| code.to_str().unwrap_or_default().trim_start_matches("CUDA_ERROR_") == name;
    CODES.iter().find(|(_, code, _)| same(code)).map(|(code, _, _)| *code)
}

fn find(code: u32) -> Answer<&'static (CUresult, &'static CStr, &'static CStr)> {
    let found = CODES.iter().find(|(known, _, _)| *known as u32 == code);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
