//! The driver: found by name once, each of its functions asked for by name and version.

#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys as cu;
use cudarc::runtime::sys as rt;

use crate::abi::*;
use crate::error::{Answer, Error, check};

/// Which streams a driver's default streams are.
#[derive(Clone, Copy, PartialEq)]
pub enum Streams {
    /// One for all threads, which waits for the others and they for it.
    Legacy,
    /// One for each thread.
    OfThreads,
}

impl Streams {
    /// What `cuGetProcAddress` calls them.
    pub fn flags(self) -> u64 {
        const OF_THREADS: u64 =
            cu::CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM as u64;
        match self {
            Self::Legacy => 0,
            Self::OfThreads => OF_THREADS,
        }
    }
}

/// What a handle that can be shared is.
pub type HandleType = Enum<cu::CUmemAllocationHandleType, rt::cudaMemAllocationHandleType>;

type Ask = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;

/// The driver's functions, each as `fn name = exported name, version(arguments)`: the name and version
/// are what is asked for, the exported name is what that means in the header, which the arguments are
/// checked against.
macro_rules! driver {
    ($(fn $name:ident = $symbol:ident, $version:literal ($($arg:ident: $type:ty),* $(,)?);)*) => {
        /// The driver, as programs of one kind of default streams see it.
        pub struct Driver {
            streams: Streams,
            ask: Ask,
            initialised: OnceLock<u32>,
            $($name: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl Driver {
            fn new(streams: Streams, ask: Ask) -> Driver {
                let find = |name: &CStr, version| find(ask, name, version, streams);
                Driver {
                    streams,
                    ask,
                    initialised: OnceLock::new(),
                    $($name: {
                        let found = find(name(concat!(stringify!($name), "\0")), $version);
                        // SAFETY: a function's address or null, which is `None`; by its name and
                        // version it has this signature, which is checked below.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> u32>>(found) }
                    },)*
                }
            }

            $(
                #[doc = concat!("`", stringify!($symbol), "`")]
                #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
                pub fn $name(&self, $($arg: $type),*) -> Answer {
                    let function = self.$name.ok_or(Error::NEWER_DRIVER)?;
                    // SAFETY: the driver's function of this signature. The pointers are what it
                    // demands (`abi`'s invariant), and it checks handles and addresses.
                    check(unsafe { function($($arg),*) })
                }
            )*
        }

        $(const _: unsafe fn($(<$type as Border>::Driver),*) -> cu::CUresult = cu::$symbol;)*
    };
}

/// The name that a literal with its zero spells.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name of the table contains a zero"),
    }
}

/// The address of a function, null if this driver has none of that name and version.
fn find(ask: Ask, name: &CStr, version: c_int, streams: Streams) -> *mut c_void {
    let mut found = std::ptr::null_mut();
    let mut status = 0;
    // SAFETY: `cuGetProcAddress_v2` with a string and two places of ours.
    let code = unsafe { ask(name.as_ptr(), &mut found, version, streams.flags(), &mut status) };
    if code == 0 { found } else { std::ptr::null_mut() }
}

impl Driver {
    /// The driver, if there is one.
    pub fn of(streams: Streams) -> Answer<&'static Driver> {
        static LEGACY: OnceLock<Option<Driver>> = OnceLock::new();
        static OF_THREADS: OnceLock<Option<Driver>> = OnceLock::new();
        let place = if streams == Streams::Legacy { &LEGACY } else { &OF_THREADS };
        let opened = place.get_or_init(|| Some(Driver::new(streams, open()?)));
        opened.as_ref().ok_or(Error::NO_DRIVER)
    }

    /// `cuInit`, once.
    pub fn initialise(&self) -> Answer {
        check(*self.initialised.get_or_init(|| match self.cuInit(0) {
            Ok(()) => 0,
            Err(error) => error.code(),
        }))
    }

    /// The streams that its default streams are.
    pub fn streams(&self) -> Streams {
        self.streams
    }

    /// `cuGetProcAddress_v2`, for a program that asks through the runtime: the address and what the
    /// driver says of it.
    pub fn address(&self, name: &CStr, version: c_int, flags: u64) -> (*mut c_void, u32) {
        let mut found = std::ptr::null_mut();
        let mut status = 0;
        // SAFETY: `cuGetProcAddress_v2` with a string and two places of ours; the code repeats the status.
        let _ = unsafe { (self.ask)(name.as_ptr(), &mut found, version, flags, &mut status) };
        (found, status)
    }
}

