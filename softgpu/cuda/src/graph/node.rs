//! What nodes do, and the many functions that say it, ask it and change it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent,
    CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUkernelNodeAttrID, CUlaunchAttributeValue,
    CUresult,
};
use parking_lot::Mutex;

use super::allocation::{self, Allocation, RawAllocation};
use super::{Graph, INVALID, check_edges, find, find_node, forget};
use crate::abi::{Answer, Enum, In, InMut, List, Mirror, Out};
use crate::context;
use crate::copy::{Raw3d, Transfer};
use crate::event;
use crate::launch::Launch;
use crate::memset::Fill;
use crate::value::{Operation, RawBatch};
use crate::work::{Callback, Function, Op};

/// A node of a graph.
pub struct Node {
    pub handle: usize,
    /// The graph it is in.
    pub graph: usize,
    /// The node it was copied from, else itself.
    pub original: usize,
    work: Mutex<Work>,
    attributes: Mutex<HashMap<u32, RawValue>>,
}

/// What a node does.
#[derive(Clone)]
pub enum Work {
    Empty,
    Kernel(Arc<Launch>),
    Copy(Transfer),
    Fill(Fill),
    Call(Callback),
    Child(Arc<Graph>),
    /// Wait for what was last recorded into the event of that handle.
    Await(usize),
    /// Record into the event of that handle.
    Record(usize),
    Allocate(Arc<Allocation>),
    Free(Arc<Allocation>),
    Values(Arc<[Operation]>),
}

impl Node {
    /// A node with a handle already given out.
    pub fn new(handle: usize, graph: usize, original: usize, work: Work) -> Node {
        Node { handle, graph, original, work: Mutex::new(work), attributes: Mutex::default() }
    }

    /// What it does.
    pub fn work(&self) -> Work {
        self.work.lock().clone()
    }

    /// Changes what it does, not of which kind that is.
    fn set(&self, work: Work) -> Answer {
        let mut own = self.work.lock();
        if own.kind() != work.kind() {
            return Err(INVALID);
        }
        *own = work;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Work::Child(graph) = self.work.get_mut() {
            forget(graph);
        }
    }
}

impl Work {
    /// Its `CUgraphNodeType`.
    pub fn kind(&self) -> u32 {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Call(_) => 3,
            Work::Child(_) => 4,
            Work::Empty => 5,
            Work::Await(_) => 6,
            Work::Record(_) => 7,
            Work::Allocate(_) => 10,
            Work::Free(_) => 11,
            Work::Values(_) => 12,
        }
    }

    /// What its kind is called.
    pub fn name(&self) -> &'static str {
        const NAMES: [&str; 13] = [
            "KERNEL",
            "MEMCPY",
            "MEMSET",
            "HOST",
            "GRAPH",
            "EMPTY",
            "WAIT_EVENT",
            "EVENT_RECORD",
            "EXT_SEMAS_SIGNAL",
            "EXT_SEMAS_WAIT",
            "MEM_ALLOC",
            "MEM_FREE",
            "BATCH_MEM_OP",
        ];
        NAMES[self.kind() as usize]
    }

    /// For a node of another graph: child graphs belong to one node.
    pub fn copy(&self) -> Work {
        match self {
            Work::Child(graph) => Work::Child(graph.copy()),
            other => other.clone(),
        }
    }

    /// Whether an executable graph can leave it out.
    pub fn can_be_disabled(&self) -> bool {
        matches!(self, Work::Kernel(_) | Work::Copy(_) | Work::Fill(_))
    }
}

/// What a captured operation is in a graph.
impl From<Op> for Work {
    fn from(op: Op) -> Work {
        match op {
            Op::Kernel(launch) => Work::Kernel(launch),
            Op::Transfer(transfer) => Work::Copy(transfer),
            Op::Fill(fill) => Work::Fill(fill),
            Op::Call(callback) => Work::Call(callback),
            Op::Values(operations) => Work::Values(operations),
            // Copies of one call are captured one by one. Marks and waits of streams are edges of graphs, or
            // nodes made of their events.
            Op::Transfers(_)
            | Op::Free(_)
            | Op::Record(_)
            | Op::Await(_)
            | Op::AwaitMark(..)
            | Op::After(..)
            | Op::Stop => Work::Empty,
        }
    }
}

