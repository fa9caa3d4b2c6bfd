//! The one table of driver functions.
//!
//! Every function that Tidegate knows by name has one row here: its kind, its name, its
//! parameters. The shim's exports, the answers to `dlsym` and `cuGetProcAddress`, the loaded
//! [`Driver`](super::Driver) and the completeness tests are all made from these rows, so there
//! is no second list to keep in step. The signatures are checked at compile time against the
//! bindings of `cuda.h` 13.0; rows marked `older` stand for functions which that header no
//! longer declares (their source: `cuda.h` 12.x).

#![expect(non_snake_case, reason = "the driver's own parameter names")]

use cudarc::driver::sys::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// What the shim does with a driver function that a program calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Our own function answers (and may ask the driver).
    Hooked,
    /// Submits work to the GPU: waits at the gate, then goes to the driver unchanged.
    Gated,
    /// Takes memory outside of pieces (modules, graphs): the driver answers; on out-of-memory the
    /// manager is asked for room, and the call is made once more.
    Counted,
    /// Would get or share memory past the ledger: `CUDA_ERROR_NOT_SUPPORTED`, logged by name.
    Refused,
    /// The driver's own; the shim does not export it.
    Passes,
}

/// One row of the table, without its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The exported C name, with its version suffix.
    pub name: &'static str,
    /// What the shim does with it.
    pub kind: Kind,
}

