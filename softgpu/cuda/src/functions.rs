//! The one table of exported functions: what each takes and which function does it.

#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_char, c_void};

use cudarc::driver::sys::*;

use crate::abi::*;
use crate::{
    array, batch, context, copy, device, error, event, graph, green, host, ipc, launch, link, managed,
    memory, memset, module, node, pointer, pool, proc_address, stream, value, vmm,
};

driver! {
    // Initialisation, errors, versions.
    early fn cuInit(flags: u32) => node::init;
    early fn cuDriverGetVersion(out: Out<i32>) => device::version;
    early fn cuGetErrorName(error: Enum<CUresult>, out: Out<*const c_char>) => error::name;
    early fn cuGetErrorString(error: Enum<CUresult>, out: Out<*const c_char>) => error::text;
    early fn cuGetProcAddress_v2(name: Text, out: Out<*mut c_void>, version: i32, flags: u64, status: Maybe<CUdriverProcAddressQueryResult>) => proc_address::get;
    old_early fn cuGetProcAddress(name: Text, out: Out<*mut c_void>, version: i32, flags: u64) => proc_address::get_v1;

    // Devices.
    now fn cuDeviceGetCount(out: Out<i32>) => device::count;
    now fn cuDeviceGet(out: Out<i32>, ordinal: i32) => device::get;
    now fn cuDeviceGetName(out: OutText, length: i32, device: i32) => device::name;
    now fn cuDeviceGetUuid_v2(out: Out<CUuuid>, device: i32) => device::uuid;
    old fn cuDeviceGetUuid(out: Out<CUuuid>, device: i32) => device::uuid;
    now fn cuDeviceTotalMem_v2(out: Out<usize>, device: i32) => device::total_memory;
    now fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) => device::capability;
    now fn cuDeviceGetAttribute(out: Out<i32>, attribute: Enum<CUdevice_attribute>, device: i32) => device::attribute;
    now fn cuDeviceGetPCIBusId(out: OutText, length: i32, device: i32) => device::pci_bus_id;
    now fn cuDeviceGetByPCIBusId(out: Out<i32>, id: Text) => device::by_pci_bus_id;
    now fn cuDeviceCanAccessPeer(out: Out<i32>, device: i32, peer: i32) => device::can_access_peer;
    now fn cuDeviceGetP2PAttribute(out: Out<i32>, attribute: Enum<CUdevice_P2PAttribute>, from: i32, to: i32) => device::peer_attribute;

    // Contexts.
    now fn cuDevicePrimaryCtxRetain(out: Out<CUcontext>, device: i32) => context::primary_retain;
    now fn cuDevicePrimaryCtxRelease_v2(device: i32) => context::primary_release;
    old fn cuDevicePrimaryCtxRelease(device: i32) => context::primary_release;
    now fn cuDevicePrimaryCtxReset_v2(device: i32) => context::primary_reset;
    old fn cuDevicePrimaryCtxReset(device: i32) => context::primary_reset;
    now fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) => context::primary_state;
    now fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) => context::primary_set_flags;
    old fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) => context::primary_set_flags;
    old fn cuCtxCreate_v2(out: Out<CUcontext>, flags: u32, device: i32) => context::create;
    old fn cuCtxCreate_v3(out: Out<CUcontext>, affinity: Ignored<*mut CUexecAffinityParam>, count: i32, flags: u32, device: i32) => context::create_v3;
    now fn cuCtxCreate_v4(out: Out<CUcontext>, parameters: Maybe<CUctxCreateParams>, flags: u32, device: i32) => context::create_v4;
    now fn cuCtxDestroy_v2(context: CUcontext) => context::destroy;
    old fn cuCtxDestroy(context: CUcontext) => context::destroy;
    now fn cuCtxPushCurrent_v2(context: CUcontext) => context::push_current;
    old fn cuCtxPushCurrent(context: CUcontext) => context::push_current;
    now fn cuCtxPopCurrent_v2(out: Maybe<CUcontext>) => context::pop_current;
    old fn cuCtxPopCurrent(out: Maybe<CUcontext>) => context::pop_current;
    now fn cuCtxSetCurrent(context: CUcontext) => context::set_current;
    now fn cuCtxGetCurrent(out: Out<CUcontext>) => context::get_current;
    now fn cuCtxGetDevice(out: Out<i32>) => context::get_device;
    now fn cuCtxGetDevice_v2(out: Out<i32>, context: CUcontext) => context::get_device_of;
    now fn cuCtxGetFlags(out: Out<u32>) => context::get_flags;
    now fn cuCtxSetFlags(flags: u32) => context::set_flags;
    now fn cuCtxGetApiVersion(context: CUcontext, out: Out<u32>) => context::api_version;
    now fn cuCtxGetId(context: CUcontext, out: Out<u64>) => context::get_id;
    now fn cuCtxGetLimit(out: Out<usize>, limit: Enum<CUlimit>) => context::get_limit;
    now fn cuCtxSetLimit(limit: Enum<CUlimit>, value: usize) => context::set_limit;
    now fn cuCtxGetCacheConfig(out: Out<CUfunc_cache>) => context::get_cache_config;
    now fn cuCtxSetCacheConfig(config: Enum<CUfunc_cache>) => context::set_cache_config;
    now fn cuCtxGetStreamPriorityRange(least: Maybe<i32>, greatest: Maybe<i32>) => context::stream_priorities;
    now fn cuCtxSynchronize() => context::synchronize_current;
    now fn cuCtxSynchronize_v2(context: CUcontext) => context::synchronize_named;
    now fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) => context::enable_peer;
    now fn cuCtxDisablePeerAccess(peer: CUcontext) => context::disable_peer;
    now fn cuCtxRecordEvent(context: CUcontext, event: CUevent) => event::record_context;
    now fn cuCtxWaitEvent(context: CUcontext, event: CUevent) => event::await_in_context;

    now fn cuCtxGetSharedMemConfig(out: Out<CUsharedconfig>) => context::get_shared_config;
    now fn cuCtxSetSharedMemConfig(config: Enum<CUsharedconfig>) => context::set_shared_config;
    now fn cuFuncSetSharedMemConfig(function: CUfunction, config: Enum<CUsharedconfig>) => module::set_function_banks;
    now fn cuCtxResetPersistingL2Cache() => context::reset_cache;
    now fn cuProfilerStart() => context::no_profiler;
    now fn cuProfilerStop() => context::no_profiler;

    // Modules, libraries, functions.
    now fn cuModuleLoad(out: Out<CUmodule>, path: Text) => module::load;
    now fn cuModuleLoadData(out: Out<CUmodule>, image: Host) => module::load_data;
    now fn cuModuleLoadFatBinary(out: Out<CUmodule>, image: Host) => module::load_data;
    now fn cuModuleLoadDataEx(out: Out<CUmodule>, image: Host, count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>) => module::load_data_with;
    now fn cuModuleUnload(module: CUmodule) => module::unload;
    now fn cuModuleGetFunction(out: Out<CUfunction>, module: CUmodule, name: Text) => module::function;
    now fn cuModuleGetGlobal_v2(address: Maybe<u64>, bytes: Maybe<usize>, module: CUmodule, name: Text) => module::global;
    now fn cuModuleGetLoadingMode(out: Out<CUmoduleLoadingMode>) => module::loading_mode;
    now fn cuLibraryLoadData(out: Out<CUlibrary>, image: Host, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>, count: u32, library_options: Ignored<*mut CUlibraryOption>, library_values: Ignored<*mut *mut c_void>, library_count: u32) => module::load_library;
    now fn cuLibraryLoadFromFile(out: Out<CUlibrary>, path: Text, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>, count: u32, library_options: Ignored<*mut CUlibraryOption>, library_values: Ignored<*mut *mut c_void>, library_count: u32) => module::load_library_file;
    now fn cuLibraryUnload(library: CUlibrary) => module::unload_library;
    now fn cuLibraryGetKernel(out: Out<CUkernel>, library: CUlibrary, name: Text) => module::library_kernel;
    now fn cuLibraryGetModule(out: Out<CUmodule>, library: CUlibrary) => module::library_module;
    now fn cuLibraryGetGlobal(address: Maybe<u64>, bytes: Maybe<usize>, library: CUlibrary, name: Text) => module::library_global;
    now fn cuKernelGetFunction(out: Out<CUfunction>, kernel: CUkernel) => module::kernel_function;
    now fn cuKernelGetLibrary(out: Out<CUlibrary>, kernel: CUkernel) => module::kernel_library;
    now fn cuKernelGetName(out: Out<*const c_char>, kernel: CUkernel) => module::kernel_name;
    now fn cuKernelGetAttribute(out: Out<i32>, attribute: Enum<CUfunction_attribute>, kernel: CUkernel, device: i32) => module::kernel_attribute;
    now fn cuKernelSetAttribute(attribute: Enum<CUfunction_attribute>, value: i32, kernel: CUkernel, device: i32) => module::set_kernel_attribute;
    now fn cuKernelSetCacheConfig(kernel: CUkernel, config: Enum<CUfunc_cache>, device: i32) => module::set_kernel_cache;
    now fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Maybe<usize>) => module::kernel_parameter;
    new fn cuKernelGetParamCount(kernel: CUkernel, out: Out<usize>) => module::kernel_parameter_count;
    new fn cuFuncGetParamCount(function: CUfunction, out: Out<usize>) => module::parameter_count;
    now fn cuFuncGetAttribute(out: Out<i32>, attribute: Enum<CUfunction_attribute>, function: CUfunction) => module::function_attribute;
    now fn cuFuncSetAttribute(function: CUfunction, attribute: Enum<CUfunction_attribute>, value: i32) => module::set_function_attribute;
    now fn cuFuncSetCacheConfig(function: CUfunction, config: Enum<CUfunc_cache>) => module::set_function_cache;
    now fn cuFuncGetName(out: Out<*const c_char>, function: CUfunction) => module::function_name;
    now fn cuFuncGetModule(out: Out<CUmodule>, function: CUfunction) => module::function_module;
    now fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Maybe<usize>) => module::function_parameter;
    now fn cuFuncIsLoaded(out: Out<CUfunctionLoadingState>, function: CUfunction) => module::function_is_loaded;
    now fn cuFuncLoad(function: CUfunction) => module::load_function;

    // Launches and occupancy.
    now fn cuLaunchKernel(function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: CUstream, each: Parameters, buffer: Parameters) | cuLaunchKernel_ptsz => launch::launch;
    now fn cuLaunchKernelEx(config: In<CUlaunchConfig>, function: CUfunction, each: Parameters, buffer: Parameters) | cuLaunchKernelEx_ptsz => launch::launch_with;
    now fn cuLaunchCooperativeKernel(function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: CUstream, each: Parameters) | cuLaunchCooperativeKernel_ptsz => launch::launch_cooperative;
    now fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: HostMut) | cuLaunchHostFunc_ptsz => stream::call;
    new fn cuLaunchHostFunc_v2(stream: CUstream, function: CUhostFn, data: HostMut, mode: u32) | cuLaunchHostFunc_v2_ptsz => stream::call_with_mode;
    now fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: CUfunction, block: i32, shared: usize) => launch::active_blocks;
    now fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, function: CUfunction, block: i32, shared: usize, flags: u32) => launch::active_blocks_with;
    now fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: i32) => launch::best_block;
    now fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: i32, flags: u32) => launch::best_block_with;
    now fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, function: CUfunction, blocks: i32, block: i32) => launch::available_shared;

    // Streams.
    now fn cuStreamCreate(out: Out<CUstream>, flags: u32) => stream::create;
    now fn cuStreamCreateWithPriority(out: Out<CUstream>, flags: u32, priority: i32) => stream::create_with_priority;
    now fn cuStreamDestroy_v2(stream: CUstream) => stream::destroy;
    old fn cuStreamDestroy(stream: CUstream) => stream::destroy;
    now fn cuStreamSynchronize(stream: CUstream) | cuStreamSynchronize_ptsz => stream::synchronize;
    now fn cuStreamQuery(stream: CUstream) | cuStreamQuery_ptsz => stream::query;
    now fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) | cuStreamWaitEvent_ptsz => stream::wait_event;
    now fn cuStreamAddCallback(stream: CUstream, function: CUstreamCallback, data: HostMut, flags: u32) | cuStreamAddCallback_ptsz => stream::add_callback;
    now fn cuStreamGetPriority(stream: CUstream, out: Out<i32>) | cuStreamGetPriority_ptsz => stream::priority;
    now fn cuStreamGetFlags(stream: CUstream, out: Out<u32>) | cuStreamGetFlags_ptsz => stream::flags;
    now fn cuStreamGetId(stream: CUstream, out: Out<u64>) | cuStreamGetId_ptsz => stream::id;
    now fn cuStreamGetCtx(stream: CUstream, out: Out<CUcontext>) | cuStreamGetCtx_ptsz => stream::context;
    now fn cuStreamGetDevice(stream: CUstream, out: Out<i32>) | cuStreamGetDevice_ptsz => stream::device;

    // Events.
    now fn cuEventCreate(out: Out<CUevent>, flags: u32) => event::create;
    now fn cuEventDestroy_v2(event: CUevent) => event::destroy;
    old fn cuEventDestroy(event: CUevent) => event::destroy;
    now fn cuEventRecord(event: CUevent, stream: CUstream) | cuEventRecord_ptsz => event::record;
    now fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) | cuEventRecordWithFlags_ptsz => event::record_with_flags;
    now fn cuEventQuery(event: CUevent) => event::query;
    now fn cuEventSynchronize(event: CUevent) => event::synchronize;
    old fn cuEventElapsedTime(out: Out<f32>, start: CUevent, end: CUevent) => event::elapsed;
    now fn cuEventElapsedTime_v2(out: Out<f32>, start: CUevent, end: CUevent) => event::elapsed;

    // Memory by cuMemAlloc and host memory.
    now fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => memory::info;
    now fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) => memory::alloc;
    now fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) => memory::alloc_pitch;
    now fn cuMemFree_v2(address: u64) => memory::free;
    now fn cuMemGetAddressRange_v2(base: Maybe<u64>, size: Maybe<usize>, at: u64) => memory::address_range;
    now fn cuMemHostAlloc(out: Out<*mut c_void>, bytes: usize, flags: u32) => host::alloc;
    now fn cuMemAllocHost_v2(out: Out<*mut c_void>, bytes: usize) => host::alloc_plain;
    now fn cuMemFreeHost(at: HostMut) => host::free;
    now fn cuMemHostRegister_v2(at: HostMut, bytes: usize, flags: u32) => host::register;
    old fn cuMemHostRegister(at: HostMut, bytes: usize, flags: u32) => host::register;
    now fn cuMemHostUnregister(at: HostMut) => host::unregister;
    now fn cuMemHostGetDevicePointer_v2(out: Out<u64>, at: HostMut, flags: u32) => host::device_pointer;
    now fn cuMemHostGetFlags(out: Out<u32>, at: HostMut) => host::flags;
    now fn cuPointerGetAttribute(out: OutAny, attribute: Enum<CUpointer_attribute>, at: u64) => pointer::attribute;
    now fn cuPointerGetAttributes(count: u32, list: InMut<pointer::RawAttribute>, out: OutAnys, at: u64) => pointer::attributes;

    // Virtual memory management.
    now fn cuMemCreate(out: Out<u64>, size: usize, properties: In<vmm::RawProperties>, flags: u64) => vmm::create;
    now fn cuMemRelease(handle: u64) => vmm::release;
    now fn cuMemRetainAllocationHandle(out: Out<u64>, address: HostMut) => vmm::retain;
    now fn cuMemExportToShareableHandle(out: OutAny, handle: u64, kind: Enum<CUmemAllocationHandleType>, flags: u64) => vmm::export;
    now fn cuMemImportFromShareableHandle(out: Out<u64>, os_handle: HostMut, kind: Enum<CUmemAllocationHandleType>) => vmm::import;
    now fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<vmm::RawProperties>, option: Enum<CUmemAllocationGranularity_flags>) => vmm::allocation_granularity;
    now fn cuMemGetAllocationPropertiesFromHandle(out: Out<CUmemAllocationProp>, handle: u64) => vmm::properties;
    now fn cuMemAddressReserve(out: Out<u64>, size: usize, alignment: usize, hint: u64, flags: u64) => vmm::reserve;
    now fn cuMemAddressFree(start: u64, size: usize) => vmm::unreserve;
    now fn cuMemMap(start: u64, size: usize, offset: usize, handle: u64, flags: u64) => vmm::map;
    now fn cuMemUnmap(start: u64, size: usize) => vmm::unmap;
    now fn cuMemSetAccess(start: u64, size: usize, rights: In<vmm::RawAccess>, count: usize) => vmm::set_access;
    now fn cuMemGetAccess(out: Out<u64>, location: In<vmm::RawLocation>, address: u64) => vmm::get_access;

    // Copies.
    now fn cuMemcpy(to: u64, from: u64, bytes: usize) | cuMemcpy_ptds => copy::any;
    now fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: CUstream) | cuMemcpyAsync_ptsz => copy::any_async;
    now fn cuMemcpyHtoD_v2(to: u64, from: Host, bytes: usize) | cuMemcpyHtoD_v2_ptds => copy::to_device;
    now fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, bytes: usize, stream: CUstream) | cuMemcpyHtoDAsync_v2_ptsz => copy::to_device_async;
    now fn cuMemcpyDtoH_v2(to: HostMut, from: u64, bytes: usize) | cuMemcpyDtoH_v2_ptds => copy::to_host;
    now fn cuMemcpyDtoHAsync_v2(to: HostMut, from: u64, bytes: usize, stream: CUstream) | cuMemcpyDtoHAsync_v2_ptsz => copy::to_host_async;
    now fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) | cuMemcpyDtoD_v2_ptds => copy::within;
    now fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: CUstream) | cuMemcpyDtoDAsync_v2_ptsz => copy::within_async;
    now fn cuMemcpyPeer(to: u64, to_in: CUcontext, from: u64, from_in: CUcontext, bytes: usize) | cuMemcpyPeer_ptds => copy::peer;
    now fn cuMemcpyPeerAsync(to: u64, to_in: CUcontext, from: u64, from_in: CUcontext, bytes: usize, stream: CUstream) | cuMemcpyPeerAsync_ptsz => copy::peer_async;
    now fn cuMemcpy2D_v2(copy: In<copy::Raw2d>) | cuMemcpy2D_v2_ptds => copy::plane;
    now fn cuMemcpy2DUnaligned_v2(copy: In<copy::Raw2d>) | cuMemcpy2DUnaligned_v2_ptds => copy::plane;
    now fn cuMemcpy2DAsync_v2(copy: In<copy::Raw2d>, stream: CUstream) | cuMemcpy2DAsync_v2_ptsz => copy::plane_async;
    now fn cuMemcpy3D_v2(copy: In<copy::Raw3d>) | cuMemcpy3D_v2_ptds => copy::volume;
    now fn cuMemcpy3DAsync_v2(copy: In<copy::Raw3d>, stream: CUstream) | cuMemcpy3DAsync_v2_ptsz => copy::volume_async;

    // Memsets.
    now fn cuMemsetD8_v2(at: u64, value: u8, count: usize) | cuMemsetD8_v2_ptds => memset::d8;
    now fn cuMemsetD16_v2(at: u64, value: u16, count: usize) | cuMemsetD16_v2_ptds => memset::d16;
    now fn cuMemsetD32_v2(at: u64, value: u32, count: usize) | cuMemsetD32_v2_ptds => memset::d32;
    now fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: CUstream) | cuMemsetD8Async_ptsz => memset::d8_async;
    now fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: CUstream) | cuMemsetD16Async_ptsz => memset::d16_async;
    now fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: CUstream) | cuMemsetD32Async_ptsz => memset::d32_async;
    now fn cuMemsetD2D8_v2(at: u64, pitch: usize, value: u8, width: usize, height: usize) | cuMemsetD2D8_v2_ptds => memset::d2d8;
    now fn cuMemsetD2D16_v2(at: u64, pitch: usize, value: u16, width: usize, height: usize) | cuMemsetD2D16_v2_ptds => memset::d2d16;
    now fn cuMemsetD2D32_v2(at: u64, pitch: usize, value: u32, width: usize, height: usize) | cuMemsetD2D32_v2_ptds => memset::d2d32;
    now fn cuMemsetD2D8Async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) | cuMemsetD2D8Async_ptsz => memset::d2d8_async;
    now fn cuMemsetD2D16Async(at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) | cuMemsetD2D16Async_ptsz => memset::d2d16_async;
    now fn cuMemsetD2D32Async(at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) | cuMemsetD2D32Async_ptsz => memset::d2d32_async;

    // Graphs.
    now fn cuStreamBeginCapture_v2(stream: CUstream, mode: Enum<CUstreamCaptureMode>) | cuStreamBeginCapture_v2_ptsz => graph::capture::begin;
    old fn cuStreamBeginCapture(stream: CUstream) | cuStreamBeginCapture_ptsz => graph::capture::begin_v1;
    now fn cuStreamEndCapture(stream: CUstream, out: Out<CUgraph>) | cuStreamEndCapture_ptsz => graph::capture::end;
    now fn cuStreamIsCapturing(stream: CUstream, out: Out<CUstreamCaptureStatus>) | cuStreamIsCapturing_ptsz => graph::capture::is_capturing;
    old fn cuStreamGetCaptureInfo(stream: CUstream, out: Out<CUstreamCaptureStatus>, id: Maybe<u64>) | cuStreamGetCaptureInfo_ptsz => graph::capture::info;
    old fn cuStreamGetCaptureInfo_v2(stream: CUstream, out: Out<CUstreamCaptureStatus>, id: Maybe<u64>, graph: Maybe<CUgraph>, nodes: Maybe<*const CUgraphNode>, count: Maybe<usize>) | cuStreamGetCaptureInfo_v2_ptsz => graph::capture::info_v2;
    now fn cuStreamGetCaptureInfo_v3(stream: CUstream, out: Out<CUstreamCaptureStatus>, id: Maybe<u64>, graph: Maybe<CUgraph>, nodes: Maybe<*const CUgraphNode>, edges: Maybe<*const CUgraphEdgeData>, count: Maybe<usize>) | cuStreamGetCaptureInfo_v3_ptsz => graph::capture::info_v3;
    now fn cuThreadExchangeStreamCaptureMode(mode: InMut<graph::capture::RawMode>) => graph::capture::exchange_mode;
    now fn cuGraphInstantiateWithFlags(out: Out<CUgraphExec>, graph: CUgraph, flags: u64) => graph::executable::instantiate;
    now fn cuGraphInstantiateWithParams(out: Out<CUgraphExec>, graph: CUgraph, parameters: InMut<graph::executable::RawInstantiation>) | cuGraphInstantiateWithParams_ptsz => graph::executable::instantiate_with;
    now fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) | cuGraphLaunch_ptsz => graph::executable::launch;
    now fn cuGraphUpload(graph: CUgraphExec, stream: CUstream) | cuGraphUpload_ptsz => graph::executable::upload;
    now fn cuGraphDestroy(graph: CUgraph) => graph::destroy;
    now fn cuGraphExecDestroy(graph: CUgraphExec) => graph::executable::destroy;
    now fn cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, after: List<CUgraphNode>, edges: List<CUgraphEdgeData>, count: usize, mode: Enum<CUstreamCaptureMode>) | cuStreamBeginCaptureToGraph_ptsz => graph::capture::begin_to_graph;
    old fn cuStreamUpdateCaptureDependencies(stream: CUstream, nodes: ListMut<CUgraphNode>, count: usize, flags: u32) | cuStreamUpdateCaptureDependencies_ptsz => graph::capture::update_dependencies;
    now fn cuStreamUpdateCaptureDependencies_v2(stream: CUstream, nodes: ListMut<CUgraphNode>, edges: List<CUgraphEdgeData>, count: usize, flags: u32) | cuStreamUpdateCaptureDependencies_v2_ptsz => graph::capture::update_dependencies_v2;
    now fn cuGraphCreate(out: Out<CUgraph>, flags: u32) => graph::create;
    now fn cuGraphClone(out: Out<CUgraph>, graph: CUgraph) => graph::clone;
    now fn cuGraphNodeFindInClone(out: Out<CUgraphNode>, node: CUgraphNode, clone: CUgraph) => graph::find_in_clone;
    now fn cuGraphGetNodes(graph: CUgraph, room: Room<CUgraphNode>, count: InOut<usize>) => graph::nodes;
    now fn cuGraphGetRootNodes(graph: CUgraph, room: Room<CUgraphNode>, count: InOut<usize>) => graph::roots;
    old fn cuGraphGetEdges(graph: CUgraph, from: Room<CUgraphNode>, to: Room<CUgraphNode>, count: InOut<usize>) => graph::edges;
    now fn cuGraphGetEdges_v2(graph: CUgraph, from: Room<CUgraphNode>, to: Room<CUgraphNode>, data: Room<CUgraphEdgeData>, count: InOut<usize>) => graph::edges_v2;
    old fn cuGraphNodeGetDependencies(node: CUgraphNode, room: Room<CUgraphNode>, count: InOut<usize>) => graph::dependencies;
    now fn cuGraphNodeGetDependencies_v2(node: CUgraphNode, room: Room<CUgraphNode>, data: Room<CUgraphEdgeData>, count: InOut<usize>) => graph::dependencies_v2;
    old fn cuGraphNodeGetDependentNodes(node: CUgraphNode, room: Room<CUgraphNode>, count: InOut<usize>) => graph::dependents;
    now fn cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, room: Room<CUgraphNode>, data: Room<CUgraphEdgeData>, count: InOut<usize>) => graph::dependents_v2;
    old fn cuGraphAddDependencies(graph: CUgraph, from: List<CUgraphNode>, to: List<CUgraphNode>, count: usize) => graph::add_dependencies;
    now fn cuGraphAddDependencies_v2(graph: CUgraph, from: List<CUgraphNode>, to: List<CUgraphNode>, data: List<CUgraphEdgeData>, count: usize) => graph::add_dependencies_v2;
    old fn cuGraphRemoveDependencies(graph: CUgraph, from: List<CUgraphNode>, to: List<CUgraphNode>, count: usize) => graph::remove_dependencies;
    now fn cuGraphRemoveDependencies_v2(graph: CUgraph, from: List<CUgraphNode>, to: List<CUgraphNode>, data: List<CUgraphEdgeData>, count: usize) => graph::remove_dependencies_v2;
    now fn cuGraphDestroyNode(node: CUgraphNode) => graph::destroy_node;
    now fn cuGraphNodeGetType(node: CUgraphNode, out: OutEnum<CUgraphNodeType>) => graph::node_type;
    new fn cuGraphNodeGetContainingGraph(node: CUgraphNode, out: Out<CUgraph>) => graph::containing_graph;
    new fn cuGraphNodeGetLocalId(node: CUgraphNode, out: Out<u32>) => graph::local_id;
    new fn cuGraphNodeGetToolsId(node: CUgraphNode, out: Out<u64>) => graph::tools_id;
    new fn cuGraphGetId(graph: CUgraph, out: Out<u32>) => graph::id;
    now fn cuGraphDebugDotPrint(graph: CUgraph, path: Text, flags: u32) => graph::print;

    now fn cuUserObjectCreate(out: Out<CUuserObject>, data: HostMut, destroy: CUhostFn, count: u32, flags: u32) => graph::user_object::create;
    now fn cuUserObjectRetain(object: CUuserObject, count: u32) => graph::user_object::retain;
    now fn cuUserObjectRelease(object: CUuserObject, count: u32) => graph::user_object::release;
    now fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) => graph::user_object::retain_for_graph;
    now fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) => graph::user_object::release_of_graph;

    // Nodes of graphs.
    now fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize) => graph::node::add_empty;
    old fn cuGraphAddKernelNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<CUDA_KERNEL_NODE_PARAMS_v1>) => graph::node::add_kernel_v1;
    now fn cuGraphAddKernelNode_v2(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<CUDA_KERNEL_NODE_PARAMS>) => graph::node::add_kernel;
    now fn cuGraphAddMemcpyNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<copy::Raw3d>, context: CUcontext) => graph::node::add_copy;
    now fn cuGraphAddMemsetNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<CUDA_MEMSET_NODE_PARAMS>, context: CUcontext) => graph::node::add_fill;
    now fn cuGraphAddHostNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<CUDA_HOST_NODE_PARAMS>) => graph::node::add_call;
    now fn cuGraphAddChildGraphNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, child: CUgraph) => graph::node::add_child;
    now fn cuGraphAddEventRecordNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, event: CUevent) => graph::node::add_record;
    now fn cuGraphAddEventWaitNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, event: CUevent) => graph::node::add_await;
    now fn cuGraphAddMemAllocNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: InMut<graph::allocation::RawAllocation>) => graph::node::add_allocation;
    now fn cuGraphAddMemFreeNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, address: u64) => graph::node::add_free;
    now fn cuGraphAddBatchMemOpNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: In<value::RawBatch>) => graph::node::add_values;
    old fn cuGraphAddNode(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, count: usize, parameters: InMut<graph::node::RawParameters>) => graph::node::add_any;
    now fn cuGraphAddNode_v2(out: Out<CUgraphNode>, graph: CUgraph, after: List<CUgraphNode>, edges: List<CUgraphEdgeData>, count: usize, parameters: InMut<graph::node::RawParameters>) => graph::node::add_any_v2;
    old fn cuGraphKernelNodeGetParams(node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS_v1>) => graph::node::get_kernel_v1;
    now fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS>) => graph::node::get_kernel;
    old fn cuGraphKernelNodeSetParams(node: CUgraphNode, parameters: In<CUDA_KERNEL_NODE_PARAMS_v1>) => graph::node::set_kernel_v1;
    now fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, parameters: In<CUDA_KERNEL_NODE_PARAMS>) => graph::node::set_kernel;
    now fn cuGraphKernelNodeGetAttribute(node: CUgraphNode, attribute: Enum<CUkernelNodeAttrID>, out: InMut<graph::node::RawValue>) => graph::node::attribute;
    now fn cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: Enum<CUkernelNodeAttrID>, value: In<graph::node::RawValue>) => graph::node::set_attribute;
    now fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode) => graph::node::copy_attributes;
    now fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, out: InMut<copy::Raw3d>) => graph::node::get_copy;
    now fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, parameters: In<copy::Raw3d>) => graph::node::set_copy;
    now fn cuGraphMemsetNodeGetParams(node: CUgraphNode, out: Out<CUDA_MEMSET_NODE_PARAMS>) => graph::node::get_fill;
    now fn cuGraphMemsetNodeSetParams(node: CUgraphNode, parameters: In<CUDA_MEMSET_NODE_PARAMS>) => graph::node::set_fill;
    now fn cuGraphHostNodeGetParams(node: CUgraphNode, out: Out<CUDA_HOST_NODE_PARAMS>) => graph::node::get_call;
    now fn cuGraphHostNodeSetParams(node: CUgraphNode, parameters: In<CUDA_HOST_NODE_PARAMS>) => graph::node::set_call;
    now fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: Out<CUgraph>) => graph::node::get_child;
    now fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) => graph::node::get_record;
    now fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) => graph::node::set_record;
    now fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) => graph::node::get_await;
    now fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) => graph::node::set_await;
    now fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, out: InMut<graph::allocation::RawAllocation>) => graph::node::get_allocation;
    now fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: Out<u64>) => graph::node::get_free;
    now fn cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, parameters: In<value::RawBatch>) => graph::node::set_values;
    now fn cuGraphNodeSetParams(node: CUgraphNode, parameters: InMut<graph::node::RawParameters>) => graph::node::set_any;
    now fn cuDeviceGraphMemTrim(device: i32) => graph::allocation::trim;
    now fn cuDeviceGetGraphMemAttribute(device: i32, attribute: Enum<CUgraphMem_attribute>, out: OutAny) => graph::allocation::attribute;
    now fn cuDeviceSetGraphMemAttribute(device: i32, attribute: Enum<CUgraphMem_attribute>, value: HostMut) => graph::allocation::set_attribute;

    // Executable graphs.
    old fn cuGraphInstantiate(out: Out<CUgraphExec>, graph: CUgraph, error_node: Maybe<CUgraphNode>, log: Maybe<c_char>, log_size: usize) => graph::executable::instantiate_v1;
    old fn cuGraphInstantiate_v2(out: Out<CUgraphExec>, graph: CUgraph, error_node: Maybe<CUgraphNode>, log: Maybe<c_char>, log_size: usize) => graph::executable::instantiate_v1;
    now fn cuGraphExecGetFlags(graph: CUgraphExec, out: Out<u64>) => graph::executable::flags;
    new fn cuGraphExecGetId(graph: CUgraphExec, out: Out<u32>) => graph::executable::id;
    old fn cuGraphExecUpdate(graph: CUgraphExec, new: CUgraph, error_node: Out<CUgraphNode>, out: Out<CUgraphExecUpdateResult>) => graph::executable::update_v1;
    now fn cuGraphExecUpdate_v2(graph: CUgraphExec, new: CUgraph, out: Out<CUgraphExecUpdateResultInfo>) => graph::executable::update;
    old fn cuGraphExecKernelNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_KERNEL_NODE_PARAMS_v1>) => graph::executable::set_kernel_v1;
    now fn cuGraphExecKernelNodeSetParams_v2(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_KERNEL_NODE_PARAMS>) => graph::executable::set_kernel;
    now fn cuGraphExecMemcpyNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: In<copy::Raw3d>, context: CUcontext) => graph::executable::set_copy;
    now fn cuGraphExecMemsetNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_MEMSET_NODE_PARAMS>, context: CUcontext) => graph::executable::set_fill;
    now fn cuGraphExecHostNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_HOST_NODE_PARAMS>) => graph::executable::set_call;
    now fn cuGraphExecChildGraphNodeSetParams(graph: CUgraphExec, node: CUgraphNode, child: CUgraph) => graph::executable::set_child;
    now fn cuGraphExecEventRecordNodeSetEvent(graph: CUgraphExec, node: CUgraphNode, event: CUevent) => graph::executable::set_record;
    now fn cuGraphExecEventWaitNodeSetEvent(graph: CUgraphExec, node: CUgraphNode, event: CUevent) => graph::executable::set_await;
    now fn cuGraphExecBatchMemOpNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: In<value::RawBatch>) => graph::executable::set_values;
    now fn cuGraphExecNodeSetParams(graph: CUgraphExec, node: CUgraphNode, new: InMut<graph::node::RawParameters>) => graph::executable::set_any;
    now fn cuGraphNodeSetEnabled(graph: CUgraphExec, node: CUgraphNode, enabled: u32) => graph::executable::set_enabled;
    now fn cuGraphNodeGetEnabled(graph: CUgraphExec, node: CUgraphNode, out: Out<u32>) => graph::executable::is_enabled;

    // Stream-ordered memory.
    now fn cuMemAllocAsync(out: Out<u64>, bytes: usize, stream: CUstream) | cuMemAllocAsync_ptsz => pool::alloc_async;
    now fn cuMemAllocFromPoolAsync(out: Out<u64>, bytes: usize, pool: CUmemoryPool, stream: CUstream) | cuMemAllocFromPoolAsync_ptsz => pool::alloc_from;
    now fn cuMemFreeAsync(at: u64, stream: CUstream) | cuMemFreeAsync_ptsz => pool::free_async;
    now fn cuMemPoolCreate(out: Out<CUmemoryPool>, properties: In<pool::RawProperties>) => pool::create;
    now fn cuMemPoolDestroy(pool: CUmemoryPool) => pool::destroy;
    now fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => pool::trim_to;
    now fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: Enum<CUmemPool_attribute>, out: OutAny) => pool::attribute;
    now fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: Enum<CUmemPool_attribute>, value: HostMut) => pool::set_attribute;
    now fn cuMemPoolSetAccess(pool: CUmemoryPool, rights: In<vmm::RawAccess>, count: usize) => pool::set_access;
    now fn cuMemPoolGetAccess(out: OutEnum<CUmemAccess_flags>, pool: CUmemoryPool, location: InMut<vmm::RawLocation>) => pool::access;
    now fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool>, device: i32) => pool::default_of;
    now fn cuDeviceGetMemPool(out: Out<CUmemoryPool>, device: i32) => pool::current_of;
    now fn cuDeviceSetMemPool(device: i32, pool: CUmemoryPool) => pool::set_current;
    now fn cuMemGetDefaultMemPool(out: Out<CUmemoryPool>, at: InMut<vmm::RawLocation>, kind: Enum<CUmemAllocationType>) => pool::default_at;
    now fn cuMemGetMemPool(out: Out<CUmemoryPool>, at: InMut<vmm::RawLocation>, kind: Enum<CUmemAllocationType>) => pool::current_at;
    now fn cuMemSetMemPool(at: InMut<vmm::RawLocation>, kind: Enum<CUmemAllocationType>, pool: CUmemoryPool) => pool::set_current_at;

    // Stream memory operations; the forms of before CUDA 11.7 differ in nothing but their name.
    old fn cuStreamWaitValue32(stream: CUstream, address: u64, value: u32, flags: u32) | cuStreamWaitValue32_ptsz => value::wait_32;
    now fn cuStreamWaitValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) | cuStreamWaitValue32_v2_ptsz => value::wait_32;
    old fn cuStreamWaitValue64(stream: CUstream, address: u64, value: u64, flags: u32) | cuStreamWaitValue64_ptsz => value::wait_64;
    now fn cuStreamWaitValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) | cuStreamWaitValue64_v2_ptsz => value::wait_64;
    old fn cuStreamWriteValue32(stream: CUstream, address: u64, value: u32, flags: u32) | cuStreamWriteValue32_ptsz => value::write_32;
    now fn cuStreamWriteValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) | cuStreamWriteValue32_v2_ptsz => value::write_32;
    old fn cuStreamWriteValue64(stream: CUstream, address: u64, value: u64, flags: u32) | cuStreamWriteValue64_ptsz => value::write_64;
    now fn cuStreamWriteValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) | cuStreamWriteValue64_v2_ptsz => value::write_64;
    old fn cuStreamBatchMemOp(stream: CUstream, count: u32, list: InMut<value::RawOperation>, flags: u32) | cuStreamBatchMemOp_ptsz => value::batch;
    now fn cuStreamBatchMemOp_v2(stream: CUstream, count: u32, list: InMut<value::RawOperation>, flags: u32) | cuStreamBatchMemOp_v2_ptsz => value::batch;

    // Batches and copies between contexts.
    old fn cuMemcpyBatchAsync(to: ListMut<u64>, from: ListMut<u64>, sizes: ListMut<usize>, count: usize, attributes: InMut<batch::RawAttributes>, indices: ListMut<usize>, attribute_count: usize, failed_at: Maybe<usize>, stream: CUstream) | cuMemcpyBatchAsync_ptsz => batch::lines_v1;
    now fn cuMemcpyBatchAsync_v2(to: ListMut<u64>, from: ListMut<u64>, sizes: ListMut<usize>, count: usize, attributes: InMut<batch::RawAttributes>, indices: ListMut<usize>, attribute_count: usize, stream: CUstream) | cuMemcpyBatchAsync_v2_ptsz => batch::lines;
    new fn cuMemcpyWithAttributesAsync(to: u64, from: u64, size: usize, attributes: InMut<batch::RawAttributes>, stream: CUstream) | cuMemcpyWithAttributesAsync_ptsz => batch::line;
    old fn cuMemcpy3DBatchAsync(count: usize, list: InMut<batch::RawOperation>, failed_at: Maybe<usize>, flags: u64, stream: CUstream) | cuMemcpy3DBatchAsync_ptsz => batch::volumes_v1;
    now fn cuMemcpy3DBatchAsync_v2(count: usize, list: InMut<batch::RawOperation>, flags: u64, stream: CUstream) | cuMemcpy3DBatchAsync_v2_ptsz => batch::volumes;
    new fn cuMemcpy3DWithAttributesAsync(operation: InMut<batch::RawOperation>, flags: u64, stream: CUstream) | cuMemcpy3DWithAttributesAsync_ptsz => batch::one_volume;
    now fn cuMemcpy3DPeer(copy: In<copy::RawPeer>) | cuMemcpy3DPeer_ptds => copy::peer_volume;
    now fn cuMemcpy3DPeerAsync(copy: In<copy::RawPeer>, stream: CUstream) | cuMemcpy3DPeerAsync_ptsz => copy::peer_volume_async;

    // Arrays.
    now fn cuArrayCreate_v2(out: Out<CUarray>, shape: In<array::RawShape>) => array::create;
    now fn cuArray3DCreate_v2(out: Out<CUarray>, shape: In<array::RawShape3d>) => array::create_3d;
    now fn cuArrayDestroy(array: CUarray) => array::destroy;
    now fn cuArrayGetDescriptor_v2(out: InMut<array::RawShape>, array: CUarray) => array::shape;
    now fn cuArray3DGetDescriptor_v2(out: InMut<array::RawShape3d>, array: CUarray) => array::shape_3d;
    now fn cuMemcpyDtoA_v2(to: CUarray, offset: usize, from: u64, bytes: usize) | cuMemcpyDtoA_v2_ptds => copy::device_to_array;
    now fn cuMemcpyAtoD_v2(to: u64, from: CUarray, offset: usize, bytes: usize) | cuMemcpyAtoD_v2_ptds => copy::array_to_device;
    now fn cuMemcpyHtoA_v2(to: CUarray, offset: usize, from: Host, bytes: usize) | cuMemcpyHtoA_v2_ptds => copy::host_to_array;
    now fn cuMemcpyHtoAAsync_v2(to: CUarray, offset: usize, from: Host, bytes: usize, stream: CUstream) | cuMemcpyHtoAAsync_v2_ptsz => copy::host_to_array_async;
    now fn cuMemcpyAtoH_v2(to: HostMut, from: CUarray, offset: usize, bytes: usize) | cuMemcpyAtoH_v2_ptds => copy::array_to_host;
    now fn cuMemcpyAtoHAsync_v2(to: HostMut, from: CUarray, offset: usize, bytes: usize, stream: CUstream) | cuMemcpyAtoHAsync_v2_ptsz => copy::array_to_host_async;
    now fn cuMemcpyAtoA_v2(to: CUarray, there: usize, from: CUarray, here: usize, bytes: usize) | cuMemcpyAtoA_v2_ptds => copy::array_to_array;

    // Memory and events of other processes.
    now fn cuIpcGetMemHandle(out: Out<CUipcMemHandle>, at: u64) => ipc::memory_handle;
    old fn cuIpcOpenMemHandle(out: Out<u64>, handle: CUipcMemHandle, flags: u32) => ipc::open_memory;
    now fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: CUipcMemHandle, flags: u32) => ipc::open_memory;
    now fn cuIpcCloseMemHandle(at: u64) => ipc::close_memory;
    now fn cuIpcGetEventHandle(out: Out<CUipcEventHandle>, event: CUevent) => ipc::event_handle;
    now fn cuIpcOpenEventHandle(out: Out<CUevent>, handle: CUipcEventHandle) => ipc::open_event;

    // Managed memory.
    now fn cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: u32) => managed::alloc;
    old fn cuMemPrefetchAsync(at: u64, bytes: usize, device: i32, stream: CUstream) | cuMemPrefetchAsync_ptsz => managed::prefetch;
    now fn cuMemPrefetchAsync_v2(at: u64, bytes: usize, location: vmm::RawLocation, flags: u32, stream: CUstream) | cuMemPrefetchAsync_v2_ptsz => managed::prefetch_to;
    now fn cuMemPrefetchBatchAsync(at: ListMut<u64>, sizes: ListMut<usize>, count: usize, locations: InMut<vmm::RawLocation>, indices: ListMut<usize>, location_count: usize, flags: u64, stream: CUstream) | cuMemPrefetchBatchAsync_ptsz => managed::prefetch_batch;
    now fn cuMemDiscardBatchAsync(at: ListMut<u64>, sizes: ListMut<usize>, count: usize, flags: u64, stream: CUstream) | cuMemDiscardBatchAsync_ptsz => managed::discard_batch;
    now fn cuMemDiscardAndPrefetchBatchAsync(at: ListMut<u64>, sizes: ListMut<usize>, count: usize, locations: InMut<vmm::RawLocation>, indices: ListMut<usize>, location_count: usize, flags: u64, stream: CUstream) | cuMemDiscardAndPrefetchBatchAsync_ptsz => managed::prefetch_batch;
    old fn cuMemAdvise(at: u64, bytes: usize, advice: Enum<CUmem_advise>, device: i32) => managed::advise;
    now fn cuMemAdvise_v2(at: u64, bytes: usize, advice: Enum<CUmem_advise>, location: vmm::RawLocation) => managed::advise_at_location;
    now fn cuMemRangeGetAttribute(out: OutAny, size: usize, attribute: Enum<CUmem_range_attribute>, at: u64, bytes: usize) => managed::attribute;
    now fn cuMemRangeGetAttributes(out: OutAnys, sizes: ListMut<usize>, attributes: InMut<managed::RawAttribute>, count: usize, at: u64, bytes: usize) => managed::attributes;
    now fn cuStreamAttachMemAsync(stream: CUstream, at: u64, bytes: usize, flags: u32) | cuStreamAttachMemAsync_ptsz => managed::attach;

    // Attributes of streams and pointers.
    now fn cuStreamGetAttribute(stream: CUstream, attribute: Enum<CUstreamAttrID>, out: InMut<graph::node::RawValue>) | cuStreamGetAttribute_ptsz => stream::attribute;
    now fn cuStreamSetAttribute(stream: CUstream, attribute: Enum<CUstreamAttrID>, value: In<graph::node::RawValue>) | cuStreamSetAttribute_ptsz => stream::set_attribute;
    now fn cuStreamCopyAttributes(to: CUstream, from: CUstream) | cuStreamCopyAttributes_ptsz => stream::copy_attributes;
    now fn cuPointerSetAttribute(value: Host, attribute: Enum<CUpointer_attribute>, at: u64) => pointer::set_attribute;

    // The linker.
    old fn cuLinkCreate(count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>, out: Out<CUlinkState>) => link::create;
    now fn cuLinkCreate_v2(count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>, out: Out<CUlinkState>) => link::create;
    old fn cuLinkAddData(state: CUlinkState, kind: Enum<CUjitInputType>, data: HostMut, size: usize, name: Ignored<*const c_char>, count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>) => link::add_data;
    now fn cuLinkAddData_v2(state: CUlinkState, kind: Enum<CUjitInputType>, data: HostMut, size: usize, name: Ignored<*const c_char>, count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>) => link::add_data;
    old fn cuLinkAddFile(state: CUlinkState, kind: Enum<CUjitInputType>, path: Text, count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>) => link::add_file;
    now fn cuLinkAddFile_v2(state: CUlinkState, kind: Enum<CUjitInputType>, path: Text, count: u32, options: Ignored<*mut CUjit_option>, values: Ignored<*mut *mut c_void>) => link::add_file;
    now fn cuLinkComplete(state: CUlinkState, out: Out<*mut c_void>, size: Maybe<usize>) => link::complete;
    now fn cuLinkDestroy(state: CUlinkState) => link::destroy;

    // Green contexts.
    now fn cuDeviceGetDevResource(device: i32, out: InMut<green::RawResource>, kind: Enum<CUdevResourceType>) => green::of_device;
    now fn cuCtxGetDevResource(context: CUcontext, out: InMut<green::RawResource>, kind: Enum<CUdevResourceType>) => green::of_named;
    now fn cuGreenCtxGetDevResource(green: CUgreenCtx, out: InMut<green::RawResource>, kind: Enum<CUdevResourceType>) => green::of_green;
    now fn cuDevSmResourceSplitByCount(groups: Room<CUdevResource>, count: InOut<u32>, input: In<green::RawResource>, rest: Maybe<CUdevResource>, flags: u32, least: u32) => green::split;
    now fn cuDevResourceGenerateDesc(out: Out<CUdevResourceDesc>, resources: InMut<green::RawResource>, count: u32) => green::describe;
    now fn cuGreenCtxCreate(out: Out<CUgreenCtx>, description: CUdevResourceDesc, device: i32, flags: u32) => green::create;
    now fn cuGreenCtxDestroy(green: CUgreenCtx) => green::destroy;
    now fn cuCtxFromGreenCtx(out: Out<CUcontext>, green: CUgreenCtx) => green::context;
    now fn cuGreenCtxGetId(green: CUgreenCtx, out: Out<u64>) => green::id;
    now fn cuGreenCtxStreamCreate(out: Out<CUstream>, green: CUgreenCtx, flags: u32, priority: i32) => green::create_stream;
    now fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) => green::record;
    now fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) => green::wait;
    now fn cuStreamGetCtx_v2(stream: CUstream, context: Maybe<CUcontext>, green: Maybe<CUgreenCtx>) | cuStreamGetCtx_v2_ptsz => green::of_stream;
}