impl Mirror for CUDA_KERNEL_NODE_PARAMS {
    type Of = CUDA_KERNEL_NODE_PARAMS;
}

impl Mirror for CUDA_KERNEL_NODE_PARAMS_v1 {
    type Of = CUDA_KERNEL_NODE_PARAMS_v1;
}

impl Mirror for CUDA_MEMSET_NODE_PARAMS {
    type Of = CUDA_MEMSET_NODE_PARAMS;
}

impl Mirror for CUDA_HOST_NODE_PARAMS {
    type Of = CUDA_HOST_NODE_PARAMS;
}

/// An attribute's value, whatever it means.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawValue([u64; 8]);

impl Mirror for RawValue {
    type Of = CUlaunchAttributeValue;
}

impl RawValue {
    /// What an attribute is that nobody has set.
    pub const ZERO: RawValue = RawValue([0; 8]);

    /// A number.
    pub fn of(number: i32) -> RawValue {
        let mut value = RawValue::ZERO;
        value.0[0] = u64::from(number.cast_unsigned());
        value
    }
}

/// `CUgraphNodeParams`: a kind, and parameters of that kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawParameters {
    kind: u32,
    reserved: [i32; 3],
    body: [u64; 29],
    last: i64,
}

impl Mirror for RawParameters {
    type Of = CUgraphNodeParams;
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawCopy {
    flags: i32,
    reserved: i32,
    context: usize,
    copy: Raw3d,
}

impl RawParameters {
    /// The parameters, as those of their kind.
    fn body<T: Copy>(&self) -> T {
        const { assert!(size_of::<T>() <= 29 * size_of::<u64>()) };
        // SAFETY: the body is at least as large as a `T`; callers read the plain C type that the
        // kind stands for, of which the program has written all.
        unsafe { self.body.as_ptr().cast::<T>().read_unaligned() }
    }

    fn set_body<T: Copy>(&mut self, value: T) {
        const { assert!(size_of::<T>() <= 29 * size_of::<u64>()) };
        // SAFETY: the body is at least as large as a `T`.
        unsafe { self.body.as_mut_ptr().cast::<T>().write_unaligned(value) }
    }

