//! Capture: what is submitted to streams becomes nodes of a graph.
//!
//! Each stream of a capture has nodes that its next one comes after. Waiting for an event that was
//! recorded on a stream of the capture takes the waiting stream in. What cannot be described
//! invalidates the capture: its streams answer so until it is ended.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus as Status,
};
use parking_lot::Mutex;

use super::node::Work;
use super::{Graph, INVALID, allocation, check_edges, find};
use crate::abi::{Answer, Enum, InMut, List, ListMut, Maybe, Mirror, Out};
use crate::stream::{self, Stream};

const GLOBAL: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32;
const RELAXED: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

/// A capture under way.
pub struct Capture {
    id: u64,
    origin: Arc<Stream>,
    thread: ThreadId,
    mode: u32,
    graph: Arc<Graph>,
    /// Whether the graph was there before.
    given: bool,
    invalid: AtomicBool,
    streams: Mutex<Vec<Member>>,
}

/// A stream of a capture.
struct Member {
    stream: Arc<Stream>,
    /// What its next node comes after.
    after: Vec<usize>,
    /// The same as handles, for a caller who was shown them until the next call.
    shown: Vec<usize>,
}

static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

/// How many there are in that list.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// What this thread may do while captures are under way.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Capture {
    fn begin(stream: CUstream, mode: u32, given: Option<Arc<Graph>>, after: Vec<usize>) -> Answer {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let stream = stream::resolve(stream)?;
        if mode > RELAXED {
            return Err(INVALID);
        }
        if stream.is_legacy() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture().is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            origin: stream.clone(),
            thread: std::thread::current().id(),
            mode,
            given: given.is_some(),
            graph: given.unwrap_or_else(Graph::empty),
            invalid: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        capture.take_in(&stream, after);
        CAPTURES.lock().push(capture);
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Adds a node for what is submitted to a stream.
    pub fn add(&self, stream: &Arc<Stream>, work: Work) -> Answer {
        self.check()?;
        self.with(stream, |member| {
            let node = self.graph.add(work, &member.after)?;
            member.after = vec![node.handle];
            Ok(())
        })
    }

    /// What an event recorded on a stream stands for.
    pub fn reached_by(&self, stream: &Arc<Stream>) -> Answer<Vec<usize>> {
        self.check()?;
        self.with(stream, |member| Ok(member.after.clone()))
    }

    /// A stream waits for an event of this capture: what follows on it belongs to the graph.
    pub fn join(self: &Arc<Self>, stream: &Arc<Stream>, nodes: &[usize]) -> Answer {
        if self.origin.capture().is_none_or(|current| !Arc::ptr_eq(&current, self)) {
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        self.check()?;
        match stream.capture() {
            None if stream.is_legacy() => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            None => {
                self.take_in(stream, nodes.to_vec());
                Ok(())
            }
            Some(own) if Arc::ptr_eq(&own, self) => self.with(stream, |member| {
                member.come_after(nodes);
                Ok(())
            }),
            Some(own) => {
                own.invalidate();
                self.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
        }
    }

    /// Something happened that cannot be in a graph.
    pub fn invalidate(&self) {
        self.invalid.store(true, Ordering::SeqCst);
    }

    fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::SeqCst)
    }

    fn check(&self) -> Answer {
        if self.is_invalid() { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    fn take_in(self: &Arc<Self>, stream: &Arc<Stream>, after: Vec<usize>) {
        stream.set_capture(Some(self.clone()));
        self.streams.lock().push(Member { stream: stream.clone(), after, shown: Vec::new() });
    }

    fn with<T>(&self, stream: &Arc<Stream>, act: impl FnOnce(&mut Member) -> Answer<T>) -> Answer<T> {
        let mut streams = self.streams.lock();
        let member = streams.iter_mut().find(|member| Arc::ptr_eq(&member.stream, stream));
        act(member.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?)
    }

    /// Nothing comes of it; a graph that the program gave stays the program's.
    fn forget_graph(&self) {
        if !self.given {
            super::forget(&self.graph);
        }
    }

    /// Its streams are free again; whether the origin comes after all the work of the others.
    fn end(&self) -> bool {
        CAPTURES.lock().retain(|other| other.id != self.id);
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
        let members: Vec<Member> = self.streams.lock().drain(..).collect();
        members.iter().for_each(|member| member.stream.set_capture(None));
        let last = members.iter().find(|member| Arc::ptr_eq(&member.stream, &self.origin));
        let joined = self.graph.all_before(last.map_or(&[], |member| &member.after));
        members.iter().flat_map(|member| &member.after).all(|node| joined.contains(node))
    }
}

impl Member {
    fn come_after(&mut self, nodes: &[usize]) {
        let new = nodes.iter().filter(|node| !self.after.contains(node)).copied();
        let new: Vec<_> = new.collect();
        self.after.extend(new);
    }
}

/// Whether a capture is under way, for those who would else look at every stream.
pub fn is_any_capturing() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// Refuses a call that some capture in this process forbids, and invalidates that capture: which
/// ones, say the modes of the captures and of the calling thread (`cuThreadExchangeStreamCaptureMode`).
pub fn check_unsafe_call() -> Answer {
    let (own_mode, thread) = (MODE.get(), std::thread::current().id());
    let forbids = |capture: &&Arc<Capture>| match own_mode {
        RELAXED => false,
        GLOBAL if capture.mode == GLOBAL => true,
        _ => capture.thread == thread && capture.mode != RELAXED,
    };
    match CAPTURES.lock().iter().find(forbids) {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Memory that the graph allocates each time it comes there.
pub fn capture_allocation(stream: &Arc<Stream>, bytes: usize, device: usize) -> Answer<u64> {
    let capture = stream.capture().ok_or(INVALID)?;
    let allocation = allocation::for_capture(bytes, device)?;
    let start = allocation.start as u64;
    capture.add(stream, Work::Allocate(allocation))?;
    Ok(start)
}

/// A graph frees only memory that a graph has allocated.
pub fn capture_free(stream: &Arc<Stream>, address: u64) -> Answer {
    let allocation = allocation::of_address(address)?;
    stream.capture().ok_or(INVALID)?.add(stream, Work::Free(allocation))
}

/// `cuStreamBeginCapture_v2`
pub fn begin(stream: CUstream, mode: Enum<CUstreamCaptureMode>) -> Answer {
    Capture::begin(stream, mode.0, None, Vec::new())
}

/// `cuStreamBeginCapture` of CUDA 10.0: in global mode.
pub fn begin_v1(stream: CUstream) -> Answer {
    Capture::begin(stream, GLOBAL, None, Vec::new())
}

/// `cuStreamBeginCaptureToGraph`
pub fn begin_to_graph(
    stream: CUstream,
    graph: CUgraph,
    after: List<CUgraphNode>,
    edges: List<CUgraphEdgeData>,
    count: usize,
    mode: Enum<CUstreamCaptureMode>,
) -> Answer {
    check_edges(&edges, count)?;
    let graph = find(graph)?;
    let after = nodes_of(&graph, &after, count)?;
    Capture::begin(stream, mode.0, Some(graph), after)
}

fn nodes_of(graph: &Graph, list: &List<CUgraphNode>, count: usize) -> Answer<Vec<usize>> {
    let nodes: Vec<usize> = list.many(count)?.into_iter().map(|node| node as usize).collect();
    let contents = graph.contents.lock();
    nodes.iter().try_for_each(|node| contents.check(*node))?;
    Ok(nodes)
}

/// `cuStreamEndCapture`
pub fn end(stream: CUstream, out: Out<CUgraph>) -> Answer {
    out.set(std::ptr::null_mut());
    let stream = stream::resolve(stream)?;
    let capture = stream.capture().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if !Arc::ptr_eq(&capture.origin, &stream) {
        capture.invalidate();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = capture.end();
    let good = match (capture.is_invalid(), joined) {
        (true, _) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (false, false) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        (false, true) => Ok(()),
    };
    if good.is_err() {
        capture.forget_graph();
    }
    good?;
    out.set(capture.graph.handle as CUgraph);
    Ok(())
}

/// A stream is destroyed, and a capture that it began with it; one that it had joined is broken.
pub fn abandon(stream: &Arc<Stream>) {
    let Some(capture) = stream.capture() else { return };
    if !Arc::ptr_eq(&capture.origin, stream) {
        return capture.invalidate();
    }
    capture.end();
    capture.forget_graph();
}

/// `cuStreamIsCapturing`; beside the capture of a stream that it would wait for the legacy default stream cannot say.
pub fn is_capturing(stream: CUstream, out: Out<Status>) -> Answer {
    let stream = stream::resolve(stream)?;
    if stream.would_wait_for_a_capture() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    out.set(status(&stream));
    Ok(())
}

fn status(stream: &Stream) -> Status {
    match stream.capture() {
        None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(capture) if capture.is_invalid() => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    }
}

/// `cuStreamGetCaptureInfo` of CUDA 10.1
pub fn info(stream: CUstream, out: Out<Status>, id: Maybe<u64>) -> Answer {
    info_v2(stream, out, id, Maybe::unwanted(), Maybe::unwanted(), Maybe::unwanted())
}

/// `cuStreamGetCaptureInfo_v2`; the list is valid until the next call for the stream.
pub fn info_v2(
    stream: CUstream,
    out: Out<Status>,
    id: Maybe<u64>,
    graph: Maybe<CUgraph>,
    nodes: Maybe<*const CUgraphNode>,
    count: Maybe<usize>,
) -> Answer {
    let stream = stream::resolve(stream)?;
    out.set(status(&stream));
    let Some(capture) = stream.capture().filter(|capture| !capture.is_invalid()) else { return Ok(()) };
    id.set(capture.id);
    graph.set(capture.graph.handle as CUgraph);
    capture.with(&stream, |member| {
        member.shown = member.after.clone();
        nodes.set(member.shown.as_ptr().cast());
        count.set(member.shown.len());
        Ok(())
    })
}

/// `cuStreamGetCaptureInfo_v3`: without data, since all edges are plain.
pub fn info_v3(
    stream: CUstream,
    out: Out<Status>,
    id: Maybe<u64>,
    graph: Maybe<CUgraph>,
    nodes: Maybe<*const CUgraphNode>,
    edges: Maybe<*const CUgraphEdgeData>,
    count: Maybe<usize>,
) -> Answer {
    edges.set(std::ptr::null());
    info_v2(stream, out, id, graph, nodes, count)
}

/// `cuStreamUpdateCaptureDependencies`: adds nodes to those that the next one comes after, or takes
/// them instead.
pub fn update_dependencies(
    stream: CUstream,
    nodes: ListMut<CUgraphNode>,
    count: usize,
    flags: u32,
) -> Answer {
    let stream = stream::resolve(stream)?;
    let capture = stream.capture().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    capture.check()?;
    let nodes = nodes_of(&capture.graph, &nodes, count)?;
    capture.with(&stream, |member| {
        match flags {
            0 => member.come_after(&nodes),
            1 => member.after = nodes,
            _ => return Err(INVALID),
        }
        Ok(())
    })
}

/// `cuStreamUpdateCaptureDependencies_v2`
pub fn update_dependencies_v2(
    stream: CUstream,
    nodes: ListMut<CUgraphNode>,
    edges: List<CUgraphEdgeData>,
    count: usize,
    flags: u32,
) -> Answer {
    check_edges(&edges, count)?;
    update_dependencies(stream, nodes, count, flags)
}

/// A mode's number: C may pass any.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct RawMode(u32);

impl Mirror for RawMode {
    type Of = CUstreamCaptureMode;
}

/// `cuThreadExchangeStreamCaptureMode`
pub fn exchange_mode(mode: InMut<RawMode>) -> Answer {
    let RawMode(new) = mode.get();
    if new > RELAXED {
        return Err(INVALID);
    }
    mode.set(RawMode(MODE.replace(new)));
    Ok(())
}
