//! The one table of exported functions: what each needs and takes, and what does it.

#![allow(non_snake_case, reason = "the runtime's names")]

use std::ffi::{c_char, c_void};

use cudarc::driver::sys as cu;
use cudarc::runtime::sys as rt;

use crate::abi::*;
use crate::copy::{Kind, RawVolume};
use crate::driver::{Driver, HandleType};
use crate::entry_point::Status;
use crate::function::Name;
use crate::graph::Nodes;
use crate::pointer::Attributes;
use crate::{
    copy, current, device, entry_point, error, event, function, graph, launch, memory, memset, pointer,
    properties, register, stream, symbol,
};

plain! {
    fn cudaGetLastError() -> u32 => error::take_last;
    fn cudaPeekAtLastError() -> u32 => error::last;
    fn cudaGetErrorName(code: u32) -> *const c_char => error::name;
    fn cudaGetErrorString(code: u32) -> *const c_char => error::text;
    fn __cudaRegisterFatBinary(record: Host) -> usize => register::image;
    fn __cudaRegisterFatBinaryEnd(image: usize) -> () => register::image_is_complete;
    fn __cudaUnregisterFatBinary(image: usize) -> () => register::forget_image;
    fn __cudaInitModule(image: usize) -> c_char => register::load_image;
    fn __cudaRegisterFunction(image: usize, stands_for: usize, device_function: usize, name: usize, thread_limit: i32, thread: usize, block: usize, block_size: usize, grid_size: usize, warp_size: usize) -> () => register::kernel;
    fn __cudaRegisterVar(image: usize, stands_for: usize, device_address: usize, name: usize, external: i32, bytes: usize, constant: i32, global: i32) -> () => register::variable;
    fn __cudaPushCallConfiguration(grid: rt::dim3, block: rt::dim3, shared: usize, stream: usize) -> u32 => launch::push_configuration;
}

undeclared! {
    Driver fn __cudaPopCallConfiguration(grid: Out<rt::dim3>, block: Out<rt::dim3>, shared: Out<usize>, stream: Out<Stream>) => launch::pop_configuration;
    Context fn __cudaGetKernel(out: Out<Kernel>, function: Host) => register::get_kernel;
    Context fn __cudaLaunchKernel | __cudaLaunchKernel_ptsz(kernel: Kernel, grid: rt::dim3, block: rt::dim3, arguments: Parameters, shared: usize, stream: Stream) => launch::by_handle;
    Context fn cudaProfilerStart() => Driver::cuProfilerStart;
}

