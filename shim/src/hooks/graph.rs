//! Graphs: plans of work that the driver keeps. Memory that they own is ours.
//!
//! A node that allocates or frees is an empty node of the driver's graph: order is kept, and the memory
//! is there for as long as the graph is ([`crate::graphs`]).

use super::abi::{Out, Real};
use super::{memory, pool, room};
use crate::driver;
use crate::graphs::User;
use crate::host_functions;
use crate::process::Process;
use crate::raw::Location;
use crate::status::{Answer, Status};
use std::ffi::{c_char, c_ulonglong};
use tidegate_ffi::cuda::sys::*;

/// `cuGraphInstantiate` and `cuGraphInstantiate_v2`.
pub fn instantiate_with_log(
    process: &'static Process,
    real: Real<'_>,
    executable: Out<'_, CUgraphExec>,
    graph: CUgraph,
    _error: *mut CUgraphNode,
    _log: *mut c_char,
    _bytes: usize,
) -> Answer {
    instantiate(process, real, executable, graph)
}

/// `cuGraphInstantiateWithFlags`.
pub fn instantiate_with_flags(
    process: &'static Process,
    real: Real<'_>,
    executable: Out<'_, CUgraphExec>,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> Answer {
    instantiate(process, real, executable, graph)
}

/// `cuGraphInstantiateWithParams`.
pub fn instantiate_with_parameters(
    process: &'static Process,
    real: Real<'_>,
    executable: Out<'_, CUgraphExec>,
    graph: CUgraph,
    _parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Answer {
    instantiate(process, real, executable, graph)
}

/// The driver takes memory for it; what the graph owns is the executable's too.
fn instantiate(
    process: &'static Process,
    real: Real<'_>,
    executable: Out<'_, CUgraphExec>,
    graph: CUgraph,
) -> Answer {
    let executable = executable.preset(std::ptr::null_mut());
    room::for_current_gpu(process, real)?;
    process.graphs.share(User::Graph(graph.addr()), User::Executable(executable.get().addr()));
    Ok(())
}

/// `cuGraphExecUpdate`.
pub fn update(
    process: &'static Process,
    real: Real<'_>,
    executable: CUgraphExec,
    graph: CUgraph,
    _error: *mut CUgraphNode,
    _result: *mut CUgraphExecUpdateResult,
) -> Answer {
    updated(process, real, executable, graph)
}

/// `cuGraphExecUpdate_v2`.
pub fn update_v2(
    process: &'static Process,
    real: Real<'_>,
    executable: CUgraphExec,
    graph: CUgraph,
    _result: *mut CUgraphExecUpdateResultInfo,
) -> Answer {
    updated(process, real, executable, graph)
}

fn updated(process: &'static Process, real: Real<'_>, executable: CUgraphExec, graph: CUgraph) -> Answer {
    real()?;
    process.graphs.share(User::Graph(graph.addr()), User::Executable(executable.addr()));
    Ok(())
}

/// `cuGraphClone`.
pub fn clone(process: &'static Process, real: Real<'_>, copy: Out<'_, CUgraph>, original: CUgraph) -> Answer {
    let copy = copy.preset(std::ptr::null_mut());
    real()?;
    process.graphs.share(User::Graph(original.addr()), User::Graph(copy.get().addr()));
    Ok(())
}

/// `cuGraphAddChildGraphNode`.
pub fn add_child(
    process: &'static Process,
    real: Real<'_>,
    _node: *mut CUgraphNode,
    graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    child: CUgraph,
) -> Answer {
    real()?;
    process.graphs.share(User::Graph(child.addr()), User::Graph(graph.addr()));
    Ok(())
}

/// `cuGraphDestroy`.
pub fn destroy(process: &'static Process, real: Real<'_>, graph: CUgraph) -> Answer {
    real()?;
    end(process, User::Graph(graph.addr()));
    Ok(())
}

/// `cuGraphExecDestroy`.
pub fn destroy_executable(process: &'static Process, real: Real<'_>, executable: CUgraphExec) -> Answer {
    real()?;
    end(process, User::Executable(executable.addr()));
    Ok(())
}

/// Frees what nobody can use any more, when the work that may still use it has ended.
pub fn end(process: &'static Process, user: User) {
    for address in process.graphs.end(user) {
        if let Some(tenant) = process.tenants.with_address(address) {
            // It is dead either way; a context that has failed is told to the program by its own calls.
            let _ = tenant.free(process, address);
            process.pools.freed(address);
        }
    }
}

/// `cuGraphAddMemAllocNode`.
pub fn add_allocation(
    process: &'static Process,
    _real: Real<'_>,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Answer {
    // SAFETY: null, or by the driver's manual the parameters of such a node, which nobody else uses
    // during the call.
    let parameters = unsafe { parameters.cast::<Allocation>().as_mut() }.ok_or(Status::INVALID_VALUE)?;
    add_node_for(process, node, graph, dependencies, count, parameters)
}

fn add_node_for(
    process: &'static Process,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: &mut Allocation,
) -> Answer {
    let device = parameters.location.device().ok_or(Status(CUresult::CUDA_ERROR_NOT_SUPPORTED))?;
    if parameters.bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let node = add_empty(node, graph, dependencies, count)?;
    let owner = memory::owner()?;
    let address = pool::allocate_for_graph(process, device, parameters.bytes as u64, owner)?;
    process.graphs.own(User::Graph(graph.addr()), address);
    process.graphs.stands_for(node.addr(), address);
    parameters.address = address;
    Ok(())
}

/// A `CUDA_MEM_ALLOC_NODE_PARAMS`, by numbers.
#[repr(C)]
struct Allocation {
    allocation: i32,
    handles: i32,
    location: Location,
    security: usize,
    most: usize,
    others: [u8; 56],
    accesses: usize,
    access_count: usize,
    bytes: usize,
    address: CUdeviceptr,
}

const _: () = assert!(size_of::<Allocation>() == size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>());

/// `cuGraphAddMemFreeNode`.
pub fn add_free(
    process: &'static Process,
    _real: Real<'_>,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
) -> Answer {
    if !process.graphs.free(address) && !process.graphs.free_left(User::Graph(graph.addr()), address) {
        return Err(Status::INVALID_VALUE);
    }
    let node = add_empty(node, graph, dependencies, count)?;
    process.graphs.stands_for(node.addr(), address);
    Ok(())
}

fn add_empty(
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
) -> Result<CUgraphNode, Status> {
    let mut made = std::ptr::null_mut();
    // SAFETY: the result goes to our own variable; the others are the program's, for a function that
    // asks the same of them.
    unsafe { driver::get().cuGraphAddEmptyNode(&mut made, graph, dependencies, count) }?;
    node.set(made);
    Ok(made)
}

/// `cuGraphAddNode`.
pub fn add(
    process: &'static Process,
    real: Real<'_>,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Answer {
    add_any(process, real, node, graph, dependencies, count, parameters)
}

/// `cuGraphAddNode_v2` and `cuGraphAddNode_v3`. A node that allocates or frees has plain edges.
pub fn add_with_edges(
    process: &'static Process,
    real: Real<'_>,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Answer {
    add_any(process, real, node, graph, dependencies, count, parameters)
}

/// The beginning of a `CUgraphNodeParams`, by numbers.
#[repr(C)]
struct AnyNode {
    kind: u32,
    reserved: [i32; 3],
    allocation: Allocation,
}

fn add_any(
    process: &'static Process,
    real: Real<'_>,
    node: Out<'_, CUgraphNode>,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Answer {
    const ALLOCATES: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC as u32;
    const FREES: u32 = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE as u32;
    // SAFETY: null, or by the driver's manual the parameters of a node, which are larger than what is
    // named here; nobody else uses them during the call.
    let parameters = unsafe { parameters.cast::<AnyNode>().as_mut() }.ok_or(Status::INVALID_VALUE)?;
    match parameters.kind {
        ALLOCATES => add_node_for(process, node, graph, dependencies, count, &mut parameters.allocation),
        FREES => {
            // The union's first field is the address.
            let address = &raw const parameters.allocation;
            // SAFETY: of such a node, the parameters begin with the address.
            let address = unsafe { address.cast::<CUdeviceptr>().read() };
            add_free(process, real, node, graph, dependencies, count, address)
        }
        _ => real(),
    }
}

/// `cuGraphHostNodeGetParams`.
pub fn host_parameters(
    _process: &'static Process,
    real: Real<'_>,
    _node: CUgraphNode,
    parameters: *mut CUDA_HOST_NODE_PARAMS,
) -> Answer {
    real()?;
    // SAFETY: the driver has written it.
    if let Some(parameters) = unsafe { parameters.as_mut() } {
        host_functions::tell_programs_own(parameters);
    }
    Ok(())
}

/// `cuGraphMemFreeNodeGetParams`.
pub fn free_parameters(
    process: &'static Process,
    real: Real<'_>,
    node: CUgraphNode,
    address: Out<'_, CUdeviceptr>,
) -> Answer {
    match process.graphs.behind(node.addr()) {
        Some(known) => {
            address.set(known);
            Ok(())
        }
        None => real(),
    }
}
