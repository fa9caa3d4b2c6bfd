//! The one table of driver functions.
//!
//! Every function that Tidegate knows by name has one row here: its kind, its name, its
//! parameters. The shim's exports, the answers to `dlsym` and `cuGetProcAddress`, the loaded
//! [`Driver`](super::Driver) and the completeness tests are all made from these rows, so there
//! is no second list to keep in step. The signatures are checked at compile time against the
//! bindings of `cuda.h` 13.0; rows marked `older` stand for functions which that header no
//! longer declares (their source: `cuda.h` 12.x).

#![expect(non_snake_case, reason = "the driver's own parameter names")]

use super::sys::*;
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
/// Expand it where the driver's types are in scope: `use tidegate_ffi::cuda::sys::*` and
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
        hooked cuDeviceGetAttribute(pi: *mut c_int, attrib: DeviceAttribute, dev: CUdevice);
        hooked cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        hooked cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
        hooked [older] cuCtxCreate(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        hooked [older] cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
        hooked [older] cuCtxCreate_v3(pctx: *mut CUcontext, paramsArray: *mut CUexecAffinityParam, numParams: c_int, flags: c_uint, dev: CUdevice);
        hooked cuCtxCreate_v4(pctx: *mut CUcontext, ctxCreateParams: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice);
        hooked cuCtxDestroy_v2(ctx: CUcontext);
        hooked [older] cuCtxDestroy(ctx: CUcontext);
        hooked cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
        hooked [older] cuDevicePrimaryCtxRelease(dev: CUdevice);
        hooked cuDevicePrimaryCtxReset_v2(dev: CUdevice);
        hooked [older] cuDevicePrimaryCtxReset(dev: CUdevice);
        hooked cuCtxAttach(pctx: *mut CUcontext, flags: c_uint);
        hooked cuCtxDetach(ctx: CUcontext);
        hooked cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: c_uint);
        hooked cuCtxDisablePeerAccess(peerContext: CUcontext);
        hooked cuGreenCtxCreate(phCtx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);
        hooked cuGreenCtxDestroy(hCtx: CUgreenCtx);
        hooked cuCtxFromGreenCtx(pContext: *mut CUcontext, hCtx: CUgreenCtx);
        hooked cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
        hooked cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint);
        hooked cuMemFree_v2(dptr: CUdeviceptr);
        hooked cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
        hooked cuLibraryGetManaged(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
        hooked cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) and cuMemAllocAsync_ptsz;
        hooked cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) and cuMemAllocFromPoolAsync_ptsz;
        hooked cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) and cuMemFreeAsync_ptsz;
        hooked cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps);
        hooked cuMemPoolDestroy(pool: CUmemoryPool);
        hooked cuMemPoolTrimTo(pool: CUmemoryPool, minBytesToKeep: usize);
        hooked cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void);
        hooked cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void);
        hooked cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
        hooked cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, memPool: CUmemoryPool, location: *mut CUmemLocation);
        hooked cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice);
        hooked cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
        hooked cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool);
        hooked cuMemGetDefaultMemPool(pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType);
        hooked cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType);
        hooked cuMemSetMemPool(location: *mut CUmemLocation, type_: CUmemAllocationType, pool: CUmemoryPool);
        hooked [older] cuGraphExecUpdate(hGraphExec: CUgraphExec, hGraph: CUgraph, hErrorNode_out: *mut CUgraphNode, updateResult_out: *mut CUgraphExecUpdateResult);
        hooked cuGraphExecUpdate_v2(hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo);
        hooked cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph);
        hooked cuGraphAddChildGraphNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, childGraph: CUgraph);
        hooked cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
        hooked cuGraphAddMemFreeNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, dptr: CUdeviceptr);
        hooked [older] cuGraphAddNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUgraphNodeParams);
        hooked cuGraphAddNode_v2(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams);
        hooked [newer] cuGraphAddNode_v3(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams);
        hooked cuGraphMemFreeNodeGetParams(hNode: CUgraphNode, dptr_out: *mut CUdeviceptr);
        hooked cuGraphHostNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_HOST_NODE_PARAMS);
        hooked cuGraphDestroy(hGraph: CUgraph);
        hooked cuGraphExecDestroy(hGraphExec: CUgraphExec);
        hooked cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
        hooked cuMemRelease(handle: CUmemGenericAllocationHandle);
        hooked cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void);
        hooked cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        hooked cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
        hooked cuMemUnmap(ptr: CUdeviceptr, size: usize);
        hooked cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);
        hooked cuMemExportToShareableHandle(shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: CUmemAllocationHandleType, flags: c_ulonglong);
        hooked cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        hooked cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr);
        hooked cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: c_uint);
        hooked [older] cuIpcOpenMemHandle(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: c_uint);
        hooked cuIpcCloseMemHandle(dptr: CUdeviceptr);
        hooked cuStreamSynchronize(hStream: CUstream) and cuStreamSynchronize_ptsz;
        hooked cuStreamDestroy_v2(hStream: CUstream);
        hooked [older] cuStreamDestroy(hStream: CUstream);
        hooked cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr);
        hooked cuPointerGetAttribute(data: *mut c_void, attribute: PointerAttribute, ptr: CUdeviceptr);
        hooked cuPointerGetAttributes(numAttributes: c_uint, attributes: *mut PointerAttribute, data: *mut *mut c_void, ptr: CUdeviceptr);
        hooked cuPointerSetAttribute(value: *const c_void, attribute: PointerAttribute, ptr: CUdeviceptr);
        hooked cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr);
        hooked [older] cuStreamBeginCapture(hStream: CUstream) and cuStreamBeginCapture_ptsz;
        hooked cuStreamBeginCapture_v2(hStream: CUstream, mode: CUstreamCaptureMode) and cuStreamBeginCapture_v2_ptsz;
        hooked cuStreamBeginCaptureToGraph(hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode) and cuStreamBeginCaptureToGraph_ptsz;
        hooked [newer] cuStreamBeginRecaptureToGraph(hStream: CUstream, mode: CUstreamCaptureMode, hGraph: CUgraph, callbackFunc: *mut c_void, userData: *mut c_void) and cuStreamBeginRecaptureToGraph_ptsz;
        hooked cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) and cuStreamEndCapture_ptsz;
        hooked cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWriteValue32_v2_ptsz;
        hooked cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWriteValue64_v2_ptsz;
        hooked cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWaitValue32_v2_ptsz;
        hooked cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWaitValue64_v2_ptsz;
        hooked cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, paramArray: *mut CUstreamBatchMemOpParams, flags: c_uint) and cuStreamBatchMemOp_v2_ptsz;
        hooked [older] cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWriteValue32_ptsz;
        hooked [older] cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWriteValue64_ptsz;
        hooked [older] cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWaitValue32_ptsz;
        hooked [older] cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWaitValue64_ptsz;
        hooked [older] cuStreamBatchMemOp(stream: CUstream, count: c_uint, paramArray: *mut CUstreamBatchMemOpParams, flags: c_uint) and cuStreamBatchMemOp_ptsz;

        // Gated: submits work; the gate first, then the driver.
        gated cuLaunchKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) and cuLaunchKernel_ptsz;
        gated cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) and cuLaunchKernelEx_ptsz;
        gated cuLaunchCooperativeKernel(f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void) and cuLaunchCooperativeKernel_ptsz;
        gated cuLaunchCooperativeKernelMultiDevice(launchParamsList: *mut CUDA_LAUNCH_PARAMS, numDevices: c_uint, flags: c_uint);
        gated cuLaunch(f: CUfunction);
        gated cuLaunchGrid(f: CUfunction, grid_width: c_int, grid_height: c_int);
        gated cuLaunchGridAsync(f: CUfunction, grid_width: c_int, grid_height: c_int, hStream: CUstream);
        gated cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) and cuGraphLaunch_ptsz;
        gated cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) and cuGraphUpload_ptsz;
        // Work on the host, which a stream's work waits for.
        gated cuLaunchHostFunc(hStream: CUstream, fn_: CUhostFn, userData: *mut c_void) and cuLaunchHostFunc_ptsz;
        gated [newer] cuLaunchHostFunc_v2(hStream: CUstream, fn_: CUhostFn, userData: *mut c_void, syncMode: c_uint) and cuLaunchHostFunc_v2_ptsz;
        gated cuStreamAddCallback(hStream: CUstream, callback: CUstreamCallback, userData: *mut c_void, flags: c_uint) and cuStreamAddCallback_ptsz;
        gated cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) and cuMemcpy_ptds;
        gated cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) and cuMemcpyAsync_ptsz;
        gated cuMemcpyPeer(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize) and cuMemcpyPeer_ptds;
        gated cuMemcpyPeerAsync(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream) and cuMemcpyPeerAsync_ptsz;
        gated cuMemcpyHtoD_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) and cuMemcpyHtoD_v2_ptds;
        gated cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) and cuMemcpyHtoDAsync_v2_ptsz;
        gated cuMemcpyDtoH_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) and cuMemcpyDtoH_v2_ptds;
        gated cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) and cuMemcpyDtoHAsync_v2_ptsz;
        gated cuMemcpyDtoD_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) and cuMemcpyDtoD_v2_ptds;
        gated cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) and cuMemcpyDtoDAsync_v2_ptsz;
        gated cuMemcpyDtoA_v2(dstArray: CUarray, dstOffset: usize, srcDevice: CUdeviceptr, ByteCount: usize) and cuMemcpyDtoA_v2_ptds;
        gated cuMemcpyAtoD_v2(dstDevice: CUdeviceptr, srcArray: CUarray, srcOffset: usize, ByteCount: usize) and cuMemcpyAtoD_v2_ptds;
        gated cuMemcpyHtoA_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize) and cuMemcpyHtoA_v2_ptds;
        gated cuMemcpyAtoH_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize) and cuMemcpyAtoH_v2_ptds;
        gated cuMemcpyAtoA_v2(dstArray: CUarray, dstOffset: usize, srcArray: CUarray, srcOffset: usize, ByteCount: usize) and cuMemcpyAtoA_v2_ptds;
        gated cuMemcpyHtoAAsync_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) and cuMemcpyHtoAAsync_v2_ptsz;
        gated cuMemcpyAtoHAsync_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize, hStream: CUstream) and cuMemcpyAtoHAsync_v2_ptsz;
        gated cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D) and cuMemcpy2D_v2_ptds;
        gated cuMemcpy2DUnaligned_v2(pCopy: *const CUDA_MEMCPY2D) and cuMemcpy2DUnaligned_v2_ptds;
        gated cuMemcpy2DAsync_v2(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) and cuMemcpy2DAsync_v2_ptsz;
        gated cuMemcpy3D_v2(pCopy: *const CUDA_MEMCPY3D) and cuMemcpy3D_v2_ptds;
        gated cuMemcpy3DAsync_v2(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) and cuMemcpy3DAsync_v2_ptsz;
        gated cuMemcpy3DPeer(pCopy: *const CUDA_MEMCPY3D_PEER) and cuMemcpy3DPeer_ptds;
        gated cuMemcpy3DPeerAsync(pCopy: *const CUDA_MEMCPY3D_PEER, hStream: CUstream) and cuMemcpy3DPeerAsync_ptsz;
        gated [older] cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, failIdx: *mut usize, hStream: CUstream) and cuMemcpyBatchAsync_ptsz;
        gated [older] cuMemcpy3DBatchAsync(numOps: usize, opList: *mut CUDA_MEMCPY3D_BATCH_OP, failIdx: *mut usize, flags: c_ulonglong, hStream: CUstream) and cuMemcpy3DBatchAsync_ptsz;
        gated [newer] cuMemcpyWithAttributesAsync(dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, hStream: CUstream) and cuMemcpyWithAttributesAsync_ptsz;
        gated [newer] cuMemcpy3DWithAttributesAsync(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, hStream: CUstream) and cuMemcpy3DWithAttributesAsync_ptsz;
        gated [newer] cuFabricCpyBatchAsync(numOps: usize, opList: *mut c_void, flags: c_ulonglong, hStream: CUstream) and cuFabricCpyBatchAsync_ptsz;
        gated cuMemBatchDecompressAsync(paramsArray: *mut CUmemDecompressParams, count: usize, flags: c_uint, errorIndex: *mut usize, stream: CUstream) and cuMemBatchDecompressAsync_ptsz;
        gated cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, hStream: CUstream) and cuMemcpyBatchAsync_v2_ptsz;
        gated cuMemcpy3DBatchAsync_v2(numOps: usize, opList: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, hStream: CUstream) and cuMemcpy3DBatchAsync_v2_ptsz;
        gated cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize) and cuMemsetD8_v2_ptds;
        gated cuMemsetD16_v2(dstDevice: CUdeviceptr, us: c_ushort, N: usize) and cuMemsetD16_v2_ptds;
        gated cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: c_uint, N: usize) and cuMemsetD32_v2_ptds;
        gated cuMemsetD2D8_v2(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize) and cuMemsetD2D8_v2_ptds;
        gated cuMemsetD2D16_v2(dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize) and cuMemsetD2D16_v2_ptds;
        gated cuMemsetD2D32_v2(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize) and cuMemsetD2D32_v2_ptds;
        gated cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream) and cuMemsetD8Async_ptsz;
        gated cuMemsetD16Async(dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream) and cuMemsetD16Async_ptsz;
        gated cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream) and cuMemsetD32Async_ptsz;
        gated cuMemsetD2D8Async(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize, hStream: CUstream) and cuMemsetD2D8Async_ptsz;
        gated cuMemsetD2D16Async(dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize, hStream: CUstream) and cuMemsetD2D16Async_ptsz;
        gated cuMemsetD2D32Async(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize, hStream: CUstream) and cuMemsetD2D32Async_ptsz;
        gated [older] cuMemPrefetchAsync(devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) and cuMemPrefetchAsync_ptsz;
        gated cuMemPrefetchAsync_v2(devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, hStream: CUstream) and cuMemPrefetchAsync_v2_ptsz;
        gated cuMemPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: c_ulonglong, hStream: CUstream) and cuMemPrefetchBatchAsync_ptsz;
        gated cuMemDiscardBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong, hStream: CUstream) and cuMemDiscardBatchAsync_ptsz;
        gated cuMemDiscardAndPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetchLocs: *mut CUmemLocation, prefetchLocIdxs: *mut usize, numPrefetchLocs: usize, flags: c_ulonglong, hStream: CUstream) and cuMemDiscardAndPrefetchBatchAsync_ptsz;
        gated cuSignalExternalSemaphoresAsync(extSemArray: *const CUexternalSemaphore, paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, numExtSems: c_uint, stream: CUstream) and cuSignalExternalSemaphoresAsync_ptsz;
        gated cuWaitExternalSemaphoresAsync(extSemArray: *const CUexternalSemaphore, paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, numExtSems: c_uint, stream: CUstream) and cuWaitExternalSemaphoresAsync_ptsz;

        // Counted: takes memory outside of pieces; the driver, and once more when there is room.
        // Code is loaded lazily, so also by what first gets a function or a variable of a module.
        counted cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
        counted cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        counted cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: c_uint, options: *mut CUjit_option, optionValues: *mut *mut c_void);
        counted cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void);
        counted cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
        counted cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char);
        counted cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint);
        counted cuLibraryLoadFromFile(library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut CUjit_option, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut CUlibraryOption, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint);
        counted cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary);
        counted cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
        counted cuLibraryGetUnifiedFunction(fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char);
        counted cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel);
        counted cuFuncLoad(function: CUfunction);
        hooked [older] cuGraphInstantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize);
        hooked [older] cuGraphInstantiate_v2(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize);
        hooked cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: c_ulonglong);
        hooked cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) and cuGraphInstantiateWithParams_ptsz;
        counted cuArrayCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR);
        counted cuArray3DCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR);
        counted cuMipmappedArrayCreate(pHandle: *mut CUmipmappedArray, pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR, numMipmapLevels: c_uint);
        counted cuCtxSetLimit(limit: CUlimit, value: usize);

        // Refused for now, by name: ways to get or share memory that would go past the ledger.
        refused cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handleType: CUmemAllocationHandleType, flags: c_ulonglong);
        refused cuMemGetHandleForAddressRange(handle: *mut c_void, dptr: CUdeviceptr, size: usize, handleType: CUmemRangeHandleType, flags: c_ulonglong);
        refused cuMemMapArrayAsync(mapInfoList: *mut CUarrayMapInfo, count: c_uint, hStream: CUstream) and cuMemMapArrayAsync_ptsz;
        refused cuImportExternalMemory(extMem_out: *mut CUexternalMemory, memHandleDesc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
        refused cuMulticastCreate(mcHandle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp);
        refused cuGraphicsMapResources(count: c_uint, resources: *mut CUgraphicsResource, hStream: CUstream) and cuGraphicsMapResources_ptsz;

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
        hooked cuCtxSynchronize();
        passes cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent);
        passes cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int);
        passes cuEventCreate(phEvent: *mut CUevent, Flags: c_uint);
        passes cuEventDestroy_v2(hEvent: CUevent);
        passes cuEventRecord(hEvent: CUevent, hStream: CUstream) and cuEventRecord_ptsz;
        hooked cuEventQuery(hEvent: CUevent);
        hooked cuEventSynchronize(hEvent: CUevent);
        passes cuStreamCreate(phStream: *mut CUstream, Flags: c_uint);
        passes cuStreamGetId(hStream: CUstream, streamId: *mut c_ulonglong);
        passes cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext);
        passes [older] cuStreamGetCaptureInfo_v2(hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, numDependencies_out: *mut usize);
        passes cuGraphAddEmptyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize);
        hooked cuStreamQuery(hStream: CUstream) and cuStreamQuery_ptsz;
        passes cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) and cuStreamIsCapturing_ptsz;
        passes cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
        passes cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: CUmemAllocationHandleType);
        passes cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong);
        passes cuMemAddressFree(ptr: CUdeviceptr, size: usize);
        passes cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction);
        passes cuFuncGetParamInfo(func: CUfunction, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize);
        passes cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint);
        passes cuMemFreeHost(p: *mut c_void);
        passes cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: c_uint);
        passes cuMemHostUnregister(p: *mut c_void);
        passes cuModuleUnload(hmod: CUmodule);
        }
    };
}

