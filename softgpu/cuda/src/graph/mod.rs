//! Graphs: work that is described once and launched as often as wanted.
//!
//! ```text
//! capture ─┐
//!          ├─ Graph: nodes and edges ── executable: steps in an order that keeps the edges ── stream
//! by hand ─┘   (what [`node::Work`] says)
//! ```
//! An executable graph replays as one sequence: of the orders that its edges allow, the one in which
//! the nodes were added. Any order that a program may rely on is kept.

pub mod allocation;
pub mod capture;
pub mod executable;
pub mod node;
pub mod user_object;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType, CUresult};
use parking_lot::Mutex;

use self::node::{Node, Work};
use self::user_object::References;
use crate::abi::{Answer, InOut, List, Out, OutEnum, Room, Text};
use crate::registry::Registry;

pub use self::allocation::free as free_memory_of_a_graph;
pub use self::capture::{
    Capture, abandon, capture_allocation, capture_free, check_unsafe_call, is_any_capturing,
};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// An edge without ports: all of one node's work before all of the other's.
const PLAIN_EDGE: CUgraphEdgeData = CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };

/// A graph.
pub struct Graph {
    pub handle: usize,
    contents: Mutex<Contents>,
    /// What it keeps alive.
    objects: Mutex<References>,
}

/// Nodes in the order in which they were added, and edges between their handles.
#[derive(Default)]
struct Contents {
    nodes: Vec<Arc<Node>>,
    edges: Vec<(usize, usize)>,
}

/// Edges between the places of nodes in some order.
type Edges = BTreeSet<(usize, usize)>;

static GRAPHS: Registry<Graph> = Registry::new();
static NODES: Registry<Node> = Registry::new();

impl Graph {
    /// A graph without nodes.
    pub fn empty() -> Arc<Graph> {
        GRAPHS.add(|handle| Graph { handle, contents: Mutex::default(), objects: Mutex::default() })
    }

    /// Adds a node after others of this graph.
    pub fn add(&self, work: Work, after: &[usize]) -> Answer<Arc<Node>> {
        let distinct: HashSet<_> = after.iter().collect();
        if distinct.len() != after.len() {
            return Err(INVALID);
        }
        let mut contents = self.contents.lock();
        after.iter().try_for_each(|handle| contents.check(*handle))?;
        let node = NODES.add(|handle| Node::new(handle, self.handle, handle, work));
        contents.edges.extend(after.iter().map(|before| (*before, node.handle)));
        contents.nodes.push(node.clone());
        Ok(node)
    }

    /// Its nodes and, by their places among them, its edges; none if the edges form a circle.
    fn in_order(&self) -> Option<(Vec<Arc<Node>>, Edges)> {
        let contents = self.contents.lock();
        let nodes = contents.sorted()?;
        let place = |handle: usize| nodes.iter().position(|node| node.handle == handle);
        let edges = contents.edges.iter().filter_map(|(from, to)| Some((place(*from)?, place(*to)?)));
        let edges = edges.collect();
        Some((nodes, edges))
    }

    /// A graph of copies of its nodes.
    pub fn copy(&self) -> Arc<Graph> {
        let copy = Graph::empty();
        *copy.objects.lock() = self.objects.lock().clone();
        let contents = self.contents.lock();
        let twins = contents.nodes.iter().map(|node| {
            let work = node.work().copy();
            NODES.add(|handle| Node::new(handle, copy.handle, node.handle, work))
        });
        let twins: Vec<_> = twins.collect();
        let twin = |of: usize| twins.iter().find(|twin| twin.original == of).map(|twin| twin.handle);
        let edges = contents.edges.iter().filter_map(|(from, to)| Some((twin(*from)?, twin(*to)?)));
        let edges = edges.collect();
        *copy.contents.lock() = Contents { nodes: twins, edges };
        copy
    }