    fn work(&mut self) -> Answer<Work> {
        match self.kind {
            0 => Launch::of_node(&self.body::<CUDA_KERNEL_NODE_PARAMS>()).map(Work::Kernel),
            1 => self.body::<RawCopy>().copy.transfer().map(Work::Copy),
            2 => Fill::of_node(&self.body::<CUDA_MEMSET_NODE_PARAMS>()).map(Work::Fill),
            3 => call_of(&self.body::<CUDA_HOST_NODE_PARAMS>()),
            4 => Ok(Work::Child(find(self.body::<CUgraph>())?.copy())),
            5 => Ok(Work::Empty),
            6 => event::check(self.body::<CUevent>()).map(Work::Await),
            7 => event::check(self.body::<CUevent>()).map(Work::Record),
            10 => self.allocation(),
            11 => allocation::of_address(self.body::<u64>()).map(Work::Free),
            12 => Ok(Work::Values(self.body::<RawBatch>().operations()?)),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    fn allocation(&mut self) -> Answer<Work> {
        let mut asked = self.body::<RawAllocation>();
        let made = asked.make()?;
        self.set_body(asked);
        Ok(Work::Allocate(made))
    }
}

fn call_of(parameters: &CUDA_HOST_NODE_PARAMS) -> Answer<Work> {
    let function = Function::Plain(parameters.fn_.ok_or(INVALID)?);
    Ok(Work::Call(Callback { function, data: parameters.userData as usize }))
}

fn widen(old: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: old.func,
        gridDimX: old.gridDimX,
        gridDimY: old.gridDimY,
        gridDimZ: old.gridDimZ,
        blockDimX: old.blockDimX,
        blockDimY: old.blockDimY,
        blockDimZ: old.blockDimZ,
        sharedMemBytes: old.sharedMemBytes,
        kernelParams: old.kernelParams,
        extra: old.extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

fn narrow(new: &CUDA_KERNEL_NODE_PARAMS) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: new.func,
        gridDimX: new.gridDimX,
        gridDimY: new.gridDimY,
        gridDimZ: new.gridDimZ,
        blockDimX: new.blockDimX,
        blockDimY: new.blockDimY,
        blockDimZ: new.blockDimZ,
        sharedMemBytes: new.sharedMemBytes,
        kernelParams: new.kernelParams,
        extra: new.extra,
    }
}

/// Work of one kernel node, from the parameters of either version.
pub fn kernel(parameters: &CUDA_KERNEL_NODE_PARAMS) -> Answer<Work> {
    Launch::of_node(parameters).map(Work::Kernel)
}

/// As [`kernel`], from the parameters of before CUDA 12.
pub fn kernel_v1(parameters: &CUDA_KERNEL_NODE_PARAMS_v1) -> Answer<Work> {
    kernel(&widen(parameters))
}

/// Work of a copy node.
pub fn copy(parameters: &Raw3d, context: CUcontext) -> Answer<Work> {
    context::named(context)?;
    parameters.transfer().map(Work::Copy)
}

/// Work of a memset node.
pub fn fill(parameters: &CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Answer<Work> {
    context::named(context)?;
    Fill::of_node(parameters).map(Work::Fill)
}

/// Work of a host node.
pub fn call(parameters: &CUDA_HOST_NODE_PARAMS) -> Answer<Work> {
    call_of(parameters)
}

/// Work of a node of a child graph, of whose nodes it has copies.
pub fn child(graph: CUgraph) -> Answer<Work> {
    Ok(Work::Child(find(graph)?.copy()))
}

/// Work of any kind.
pub fn any(parameters: &InMut<RawParameters>) -> Answer<Work> {
    let mut asked = parameters.get();
    let work = asked.work()?;
    parameters.set(asked);
    Ok(work)
}

type Nodes = List<CUgraphNode>;

fn add(out: &Out<CUgraphNode>, graph: CUgraph, after: &Nodes, count: usize, work: Answer<Work>) -> Answer {
    let graph = find(graph)?;
    let after: Vec<usize> = after.many(count)?.into_iter().map(|node| node as usize).collect();
    out.set(graph.add(work?, &after)?.handle as CUgraphNode);
    Ok(())
}

/// `cuGraphAddEmptyNode`
pub fn add_empty(out: Out<CUgraphNode>, graph: CUgraph, after: Nodes, count: usize) -> Answer {
    add(&out, graph, &after, count, Ok(Work::Empty))
}

/// `cuGraphAddKernelNode_v2`
pub fn add_kernel(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Answer {
    add(&out, graph, &after, count, kernel(&parameters.get()))
}

/// `cuGraphAddKernelNode` of before CUDA 12
pub fn add_kernel_v1(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Answer {
    add(&out, graph, &after, count, kernel_v1(&parameters.get()))
}

/// `cuGraphAddMemcpyNode`
pub fn add_copy(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<Raw3d>,
    context: CUcontext,
) -> Answer {
    add(&out, graph, &after, count, copy(&parameters.get(), context))
}

/// `cuGraphAddMemsetNode`
pub fn add_fill(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<CUDA_MEMSET_NODE_PARAMS>,
    context: CUcontext,
) -> Answer {
    add(&out, graph, &after, count, fill(&parameters.get(), context))
}

/// `cuGraphAddHostNode`
pub fn add_call(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<CUDA_HOST_NODE_PARAMS>,
) -> Answer {
    add(&out, graph, &after, count, call(&parameters.get()))
}

/// `cuGraphAddChildGraphNode`
pub fn add_child(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    child_graph: CUgraph,
) -> Answer {
    add(&out, graph, &after, count, child(child_graph))
}

/// `cuGraphAddEventRecordNode`
pub fn add_record(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    event: CUevent,
) -> Answer {
    add(&out, graph, &after, count, event::check(event).map(Work::Record))
}

/// `cuGraphAddEventWaitNode`
pub fn add_await(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    event: CUevent,
) -> Answer {
    add(&out, graph, &after, count, event::check(event).map(Work::Await))
}

/// `cuGraphAddMemAllocNode`: its address is known at once.
pub fn add_allocation(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: InMut<RawAllocation>,
) -> Answer {
    let mut asked = parameters.get();
    let made = asked.make()?;
    parameters.set(asked);
    add(&out, graph, &after, count, Ok(Work::Allocate(made)))
}

/// `cuGraphAddMemFreeNode`
pub fn add_free(out: Out<CUgraphNode>, graph: CUgraph, after: Nodes, count: usize, address: u64) -> Answer {
    add(&out, graph, &after, count, allocation::of_address(address).map(Work::Free))
}

/// `cuGraphAddBatchMemOpNode`
pub fn add_values(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: In<RawBatch>,
) -> Answer {
    add(&out, graph, &after, count, parameters.get().operations().map(Work::Values))
}

/// `cuGraphAddNode`
pub fn add_any(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    count: usize,
    parameters: InMut<RawParameters>,
) -> Answer {
    add(&out, graph, &after, count, any(&parameters))
}

/// `cuGraphAddNode_v2`
pub fn add_any_v2(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    after: Nodes,
    edges: List<CUgraphEdgeData>,
    count: usize,
    parameters: InMut<RawParameters>,
) -> Answer {
    check_edges(&edges, count)?;
    add_any(out, graph, after, count, parameters)
}

/// `cuGraphKernelNodeGetParams_v2`
pub fn get_kernel(node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS>) -> Answer {
    let Work::Kernel(launch) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(launch.describe());
    Ok(())
}

/// `cuGraphKernelNodeGetParams` of before CUDA 12
pub fn get_kernel_v1(node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS_v1>) -> Answer {
    let Work::Kernel(launch) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(narrow(&launch.describe()));
    Ok(())
}

/// `cuGraphKernelNodeSetParams_v2`
pub fn set_kernel(node: CUgraphNode, parameters: In<CUDA_KERNEL_NODE_PARAMS>) -> Answer {
    find_node(node)?.set(kernel(&parameters.get())?)
}

/// `cuGraphKernelNodeSetParams` of before CUDA 12
pub fn set_kernel_v1(node: CUgraphNode, parameters: In<CUDA_KERNEL_NODE_PARAMS_v1>) -> Answer {
    find_node(node)?.set(kernel_v1(&parameters.get())?)
}

/// `cuGraphMemcpyNodeGetParams`
pub fn get_copy(node: CUgraphNode, out: InMut<Raw3d>) -> Answer {
    let Work::Copy(transfer) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(transfer.describe());
    Ok(())
}

/// `cuGraphMemcpyNodeSetParams`
pub fn set_copy(node: CUgraphNode, parameters: In<Raw3d>) -> Answer {
    find_node(node)?.set(Work::Copy(parameters.get().transfer()?))
}

/// `cuGraphMemsetNodeGetParams`
pub fn get_fill(node: CUgraphNode, out: Out<CUDA_MEMSET_NODE_PARAMS>) -> Answer {
    let Work::Fill(fill) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(fill.describe());
    Ok(())
}

/// `cuGraphMemsetNodeSetParams`
pub fn set_fill(node: CUgraphNode, parameters: In<CUDA_MEMSET_NODE_PARAMS>) -> Answer {
    find_node(node)?.set(Work::Fill(Fill::of_node(&parameters.get())?))
}

/// `cuGraphHostNodeGetParams`
pub fn get_call(node: CUgraphNode, out: Out<CUDA_HOST_NODE_PARAMS>) -> Answer {
    let Work::Call(Callback { function: Function::Plain(function), data }) = find_node(node)?.work() else {
        return Err(INVALID);
    };
    out.set(CUDA_HOST_NODE_PARAMS { fn_: Some(function), userData: data as *mut c_void });
    Ok(())
}

/// `cuGraphHostNodeSetParams`
pub fn set_call(node: CUgraphNode, parameters: In<CUDA_HOST_NODE_PARAMS>) -> Answer {
    find_node(node)?.set(call(&parameters.get())?)
}

/// `cuGraphChildGraphNodeGetGraph`
pub fn get_child(node: CUgraphNode, out: Out<CUgraph>) -> Answer {
    let Work::Child(graph) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(graph.handle as CUgraph);
    Ok(())
}

/// `cuGraphEventRecordNodeGetEvent`
pub fn get_record(node: CUgraphNode, out: Out<CUevent>) -> Answer {
    let Work::Record(event) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(event as CUevent);
    Ok(())
}

/// `cuGraphEventRecordNodeSetEvent`
pub fn set_record(node: CUgraphNode, event: CUevent) -> Answer {
    find_node(node)?.set(Work::Record(event::check(event)?))
}

/// `cuGraphEventWaitNodeGetEvent`
pub fn get_await(node: CUgraphNode, out: Out<CUevent>) -> Answer {
    let Work::Await(event) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(event as CUevent);
    Ok(())
}

/// `cuGraphEventWaitNodeSetEvent`
pub fn set_await(node: CUgraphNode, event: CUevent) -> Answer {
    find_node(node)?.set(Work::Await(event::check(event)?))
}

/// `cuGraphMemAllocNodeGetParams`
pub fn get_allocation(node: CUgraphNode, out: InMut<RawAllocation>) -> Answer {
    let Work::Allocate(allocation) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(allocation.describe());
    Ok(())
}

/// `cuGraphMemFreeNodeGetParams`
pub fn get_free(node: CUgraphNode, out: Out<u64>) -> Answer {
    let Work::Free(allocation) = find_node(node)?.work() else { return Err(INVALID) };
    out.set(allocation.start as u64);
    Ok(())
}

/// `cuGraphBatchMemOpNodeSetParams`
pub fn set_values(node: CUgraphNode, parameters: In<RawBatch>) -> Answer {
    find_node(node)?.set(Work::Values(parameters.get().operations()?))
}

/// `cuGraphNodeSetParams`
pub fn set_any(node: CUgraphNode, parameters: InMut<RawParameters>) -> Answer {
    find_node(node)?.set(any(&parameters)?)
}

fn kernel_node(node: CUgraphNode) -> Answer<Arc<Node>> {
    let node = find_node(node)?;
    if matches!(node.work(), Work::Kernel(_)) { Ok(node) } else { Err(INVALID) }
}

/// `cuGraphKernelNodeGetAttribute`
pub fn attribute(node: CUgraphNode, attribute: Enum<CUkernelNodeAttrID>, out: InMut<RawValue>) -> Answer {
    let node = kernel_node(node)?;
    out.set(node.attributes.lock().get(&attribute.0).copied().unwrap_or(RawValue::ZERO));
    Ok(())
}

/// `cuGraphKernelNodeSetAttribute`
pub fn set_attribute(node: CUgraphNode, attribute: Enum<CUkernelNodeAttrID>, value: In<RawValue>) -> Answer {
    kernel_node(node)?.attributes.lock().insert(attribute.0, value.get());
    Ok(())
}

/// `cuGraphKernelNodeCopyAttributes`
pub fn copy_attributes(to: CUgraphNode, from: CUgraphNode) -> Answer {
    let attributes = kernel_node(from)?.attributes.lock().clone();
    *kernel_node(to)?.attributes.lock() = attributes;
    Ok(())
}

impl Mirror for RawBatch {
    type Of = CUDA_BATCH_MEM_OP_NODE_PARAMS;
}

impl Mirror for RawAllocation {
    type Of = CUDA_MEM_ALLOC_NODE_PARAMS;
}
