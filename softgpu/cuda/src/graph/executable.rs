//! Executable graphs: made from a graph, changed in their parameters, launched.

use std::ffi::c_char;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraph, CUgraphExec,
    CUgraphExecUpdateResult as Verdict, CUgraphExecUpdateResultInfo, CUgraphNode, CUresult, CUstream,
};
use parking_lot::Mutex;

use super::allocation::Allocation;
use super::node::{self, RawParameters, Work};
use super::user_object::References;
use super::{Edges, Graph, INVALID, find};
use crate::abi::{Answer, In, InMut, Maybe, Mirror, Out};
use crate::context;
use crate::copy::Raw3d;
use crate::event;
use crate::registry::Registry;
use crate::stream::{self, Stream};
use crate::value::RawBatch;
use crate::work::Op;

/// Launches free what earlier ones left allocated.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 15;

/// An executable graph.
struct Executable {
    handle: usize,
    flags: u64,
    plan: Mutex<Plan>,
    /// What it keeps alive.
    _objects: References,
}

/// Steps in an order that keeps the edges, which are pairs of places in it.
#[derive(Clone)]
struct Plan {
    steps: Vec<Step>,
    edges: Edges,
}

/// One node's part.
#[derive(Clone)]
struct Step {
    /// The node of the graph by which programs name it.
    node: usize,
    work: Work,
    enabled: bool,
    /// Of a child graph.
    children: Option<Plan>,
}

static EXECUTABLES: Registry<Executable> = Registry::new();

impl Plan {
    fn of(graph: &Graph) -> Option<Plan> {
        let (nodes, edges) = graph.in_order()?;
        let step = |node: &Arc<node::Node>| {
            let work = node.work();
            let children = match &work {
                Work::Child(graph) => Some(Plan::of(graph)?),
                _ => None,
            };
            Some(Step { node: node.handle, work, enabled: true, children })
        };
        Some(Plan { steps: nodes.iter().map(step).collect::<Option<_>>()?, edges })
    }

    fn find(&mut self, node: usize) -> Option<&mut Step> {
        for step in &mut self.steps {
            if step.node == node {
                return Some(step);
            }
            if let Some(found) = step.children.as_mut().and_then(|children| children.find(node)) {
                return Some(found);
            }
        }
        None
    }

    /// Does of now on what a plan of the same shape does; else says what differs.
    fn update(&mut self, new: &Plan) -> Result<(), (Verdict, usize)> {
        let last = new.steps.last().map_or(0, |step| step.node);
        if self.steps.len() != new.steps.len() || self.edges != new.edges {
            return Err((Verdict::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, last));
        }
        let other_kind = |(old, new): &(&Step, &Step)| old.work.kind() != new.work.kind();
        if let Some((_, new)) = self.steps.iter().zip(&new.steps).find(other_kind) {
            return Err((Verdict::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, new.node));
        }
        for (old, new) in self.steps.iter_mut().zip(&new.steps) {
            if let (Some(old), Some(new)) = (&mut old.children, &new.children) {
                old.update(new)?;
            }
            old.work = new.work.clone();
        }
        Ok(())
    }

    /// Its steps and those of its children.
    fn flat(&self) -> Vec<&Step> {
        let whole = |step| -> Vec<&Step> {
            let step: &Step = step;
            step.children.as_ref().map_or_else(|| vec![step], Plan::flat)
        };
        self.steps.iter().filter(|step| step.enabled).flat_map(whole).collect()
    }

    fn allocations(&self) -> Vec<&Arc<Allocation>> {
        let allocations = self.flat().into_iter().filter_map(|step| match &step.work {
            Work::Allocate(allocation) => Some(allocation),
            _ => None,
        });
        allocations.collect()
    }

    /// Puts memory behind what it allocates.
    fn back(&self) -> Answer {
        self.allocations().into_iter().try_for_each(|allocation| allocation.back())
    }

    /// What an earlier launch left allocated is freed, or is in the way.
    fn begin_anew(&self, frees: bool) -> Answer {
        for allocation in self.allocations() {
            if allocation.is_live() && !frees {
                return Err(INVALID);
            }
            allocation.end();
        }
        Ok(())
    }