    /// The nodes before some, and these themselves.
    fn all_before(&self, of: &[usize]) -> HashSet<usize> {
        let contents = self.contents.lock();
        let mut found: HashSet<usize> = of.iter().copied().collect();
        let mut open: Vec<usize> = of.to_vec();
        while let Some(node) = open.pop() {
            open.extend(contents.before(node).filter(|before| found.insert(*before)));
        }
        found
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.contents.lock().nodes.clone()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        for node in &self.contents.get_mut().nodes {
            NODES.remove(node.handle);
        }
    }
}

impl Contents {
    fn check(&self, handle: usize) -> Answer {
        self.nodes.iter().any(|node| node.handle == handle).then_some(()).ok_or(INVALID)
    }

    fn before(&self, node: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |(_, to)| *to == node).map(|(from, _)| *from)
    }

    fn after(&self, node: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |(from, _)| *from == node).map(|(_, to)| *to)
    }

    /// The nodes so that each comes after those before it.
    fn sorted(&self) -> Option<Vec<Arc<Node>>> {
        let mut left = self.nodes.clone();
        let (mut sorted, mut done) = (Vec::new(), HashSet::new());
        while !left.is_empty() {
            let ready = |node: &Arc<Node>| self.before(node.handle).all(|before| done.contains(&before));
            let next = left.remove(left.iter().position(ready)?);
            done.insert(next.handle);
            sorted.push(next);
        }
        Some(sorted)
    }
}

/// The graph of a handle.
pub fn find(graph: CUgraph) -> Answer<Arc<Graph>> {
    GRAPHS.get(graph as usize).ok_or(INVALID)
}

/// The node of a handle.
pub fn find_node(node: CUgraphNode) -> Answer<Arc<Node>> {
    NODES.get(node as usize).ok_or(INVALID)
}

/// Forgets the handle of a graph that belonged to a node.
fn forget(graph: &Graph) {
    drop(GRAPHS.remove(graph.handle));
}

/// `cuGraphCreate`
pub fn create(out: Out<CUgraph>, flags: u32) -> Answer {
    if flags != 0 {
        return Err(INVALID);
    }
    out.set(Graph::empty().handle as CUgraph);
    Ok(())
}

/// `cuGraphDestroy`
pub fn destroy(graph: CUgraph) -> Answer {
    GRAPHS.remove(graph as usize).map(drop).ok_or(INVALID)
}

/// `cuGraphClone`
pub fn clone(out: Out<CUgraph>, graph: CUgraph) -> Answer {
    out.set(find(graph)?.copy().handle as CUgraph);
    Ok(())
}

/// `cuGraphNodeFindInClone`
pub fn find_in_clone(out: Out<CUgraphNode>, node: CUgraphNode, clone: CUgraph) -> Answer {
    let twin = find(clone)?.nodes().into_iter().find(|twin| twin.original == node as usize);
    out.set(twin.ok_or(INVALID)?.handle as CUgraphNode);
    Ok(())
}

/// `cuGraphGetId`, `cuGraphExecGetId`: handles are given out once.
pub fn id(graph: CUgraph, out: Out<u32>) -> Answer {
    out.set(find(graph)?.handle as u32);
    Ok(())
}

/// Writes as many handles as there is room for, and how many; without room, how many there are.
fn answer(handles: Vec<usize>, room: &Room<CUgraphNode>, count: &InOut<usize>) {
    let handles: Vec<_> = handles.into_iter().map(|handle| handle as CUgraphNode).collect();
    let asked = if room.wanted() { count.get() } else { handles.len() };
    room.fill(&handles, asked, std::ptr::null_mut());
    count.set(handles.len().min(asked));
}

/// `cuGraphGetNodes`
pub fn nodes(graph: CUgraph, room: Room<CUgraphNode>, count: InOut<usize>) -> Answer {
    let handles = find(graph)?.nodes().iter().map(|node| node.handle).collect();
    answer(handles, &room, &count);
    Ok(())
}