runtime! {
    // Versions, devices, contexts.
    Driver fn cudaDriverGetVersion(out: Out<i32>) => Driver::cuDriverGetVersion;
    Driver fn cudaRuntimeGetVersion(out: Out<i32>) => device::runtime_version;
    Driver fn cudaGetDriverEntryPoint | cudaGetDriverEntryPoint_ptsz(name: Text, out: Out<HostMut>, flags: u64, status: Maybe<Status>) => entry_point::get;
    Driver fn cudaGetDriverEntryPointByVersion | cudaGetDriverEntryPointByVersion_ptsz(name: Text, out: Out<HostMut>, version: u32, flags: u64, status: Maybe<Status>) => entry_point::get_by_version;
    Driver fn cudaGetDeviceCount(out: Out<i32>) => device::count;
    Device fn cudaGetDevice(out: Out<i32>) => current::get;
    Device fn cudaSetDevice(device: i32) => current::set;
    Device fn cudaInitDevice(device: i32, device_flags: u32, flags: u32) => current::initialise;
    Device fn cudaSetDeviceFlags(flags: u32) => current::set_flags;
    Device fn cudaGetDeviceFlags(out: Out<u32>) => current::flags;
    Device fn cudaDeviceReset() => current::reset;
    Device fn cudaGetDeviceProperties(out: Out<rt::cudaDeviceProp>, device: i32) => properties::get;
    Device fn cudaDeviceGetAttribute(out: Out<i32>, attribute: Enum<cu::CUdevice_attribute, rt::cudaDeviceAttr>, device: i32) => Driver::cuDeviceGetAttribute;
    Device fn cudaDeviceGetP2PAttribute(out: Out<i32>, attribute: Enum<cu::CUdevice_P2PAttribute, rt::cudaDeviceP2PAttr>, from: i32, to: i32) => Driver::cuDeviceGetP2PAttribute;
    Device fn cudaDeviceGetPCIBusId(out: Out<c_char>, length: i32, device: i32) => Driver::cuDeviceGetPCIBusId;
    Device fn cudaDeviceGetByPCIBusId(out: Out<i32>, id: Text) => Driver::cuDeviceGetByPCIBusId;
    Device fn cudaDeviceCanAccessPeer(out: Out<i32>, device: i32, peer: i32) => Driver::cuDeviceCanAccessPeer;
    Device fn cudaDeviceGetDefaultMemPool(out: Out<Pool>, device: i32) => Driver::cuDeviceGetDefaultMemPool;
    Device fn cudaDeviceGetMemPool(out: Out<Pool>, device: i32) => Driver::cuDeviceGetMemPool;
    Device fn cudaDeviceSetMemPool(device: i32, pool: Pool) => Driver::cuDeviceSetMemPool;
    Context fn cudaDeviceSynchronize() => Driver::cuCtxSynchronize;
    Context fn cudaDeviceGetLimit(out: Out<usize>, limit: Enum<cu::CUlimit, rt::cudaLimit>) => Driver::cuCtxGetLimit;
    Context fn cudaDeviceSetLimit(limit: Enum<cu::CUlimit, rt::cudaLimit>, value: usize) => Driver::cuCtxSetLimit;
    Context fn cudaDeviceGetCacheConfig(out: Out<Enum<cu::CUfunc_cache, rt::cudaFuncCache>>) => Driver::cuCtxGetCacheConfig;
    Context fn cudaDeviceSetCacheConfig(config: Enum<cu::CUfunc_cache, rt::cudaFuncCache>) => Driver::cuCtxSetCacheConfig;
    Context fn cudaDeviceGetStreamPriorityRange(least: Maybe<i32>, greatest: Maybe<i32>) => Driver::cuCtxGetStreamPriorityRange;
    Context fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) => device::enable_peer;
    Context fn cudaDeviceDisablePeerAccess(peer: i32) => device::disable_peer;
    Context fn cudaProfilerStop() => Driver::cuProfilerStop;

    // Memory.
    Context fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) => Driver::cuMemGetInfo;
    Context fn cudaMalloc(out: Out<Address>, bytes: usize) => memory::alloc;
    Context fn cudaMallocPitch(out: Out<Address>, pitch: Out<usize>, width: usize, height: usize) => memory::alloc_pitch;
    Context fn cudaMalloc3D(out: Out<rt::cudaPitchedPtr>, extent: rt::cudaExtent) => memory::alloc_3d;
    Context fn cudaMallocManaged(out: Out<Address>, bytes: usize, flags: u32) => Driver::cuMemAllocManaged;
    Context fn cudaFree(address: Address) => memory::free;
    Context fn cudaMallocHost(out: Out<HostMut>, bytes: usize) => memory::alloc_host;
    Context fn cudaHostAlloc(out: Out<HostMut>, bytes: usize, flags: u32) => memory::alloc_host_with;
    Context fn cudaFreeHost(at: HostMut) => memory::free_host;
    Context fn cudaHostRegister(at: HostMut, bytes: usize, flags: u32) => Driver::cuMemHostRegister;
    Context fn cudaHostUnregister(at: HostMut) => Driver::cuMemHostUnregister;
    Context fn cudaHostGetDevicePointer(out: Out<Address>, at: HostMut, flags: u32) => Driver::cuMemHostGetDevicePointer;
    Context fn cudaHostGetFlags(out: Out<u32>, at: HostMut) => Driver::cuMemHostGetFlags;
    Context fn cudaPointerGetAttributes(out: Out<Attributes>, at: ConstAddress) => pointer::attributes;
    Context fn cudaIpcGetMemHandle(out: Out<cu::CUipcMemHandle>, at: Address) => Driver::cuIpcGetMemHandle;
    Context fn cudaIpcOpenMemHandle(out: Out<Address>, handle: cu::CUipcMemHandle, flags: u32) => Driver::cuIpcOpenMemHandle;
    Context fn cudaIpcCloseMemHandle(at: Address) => Driver::cuIpcCloseMemHandle;

    // Memory in the order of streams.
    Context fn cudaMallocAsync | cudaMallocAsync_ptsz(out: Out<Address>, bytes: usize, stream: Stream) => memory::alloc_async;
    Context fn cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz(out: Out<Address>, bytes: usize, pool: Pool, stream: Stream) => memory::alloc_from_pool;
    Context fn cudaFreeAsync | cudaFreeAsync_ptsz(address: Address, stream: Stream) => memory::free_async;
    Context fn cudaMemPoolCreate(out: Out<Pool>, properties: Read<cu::CUmemPoolProps, rt::cudaMemPoolProps>) => Driver::cuMemPoolCreate;
    Context fn cudaMemPoolDestroy(pool: Pool) => Driver::cuMemPoolDestroy;
    Context fn cudaMemPoolTrimTo(pool: Pool, keep: usize) => Driver::cuMemPoolTrimTo;
    Context fn cudaMemPoolSetAttribute(pool: Pool, attribute: Enum<cu::CUmemPool_attribute, rt::cudaMemPoolAttr>, value: HostMut) => Driver::cuMemPoolSetAttribute;
    Context fn cudaMemPoolGetAttribute(pool: Pool, attribute: Enum<cu::CUmemPool_attribute, rt::cudaMemPoolAttr>, value: HostMut) => Driver::cuMemPoolGetAttribute;
    Context fn cudaMemPoolSetAccess(pool: Pool, rights: Read<cu::CUmemAccessDesc, rt::cudaMemAccessDesc>, count: usize) => Driver::cuMemPoolSetAccess;
    Context fn cudaMemPoolGetAccess(out: Out<Enum<cu::CUmemAccess_flags, rt::cudaMemAccessFlags>>, pool: Pool, location: Written<cu::CUmemLocation, rt::cudaMemLocation>) => Driver::cuMemPoolGetAccess;
    Context fn cudaMemPoolExportToShareableHandle(out: HostMut, pool: Pool, kind: HandleType, flags: u32) => memory::export_pool;
    Context fn cudaMemPoolImportFromShareableHandle(out: Out<Pool>, handle: HostMut, kind: HandleType, flags: u32) => memory::import_pool;
    Context fn cudaMemPoolExportPointer(out: Written<cu::CUmemPoolPtrExportData, rt::cudaMemPoolPtrExportData>, at: Address) => Driver::cuMemPoolExportPointer;
    Context fn cudaMemPoolImportPointer(out: Out<Address>, pool: Pool, data: Written<cu::CUmemPoolPtrExportData, rt::cudaMemPoolPtrExportData>) => Driver::cuMemPoolImportPointer;
    Context fn cudaDeviceGraphMemTrim(device: i32) => Driver::cuDeviceGraphMemTrim;
    Context fn cudaDeviceGetGraphMemAttribute(device: i32, attribute: Enum<cu::CUgraphMem_attribute, rt::cudaGraphMemAttributeType>, value: HostMut) => Driver::cuDeviceGetGraphMemAttribute;
    Context fn cudaDeviceSetGraphMemAttribute(device: i32, attribute: Enum<cu::CUgraphMem_attribute, rt::cudaGraphMemAttributeType>, value: HostMut) => Driver::cuDeviceSetGraphMemAttribute;

    // Managed memory.
    Context fn cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz(at: ConstAddress, bytes: usize, location: Location, flags: u32, stream: Stream) => Driver::cuMemPrefetchAsync;
    Context fn cudaMemAdvise(at: ConstAddress, bytes: usize, advice: Enum<cu::CUmem_advise, rt::cudaMemoryAdvise>, location: Location) => Driver::cuMemAdvise;
    Context fn cudaMemRangeGetAttribute(out: HostMut, bytes: usize, attribute: Enum<cu::CUmem_range_attribute, rt::cudaMemRangeAttribute>, at: ConstAddress, range: usize) => Driver::cuMemRangeGetAttribute;
    Context fn cudaMemRangeGetAttributes(out: Parameters, bytes: Written<usize>, attributes: Written<cu::CUmem_range_attribute, rt::cudaMemRangeAttribute>, count: usize, at: ConstAddress, range: usize) => Driver::cuMemRangeGetAttributes;

    // Copies.
    Context fn cudaMemcpy | cudaMemcpy_ptds(to: Address, from: ConstAddress, bytes: usize, kind: Kind) => copy::linear;
    Context fn cudaMemcpyAsync | cudaMemcpyAsync_ptsz(to: Address, from: ConstAddress, bytes: usize, kind: Kind, stream: Stream) => copy::linear_async;
    Context fn cudaMemcpyPeer(to: Address, to_device: i32, from: ConstAddress, from_device: i32, bytes: usize) => copy::peer;
    Context fn cudaMemcpyPeerAsync(to: Address, to_device: i32, from: ConstAddress, from_device: i32, bytes: usize, stream: Stream) => copy::peer_async;
    Context fn cudaMemcpy2D | cudaMemcpy2D_ptds(to: Address, to_pitch: usize, from: ConstAddress, from_pitch: usize, width: usize, height: usize, kind: Kind) => copy::plane;
    Context fn cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz(to: Address, to_pitch: usize, from: ConstAddress, from_pitch: usize, width: usize, height: usize, kind: Kind, stream: Stream) => copy::plane_async;
    Context fn cudaMemcpy3D | cudaMemcpy3D_ptds(copy: In<RawVolume>) => copy::volume;
    Context fn cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz(copy: In<RawVolume>, stream: Stream) => copy::volume_async;
    Context fn cudaMemcpyBatchAsync | cudaMemcpyBatchAsync_ptsz(to: Handle<*mut cu::CUdeviceptr, *const *mut c_void>, from: Handle<*mut cu::CUdeviceptr, *const *const c_void>, bytes: Handle<*mut usize, *const usize>, count: usize, attributes: Written<cu::CUmemcpyAttributes, rt::cudaMemcpyAttributes>, first: Written<usize>, attribute_count: usize, stream: Stream) => Driver::cuMemcpyBatchAsync;
    Context fn cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds(symbol: Host, from: ConstAddress, bytes: usize, offset: usize, kind: Kind) => symbol::write;
    Context fn cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz(symbol: Host, from: ConstAddress, bytes: usize, offset: usize, kind: Kind, stream: Stream) => symbol::write_async;
    Context fn cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds(to: Address, symbol: Host, bytes: usize, offset: usize, kind: Kind) => symbol::read;
    Context fn cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz(to: Address, symbol: Host, bytes: usize, offset: usize, kind: Kind, stream: Stream) => symbol::read_async;
    Context fn cudaGetSymbolAddress(out: Out<Address>, symbol: Host) => symbol::address;
    Context fn cudaGetSymbolSize(out: Out<usize>, symbol: Host) => symbol::size;

    // Memsets.
    Context fn cudaMemset | cudaMemset_ptds(at: Address, value: i32, count: usize) => memset::bytes;
    Context fn cudaMemsetAsync | cudaMemsetAsync_ptsz(at: Address, value: i32, count: usize, stream: Stream) => memset::bytes_async;
    Context fn cudaMemset2D | cudaMemset2D_ptds(at: Address, pitch: usize, value: i32, width: usize, height: usize) => memset::plane;
    Context fn cudaMemset2DAsync | cudaMemset2DAsync_ptsz(at: Address, pitch: usize, value: i32, width: usize, height: usize, stream: Stream) => memset::plane_async;
    Context fn cudaMemset3D | cudaMemset3D_ptds(memory: rt::cudaPitchedPtr, value: i32, extent: rt::cudaExtent) => memset::volume;
    Context fn cudaMemset3DAsync | cudaMemset3DAsync_ptsz(memory: rt::cudaPitchedPtr, value: i32, extent: rt::cudaExtent, stream: Stream) => memset::volume_async;

    // Streams.
    Context fn cudaStreamCreate(out: Out<Stream>) => stream::create;
    Context fn cudaStreamCreateWithFlags(out: Out<Stream>, flags: u32) => Driver::cuStreamCreate;
    Context fn cudaStreamCreateWithPriority(out: Out<Stream>, flags: u32, priority: i32) => Driver::cuStreamCreateWithPriority;
    Context fn cudaStreamDestroy(stream: Stream) => Driver::cuStreamDestroy;
    Context fn cudaStreamSynchronize | cudaStreamSynchronize_ptsz(stream: Stream) => Driver::cuStreamSynchronize;
    Context fn cudaStreamQuery | cudaStreamQuery_ptsz(stream: Stream) => Driver::cuStreamQuery;
    Context fn cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz(stream: Stream, event: Event, flags: u32) => Driver::cuStreamWaitEvent;
    Context fn cudaStreamAddCallback | cudaStreamAddCallback_ptsz(stream: Stream, callback: Callback, data: HostMut, flags: u32) => Driver::cuStreamAddCallback;
    Context fn cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz(stream: Stream, function: HostFunction, data: HostMut) => Driver::cuLaunchHostFunc;
    Context fn cudaStreamGetPriority | cudaStreamGetPriority_ptsz(stream: Stream, out: Out<i32>) => Driver::cuStreamGetPriority;
    Context fn cudaStreamGetFlags | cudaStreamGetFlags_ptsz(stream: Stream, out: Out<u32>) => Driver::cuStreamGetFlags;
    Context fn cudaStreamGetId | cudaStreamGetId_ptsz(stream: Stream, out: Out<u64>) => Driver::cuStreamGetId;
    Context fn cudaStreamGetDevice | cudaStreamGetDevice_ptsz(stream: Stream, out: Out<i32>) => Driver::cuStreamGetDevice;
    Context fn cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz(stream: Stream, attribute: Enum<cu::CUlaunchAttributeID, rt::cudaLaunchAttributeID>, out: Written<cu::CUlaunchAttributeValue, rt::cudaLaunchAttributeValue>) => Driver::cuStreamGetAttribute;
    Context fn cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz(stream: Stream, attribute: Enum<cu::CUlaunchAttributeID, rt::cudaLaunchAttributeID>, value: Read<cu::CUlaunchAttributeValue, rt::cudaLaunchAttributeValue>) => Driver::cuStreamSetAttribute;
    Context fn cudaStreamCopyAttributes | cudaStreamCopyAttributes_ptsz(to: Stream, from: Stream) => Driver::cuStreamCopyAttributes;
    Context fn cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz(stream: Stream, at: Address, bytes: usize, flags: u32) => Driver::cuStreamAttachMemAsync;

    // Events.
    Context fn cudaEventCreate(out: Out<Event>) => event::create;
    Context fn cudaEventCreateWithFlags(out: Out<Event>, flags: u32) => Driver::cuEventCreate;
    Context fn cudaEventDestroy(event: Event) => Driver::cuEventDestroy;
    Context fn cudaEventRecord | cudaEventRecord_ptsz(event: Event, stream: Stream) => Driver::cuEventRecord;
    Context fn cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz(event: Event, stream: Stream, flags: u32) => Driver::cuEventRecordWithFlags;
    Context fn cudaEventQuery(event: Event) => Driver::cuEventQuery;
    Context fn cudaEventSynchronize(event: Event) => Driver::cuEventSynchronize;
    Context fn cudaEventElapsedTime(out: Out<f32>, start: Event, end: Event) => Driver::cuEventElapsedTime;
    Context fn cudaIpcGetEventHandle(out: Out<cu::CUipcEventHandle>, event: Event) => Driver::cuIpcGetEventHandle;
    Context fn cudaIpcOpenEventHandle(out: Out<Event>, handle: cu::CUipcEventHandle) => Driver::cuIpcOpenEventHandle;

    // Kernels, launches, libraries.
    Context fn cudaLaunchKernel | cudaLaunchKernel_ptsz(function: Host, grid: rt::dim3, block: rt::dim3, arguments: Parameters, shared: usize, stream: Stream) => launch::kernel;
    Context fn cudaLaunchKernelExC | cudaLaunchKernelExC_ptsz(config: In<rt::cudaLaunchConfig_t>, function: Host, arguments: Parameters) => launch::with_attributes;
    Context fn cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz(function: Host, grid: rt::dim3, block: rt::dim3, arguments: Parameters, shared: usize, stream: Stream) => launch::cooperative;
    Context fn cudaFuncGetAttributes(out: Out<rt::cudaFuncAttributes>, function: Host) => function::attributes;
    Context fn cudaFuncSetAttribute(function: Host, name: Name, value: i32) => function::set_attribute;
    Context fn cudaKernelSetAttributeForDevice(kernel: Kernel, name: Name, value: i32, device: i32) => function::set_attribute_on;
    Context fn cudaFuncSetCacheConfig(function: Host, config: Enum<cu::CUfunc_cache, rt::cudaFuncCache>) => function::set_cache;
    Context fn cudaFuncGetName(out: Out<*const c_char>, function: Host) => function::name;
    Context fn cudaFuncGetParamInfo(function: Host, index: usize, offset: Out<usize>, size: Maybe<usize>) => function::parameter;
    Context fn cudaGetFuncBySymbol(out: Out<Function>, function: Host) => function::by_symbol;
    Context fn cudaGetKernel(out: Out<Kernel>, function: Host) => register::get_kernel;
    Context fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: Host, block: i32, shared: usize) => function::active_blocks;
    Context fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, function: Host, block: i32, shared: usize, flags: u32) => function::active_blocks_with;
    Context fn cudaOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, function: Host, blocks: i32, block: i32) => function::available_shared;
    Context fn cudaLibraryLoadData(out: Out<Library>, image: Host, options: Written<cu::CUjit_option, rt::cudaJitOption>, values: Parameters, count: u32, library_options: Written<cu::CUlibraryOption, rt::cudaLibraryOption>, library_values: Parameters, library_count: u32) => Driver::cuLibraryLoadData;
    Context fn cudaLibraryLoadFromFile(out: Out<Library>, path: Text, options: Written<cu::CUjit_option, rt::cudaJitOption>, values: Parameters, count: u32, library_options: Written<cu::CUlibraryOption, rt::cudaLibraryOption>, library_values: Parameters, library_count: u32) => Driver::cuLibraryLoadFromFile;
    Context fn cudaLibraryUnload(library: Library) => Driver::cuLibraryUnload;
    Context fn cudaLibraryGetKernel(out: Out<Kernel>, library: Library, name: Text) => register::library_kernel;
    Context fn cudaLibraryGetGlobal(out: Out<Address>, bytes: Maybe<usize>, library: Library, name: Text) => Driver::cuLibraryGetGlobal;

    // Captures and graphs.
    Context fn cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz(stream: Stream, mode: Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>) => Driver::cuStreamBeginCapture;
    Context fn cudaStreamEndCapture | cudaStreamEndCapture_ptsz(stream: Stream, out: Out<Graph>) => Driver::cuStreamEndCapture;
    Context fn cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: Graph, after: Nodes, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize, mode: Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>) => Driver::cuStreamBeginCaptureToGraph;
    Context fn cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz(stream: Stream, out: Out<Enum<cu::CUstreamCaptureStatus, rt::cudaStreamCaptureStatus>>) => Driver::cuStreamIsCapturing;
    Context fn cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz(stream: Stream, out: Out<Enum<cu::CUstreamCaptureStatus, rt::cudaStreamCaptureStatus>>, id: Maybe<u64>, graph: Maybe<Graph>, nodes: Written<*const cu::CUgraphNode, *const rt::cudaGraphNode_t>, edges: Written<*const cu::CUgraphEdgeData, *const rt::cudaGraphEdgeData>, count: Maybe<usize>) => Driver::cuStreamGetCaptureInfo;
    Context fn cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz(stream: Stream, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize, flags: u32) => Driver::cuStreamUpdateCaptureDependencies;
    Device fn cudaThreadExchangeStreamCaptureMode(mode: Out<Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>>) => Driver::cuThreadExchangeStreamCaptureMode;
    Context fn cudaGraphCreate(out: Out<Graph>, flags: u32) => Driver::cuGraphCreate;
    Context fn cudaGraphClone(out: Out<Graph>, graph: Graph) => Driver::cuGraphClone;
    Context fn cudaGraphDestroy(graph: Graph) => Driver::cuGraphDestroy;
    Context fn cudaGraphGetNodes(graph: Graph, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, count: Out<usize>) => Driver::cuGraphGetNodes;
    Context fn cudaGraphGetRootNodes(graph: Graph, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, count: Out<usize>) => Driver::cuGraphGetRootNodes;
    Context fn cudaGraphNodeGetType(node: Node, out: Out<Enum<cu::CUgraphNodeType, rt::cudaGraphNodeType>>) => Driver::cuGraphNodeGetType;
    Context fn cudaGraphNodeGetDependencies(node: Node, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>) => Driver::cuGraphNodeGetDependencies;
    Context fn cudaGraphNodeGetDependentNodes(node: Node, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>) => Driver::cuGraphNodeGetDependentNodes;
    Context fn cudaGraphGetEdges(graph: Graph, from: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, to: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>) => Driver::cuGraphGetEdges;
    Context fn cudaGraphAddDependencies(graph: Graph, from: Nodes, to: Nodes, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize) => Driver::cuGraphAddDependencies;
    Context fn cudaGraphRemoveDependencies(graph: Graph, from: Nodes, to: Nodes, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize) => Driver::cuGraphRemoveDependencies;
    Context fn cudaGraphAddEmptyNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize) => Driver::cuGraphAddEmptyNode;
    Context fn cudaGraphAddChildGraphNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, child: Graph) => Driver::cuGraphAddChildGraphNode;
    Context fn cudaGraphAddHostNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, parameters: Read<cu::CUDA_HOST_NODE_PARAMS, rt::cudaHostNodeParams>) => Driver::cuGraphAddHostNode;
    Context fn cudaGraphAddKernelNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, parameters: In<rt::cudaKernelNodeParams>) => graph::add_kernel;
    Context fn cudaGraphAddMemcpyNode1D(out: Out<Node>, graph: Graph, after: Nodes, count: usize, to: Address, from: ConstAddress, bytes: usize, kind: Kind) => graph::add_copy;
    Context fn cudaGraphAddMemsetNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, memset: Read<cu::CUDA_MEMSET_NODE_PARAMS, rt::cudaMemsetParams>) => graph::add_memset;
    Context fn cudaGraphAddEventRecordNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, event: Event) => Driver::cuGraphAddEventRecordNode;
    Context fn cudaGraphAddEventWaitNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, event: Event) => Driver::cuGraphAddEventWaitNode;
    Context fn cudaGraphAddMemAllocNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, parameters: Written<cu::CUDA_MEM_ALLOC_NODE_PARAMS, rt::cudaMemAllocNodeParams>) => Driver::cuGraphAddMemAllocNode;
    Context fn cudaGraphAddMemFreeNode(out: Out<Node>, graph: Graph, after: Nodes, count: usize, at: Address) => Driver::cuGraphAddMemFreeNode;
    Context fn cudaGraphNodeFindInClone(out: Out<Node>, node: Node, clone: Graph) => Driver::cuGraphNodeFindInClone;
    Context fn cudaGraphNodeSetEnabled(executable: GraphExec, node: Node, enabled: u32) => Driver::cuGraphNodeSetEnabled;
    Context fn cudaGraphNodeGetEnabled(executable: GraphExec, node: Node, out: Out<u32>) => Driver::cuGraphNodeGetEnabled;
    Context fn cudaGraphChildGraphNodeGetGraph(node: Node, out: Out<Graph>) => Driver::cuGraphChildGraphNodeGetGraph;
    Context fn cudaGraphExecGetFlags(executable: GraphExec, out: Out<u64>) => Driver::cuGraphExecGetFlags;
    Context fn cudaUserObjectCreate(out: Out<UserObject>, at: HostMut, end: HostFunction, count: u32, flags: u32) => Driver::cuUserObjectCreate;
    Context fn cudaUserObjectRetain(object: UserObject, count: u32) => Driver::cuUserObjectRetain;
    Context fn cudaUserObjectRelease(object: UserObject, count: u32) => Driver::cuUserObjectRelease;
    Context fn cudaGraphRetainUserObject(graph: Graph, object: UserObject, count: u32, flags: u32) => Driver::cuGraphRetainUserObject;
    Context fn cudaGraphReleaseUserObject(graph: Graph, object: UserObject, count: u32) => Driver::cuGraphReleaseUserObject;
    Context fn cudaGraphDestroyNode(node: Node) => Driver::cuGraphDestroyNode;
    Context fn cudaGraphDebugDotPrint(graph: Graph, path: Text, flags: u32) => Driver::cuGraphDebugDotPrint;
    Context fn cudaGraphInstantiate(out: Out<GraphExec>, graph: Graph, flags: u64) => Driver::cuGraphInstantiateWithFlags;
    Context fn cudaGraphInstantiateWithFlags(out: Out<GraphExec>, graph: Graph, flags: u64) => Driver::cuGraphInstantiateWithFlags;
    Context fn cudaGraphInstantiateWithParams | cudaGraphInstantiateWithParams_ptsz(out: Out<GraphExec>, graph: Graph, parameters: Written<cu::CUDA_GRAPH_INSTANTIATE_PARAMS, rt::cudaGraphInstantiateParams>) => Driver::cuGraphInstantiateWithParams;
    Context fn cudaGraphExecUpdate(executable: GraphExec, graph: Graph, result: Written<cu::CUgraphExecUpdateResultInfo, rt::cudaGraphExecUpdateResultInfo>) => Driver::cuGraphExecUpdate;
    Context fn cudaGraphUpload | cudaGraphUpload_ptsz(executable: GraphExec, stream: Stream) => Driver::cuGraphUpload;
    Context fn cudaGraphLaunch | cudaGraphLaunch_ptsz(executable: GraphExec, stream: Stream) => Driver::cuGraphLaunch;
    Context fn cudaGraphExecDestroy(executable: GraphExec) => Driver::cuGraphExecDestroy;
}

refused! {
    cudaGetExportTable
    __cudaRegisterManagedVar __cudaRegisterHostVar __cudaRegisterTexture __cudaRegisterSurface
    cudaMallocArray cudaMalloc3DArray cudaMallocMipmappedArray cudaFreeArray cudaFreeMipmappedArray
    cudaMemcpy2DToArray cudaMemcpy2DFromArray cudaCreateTextureObject cudaDestroyTextureObject
    cudaCreateSurfaceObject cudaDestroySurfaceObject
    cudaMemcpy3DPeer cudaMemcpy3DPeerAsync cudaMemcpy3DBatchAsync
    cudaImportExternalMemory cudaImportExternalSemaphore cudaGraphicsMapResources
}
