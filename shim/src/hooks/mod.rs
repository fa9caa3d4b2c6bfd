//! The exported driver functions, made of the table's rows.
//!
//! - *hooked* rows have a row in [`hooks!`](abi) below and a safe function in the file of their
//!   noun; a row that is missing, or has another signature, does not compile;
//! - *gated*, *counted* and *refused* rows are made here from the table alone;
//! - *passes* rows are the driver's own and are not exported.

#![expect(clippy::too_many_arguments, reason = "the driver's own signatures")]
#![cfg_attr(test, expect(non_snake_case, reason = "the driver's own names, exempt only as exports"))]

pub mod abi;
pub mod by_name;
mod capture;
mod context;
mod graph;
mod green;
mod init;
mod ipc;
mod managed;
mod memory;
mod peer;
mod pool;
mod query;
mod queues;
mod room;
mod stream;
mod values;
mod vmm;

use crate::collectives;
use crate::driver;
use crate::gate::{self, Role};
use crate::host_functions;
use crate::kernels;
use crate::operands;
use crate::status::Status;
use crate::symbols::jump::entry;
use queues::SaysNothing as _;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::{driver_functions, driver_names};

abi::hooks! {
    fn cuInit(flags: c_uint) => init::init as always;
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: cuuint64_t) => init::get_proc_address as always;
    fn cuGetProcAddress_v2(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult) => init::get_proc_address_v2 as always;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) => query::total_memory;
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: DeviceAttribute, device: CUdevice) => query::device_attribute;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => query::memory_info;
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) => context::retain_primary;
    fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create_v2;
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create_v2;
    fn cuCtxCreate_v3(context: *mut CUcontext, affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice) => context::create_v3;
    fn cuCtxCreate_v4(context: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) => context::create_v4;
    fn cuCtxDestroy(context: CUcontext) => context::destroy;
    fn cuCtxDestroy_v2(context: CUcontext) => context::destroy;
    fn cuDevicePrimaryCtxRelease(device: CUdevice) => context::release_primary;
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) => context::release_primary;
    fn cuDevicePrimaryCtxReset(device: CUdevice) => context::reset_primary;
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) => context::reset_primary;
    fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) => context::attach;
    fn cuCtxDetach(context: CUcontext) => context::detach;
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) => peer::enable;
    fn cuCtxDisablePeerAccess(peer: CUcontext) => peer::disable;
    fn cuGreenCtxCreate(green: *mut CUgreenCtx, resources: CUdevResourceDesc, device: CUdevice, flags: c_uint) => green::create;
    fn cuGreenCtxDestroy(green: CUgreenCtx) => green::destroy;
    fn cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) => green::context;
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) => memory::allocate;
    fn cuMemAllocPitch_v2(address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::allocate_pitch;
    fn cuMemFree_v2(address: CUdeviceptr) => memory::free;
    fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint) => managed::allocate;
    fn cuLibraryGetManaged(address: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) => managed::variable;
    fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) => pool::allocate;
    fn cuMemAllocAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) => pool::allocate_per_thread;
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) => pool::allocate_from_pool;
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) => pool::allocate_from_pool_per_thread;
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) => pool::free;
    fn cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) => pool::free_per_thread;
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) => pool::create;
    fn cuMemPoolDestroy(pool: CUmemoryPool) => pool::destroy;
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => pool::trim;
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) => pool::set_attribute;
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) => pool::attribute;
    fn cuMemPoolSetAccess(pool: CUmemoryPool, list: *const CUmemAccessDesc, count: usize) => pool::set_access;
    fn cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation) => pool::access;
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) => pool::default_of;
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) => pool::current_of;
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) => pool::choose;
    fn cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) => pool::default_at;
    fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType) => pool::current_at;
    fn cuMemSetMemPool(location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool) => pool::choose_at;
    fn cuGraphInstantiate(executable: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, bytes: usize) => graph::instantiate_with_log;
    fn cuGraphInstantiate_v2(executable: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut c_char, bytes: usize) => graph::instantiate_with_log;
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) => graph::instantiate_with_flags;
    fn cuGraphInstantiateWithParams(executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) and cuGraphInstantiateWithParams_ptsz => graph::instantiate_with_parameters;
    fn cuGraphExecUpdate(executable: CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, result: *mut CUgraphExecUpdateResult) => graph::update;
    fn cuGraphExecUpdate_v2(executable: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo) => graph::update_v2;
    fn cuGraphClone(copy: *mut CUgraph, original: CUgraph) => graph::clone;
    fn cuGraphAddChildGraphNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, child: CUgraph) => graph::add_child;
    fn cuGraphAddMemAllocNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => graph::add_allocation;
    fn cuGraphAddMemFreeNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, address: CUdeviceptr) => graph::add_free;
    fn cuGraphAddNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, parameters: *mut CUgraphNodeParams) => graph::add;
    fn cuGraphAddNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, parameters: *mut CUgraphNodeParams) => graph::add_with_edges;
    fn cuGraphAddNode_v3(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, parameters: *mut CUgraphNodeParams) => graph::add_with_edges;
    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut CUdeviceptr) => graph::free_parameters;
    fn cuGraphHostNodeGetParams(node: CUgraphNode, parameters: *mut CUDA_HOST_NODE_PARAMS) => graph::host_parameters;
    fn cuGraphDestroy(graph: CUgraph) => graph::destroy;
    fn cuGraphExecDestroy(executable: CUgraphExec) => graph::destroy_executable;
    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong) => vmm::create;
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) => vmm::release;
    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) => vmm::retain;
    fn cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) => vmm::properties;
    fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) => vmm::granularity;
    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) => vmm::map;
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize) => vmm::unmap;
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, list: *const CUmemAccessDesc, count: usize) => vmm::set_access;
    fn cuMemExportToShareableHandle(shared: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong) => vmm::export;
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) => ipc::share;
    fn cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => ipc::open;
    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => ipc::open;
    fn cuIpcCloseMemHandle(address: CUdeviceptr) => ipc::close;
    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) => query::address_range;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: PointerAttribute, address: CUdeviceptr) => query::pointer_attribute;
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut PointerAttribute, data: *mut *mut c_void, address: CUdeviceptr) => query::pointer_attributes;
    fn cuPointerSetAttribute(value: *const c_void, attribute: PointerAttribute, address: CUdeviceptr) => query::set_pointer_attribute;
    fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) => query::access;
    fn cuStreamSynchronize(stream: CUstream) and cuStreamSynchronize_ptsz => stream::synchronize;
    fn cuCtxSynchronize() => stream::synchronize_context;
    fn cuEventSynchronize(event: CUevent) => stream::synchronize_event;
    fn cuStreamQuery(stream: CUstream) and cuStreamQuery_ptsz => stream::query;
    fn cuEventQuery(event: CUevent) => stream::query_event;
    fn cuStreamDestroy(stream: CUstream) => stream::destroy;
    fn cuStreamDestroy_v2(stream: CUstream) => stream::destroy;
    fn cuStreamWaitValue32(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => values::wait_32;
    fn cuStreamWaitValue32_ptsz(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => values::wait_32_per_thread;
    fn cuStreamWriteValue32(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWriteValue32_ptsz => values::write_32;
    fn cuStreamWaitValue64(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => values::wait_64;
    fn cuStreamWaitValue64_ptsz(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => values::wait_64_per_thread;
    fn cuStreamWriteValue64(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWriteValue64_ptsz => values::write_64;
    fn cuStreamBatchMemOp(stream: CUstream, count: c_uint, list: *mut CUstreamBatchMemOpParams, flags: c_uint) => values::batch;
    fn cuStreamBatchMemOp_ptsz(stream: CUstream, count: c_uint, list: *mut CUstreamBatchMemOpParams, flags: c_uint) => values::batch_per_thread;
    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => values::wait_32;
    fn cuStreamWaitValue32_v2_ptsz(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) => values::wait_32_per_thread;
    fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint) and cuStreamWriteValue32_v2_ptsz => values::write_32;
    fn cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => values::wait_64;
    fn cuStreamWaitValue64_v2_ptsz(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) => values::wait_64_per_thread;
    fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: cuuint64_t, flags: c_uint) and cuStreamWriteValue64_v2_ptsz => values::write_64;
    fn cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, list: *mut CUstreamBatchMemOpParams, flags: c_uint) => values::batch;
    fn cuStreamBatchMemOp_v2_ptsz(stream: CUstream, count: c_uint, list: *mut CUstreamBatchMemOpParams, flags: c_uint) => values::batch_per_thread;
    fn cuStreamBeginCapture(stream: CUstream) and cuStreamBeginCapture_ptsz => capture::begin_v1;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) and cuStreamBeginCapture_v2_ptsz => capture::begin;
    fn cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode) and cuStreamBeginCaptureToGraph_ptsz => capture::begin_to_graph;
    fn cuStreamBeginRecaptureToGraph(stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback: *mut c_void, data: *mut c_void) and cuStreamBeginRecaptureToGraph_ptsz => capture::begin_again;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) and cuStreamEndCapture_ptsz => capture::end;
}