/// `cuGraphGetRootNodes`
pub fn roots(graph: CUgraph, room: Room<CUgraphNode>, count: InOut<usize>) -> Answer {
    let graph = find(graph)?;
    let contents = graph.contents.lock();
    let handles = contents.nodes.iter().map(|node| node.handle);
    let roots = handles.filter(|handle| contents.before(*handle).next().is_none()).collect();
    answer(roots, &room, &count);
    Ok(())
}

/// `cuGraphGetEdges`
pub fn edges(graph: CUgraph, from: Room<CUgraphNode>, to: Room<CUgraphNode>, count: InOut<usize>) -> Answer {
    answer_edges(graph, &from, &to, &count)
}

fn answer_edges(
    graph: CUgraph,
    from: &Room<CUgraphNode>,
    to: &Room<CUgraphNode>,
    count: &InOut<usize>,
) -> Answer {
    if from.wanted() != to.wanted() {
        return Err(INVALID);
    }
    let (starts, ends) = find(graph)?.contents.lock().edges.iter().copied().unzip();
    let asked = count.get();
    answer(starts, from, count);
    if to.wanted() {
        count.set(asked);
        answer(ends, to, count);
    }
    Ok(())
}

/// `cuGraphGetEdges_v2`: as on hardware a caller with places for edges asks for at least one.
pub fn edges_v2(
    graph: CUgraph,
    from: Room<CUgraphNode>,
    to: Room<CUgraphNode>,
    data: Room<CUgraphEdgeData>,
    count: InOut<usize>,
) -> Answer {
    if from.wanted() && count.get() == 0 {
        return Err(INVALID);
    }
    answer_edges(graph, &from, &to, &count)?;
    data.fill(&[], count.get(), PLAIN_EDGE);
    Ok(())
}

fn neighbours(
    node: CUgraphNode,
    room: &Room<CUgraphNode>,
    count: &InOut<usize>,
    choose: impl FnOnce(&Contents, usize) -> Vec<usize>,
) -> Answer {
    let node = find_node(node)?;
    let graph = find(node.graph as CUgraph)?;
    let handles = choose(&graph.contents.lock(), node.handle);
    answer(handles, room, count);
    Ok(())
}

/// `cuGraphNodeGetDependencies`
pub fn dependencies(node: CUgraphNode, room: Room<CUgraphNode>, count: InOut<usize>) -> Answer {
    neighbours(node, &room, &count, |contents, node| contents.before(node).collect())
}

/// `cuGraphNodeGetDependencies_v2`
pub fn dependencies_v2(
    node: CUgraphNode,
    room: Room<CUgraphNode>,
    data: Room<CUgraphEdgeData>,
    count: InOut<usize>,
) -> Answer {
    neighbours(node, &room, &count, |contents, node| contents.before(node).collect())?;
    data.fill(&[], count.get(), PLAIN_EDGE);
    Ok(())
}

/// `cuGraphNodeGetDependentNodes`
pub fn dependents(node: CUgraphNode, room: Room<CUgraphNode>, count: InOut<usize>) -> Answer {
    neighbours(node, &room, &count, |contents, node| contents.after(node).collect())
}

/// `cuGraphNodeGetDependentNodes_v2`
pub fn dependents_v2(
    node: CUgraphNode,
    room: Room<CUgraphNode>,
    data: Room<CUgraphEdgeData>,
    count: InOut<usize>,
) -> Answer {
    neighbours(node, &room, &count, |contents, node| contents.after(node).collect())?;
    data.fill(&[], count.get(), PLAIN_EDGE);
    Ok(())
}

/// The pairs that a call names, each of two different nodes of the graph.
fn pairs(
    contents: &Contents,
    from: &List<CUgraphNode>,
    to: &List<CUgraphNode>,
    count: usize,
) -> Answer<Vec<(usize, usize)>> {
    let pairs = from.many(count)?.into_iter().zip(to.many(count)?);
    let pairs: Vec<_> = pairs.map(|(from, to)| (from as usize, to as usize)).collect();
    for (from, to) in &pairs {
        contents.check(*from)?;
        contents.check(*to)?;
        if from == to {
            return Err(INVALID);
        }
    }
    Ok(pairs)
}

