//! Graphs that a player makes, changes and launches.

use crate::calls::*;
use crate::player::Player;
use crate::work::*;
use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphNode, CUstreamCaptureMode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::null_mut;

/// What can be launched, and what it does.
pub struct Graph {
    executable: CUgraphExec,
    source: CUgraph,
    ops: Vec<Op>,
    /// It was built by hand, of nothing but `ops`.
    plain: bool,
    /// Memory of its own.
    scratch: Option<usize>,
}

const MOST_GRAPHS: usize = 6;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// The streams of a capture: where it began, and where it forked to.
struct Fork {
    lanes: [usize; 2],
    is_forked: bool,
    /// On which of them a memory was last used.
    last: BTreeMap<usize, usize>,
}

impl Player {
    fn graph_ops(&mut self) -> Vec<Op> {
        let wanted = self.dice.within(1, 8);
        (0..4 * wanted).filter_map(|_| self.any_op(false)).take(wanted).collect()
    }

    /// Memory of a graph's own, and what is done with it.
    fn scratch_ops(&mut self, base: u64, bytes: usize) -> (usize, Vec<Op>) {
        let store = self.add_store(bytes, 0);
        let at = Spot { space: Space::Device, base, store, offset: 0 };
        let set = Op::Set { to: at, element: 1, value: self.dice.next() as u32, count: bytes };
        let mut ops = vec![set, Op::Count { at, bytes: bytes / 2, form: Form::Plain }];
        let copies = self.graph_ops().into_iter().filter_map(|op| match op {
            Op::Set { to, element, count, .. } if element * count <= bytes => {
                Some(Op::Copy { to, from: at, bytes: element * count })
            }
            _ => None,
        });
        ops.extend(copies);
        (store, ops)
    }

    /// A graph captured from two streams.
    pub fn capture(&mut self) {
        if self.graphs.len() == MOST_GRAPHS {
            return self.drop_graph();
        }
        let (main, side) = (self.free_lane(), self.free_lane());
        let (mut scratch, mut base) = (None, 0);
        let stream = self.lanes[&main].stream;
        let mode = self.dice.of(&[THREAD_LOCAL, RELAXED]);
        let mut ops = self.graph_ops();
        ok!(cuStreamBeginCapture_v2(stream, mode));
        if self.dice.one_in(3) {
            let bytes = self.dice.within(64, 4096);
            ok!(cuMemAllocAsync(&mut base, bytes, stream));
            let (store, more) = self.scratch_ops(base, bytes);
            scratch = Some(store);
            ops.extend(more);
        }
        self.capture_ops(&ops, main, side);
        if scratch.is_some() {
            ok!(cuMemFreeAsync(base, stream));
        }
        let (mut source, plain) = (null_mut(), false);
        ok!(cuStreamEndCapture(stream, &mut source));
        self.add_graph(source, ops, plain, scratch);
    }

    fn capture_ops(&mut self, ops: &[Op], main: usize, side: usize) {
        let mut fork = Fork { lanes: [main, side], is_forked: false, last: BTreeMap::new() };
        for op in ops {
            let on = usize::from(main != side && self.dice.one_in(2));
            self.fork(&mut fork, op, on);
            let lane = self.lanes[&fork.lanes[on]];
            op.submit(lane.stream, self.kernel.function, self.dice.below(12));
        }
        if fork.is_forked {
            self.join(&fork, 1, 0);
        }
    }

    /// Orders the streams of a capture, as what `op` needs was last used on the other one.
    fn fork(&mut self, fork: &mut Fork, op: &Op, on: usize) {
        if on == 1 && !fork.is_forked {
            fork.is_forked = true;
            self.join(fork, 0, 1);
        }
        let before: Vec<_> = op.stores().into_iter().map(|store| fork.last.insert(store, on)).collect();
        if before.contains(&Some(1 - on)) {
            self.join(fork, 1 - on, on);
        }
    }

    fn join(&mut self, fork: &Fork, first: usize, then: usize) {
        let mark = event();
        ok!(cuEventRecord(mark, self.lanes[&fork.lanes[first]].stream));
        ok!(cuStreamWaitEvent(self.lanes[&fork.lanes[then]].stream, mark, 0));
        ok!(cuEventDestroy_v2(mark));
    }