/// The driver's function.
macro_rules! call {
    ($name:ident ($($arg:ident),*)) => {
        match crate::driver::get().$name {
            // SAFETY: the program's own arguments, and its promise.
            Some(function) => unsafe { function($($arg),*) },
            None => CUresult::CUDA_ERROR_NOT_FOUND.into(),
        }
    };
}

/// Through the gate, then the driver, or another call that comes to it.
macro_rules! submit {
    ($name:ident ($($arg:ident),*), $are_resident:expr) => {
        submit!($name($($arg),*), $are_resident, || call!($name($($arg),*)), Role::Works)
    };
    ($name:ident ($($arg:ident),*), $are_resident:expr, $call:expr, $role:expr) => {{
        let call = $call;
        // SAFETY: the program's own arguments, and its promise.
        let queue = || queues::of_call(stringify!($name), unsafe { [$(queues::Argument($arg).stream()),*] });
        gate::submit($role, call, |failed| Status::from(failed).0.into(), $are_resident, queue)
    }};
}

macro_rules! export {
    (gated cuLaunchKernel $parameters:tt) => { export!(launch cuLaunchKernel $parameters); };
    (gated cuLaunchKernel_ptsz $parameters:tt) => { export!(launch cuLaunchKernel_ptsz $parameters); };
    (gated cuLaunchKernelEx $parameters:tt) => { export!(launch cuLaunchKernelEx $parameters); };
    (gated cuLaunchKernelEx_ptsz $parameters:tt) => { export!(launch cuLaunchKernelEx_ptsz $parameters); };
    (gated cuLaunchCooperativeKernel $parameters:tt) => {
        export!(launch cuLaunchCooperativeKernel $parameters);
    };
    (gated cuLaunchCooperativeKernel_ptsz $parameters:tt) => {
        export!(launch cuLaunchCooperativeKernel_ptsz $parameters);
    };
    (launch $name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the gate, then the driver.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            if !collectives::is_ordinary(kernels::Launch::from(($($arg),*)).function()) {
                // SAFETY: the program's own arguments, and its promise.
                unsafe { kernels::note_use(($($arg),*).into()) };
                collectives::come_if_one(kernels::Launch::from(($($arg),*)).function());
            }
            // SAFETY: as above.
            let are_resident = || unsafe { kernels::are_operands_resident(($($arg),*).into()) };
            submit!($name($($arg),*), are_resident)
        }
    };
    (gated cuGraphLaunch $parameters:tt) => {
        export!(as (host_functions::role_of_graphs()) cuGraphLaunch $parameters);
    };
    (gated cuGraphLaunch_ptsz $parameters:tt) => {
        export!(as (host_functions::role_of_graphs()) cuGraphLaunch_ptsz $parameters);
    };
    (gated cuLaunchHostFunc $parameters:tt) => { export!(host cuLaunchHostFunc $parameters); };
    (gated cuLaunchHostFunc_ptsz $parameters:tt) => { export!(host cuLaunchHostFunc_ptsz $parameters); };
    (gated cuLaunchHostFunc_v2 $parameters:tt) => { export!(host cuLaunchHostFunc_v2 $parameters); };
    (gated cuLaunchHostFunc_v2_ptsz $parameters:tt) => { export!(host cuLaunchHostFunc_v2_ptsz $parameters); };
    (gated cuStreamAddCallback $parameters:tt) => { export!(host cuStreamAddCallback $parameters); };
    (gated cuStreamAddCallback_ptsz $parameters:tt) => { export!(host cuStreamAddCallback_ptsz $parameters); };
    (host $name:ident (
        $stream:ident : $stream_type:ty, $function:ident : $function_type:ty, $data:ident : $data_type:ty
        $(, $arg:ident : $type:ty)* $(,)?
    )) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the gate, then the driver, which calls ours.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $stream: $stream_type, $function: $function_type, $data: $data_type $(, $arg: $type)*
        ) -> Code {
            let submit = |$function, $data| call!($name($stream, $function, $data $(, $arg)*));
            let call = || {
                if !host_functions::are_seen() {
                    return submit($function, $data);
                }
                let stream = queues::stream_of(stringify!($name), $stream);
                // SAFETY: as above.
                unsafe { host_functions::launch(stream, $function, $data, submit) }
            };
            submit!($name($stream, $function, $data $(, $arg)*), operands::are_resident, call, Role::Calls)
        }
    };
    (gated $name:ident $parameters:tt) => { export!(as (Role::Works) $name $parameters); };
    (as ($role:expr) $name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the gate, then the driver.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            submit!($name($($arg),*), operands::are_resident, || call!($name($($arg),*)), $role)
        }
    };
    (counted $name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        #[doc = concat!("The program's `", stringify!($name), "`: the driver, and again when there is room.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            let real = || {
                // SAFETY: the program's own arguments, and its promise.
                let outcome = unsafe { crate::driver::get().$name($($arg),*) };
                outcome.map_err(crate::status::Status::from)
            };
            abi::enter(|process| room::for_current_gpu(process, &real), &real)
        }
    };
    (refused $name:ident $parameters:tt) => {
        export!(refused $name);
    };
    (refused $name:ident) => {
        #[doc = concat!("The program's `", stringify!($name), "`: not supported yet.")]
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            entry!(row::$name, by_name::refuse)
        }
    };
    (hooked $name:ident $parameters:tt) => {
        // Every hooked row has its function, of the row's type.
        const _: tidegate_ffi::cuda::functions::signature::$name = $name;
    };
    (passes $name:ident $($parameters:tt)?) => {};
}