/// Calls `$callback!` with every row: `kind [older] name(parameter: type, …);`.
///
/// Expand it where the driver's types are in scope: `use cudarc::driver::sys::*` and
/// `use std::ffi::*`.
#[macro_export]
macro_rules! driver_functions {
    ($callback:path) => {
        $callback! {

        // Hooked: ours answers, the driver may be asked.
        hooked cuInit(Flags: c_uint);
        hooked [older] cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: c_int, flags: cuuint64_t);
        hooked cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: c_int, flags: cuuint64_t, symbolStatus: *mut CUdriverProcAddressQueryResult);
        hooked cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
        hooked cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice);
        hooked cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        hooked cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
        hooked [older] cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        hooked [older] cuCtxCreate_v3(pctx: *mut CUcontext, paramsArray: *mut CUexecAffinityParam, numParams: c_int, flags: c_uint, dev: CUdevice);
        hooked cuCtxCreate_v4(pctx: *mut CUcontext, ctxCreateParams: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice);
        hooked cuCtxDestroy_v2(ctx: CUcontext);
        hooked cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
        hooked cuDevicePrimaryCtxReset_v2(dev: CUdevice);
        hooked cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
        hooked cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint);
        hooked cuMemFree_v2(dptr: CUdeviceptr);
        hooked cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr);
        hooked cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr);
        hooked cuPointerGetAttributes(numAttributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr);
        hooked cuStreamBeginCapture_v2(hStream: CUstream, mode: CUstreamCaptureMode);
        hooked cuStreamBeginCaptureToGraph(hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode);
        hooked cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph);

        // Gated: submits work; the gate first, then the driver.
        gated cuLaunchKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void);
        gated cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void);
        gated cuLaunchCooperativeKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void);
        gated cuLaunchCooperativeKernelMultiDevice(launchParamsList: *mut CUDA_LAUNCH_PARAMS, numDevices: c_uint, flags: c_uint);
        gated cuLaunch(f: CUfunction);
        gated cuLaunchGrid(f: CUfunction, grid_width: c_int, grid_height: c_int);
        gated cuLaunchGridAsync(f: CUfunction, grid_width: c_int, grid_height: c_int, hStream: CUstream);
        gated cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream);
        gated cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize);
        gated cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyPeer(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize);
        gated cuMemcpyPeerAsync(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyHtoD_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize);
        gated cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyDtoH_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize);
        gated cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyDtoD_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize);
        gated cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyDtoA_v2(dstArray: CUarray, dstOffset: usize, srcDevice: CUdeviceptr, ByteCount: usize);
        gated cuMemcpyAtoD_v2(dstDevice: CUdeviceptr, srcArray: CUarray, srcOffset: usize, ByteCount: usize);
        gated cuMemcpyHtoA_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize);
        gated cuMemcpyAtoH_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize);
        gated cuMemcpyAtoA_v2(dstArray: CUarray, dstOffset: usize, srcArray: CUarray, srcOffset: usize, ByteCount: usize);
        gated cuMemcpyHtoAAsync_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize, hStream: CUstream);
        gated cuMemcpyAtoHAsync_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize, hStream: CUstream);
        gated cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D);
        gated cuMemcpy2DUnaligned_v2(pCopy: *const CUDA_MEMCPY2D);
        gated cuMemcpy2DAsync_v2(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream);
        gated cuMemcpy3D_v2(pCopy: *const CUDA_MEMCPY3D);
        gated cuMemcpy3DAsync_v2(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream);
        gated cuMemcpy3DPeer(pCopy: *const CUDA_MEMCPY3D_PEER);
        gated cuMemcpy3DPeerAsync(pCopy: *const CUDA_MEMCPY3D_PEER, hStream: CUstream);
        gated cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, hStream: CUstream);
        gated cuMemcpy3DBatchAsync_v2(numOps: usize, opList: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, hStream: CUstream);
        gated cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize);
        gated cuMemsetD16_v2(dstDevice: CUdeviceptr, us: c_ushort, N: usize);
        gated cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: c_uint, N: usize);
        gated cuMemsetD2D8_v2(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize);
        gated cuMemsetD2D16_v2(dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize);
        gated cuMemsetD2D32_v2(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize);
        gated cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream);
        gated cuMemsetD16Async(dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream);
        gated cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream);
        gated cuMemsetD2D8Async(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize, hStream: CUstream);
        gated cuMemsetD2D16Async(dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize, hStream: CUstream);
        gated cuMemsetD2D32Async(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize, hStream: CUstream);
        gated cuMemPrefetchAsync_v2(devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, hStream: CUstream);
        gated cuMemPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: c_ulonglong, hStream: CUstream);
        gated cuMemDiscardBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong, hStream: CUstream);
        gated cuMemDiscardAndPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: c_ulonglong, hStream: CUstream);
        gated cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
        gated cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
        gated cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint);
        gated cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint);
        gated cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, paramArray: *mut CUstreamBatchMemOpParams, flags: c_uint);

        // Counted: takes memory outside of pieces; the driver, and once more when there is room.
        // Code is loaded lazily, so also by what first gets a function or a variable of a module.
        counted cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
        counted cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        counted cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void);
        counted cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void);
        counted cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
        counted cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint);
        counted cuLibraryLoadFromFile(library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint);
        counted cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary);
        counted cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
        counted cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel);
        counted cuFuncLoad(function: CUfunction);
        counted cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: c_ulonglong);
        counted cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
        counted cuCtxSetLimit(limit: CUlimit, value: usize);

        // Refused for now, by name: ways to get or share memory that would go past the ledger.
        refused cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream);
        refused cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream);
        refused cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
        refused cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps);
        refused cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handleType: CUmemAllocationHandleType, flags: c_ulonglong);
        refused cuArrayCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR);
        refused cuArray3DCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR);
        refused cuMipmappedArrayCreate(pHandle: *mut CUmipmappedArray, pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR, numMipmapLevels: c_uint);
        refused cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
        refused cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: CUmemAllocationHandleType);
        refused cuMemExportToShareableHandle(shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: CUmemAllocationHandleType, flags: c_ulonglong);
        refused cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void);
        refused cuMemGetHandleForAddressRange(handle: *mut c_void, dptr: CUdeviceptr, size: usize, handleType: CUmemRangeHandleType, flags: c_ulonglong);
        refused cuMemMapArrayAsync(mapInfoList: *mut CUarrayMapInfo, count: c_uint, hStream: CUstream);
        refused cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr);
        refused cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: c_uint);
        refused cuImportExternalMemory(extMem_out: *mut CUexternalMemory, memHandleDesc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
        refused cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
        refused cuGreenCtxCreate(phCtx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);
        refused cuMulticastCreate(mcHandle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp);
        refused cuGraphicsMapResources(count: c_uint, resources: *mut CUgraphicsResource, hStream: CUstream);

        // Passes: the driver's own; listed because we call it ourselves.
        passes cuDriverGetVersion(driverVersion: *mut c_int);
        passes cuDeviceGetCount(count: *mut c_int);
        passes cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        passes cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
        passes cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice);
        passes cuGetErrorName(error: CUresult, pStr: *mut *const c_char);
        passes cuGetErrorString(error: CUresult, pStr: *mut *const c_char);
        passes cuCtxGetCurrent(pctx: *mut CUcontext);
        passes cuCtxSetCurrent(ctx: CUcontext);
        passes cuCtxPushCurrent_v2(ctx: CUcontext);
        passes cuCtxPopCurrent_v2(pctx: *mut CUcontext);
        passes cuCtxGetDevice(device: *mut CUdevice);
        passes cuCtxSynchronize();
        passes cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent);
        passes cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int);
        passes cuEventCreate(phEvent: *mut CUevent, Flags: c_uint);
        passes cuEventDestroy_v2(hEvent: CUevent);
        passes cuEventRecord(hEvent: CUevent, hStream: CUstream);
        passes cuEventQuery(hEvent: CUevent);
        passes cuEventSynchronize(hEvent: CUevent);
        passes cuStreamCreate(phStream: *mut CUstream, Flags: c_uint);
        passes cuStreamDestroy_v2(hStream: CUstream);
        passes cuStreamSynchronize(hStream: CUstream);
        passes cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus);
        passes cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
        passes cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong);
        passes cuMemAddressFree(ptr: CUdeviceptr, size: usize);
        passes cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
        passes cuMemUnmap(ptr: CUdeviceptr, size: usize);
        passes cuMemRelease(handle: CUmemGenericAllocationHandle);
        passes cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);
        passes cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        passes cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream);
        passes cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint);
        passes cuMemFreeHost(p: *mut c_void);
        passes cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: c_uint);
        passes cuMemHostUnregister(p: *mut c_void);
        passes cuModuleUnload(hmod: CUmodule);        }
    };
}