/// Calls `$callback!` with the functions of which the name is enough: `kind { name … }`, kind being
/// `refused` or `passes`; what else is passed to it comes first.
#[macro_export]
macro_rules! driver_names {
    ($callback:path $(, $first:tt)?) => {
        $callback! {
        $($first)?

        // Refused: 32-bit device addresses (CUDA 3.1 and before). None of our memory has one, and what they
        // got or touched would pass the ledger and the gate.
        refused {
            cuArray3DCreate cuArrayCreate cuGLMapBufferObject cuGLMapBufferObjectAsync
            cuGraphicsResourceGetMappedPointer cuMemAlloc cuMemAllocPitch cuMemFree cuMemGetAddressRange
            cuMemHostGetDevicePointer cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D
            cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA
            cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync
            cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8
            cuMemsetD32 cuMemsetD8 cuModuleGetGlobal cuTexRefGetAddress cuTexRefSetAddress
            cuTexRefSetAddress2D cuTexRefSetAddress2D_v2
        }

        // Refused: a pool's memory in another process. A pool of ours has no memory of its own.
        refused {
            cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolImportPointer
        }

        // Refused: gets memory that the ledger does not know, or lets others at memory that moves: graphics,
        // fabric endpoints, multicast, sparse and graph-owned memory, graphs of any node.
        refused {
            cuEGLStreamConsumerAcquireFrame cuEGLStreamProducerPresentFrame cuGLCtxCreate
            cuGLCtxCreate_v2 cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz
            cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds
            cuGraphicsResourceGetMappedEglFrame cuGraphicsResourceGetMappedMipmappedArray
            cuGraphicsResourceGetMappedPointer_v2 cuGraphicsSubResourceGetMappedArray
            cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr
            cuLogicalEndpointBindMem cuLogicalEndpointCreate cuLogicalEndpointExport
            cuLogicalEndpointImport cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2
            cuMulticastBindMem cuMulticastBindMem_v2 cuStreamBeginCaptureToCig
            cuStreamBeginCaptureToCig_ptsz cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz
            cuVDPAUCtxCreate cuVDPAUCtxCreate_v2
        }

        // Refused: would bring memory back past the ledger (the checkpoints of another tool).
        refused {
            cuCheckpointProcessCheckpoint cuCheckpointProcessRestore
        }

        // Passes: asks about devices and the driver, and tells nothing of memory.
        passes {
            cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGetByPCIBusId cuDeviceGetCliqueCount
            cuDeviceGetCliqueInfo cuDeviceGetDevResource cuDeviceGetExecAffinitySupport
            cuDeviceGetFabricClusterUuid cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities
            cuDeviceGetLuid cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities
            cuDeviceGetP2PAttribute cuDeviceGetPCIBusId cuDeviceGetProperties
            cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGraphMemTrim
            cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute cuDeviceTotalMem
            cuDeviceUnregisterAsyncNotification cuFlushGPUDirectRDMAWrites cuGLGetDevices
            cuGLGetDevices_v2 cuGLInit cuGetExportTable cuLogicalEndpointDestroy
            cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
            cuLogicalEndpointQuery cuLogicalEndpointUnbind cuTensorMapEncodeIm2col
            cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
            cuTensorMapSetAllocationClass cuVDPAUGetDevice
        }

        // Passes: contexts that exist already, their settings and what is asked of them. A context is made and
        // ended by hooked functions only.
        passes {
            cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetDevResource cuCtxGetDevice_v2
            cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig
            cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPushCurrent cuCtxResetPersistingL2Cache
            cuCtxSetCacheConfig cuCtxSetFlags cuCtxSetSharedMemConfig cuCtxSynchronize_v2 cuCtxWaitEvent
            cuDevResourceGenerateDesc cuDevSmResourceSplit cuDevSmResourceSplitByCount
            cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2
            cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate
            cuGreenCtxWaitEvent cuSubgridCreate cuSubgridWorkerGridCreate cuSubgridWorksetCreate
        }

        // Passes: code that is loaded, its attributes and parameters; what it takes is taken by counted functions.
        passes {
            cuFuncGetAttribute cuFuncGetModule cuFuncGetParamCount
            cuFuncIsLoaded cuFuncSetAttribute cuFuncSetBlockShape cuFuncSetCacheConfig
            cuFuncSetSharedMemConfig cuFuncSetSharedSize cuKernelGetAttribute cuKernelGetLibrary
            cuKernelGetName cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute
            cuKernelSetCacheConfig cuLibraryEnumerateKernels cuLibraryGetKernel cuLibraryGetKernelCount
            cuLibraryUnload cuLinkAddData cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete
            cuLinkCreate cuLinkCreate_v2 cuLinkDestroy cuModuleEnumerateFunctions
            cuModuleGetFunctionCount cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef
            cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
            cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
            cuOccupancyMaxPotentialClusterSize cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti
            cuParamSetv
        }

        // Passes: streams and events. They submit no work of their own, and waiting for them must be possible
        // while the gate is closed.
        passes {
            cuEventDestroy cuEventElapsedTime cuEventElapsedTime_v2 cuEventRecordWithFlags
            cuEventRecordWithFlags_ptsz cuStreamAttachMemAsync
            cuStreamAttachMemAsync_ptsz cuStreamCopyAttributes cuStreamCopyAttributes_ptsz
            cuStreamCreateWithPriority cuStreamGetAttribute cuStreamGetAttribute_ptsz
            cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2_ptsz cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz
            cuStreamGetCtx_ptsz cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz
            cuStreamGetDevResource cuStreamGetDevResource_ptsz cuStreamGetDevice cuStreamGetDevice_ptsz
            cuStreamGetFlags cuStreamGetFlags_ptsz cuStreamGetGreenCtx cuStreamGetId_ptsz
            cuStreamGetPriority cuStreamGetPriority_ptsz
            cuStreamSetAttribute cuStreamSetAttribute_ptsz cuStreamUpdateCaptureDependencies
            cuStreamUpdateCaptureDependencies_ptsz cuStreamUpdateCaptureDependencies_v2
            cuStreamUpdateCaptureDependencies_v2_ptsz cuStreamWaitEvent cuStreamWaitEvent_ptsz
        }

        // Passes: graphs are plans; memory is taken when they are instantiated, work is submitted when launched.
        passes {
            cuGraphAddBatchMemOpNode cuGraphAddDependencies
            cuGraphAddDependencies_v2 cuGraphAddEventRecordNode
            cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
            cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode
            cuGraphAddKernelNode_v2 cuGraphAddMemcpyNode cuGraphAddMemsetNode
            cuGraphBatchMemOpNodeGetParams
            cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph
            cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint
            cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
            cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams
            cuGraphExecChildGraphNodeSetParams cuGraphExecEventRecordNodeSetEvent
            cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
            cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId
            cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams
            cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams
            cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams
            cuGraphExternalSemaphoresSignalNodeGetParams
            cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
            cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId
            cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeSetParams
            cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams
            cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams
            cuGraphKernelNodeSetParams_v2 cuGraphMemAllocNodeGetParams
            cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
            cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetContainingGraph
            cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes
            cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetLocalId
            cuGraphNodeGetParams cuGraphNodeGetToolsId cuGraphNodeGetType cuGraphNodeSetEnabled
            cuGraphNodeSetParams cuGraphNodeSetParams_v2 cuGraphReleaseUserObject
            cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject
            cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
        }

        // Passes: the host's own memory, and questions about addresses that are not ours to answer.
        passes {
            cuMemAdvise cuMemAdvise_v2 cuMemAllocHost cuMemAllocHost_v2
            cuMemGetInfo cuMemGetLocationInfo
            cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister cuMemRangeGetAttribute
            cuMemRangeGetAttributes cuMulticastGetGranularity cuMulticastUnbind
        }

        // Passes: arrays and textures that exist already.
        passes {
            cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayDestroy cuArrayGetDescriptor
            cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements cuArrayGetPlane
            cuArrayGetSparseProperties cuMipmappedArrayDestroy cuMipmappedArrayGetLevel
            cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties cuSurfObjectCreate
            cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray
            cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
            cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy
            cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor
            cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy
            cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp
            cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode
            cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode
            cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
            cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray
        }

        // Passes: interop that gets no memory: events and semaphores of others, and memory of others, whose
        // import is refused.
        passes {
            cuDestroyExternalMemory cuDestroyExternalSemaphore cuEGLStreamConsumerConnect
            cuEGLStreamConsumerConnectWithFlags cuEGLStreamConsumerDisconnect
            cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
            cuEGLStreamProducerReturnFrame cuExternalMemoryGetMappedBuffer
            cuExternalMemoryGetMappedMipmappedArray cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags
            cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject
            cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
            cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2 cuGraphicsUnmapResources
            cuGraphicsUnmapResources_ptsz cuGraphicsUnregisterResource
            cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
            cuImportExternalSemaphore cuIpcGetEventHandle cuIpcOpenEventHandle
        }

        // Passes: logs, dumps, profiling, checkpoints that do not move memory.
        passes {
            cuCheckpointOperationComplete cuCheckpointProcessGetRestoreThreadId
            cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessUnlock
            cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback
            cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpRegisterCompleteCallback
            cuCoredumpRegisterStartCallback cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal
            cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback
            cuLogsUnregisterCallback cuProfilerInitialize cuProfilerStart cuProfilerStop
        }
        }
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
    ([] $name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        const _: unsafe fn($($type),*) -> CUresult = sys::$name;
    };
    ([$tag:ident] $name:ident $parameters:tt) => {};
}

macro_rules! signature {
    ($name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        pub type $name = unsafe extern "C" fn($($arg: $type),*) -> Code;
    };
}

macro_rules! signatures {
    ($( $kind:ident $([$tag:ident])? $name:ident $parameters:tt $(and $twin:ident)?; )*) => {
        /// Every row with a signature, in the order of the source.
        const CALLED: &[Function] = &[
            $(
                Function { name: stringify!($name), kind: kind!($kind) },
                $( Function { name: stringify!($twin), kind: kind!($kind) }, )?
            )*
        ];

        /// The C type of each function, by its name.
        #[expect(non_camel_case_types, missing_docs, reason = "the driver's own names")]
        pub mod signature {
            use super::*;
            $( signature!($name $parameters); $( signature!($twin $parameters); )? )*
        }

        /// The header's functions have the table's types. (Its own enums stand where we have numbers.)
        mod header {
            use super::*;
            use cudarc::driver::sys::{self, CUdevice_attribute as DeviceAttribute, CUpointer_attribute as PointerAttribute};
            $( check_against_header!([$($tag)?] $name $parameters); )*
        }
    };
}

driver_functions!(signatures);

macro_rules! names {
    ($( $kind:ident { $($name:ident)* } )*) => {
        /// Every function that is known by its name only.
        const NAMED: &[Function] = &[ $( $( Function { name: stringify!($name), kind: kind!($kind) }, )* )* ];
    };
}

driver_names!(names);

/// Every function that Tidegate knows.
pub fn all() -> impl Iterator<Item = Function> {
    CALLED.iter().chain(NAMED).copied()
}

/// The row of `name`, or `None` when the table does not know it.
pub fn find(name: &str) -> Option<Function> {
    all().find(|function| function.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_function_has_one_row() {
        let names: BTreeSet<_> = all().map(|function| function.name).collect();
        assert_eq!(names.len(), all().count());
        assert_eq!(find("cuLaunchKernel").map(|f| f.kind), Some(Kind::Gated));
        assert_eq!(find("cuNoSuchFunction"), None);
    }
}