    /// What a stream has to do; allocations and events change as their launch is submitted.
    fn operations(&self, stream: &Stream) -> Answer<Vec<Op>> {
        let operations = self.flat().into_iter().map(|step| step.operation(stream));
        Ok(operations.collect::<Answer<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

impl Step {
    fn operation(&self, stream: &Stream) -> Answer<Option<Op>> {
        Ok(match &self.work {
            Work::Empty | Work::Child(_) => None,
            Work::Kernel(launch) => Some(Op::Kernel(launch.clone())),
            Work::Copy(transfer) => Some(Op::Transfer(transfer.clone())),
            Work::Fill(fill) => Some(Op::Fill(*fill)),
            Work::Call(callback) => Some(Op::Call(*callback)),
            Work::Values(operations) => Some(Op::Values(operations.clone())),
            Work::Record(event) => Some(event::record_of_graph(*event, stream)?),
            Work::Await(event) => event::await_of_graph(*event)?,
            Work::Allocate(allocation) => {
                allocation.begin();
                None
            }
            Work::Free(allocation) => {
                allocation.end();
                None
            }
        })
    }
}

fn find_executable(graph: CUgraphExec) -> Answer<Arc<Executable>> {
    EXECUTABLES.get(graph as usize).ok_or(INVALID)
}

/// `cuGraphInstantiateWithFlags`
pub fn instantiate(out: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> Answer {
    if flags & !ALL_FLAGS != 0 {
        return Err(INVALID);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let graph = find(graph)?;
    let plan = Mutex::new(Plan::of(&graph).ok_or(INVALID)?);
    let (flags, _objects) = (flags & !UPLOAD, graph.objects.lock().clone());
    let made = EXECUTABLES.add(|handle| Executable { handle, flags, plan, _objects });
    out.set(made.handle as CUgraphExec);
    Ok(())
}

/// `cuGraphInstantiate` and `cuGraphInstantiate_v2` of before CUDA 12
pub fn instantiate_v1(
    out: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Maybe<CUgraphNode>,
    log: Maybe<c_char>,
    log_size: usize,
) -> Answer {
    error_node.set(std::ptr::null_mut());
    if log_size > 0 {
        log.set(0);
    }
    instantiate(out, graph, 0)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawInstantiation {
    flags: u64,
    stream: CUstream,
    error_node: usize,
    result: u32,
}

impl Mirror for RawInstantiation {
    type Of = CUDA_GRAPH_INSTANTIATE_PARAMS;
}

/// `cuGraphInstantiateWithParams`
pub fn instantiate_with(
    out: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: InMut<RawInstantiation>,
) -> Answer {
    const INVALID_STRUCTURE: u32 = 2;
    let asked = parameters.get();
    if asked.flags & UPLOAD != 0 {
        stream::resolve(asked.stream)?;
    }
    let made = instantiate(out, graph, asked.flags);
    let result = if made.is_ok() { 0 } else { INVALID_STRUCTURE };
    parameters.set(RawInstantiation { error_node: 0, result, ..asked });
    made
}

/// `cuGraphExecGetFlags`
pub fn flags(graph: CUgraphExec, out: Out<u64>) -> Answer {
    out.set(find_executable(graph)?.flags);
    Ok(())
}

/// `cuGraphExecGetId`
pub fn id(graph: CUgraphExec, out: Out<u32>) -> Answer {
    out.set(find_executable(graph)?.handle as u32);
    Ok(())
}

/// `cuGraphLaunch`: not into a stream that is being captured, whose capture it breaks.
pub fn launch(graph: CUgraphExec, stream: CUstream) -> Answer {
    let graph = find_executable(graph)?;
    let stream = stream::resolve(stream)?;
    if let Some(capture) = stream.capture() {
        capture.invalidate();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    let plan = graph.plan.lock();
    plan.begin_anew(graph.flags & AUTO_FREE != 0)?;
    plan.back()?;
    let operations = plan.operations(&stream)?;
    if operations.is_empty() { Ok(()) } else { stream.submit_all(operations) }
}

/// `cuGraphUpload`: what it allocates is there from now on.
pub fn upload(graph: CUgraphExec, stream: CUstream) -> Answer {
    stream::resolve(stream)?;
    find_executable(graph)?.plan.lock().back()
}

/// `cuGraphExecDestroy`
pub fn destroy(graph: CUgraphExec) -> Answer {
    context::current()?;
    EXECUTABLES.remove(graph as usize).map(drop).ok_or(INVALID)
}

/// `cuGraphExecUpdate_v2`
pub fn update(graph: CUgraphExec, new: CUgraph, out: Out<CUgraphExecUpdateResultInfo>) -> Answer {
    let (result, node) = compare(graph, new)?;
    let error_node = node as CUgraphNode;
    out.set(CUgraphExecUpdateResultInfo {
        result,
        errorNode: error_node,
        errorFromNode: std::ptr::null_mut(),
    });
    updated(result)
}

/// `cuGraphExecUpdate` of before CUDA 12
pub fn update_v1(
    graph: CUgraphExec,
    new: CUgraph,
    error_node: Out<CUgraphNode>,
    out: Out<Verdict>,
) -> Answer {
    let (result, node) = compare(graph, new)?;
    error_node.set(node as CUgraphNode);
    out.set(result);
    updated(result)
}

fn compare(graph: CUgraphExec, new: CUgraph) -> Answer<(Verdict, usize)> {
    let (graph, new) = (find_executable(graph)?, find(new)?);
    let new = Plan::of(&new).ok_or(INVALID)?;
    let mut plan = graph.plan.lock();
    let mut changed = plan.clone();
    let verdict = changed.update(&new);
    if verdict.is_ok() {
        *plan = changed;
    }
    Ok(verdict.err().unwrap_or((Verdict::CU_GRAPH_EXEC_UPDATE_SUCCESS, 0)))
}

fn updated(result: Verdict) -> Answer {
    match result {
        Verdict::CU_GRAPH_EXEC_UPDATE_SUCCESS => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    }
}

fn with_step<T>(
    graph: CUgraphExec,
    node: CUgraphNode,
    act: impl FnOnce(&mut Step) -> Answer<T>,
) -> Answer<T> {
    let graph = find_executable(graph)?;
    let mut plan = graph.plan.lock();
    act(plan.find(node as usize).ok_or(INVALID)?)
}

/// From now on the step does something else of the same kind.
fn set(graph: CUgraphExec, node: CUgraphNode, work: Work) -> Answer {
    with_step(graph, node, |step| {
        if step.work.kind() != work.kind() {
            return Err(INVALID);
        }
        step.work = work;
        Ok(())
    })
}

/// `cuGraphExecKernelNodeSetParams_v2`
pub fn set_kernel(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_KERNEL_NODE_PARAMS>) -> Answer {
    set(graph, node, node::kernel(&new.get())?)
}

/// `cuGraphExecKernelNodeSetParams` of before CUDA 12
pub fn set_kernel_v1(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_KERNEL_NODE_PARAMS_v1>) -> Answer {
    set(graph, node, node::kernel_v1(&new.get())?)
}

/// `cuGraphExecMemcpyNodeSetParams`
pub fn set_copy(graph: CUgraphExec, node: CUgraphNode, new: In<Raw3d>, context: CUcontext) -> Answer {
    set(graph, node, node::copy(&new.get(), context)?)
}

/// `cuGraphExecMemsetNodeSetParams`
pub fn set_fill(
    graph: CUgraphExec,
    node: CUgraphNode,
    new: In<CUDA_MEMSET_NODE_PARAMS>,
    context: CUcontext,
) -> Answer {
    set(graph, node, node::fill(&new.get(), context)?)
}

/// `cuGraphExecHostNodeSetParams`
pub fn set_call(graph: CUgraphExec, node: CUgraphNode, new: In<CUDA_HOST_NODE_PARAMS>) -> Answer {
    set(graph, node, node::call(&new.get())?)
}

/// `cuGraphExecEventRecordNodeSetEvent`
pub fn set_record(graph: CUgraphExec, node: CUgraphNode, event: CUevent) -> Answer {
    set(graph, node, Work::Record(event::check(event)?))
}

/// `cuGraphExecEventWaitNodeSetEvent`
pub fn set_await(graph: CUgraphExec, node: CUgraphNode, event: CUevent) -> Answer {
    set(graph, node, Work::Await(event::check(event)?))
}

/// `cuGraphExecBatchMemOpNodeSetParams`
pub fn set_values(graph: CUgraphExec, node: CUgraphNode, new: In<RawBatch>) -> Answer {
    set(graph, node, Work::Values(new.get().operations()?))
}

/// `cuGraphExecNodeSetParams`
pub fn set_any(graph: CUgraphExec, node: CUgraphNode, new: InMut<RawParameters>) -> Answer {
    set(graph, node, node::any(&new)?)
}

/// `cuGraphExecChildGraphNodeSetParams`: of the same shape.
pub fn set_child(graph: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Answer {
    let new = Plan::of(&*find(child)?).ok_or(INVALID)?;
    with_step(graph, node, |step| {
        let children = step.children.as_mut().ok_or(INVALID)?;
        children.update(&new).map_err(|_| INVALID)
    })
}

/// `cuGraphNodeSetEnabled`: kernels, copies and memsets can be left out.
pub fn set_enabled(graph: CUgraphExec, node: CUgraphNode, enabled: u32) -> Answer {
    with_step(graph, node, |step| {
        if !step.work.can_be_disabled() {
            return Err(INVALID);
        }
        step.enabled = enabled != 0;
        Ok(())
    })
}

/// `cuGraphNodeGetEnabled`
pub fn is_enabled(graph: CUgraphExec, node: CUgraphNode, out: Out<u32>) -> Answer {
    with_step(graph, node, |step| {
        if !step.work.can_be_disabled() {
            return Err(INVALID);
        }
        out.set(u32::from(step.enabled));
        Ok(())
    })
}