macro_rules! kind {
    (hooked) => {
        Kind::Hooked
    };
    (gated) => {
        Kind::Gated
    };
    (counted) => {
        Kind::Counted
    };
    (refused) => {
        Kind::Refused
    };
    (passes) => {
        Kind::Passes
    };
}

macro_rules! check_against_header {
    ($name:ident ($($type:ty),*)) => {
        const _: unsafe fn($($type),*) -> CUresult = cudarc::driver::sys::$name;
    };
    (older $name:ident ($($type:ty),*)) => {};
}

macro_rules! table {
    ($( $kind:ident $([$tag:ident])? $name:ident ( $($arg:ident : $type:ty),* $(,)? ); )*) => {
        /// Every row, in the order of the source.
        pub const FUNCTIONS: &[Function] = &[
            $( Function { name: stringify!($name), kind: kind!($kind) } ),*
        ];

        /// The C type of each function, by its name.
        #[expect(non_camel_case_types, missing_docs, reason = "the driver's own names")]
        pub mod signature {
            use super::*;
            $( pub type $name = unsafe extern "C" fn($($arg: $type),*) -> CUresult; )*
        }

        $( check_against_header!($($tag)? $name ($($type),*)); )*
    };
}

driver_functions!(table);

/// The row of `name`, or `None` when the table does not know it.
pub fn find(name: &str) -> Option<Function> {
    FUNCTIONS.iter().copied().find(|function| function.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_function_has_one_row() {
        let names: BTreeSet<_> = FUNCTIONS.iter().map(|function| function.name).collect();
        assert_eq!(names.len(), FUNCTIONS.len());
        assert_eq!(find("cuLaunchKernel").map(|f| f.kind), Some(Kind::Gated));
        assert_eq!(find("cuNoSuchFunction"), None);
    }
}