refused! {
    cuGetExportTable cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
    cuMemPoolExportPointer cuMemPoolImportPointer cuMemGetHandleForAddressRange cuMemMapArrayAsync
    cuMipmappedArrayCreate cuTexObjectCreate cuTexObjectDestroy cuSurfObjectCreate cuSurfObjectDestroy
    cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
    cuImportExternalSemaphore cuGraphicsMapResources cuGraphicsUnmapResources cuMulticastCreate
    cuCtxGetExecAffinity cuDeviceGetExecAffinitySupport cuDeviceGetHostAtomicCapabilities
    cuDeviceGetP2PAtomicCapabilities cuDeviceGetTexture1DLinearMaxWidth cuFlushGPUDirectRDMAWrites
    cuCtxDetach cuModuleGetTexRef cuModuleGetSurfRef cuLibraryGetManaged cuLibraryGetUnifiedFunction
    cuLibraryGetKernelCount cuLibraryEnumerateKernels cuArrayGetSparseProperties cuArrayGetPlane
    cuMipmappedArrayGetLevel cuMipmappedArrayGetSparseProperties cuMipmappedArrayDestroy
    cuArrayGetMemoryRequirements cuMipmappedArrayGetMemoryRequirements cuTexObjectGetResourceDesc
    cuTexObjectGetTextureDesc cuTexObjectGetResourceViewDesc cuSurfObjectGetResourceDesc
    cuExternalMemoryGetMappedMipmappedArray cuSignalExternalSemaphoresAsync
    cuSignalExternalSemaphoresAsync_ptsz cuWaitExternalSemaphoresAsync
    cuWaitExternalSemaphoresAsync_ptsz cuDestroyExternalSemaphore cuDeviceGetNvSciSyncAttributes
    cuProfilerInitialize cuOccupancyMaxPotentialClusterSize cuOccupancyMaxActiveClusters
    cuMemGetLocationInfo cuGraphAddExternalSemaphoresSignalNode
    cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
    cuGraphAddExternalSemaphoresWaitNode cuGraphExternalSemaphoresWaitNodeGetParams
    cuGraphExternalSemaphoresWaitNodeSetParams cuGraphExecExternalSemaphoresSignalNodeSetParams
    cuGraphExecExternalSemaphoresWaitNodeSetParams cuStreamBeginRecaptureToGraph
    cuStreamBeginRecaptureToGraph_ptsz cuGraphNodeGetParams cuGraphConditionalHandleCreate
    cuDeviceRegisterAsyncNotification cuDeviceUnregisterAsyncNotification cuLogsRegisterCallback
    cuLogsUnregisterCallback cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuStreamGetDevResource
    cuStreamGetDevResource_ptsz cuDevSmResourceSplit cuSubgridWorkerGridCreate cuSubgridWorksetCreate
    cuSubgridCreate cuMemMapArrayAsync_ptsz cuGLCtxCreate_v2 cuGLInit cuGLGetDevices
    cuGLRegisterBufferObject cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds
    cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz cuGLUnmapBufferObject
    cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject cuGLSetBufferObjectMapFlags
    cuGraphicsGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsEGLRegisterImage
    cuEGLStreamConsumerConnect cuEGLStreamConsumerDisconnect cuEGLStreamConsumerAcquireFrame
    cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
    cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame cuGraphicsResourceGetMappedEglFrame
    cuEGLStreamConsumerConnectWithFlags cuGraphicsUnregisterResource cuGraphicsMapResources_ptsz
    cuGraphicsUnmapResources_ptsz cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray
    cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer_v2 cuVDPAUGetDevice
    cuVDPAUCtxCreate_v2 cuGraphicsVDPAURegisterVideoSurface cuGraphicsVDPAURegisterOutputSurface
}

/// The address of an exported function, by its exact name.
pub fn address(name: &str) -> Option<*const c_void> {
    implemented(name).or_else(|| refusal(name))
}