    /// A graph built by hand.
    pub fn build(&mut self) {
        if self.graphs.len() == MOST_GRAPHS {
            return self.drop_graph();
        }
        let mut ops = self.graph_ops();
        let mut source = null_mut();
        ok!(cuGraphCreate(&mut source, 0));
        let first = empty_node(source);
        match self.dice.below(3) {
            0 => self.build_with_memory(source, first, ops),
            1 if !self.graphs.is_empty() => {
                let inner = self.dice.below(self.graphs.len());
                let inner = &self.graphs[inner];
                if inner.scratch.is_some() {
                    ok!(cuGraphDestroy(source));
                    return;
                }
                let mut child = null_mut();
                ok!(cuGraphAddChildGraphNode(&mut child, source, &first, 1, inner.source));
                let mut all = inner.ops.clone();
                self.add_nodes(source, child, &ops);
                all.append(&mut ops);
                self.add_graph(source, all, false, None);
            }
            _ => {
                self.add_nodes(source, first, &ops);
                self.add_graph(source, ops, true, None);
            }
        }
    }

    fn build_with_memory(&mut self, source: CUgraph, first: CUgraphNode, mut ops: Vec<Op>) {
        // SAFETY: plain C data; zero is a value of each of its enums.
        let mut asked: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
        asked.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        asked.poolProps.location = device();
        asked.bytesize = self.dice.within(64, 4096);
        let (mut made, mut freed) = (null_mut(), null_mut());
        ok!(cuGraphAddMemAllocNode(&mut made, source, &first, 1, &mut asked));
        let (store, more) = self.scratch_ops(asked.dptr, asked.bytesize);
        ops.extend(more);
        let nodes = self.add_nodes(source, made, &ops);
        ok!(cuGraphAddMemFreeNode(&mut freed, source, nodes.as_ptr(), nodes.len(), asked.dptr));
        self.add_graph(source, ops, false, Some(store));
    }

    /// A node for each, all after `first`, and after those that use the same memory.
    fn add_nodes(&mut self, graph: CUgraph, first: CUgraphNode, ops: &[Op]) -> Vec<CUgraphNode> {
        let mut last: BTreeMap<usize, CUgraphNode> = BTreeMap::new();
        let mut nodes = Vec::new();
        for op in ops {
            let before: BTreeSet<CUgraphNode> =
                op.stores().iter().map(|store| last.get(store).copied().unwrap_or(first)).collect();
            let before: Vec<CUgraphNode> = before.into_iter().collect();
            let node = op.node(graph, &before, self.kernel.function, self.home);
            last.extend(op.stores().into_iter().map(|store| (store, node)));
            nodes.push(node);
        }
        nodes
    }

    fn add_graph(&mut self, source: CUgraph, ops: Vec<Op>, plain: bool, scratch: Option<usize>) {
        let mut executable = null_mut();
        ok!(cuGraphInstantiateWithFlags(&mut executable, source, 0));
        let graph = Graph { executable, source, ops, plain, scratch };
        graph.stores().iter().for_each(|store| self.stores.get_mut(store).unwrap().pins += 1);
        self.graphs.push(graph);
    }

    pub fn launch_graph(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let graph = self.dice.below(self.graphs.len());
        for _ in 0..self.dice.within(1, 4) {
            let lane = self.home_lane();
            let stores = self.graphs[graph].stores();
            self.order(&stores, lane);
            let graph = &self.graphs[graph];
            ok!(cuGraphLaunch(graph.executable, self.lanes[&lane].stream));
            graph.ops.iter().for_each(|op| op.apply(&mut self.stores));
        }
    }

    /// The same graph with other values.
    pub fn update_graph(&mut self) {
        let plain: Vec<usize> = (0..self.graphs.len()).filter(|at| self.graphs[*at].plain).collect();
        if plain.is_empty() {
            return;
        }
        let at = self.dice.of(&plain);
        let old = self.graphs[at].ops.clone();
        let ops: Vec<Op> = old.into_iter().map(|op| op.with(self.dice.next() as u32)).collect();
        let mut source = null_mut();
        ok!(cuGraphCreate(&mut source, 0));
        let first = empty_node(source);
        self.add_nodes(source, first, &ops);
        let mut told = sys::CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        let graph = &mut self.graphs[at];
        ok!(cuGraphExecUpdate_v2(graph.executable, source, &mut told));
        ok!(cuGraphDestroy(graph.source));
        (graph.ops, graph.source) = (ops, source);
    }

    pub fn drop_graph(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let at = self.dice.below(self.graphs.len());
        let graph = self.graphs.swap_remove(at);
        for store in graph.stores() {
            self.stores.get_mut(&store).unwrap().pins -= 1;
            let lane = self.home_lane();
            self.order(&[store], lane);
            ok!(cuStreamSynchronize(self.lanes[&lane].stream));
        }
        ok!(cuGraphExecDestroy(graph.executable));
        ok!(cuGraphDestroy(graph.source));
        graph.scratch.map(|store| self.stores.remove(&store));
    }
}

impl Graph {
    fn stores(&self) -> Vec<usize> {
        let all: BTreeSet<usize> = self.ops.iter().flat_map(Op::stores).chain(self.scratch).collect();
        all.into_iter().collect()
    }
}