/// The refused functions' rows, by their names.
macro_rules! refused_row {
    (refused $name:ident) => {
        pub static $name: Refused = Refused::new(concat!(stringify!($name), "\0"));
    };
    ($kind:ident $name:ident) => {};
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
    ($( $kind:ident $([$tag:ident])? $name:ident $parameters:tt $(and $twin:ident)?; )*) => {
        $( export!($kind $name $parameters); $( export!($kind $twin $parameters); )? )*
        driver_names!(exports, { $( $kind { $name $($twin)? } )* });
    };
    ({ $( $signed:ident { $($called:ident)* } )* } $( $kind:ident { $($name:ident)* } )*) => {
        $( $( export!($kind $name); )* )*

        mod row {
            use super::by_name::Refused;
            $( $( refused_row!($signed $called); )* )*
            $( $( refused_row!($kind $name); )* )*
        }

        /// Our function of that name, if the table says that ours answers. `None`: the table does not
        /// know the name.
        pub fn ours(name: &str) -> Option<Option<*mut c_void>> {
            Some(match name {
                $( $( stringify!($called) => ours!($signed $called), )* )*
                $( $( stringify!($name) => ours!($kind $name), )* )*
                _ => return None,
            })
        }
    };
}

driver_functions!(exports);

/// What a program gets in place of the function at `theirs`, which it looked up as `name`: ours, or
/// the driver's own (`None`).
pub fn instead_of(name: &CStr, theirs: *mut c_void) -> Option<*mut c_void> {
    if theirs.is_null() || crate::settings::is_off() {
        return None;
    }
    match ours(name.to_str().ok()?) {
        Some(ours) => ours,
        None if is_new(name, theirs) => by_name::stand_in_for(name, theirs),
        None => None,
    }
}

/// Whether this is a function of the driver, of which the table knows nothing. Other libraries have
/// names that begin with `cu` too, and the driver may have been loaded by somebody else only.
fn is_new(name: &CStr, theirs: *mut c_void) -> bool {
    name.to_bytes().get(2).is_some_and(u8::is_ascii_uppercase) && driver::address_of(name) == theirs
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::cuda::functions::{self, Kind};

    #[test]
    fn every_row_is_ours_unless_it_passes() {
        for function in functions::all() {
            let ours = ours(function.name).expect(function.name);
            assert_eq!(ours.is_some(), function.kind != Kind::Passes, "{}", function.name);
        }
        assert_eq!(ours("cuNoSuchFunction"), None);
    }

    #[test]
    fn without_a_driver_and_a_manager_a_call_is_answered_and_nothing_is_started() {
        // SAFETY: no device memory is touched: there is no driver in unit tests, or it refuses.
        let answer = unsafe { cuMemFree_v2(0) };
        assert_ne!(answer, CUresult::CUDA_SUCCESS);
        assert!(crate::process::active().is_none());
    }
}