/// `cuGraphAddDependencies`: an edge that is there already is an error.
pub fn add_dependencies(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    count: usize,
) -> Answer {
    let graph = find(graph)?;
    let mut contents = graph.contents.lock();
    let pairs = pairs(&contents, &from, &to, count)?;
    if pairs.iter().any(|pair| contents.edges.contains(pair)) {
        return Err(INVALID);
    }
    contents.edges.extend(pairs);
    Ok(())
}

/// `cuGraphAddDependencies_v2`
pub fn add_dependencies_v2(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    data: List<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    check_edges(&data, count)?;
    add_dependencies(graph, from, to, count)
}

/// `cuGraphRemoveDependencies`: an edge that is not there is an error.
pub fn remove_dependencies(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    count: usize,
) -> Answer {
    let graph = find(graph)?;
    let mut contents = graph.contents.lock();
    let pairs = pairs(&contents, &from, &to, count)?;
    if !pairs.iter().all(|pair| contents.edges.contains(pair)) {
        return Err(INVALID);
    }
    contents.edges.retain(|edge| !pairs.contains(edge));
    Ok(())
}

/// `cuGraphRemoveDependencies_v2`
pub fn remove_dependencies_v2(
    graph: CUgraph,
    from: List<CUgraphNode>,
    to: List<CUgraphNode>,
    data: List<CUgraphEdgeData>,
    count: usize,
) -> Answer {
    check_edges(&data, count)?;
    remove_dependencies(graph, from, to, count)
}

/// Edges that are not plain start a kernel before the one before it has ended: not supported.
pub fn check_edges(data: &List<CUgraphEdgeData>, count: usize) -> Answer {
    if data.is_null() {
        return Ok(());
    }
    let plain = data.many(count)?.iter().all(|edge| (edge.from_port, edge.to_port, edge.type_) == (0, 0, 0));
    plain.then_some(()).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

/// `cuGraphDestroyNode`: with its edges.
pub fn destroy_node(node: CUgraphNode) -> Answer {
    let handle = find_node(node)?.handle;
    let graph = find(find_node(node)?.graph as CUgraph)?;
    let mut contents = graph.contents.lock();
    contents.edges.retain(|(from, to)| *from != handle && *to != handle);
    contents.nodes.retain(|node| node.handle != handle);
    NODES.remove(handle);
    Ok(())
}

/// `cuGraphNodeGetType`
pub fn node_type(node: CUgraphNode, out: OutEnum<CUgraphNodeType>) -> Answer {
    out.set(find_node(node)?.work().kind());
    Ok(())
}

/// `cuGraphNodeGetContainingGraph`
pub fn containing_graph(node: CUgraphNode, out: Out<CUgraph>) -> Answer {
    out.set(find_node(node)?.graph as CUgraph);
    Ok(())
}

/// `cuGraphNodeGetLocalId`: the node's place in its graph.
pub fn local_id(node: CUgraphNode, out: Out<u32>) -> Answer {
    let node = find_node(node)?;
    let place = find(node.graph as CUgraph)?.nodes().iter().position(|other| other.handle == node.handle);
    out.set(place.ok_or(INVALID)? as u32);
    Ok(())
}

/// `cuGraphNodeGetToolsId`
pub fn tools_id(node: CUgraphNode, out: Out<u64>) -> Answer {
    out.set(find_node(node)?.handle as u64);
    Ok(())
}

/// `cuGraphDebugDotPrint`
pub fn print(graph: CUgraph, path: Text, _flags: u32) -> Answer {
    let graph = find(graph)?;
    let contents = graph.contents.lock();
    let mut text = String::from("digraph dot {\n");
    for node in &contents.nodes {
        let _ = writeln!(text, "\"node_{:x}\" [label=\"{}\"];", node.handle, node.work().name());
    }
    for (from, to) in &contents.edges {
        let _ = writeln!(text, "\"node_{from:x}\" -> \"node_{to:x}\";");
    }
    text.push_str("}\n");
    std::fs::write(&path.0, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}