/// The driver's function to ask for all others with. Never closed: its addresses are kept.
fn open() -> Option<Ask> {
    // SAFETY: a string; the driver's constructors run, which is what a runtime is for.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library and a string.
    let ask = unsafe { libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr()) };
    // SAFETY: the function of that name has this signature, in every driver that has it; null is `None`.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Option<Ask>>(ask) }?;
    // NVIDIA's runtime asks for the empty name first, too. No driver has it.
    find(ask, c"", 0, Streams::Legacy);
    Some(ask)
}

driver! {
    fn cuInit = cuInit, 2000 (flags: u32);
    fn cuDriverGetVersion = cuDriverGetVersion, 2020 (out: Out<i32>);
    fn cuGetErrorString = cuGetErrorString, 6000 (error: Enum<cu::CUresult, ()>, out: Out<*const c_char>);

    // Devices and contexts.
    fn cuDeviceGetCount = cuDeviceGetCount, 2000 (out: Out<i32>);
    fn cuDeviceGetName = cuDeviceGetName, 2000 (out: Out<c_char>, length: i32, device: i32);
    fn cuDeviceGetUuid = cuDeviceGetUuid_v2, 11040 (out: Out<cu::CUuuid>, device: i32);
    fn cuDeviceTotalMem = cuDeviceTotalMem_v2, 3020 (out: Out<usize>, device: i32);
    fn cuDeviceGetAttribute = cuDeviceGetAttribute, 2000 (out: Out<i32>, attribute: Enum<cu::CUdevice_attribute, rt::cudaDeviceAttr>, device: i32);
    fn cuDeviceGetP2PAttribute = cuDeviceGetP2PAttribute, 8000 (out: Out<i32>, attribute: Enum<cu::CUdevice_P2PAttribute, rt::cudaDeviceP2PAttr>, from: i32, to: i32);
    fn cuDeviceGetPCIBusId = cuDeviceGetPCIBusId, 4010 (out: Out<c_char>, length: i32, device: i32);
    fn cuDeviceGetByPCIBusId = cuDeviceGetByPCIBusId, 4010 (out: Out<i32>, id: Text);
    fn cuDeviceCanAccessPeer = cuDeviceCanAccessPeer, 4000 (out: Out<i32>, device: i32, peer: i32);
    fn cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool, 11020 (out: Out<Pool>, device: i32);
    fn cuDeviceGetMemPool = cuDeviceGetMemPool, 11020 (out: Out<Pool>, device: i32);
    fn cuDeviceSetMemPool = cuDeviceSetMemPool, 11020 (device: i32, pool: Pool);
    fn cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain, 7000 (out: Out<Context>, device: i32);
    fn cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2, 11000 (device: i32);
    fn cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState, 7000 (device: i32, flags: Out<u32>, active: Out<i32>);
    fn cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags_v2, 11000 (device: i32, flags: u32);
    fn cuCtxGetCurrent = cuCtxGetCurrent, 4000 (out: Out<Context>);
    fn cuCtxSetCurrent = cuCtxSetCurrent, 4000 (context: Context);
    fn cuCtxGetDevice = cuCtxGetDevice, 2000 (out: Out<i32>);
    fn cuCtxSynchronize = cuCtxSynchronize, 2000 ();
    fn cuCtxGetLimit = cuCtxGetLimit, 3010 (out: Out<usize>, limit: Enum<cu::CUlimit, rt::cudaLimit>);
    fn cuCtxSetLimit = cuCtxSetLimit, 3010 (limit: Enum<cu::CUlimit, rt::cudaLimit>, value: usize);
    fn cuCtxGetCacheConfig = cuCtxGetCacheConfig, 3020 (out: Out<Enum<cu::CUfunc_cache, rt::cudaFuncCache>>);
    fn cuCtxSetCacheConfig = cuCtxSetCacheConfig, 3020 (config: Enum<cu::CUfunc_cache, rt::cudaFuncCache>);
    fn cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange, 5050 (least: Maybe<i32>, greatest: Maybe<i32>);
    fn cuCtxEnablePeerAccess = cuCtxEnablePeerAccess, 4000 (peer: Context, flags: u32);
    fn cuCtxDisablePeerAccess = cuCtxDisablePeerAccess, 4000 (peer: Context);
    fn cuProfilerStart = cuProfilerStart, 4000 ();
    fn cuProfilerStop = cuProfilerStop, 4000 ();

    // Libraries and kernels.
    fn cuLibraryLoadData = cuLibraryLoadData, 12000 (out: Out<Library>, image: Host, options: Written<cu::CUjit_option, rt::cudaJitOption>, values: Parameters, count: u32, library_options: Written<cu::CUlibraryOption, rt::cudaLibraryOption>, library_values: Parameters, library_count: u32);
    fn cuLibraryLoadFromFile = cuLibraryLoadFromFile, 12000 (out: Out<Library>, path: Text, options: Written<cu::CUjit_option, rt::cudaJitOption>, values: Parameters, count: u32, library_options: Written<cu::CUlibraryOption, rt::cudaLibraryOption>, library_values: Parameters, library_count: u32);
    fn cuLibraryUnload = cuLibraryUnload, 12000 (library: Library);
    fn cuLibraryGetKernel = cuLibraryGetKernel, 12000 (out: Out<Kernel>, library: Library, name: Text);
    fn cuLibraryGetGlobal = cuLibraryGetGlobal, 12000 (address: Out<Address>, bytes: Maybe<usize>, library: Library, name: Text);
    fn cuKernelGetFunction = cuKernelGetFunction, 12000 (out: Out<Function>, kernel: Kernel);
    fn cuKernelGetAttribute = cuKernelGetAttribute, 12000 (out: Out<i32>, attribute: Enum<cu::CUfunction_attribute, rt::cudaFuncAttribute>, kernel: Kernel, device: i32);
    fn cuKernelSetAttribute = cuKernelSetAttribute, 12000 (attribute: Enum<cu::CUfunction_attribute, rt::cudaFuncAttribute>, value: i32, kernel: Kernel, device: i32);
    fn cuKernelSetCacheConfig = cuKernelSetCacheConfig, 12000 (kernel: Kernel, config: Enum<cu::CUfunc_cache, rt::cudaFuncCache>, device: i32);
    fn cuKernelGetName = cuKernelGetName, 12030 (out: Out<*const c_char>, kernel: Kernel);
    fn cuKernelGetParamInfo = cuKernelGetParamInfo, 12040 (kernel: Kernel, index: usize, offset: Out<usize>, size: Maybe<usize>);

    // Launches and occupancy. A kernel goes where a function is expected.
    fn cuLaunchKernel = cuLaunchKernel, 4000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, each: Parameters, buffer: Parameters);
    fn cuLaunchKernelEx = cuLaunchKernelEx, 11060 (config: In<cu::CUlaunchConfig>, function: Function, each: Parameters, buffer: Parameters);
    fn cuLaunchCooperativeKernel = cuLaunchCooperativeKernel, 9000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, each: Parameters);
    fn cuLaunchHostFunc = cuLaunchHostFunc, 10000 (stream: Stream, function: HostFunction, data: HostMut);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000 (out: Out<i32>, function: Function, block: i32, shared: usize, flags: u32);
    fn cuOccupancyAvailableDynamicSMemPerBlock = cuOccupancyAvailableDynamicSMemPerBlock, 10020 (out: Out<usize>, function: Function, blocks: i32, block: i32);

    // Memory.
    fn cuMemGetInfo = cuMemGetInfo_v2, 3020 (free: Out<usize>, total: Out<usize>);
    fn cuMemAlloc = cuMemAlloc_v2, 3020 (out: Out<Address>, bytes: usize);
    fn cuMemAllocPitch = cuMemAllocPitch_v2, 3020 (out: Out<Address>, pitch: Out<usize>, width: usize, height: usize, element: u32);
    fn cuMemAllocManaged = cuMemAllocManaged, 6000 (out: Out<Address>, bytes: usize, flags: u32);
    fn cuMemFree = cuMemFree_v2, 3020 (address: Address);
    fn cuMemHostAlloc = cuMemHostAlloc, 2020 (out: Out<HostMut>, bytes: usize, flags: u32);
    fn cuMemFreeHost = cuMemFreeHost, 2000 (at: HostMut);
    fn cuMemHostRegister = cuMemHostRegister_v2, 6050 (at: HostMut, bytes: usize, flags: u32);
    fn cuMemHostUnregister = cuMemHostUnregister, 4000 (at: HostMut);
    fn cuMemHostGetDevicePointer = cuMemHostGetDevicePointer_v2, 3020 (out: Out<Address>, at: HostMut, flags: u32);
    fn cuMemHostGetFlags = cuMemHostGetFlags, 2030 (out: Out<u32>, at: HostMut);
    fn cuPointerGetAttributes = cuPointerGetAttributes, 7000 (count: u32, attributes: Written<cu::CUpointer_attribute, ()>, answers: Parameters, at: Address);
    fn cuIpcGetMemHandle = cuIpcGetMemHandle, 4010 (out: Out<cu::CUipcMemHandle>, at: Address);
    fn cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2, 11000 (out: Out<Address>, handle: cu::CUipcMemHandle, flags: u32);
    fn cuIpcCloseMemHandle = cuIpcCloseMemHandle, 4010 (at: Address);
    fn cuIpcGetEventHandle = cuIpcGetEventHandle, 4010 (out: Out<cu::CUipcEventHandle>, event: Event);
    fn cuIpcOpenEventHandle = cuIpcOpenEventHandle, 4010 (out: Out<Event>, handle: cu::CUipcEventHandle);

    // Memory in the order of streams.
    fn cuMemAllocAsync = cuMemAllocAsync, 11020 (out: Out<Address>, bytes: usize, stream: Stream);
    fn cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync, 11020 (out: Out<Address>, bytes: usize, pool: Pool, stream: Stream);
    fn cuMemFreeAsync = cuMemFreeAsync, 11020 (address: Address, stream: Stream);
    fn cuMemPoolCreate = cuMemPoolCreate, 11020 (out: Out<Pool>, properties: Read<cu::CUmemPoolProps, rt::cudaMemPoolProps>);
    fn cuMemPoolDestroy = cuMemPoolDestroy, 11020 (pool: Pool);
    fn cuMemPoolTrimTo = cuMemPoolTrimTo, 11020 (pool: Pool, keep: usize);
    fn cuMemPoolSetAttribute = cuMemPoolSetAttribute, 11020 (pool: Pool, attribute: Enum<cu::CUmemPool_attribute, rt::cudaMemPoolAttr>, value: HostMut);
    fn cuMemPoolGetAttribute = cuMemPoolGetAttribute, 11020 (pool: Pool, attribute: Enum<cu::CUmemPool_attribute, rt::cudaMemPoolAttr>, value: HostMut);
    fn cuMemPoolSetAccess = cuMemPoolSetAccess, 11020 (pool: Pool, rights: Read<cu::CUmemAccessDesc, rt::cudaMemAccessDesc>, count: usize);
    fn cuMemPoolGetAccess = cuMemPoolGetAccess, 11020 (out: Out<Enum<cu::CUmemAccess_flags, rt::cudaMemAccessFlags>>, pool: Pool, location: Written<cu::CUmemLocation, rt::cudaMemLocation>);
    fn cuMemPoolExportToShareableHandle = cuMemPoolExportToShareableHandle, 11020 (out: HostMut, pool: Pool, kind: HandleType, flags: u64);
    fn cuMemPoolImportFromShareableHandle = cuMemPoolImportFromShareableHandle, 11020 (out: Out<Pool>, handle: HostMut, kind: HandleType, flags: u64);
    fn cuMemPoolExportPointer = cuMemPoolExportPointer, 11020 (out: Written<cu::CUmemPoolPtrExportData, rt::cudaMemPoolPtrExportData>, at: Address);
    fn cuMemPoolImportPointer = cuMemPoolImportPointer, 11020 (out: Out<Address>, pool: Pool, data: Written<cu::CUmemPoolPtrExportData, rt::cudaMemPoolPtrExportData>);
    fn cuDeviceGraphMemTrim = cuDeviceGraphMemTrim, 11040 (device: i32);
    fn cuDeviceGetGraphMemAttribute = cuDeviceGetGraphMemAttribute, 11040 (device: i32, attribute: Enum<cu::CUgraphMem_attribute, rt::cudaGraphMemAttributeType>, value: HostMut);
    fn cuDeviceSetGraphMemAttribute = cuDeviceSetGraphMemAttribute, 11040 (device: i32, attribute: Enum<cu::CUgraphMem_attribute, rt::cudaGraphMemAttributeType>, value: HostMut);

    // Managed memory.
    fn cuMemPrefetchAsync = cuMemPrefetchAsync_v2, 12020 (at: ConstAddress, bytes: usize, location: Location, flags: u32, stream: Stream);
    fn cuMemAdvise = cuMemAdvise_v2, 12020 (at: ConstAddress, bytes: usize, advice: Enum<cu::CUmem_advise, rt::cudaMemoryAdvise>, location: Location);
    fn cuMemRangeGetAttribute = cuMemRangeGetAttribute, 8000 (out: HostMut, bytes: usize, attribute: Enum<cu::CUmem_range_attribute, rt::cudaMemRangeAttribute>, at: ConstAddress, range: usize);
    fn cuMemRangeGetAttributes = cuMemRangeGetAttributes, 8000 (out: Parameters, bytes: Written<usize>, attributes: Written<cu::CUmem_range_attribute, rt::cudaMemRangeAttribute>, count: usize, at: ConstAddress, range: usize);

    // Copies and memsets.
    fn cuMemcpy = cuMemcpy, 4000 (to: Address, from: ConstAddress, bytes: usize);
    fn cuMemcpyAsync = cuMemcpyAsync, 4000 (to: Address, from: ConstAddress, bytes: usize, stream: Stream);
    fn cuMemcpyHtoD = cuMemcpyHtoD_v2, 3020 (to: Address, from: Host, bytes: usize);
    fn cuMemcpyHtoDAsync = cuMemcpyHtoDAsync_v2, 3020 (to: Address, from: Host, bytes: usize, stream: Stream);
    fn cuMemcpyDtoH = cuMemcpyDtoH_v2, 3020 (to: HostMut, from: ConstAddress, bytes: usize);
    fn cuMemcpyDtoHAsync = cuMemcpyDtoHAsync_v2, 3020 (to: HostMut, from: ConstAddress, bytes: usize, stream: Stream);
    fn cuMemcpyDtoD = cuMemcpyDtoD_v2, 3020 (to: Address, from: ConstAddress, bytes: usize);
    fn cuMemcpyDtoDAsync = cuMemcpyDtoDAsync_v2, 3020 (to: Address, from: ConstAddress, bytes: usize, stream: Stream);
    fn cuMemcpyPeer = cuMemcpyPeer, 4000 (to: Address, to_in: Context, from: ConstAddress, from_in: Context, bytes: usize);
    fn cuMemcpyPeerAsync = cuMemcpyPeerAsync, 4000 (to: Address, to_in: Context, from: ConstAddress, from_in: Context, bytes: usize, stream: Stream);
    fn cuMemcpy2DUnaligned = cuMemcpy2DUnaligned_v2, 3020 (copy: In<cu::CUDA_MEMCPY2D>);
    fn cuMemcpy2DAsync = cuMemcpy2DAsync_v2, 3020 (copy: In<cu::CUDA_MEMCPY2D>, stream: Stream);
    fn cuMemcpy3D = cuMemcpy3D_v2, 3020 (copy: In<cu::CUDA_MEMCPY3D>);
    fn cuMemcpy3DAsync = cuMemcpy3DAsync_v2, 3020 (copy: In<cu::CUDA_MEMCPY3D>, stream: Stream);
    fn cuMemcpyBatchAsync = cuMemcpyBatchAsync_v2, 13000 (to: Handle<*mut cu::CUdeviceptr, *const *mut c_void>, from: Handle<*mut cu::CUdeviceptr, *const *const c_void>, bytes: Handle<*mut usize, *const usize>, count: usize, attributes: Written<cu::CUmemcpyAttributes, rt::cudaMemcpyAttributes>, first: Written<usize>, attribute_count: usize, stream: Stream);
    fn cuMemsetD8 = cuMemsetD8_v2, 3020 (at: Address, value: u8, count: usize);
    fn cuMemsetD8Async = cuMemsetD8Async, 3020 (at: Address, value: u8, count: usize, stream: Stream);
    fn cuMemsetD2D8 = cuMemsetD2D8_v2, 3020 (at: Address, pitch: usize, value: u8, width: usize, height: usize);
    fn cuMemsetD2D8Async = cuMemsetD2D8Async, 3020 (at: Address, pitch: usize, value: u8, width: usize, height: usize, stream: Stream);

    // Streams and events.
    fn cuStreamCreate = cuStreamCreate, 2000 (out: Out<Stream>, flags: u32);
    fn cuStreamCreateWithPriority = cuStreamCreateWithPriority, 5050 (out: Out<Stream>, flags: u32, priority: i32);
    fn cuStreamDestroy = cuStreamDestroy_v2, 4000 (stream: Stream);
    fn cuStreamSynchronize = cuStreamSynchronize, 2000 (stream: Stream);
    fn cuStreamQuery = cuStreamQuery, 2000 (stream: Stream);
    fn cuStreamWaitEvent = cuStreamWaitEvent, 3020 (stream: Stream, event: Event, flags: u32);
    fn cuStreamAddCallback = cuStreamAddCallback, 5000 (stream: Stream, callback: Callback, data: HostMut, flags: u32);
    fn cuStreamGetPriority = cuStreamGetPriority, 5050 (stream: Stream, out: Out<i32>);
    fn cuStreamGetFlags = cuStreamGetFlags, 5050 (stream: Stream, out: Out<u32>);
    fn cuStreamGetId = cuStreamGetId, 12000 (stream: Stream, out: Out<u64>);
    fn cuStreamGetDevice = cuStreamGetDevice, 12080 (stream: Stream, out: Out<i32>);
    fn cuStreamGetAttribute = cuStreamGetAttribute, 11000 (stream: Stream, attribute: Enum<cu::CUlaunchAttributeID, rt::cudaLaunchAttributeID>, out: Written<cu::CUlaunchAttributeValue, rt::cudaLaunchAttributeValue>);
    fn cuStreamSetAttribute = cuStreamSetAttribute, 11000 (stream: Stream, attribute: Enum<cu::CUlaunchAttributeID, rt::cudaLaunchAttributeID>, value: Read<cu::CUlaunchAttributeValue, rt::cudaLaunchAttributeValue>);
    fn cuStreamCopyAttributes = cuStreamCopyAttributes, 11000 (to: Stream, from: Stream);
    fn cuStreamAttachMemAsync = cuStreamAttachMemAsync, 6000 (stream: Stream, at: Address, bytes: usize, flags: u32);
    fn cuEventCreate = cuEventCreate, 2000 (out: Out<Event>, flags: u32);
    fn cuEventDestroy = cuEventDestroy_v2, 4000 (event: Event);
    fn cuEventRecord = cuEventRecord, 2000 (event: Event, stream: Stream);
    fn cuEventRecordWithFlags = cuEventRecordWithFlags, 11010 (event: Event, stream: Stream, flags: u32);
    fn cuEventQuery = cuEventQuery, 2000 (event: Event);
    fn cuEventSynchronize = cuEventSynchronize, 2000 (event: Event);
    fn cuEventElapsedTime = cuEventElapsedTime_v2, 12080 (out: Out<f32>, start: Event, end: Event);

    // Captures and graphs.
    fn cuStreamBeginCapture = cuStreamBeginCapture_v2, 10010 (stream: Stream, mode: Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>);
    fn cuStreamEndCapture = cuStreamEndCapture, 10000 (stream: Stream, out: Out<Graph>);
    fn cuStreamBeginCaptureToGraph = cuStreamBeginCaptureToGraph, 12030 (stream: Stream, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize, mode: Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>);
    fn cuStreamIsCapturing = cuStreamIsCapturing, 10000 (stream: Stream, out: Out<Enum<cu::CUstreamCaptureStatus, rt::cudaStreamCaptureStatus>>);
    fn cuStreamGetCaptureInfo = cuStreamGetCaptureInfo_v3, 12030 (stream: Stream, out: Out<Enum<cu::CUstreamCaptureStatus, rt::cudaStreamCaptureStatus>>, id: Maybe<u64>, graph: Maybe<Graph>, nodes: Written<*const cu::CUgraphNode, *const rt::cudaGraphNode_t>, edges: Written<*const cu::CUgraphEdgeData, *const rt::cudaGraphEdgeData>, count: Maybe<usize>);
    fn cuStreamUpdateCaptureDependencies = cuStreamUpdateCaptureDependencies_v2, 12030 (stream: Stream, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize, flags: u32);
    fn cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode, 10010 (mode: Out<Enum<cu::CUstreamCaptureMode, rt::cudaStreamCaptureMode>>);
    fn cuGraphCreate = cuGraphCreate, 10000 (out: Out<Graph>, flags: u32);
    fn cuGraphClone = cuGraphClone, 10000 (out: Out<Graph>, graph: Graph);
    fn cuGraphDestroy = cuGraphDestroy, 10000 (graph: Graph);
    fn cuGraphGetNodes = cuGraphGetNodes, 10000 (graph: Graph, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, count: Out<usize>);
    fn cuGraphGetRootNodes = cuGraphGetRootNodes, 10000 (graph: Graph, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, count: Out<usize>);
    fn cuGraphNodeGetType = cuGraphNodeGetType, 10000 (node: Node, out: Out<Enum<cu::CUgraphNodeType, rt::cudaGraphNodeType>>);
    fn cuGraphNodeGetDependencies = cuGraphNodeGetDependencies_v2, 12030 (node: Node, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>);
    fn cuGraphNodeGetDependentNodes = cuGraphNodeGetDependentNodes_v2, 12030 (node: Node, nodes: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>);
    fn cuGraphGetEdges = cuGraphGetEdges_v2, 12030 (graph: Graph, from: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, to: Written<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Written<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: Out<usize>);
    fn cuGraphAddDependencies = cuGraphAddDependencies_v2, 12030 (graph: Graph, from: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, to: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize);
    fn cuGraphRemoveDependencies = cuGraphRemoveDependencies_v2, 12030 (graph: Graph, from: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, to: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, edges: Read<cu::CUgraphEdgeData, rt::cudaGraphEdgeData>, count: usize);
    fn cuGraphAddEmptyNode = cuGraphAddEmptyNode, 10000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize);
    fn cuGraphAddChildGraphNode = cuGraphAddChildGraphNode, 10000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, child: Graph);
    fn cuGraphAddHostNode = cuGraphAddHostNode, 10000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, parameters: Read<cu::CUDA_HOST_NODE_PARAMS, rt::cudaHostNodeParams>);
    fn cuGraphAddKernelNode = cuGraphAddKernelNode_v2, 12000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, parameters: In<cu::CUDA_KERNEL_NODE_PARAMS>);
    fn cuGraphAddMemcpyNode = cuGraphAddMemcpyNode, 10000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, copy: In<cu::CUDA_MEMCPY3D>, context: Context);
    fn cuGraphAddMemsetNode = cuGraphAddMemsetNode, 10000 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, memset: Read<cu::CUDA_MEMSET_NODE_PARAMS, rt::cudaMemsetParams>, context: Context);
    fn cuGraphAddEventRecordNode = cuGraphAddEventRecordNode, 11010 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, event: Event);
    fn cuGraphAddEventWaitNode = cuGraphAddEventWaitNode, 11010 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, event: Event);
    fn cuGraphAddMemAllocNode = cuGraphAddMemAllocNode, 11040 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, parameters: Written<cu::CUDA_MEM_ALLOC_NODE_PARAMS, rt::cudaMemAllocNodeParams>);
    fn cuGraphAddMemFreeNode = cuGraphAddMemFreeNode, 11040 (out: Out<Node>, graph: Graph, after: Read<cu::CUgraphNode, rt::cudaGraphNode_t>, count: usize, at: Address);
    fn cuGraphNodeFindInClone = cuGraphNodeFindInClone, 10000 (out: Out<Node>, node: Node, clone: Graph);
    fn cuGraphNodeSetEnabled = cuGraphNodeSetEnabled, 11060 (executable: GraphExec, node: Node, enabled: u32);
    fn cuGraphNodeGetEnabled = cuGraphNodeGetEnabled, 11060 (executable: GraphExec, node: Node, out: Out<u32>);
    fn cuGraphChildGraphNodeGetGraph = cuGraphChildGraphNodeGetGraph, 10000 (node: Node, out: Out<Graph>);
    fn cuGraphExecGetFlags = cuGraphExecGetFlags, 12000 (executable: GraphExec, out: Out<u64>);
    fn cuUserObjectCreate = cuUserObjectCreate, 11030 (out: Out<UserObject>, at: HostMut, end: HostFunction, count: u32, flags: u32);
    fn cuUserObjectRetain = cuUserObjectRetain, 11030 (object: UserObject, count: u32);
    fn cuUserObjectRelease = cuUserObjectRelease, 11030 (object: UserObject, count: u32);
    fn cuGraphRetainUserObject = cuGraphRetainUserObject, 11030 (graph: Graph, object: UserObject, count: u32, flags: u32);
    fn cuGraphReleaseUserObject = cuGraphReleaseUserObject, 11030 (graph: Graph, object: UserObject, count: u32);
    fn cuGraphDestroyNode = cuGraphDestroyNode, 10000 (node: Node);
    fn cuGraphDebugDotPrint = cuGraphDebugDotPrint, 11030 (graph: Graph, path: Text, flags: u32);
    fn cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags, 11040 (out: Out<GraphExec>, graph: Graph, flags: u64);
    fn cuGraphInstantiateWithParams = cuGraphInstantiateWithParams, 12000 (out: Out<GraphExec>, graph: Graph, parameters: Written<cu::CUDA_GRAPH_INSTANTIATE_PARAMS, rt::cudaGraphInstantiateParams>);
    fn cuGraphExecUpdate = cuGraphExecUpdate_v2, 12000 (executable: GraphExec, graph: Graph, result: Written<cu::CUgraphExecUpdateResultInfo, rt::cudaGraphExecUpdateResultInfo>);
    fn cuGraphUpload = cuGraphUpload, 11010 (executable: GraphExec, stream: Stream);
    fn cuGraphLaunch = cuGraphLaunch, 10000 (executable: GraphExec, stream: Stream);
    fn cuGraphExecDestroy = cuGraphExecDestroy, 10000 (executable: GraphExec);
}
