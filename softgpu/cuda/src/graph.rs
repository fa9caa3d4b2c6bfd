//! Graphs by capture: the operations submitted to capturing streams, replayed as often as launched.
//!
//! A captured graph is one sequence, in the order of submission over all its streams: any order
//! that a program may rely on is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphInstantiateResult,
    CUgraphNode, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus as Status,
};
use parking_lot::Mutex;

use crate::abi::{Answer, Enum, Maybe, Out};
use crate::context;
use crate::registry::Registry;
use crate::stream::{self, Stream};
use crate::work::Op;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A capture under way.
pub struct Capture {
    id: u64,
    /// The handle of the stream it began on.
    origin: usize,
    streams: Mutex<Vec<Arc<Stream>>>,
    ops: Mutex<Vec<Op>>,
}

/// A graph or an executable graph: what it does.
struct Graph {
    handle: usize,
    ops: Vec<Op>,
}

static GRAPHS: Registry<Graph> = Registry::new();
static EXECUTABLES: Registry<Graph> = Registry::new();

impl Capture {
    fn begin(stream: &Arc<Stream>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let capture = Arc::new(Capture {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            origin: stream.handle,
            streams: Mutex::default(),
            ops: Mutex::default(),
        });
        capture.take_in(stream);
    }

    /// Adds operations.
    pub fn add(&self, ops: Vec<Op>) {
        self.ops.lock().extend(ops);
    }

    /// A stream waits for an event of this capture: what follows on it belongs to the graph.
    pub fn join(self: &Arc<Self>, stream: &Arc<Stream>) -> Answer {
        match stream.capture() {
            None if stream.is_legacy() => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            None => {
                self.take_in(stream);
                Ok(())
            }
            Some(own) if Arc::ptr_eq(&own, self) => Ok(()),
            Some(_) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE),
        }
    }

    fn take_in(self: &Arc<Self>, stream: &Arc<Stream>) {
        stream.set_capture(Some(self.clone()));
        self.streams.lock().push(stream.clone());
    }

    fn end(&self) -> Vec<Op> {
        for stream in self.streams.lock().drain(..) {
            stream.set_capture(None);
        }
        std::mem::take(&mut self.ops.lock())
    }
}

/// `cuStreamBeginCapture_v2`
pub fn begin_capture(stream: CUstream, _mode: Enum<CUstreamCaptureMode>) -> Answer {
    begin(stream)
}

fn begin(stream: CUstream) -> Answer {
    let stream = stream::resolve(stream)?;
    if stream.is_legacy() {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.capture().is_some() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    Capture::begin(&stream);
    Ok(())
}

/// `cuStreamBeginCapture` of CUDA 10.0: in global mode.
pub fn begin_capture_v1(stream: CUstream) -> Answer {
    begin(stream)
}

/// `cuStreamEndCapture`
pub fn end_capture(stream: CUstream, out: Out<CUgraph>) -> Answer {
    let stream = stream::resolve(stream)?;
    let capture = stream.capture().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.origin != stream.handle {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    let ops = capture.end();
    out.set(GRAPHS.add(|handle| Graph { handle, ops }).handle as CUgraph);
    Ok(())
}

/// `cuStreamIsCapturing`
pub fn is_capturing(stream: CUstream, out: Out<Status>) -> Answer {
    out.set(status(&*stream::resolve(stream)?));
    Ok(())
}

/// `cuStreamGetCaptureInfo` of CUDA 10.1
pub fn capture_info_v1(stream: CUstream, out: Out<Status>, id: Maybe<u64>) -> Answer {
    let stream = stream::resolve(stream)?;
    out.set(status(&stream));
    id.set(stream.capture().map_or(0, |capture| capture.id));
    Ok(())
}

/// `cuStreamGetCaptureInfo_v2`; the graph itself is not shown while it is being captured.
pub fn capture_info_v2(
    stream: CUstream,
    out: Out<Status>,
    id: Maybe<u64>,
    graph: Maybe<CUgraph>,
    nodes: Maybe<*const CUgraphNode>,
    count: Maybe<usize>,
) -> Answer {
    let stream = stream::resolve(stream)?;
    out.set(status(&stream));
    id.set(stream.capture().map_or(0, |capture| capture.id));
    graph.set(std::ptr::null_mut());
    nodes.set(std::ptr::null());
    count.set(0);
    Ok(())
}

/// `cuStreamGetCaptureInfo_v3`
pub fn capture_info_v3(
    stream: CUstream,
    out: Out<Status>,
    id: Maybe<u64>,
    graph: Maybe<CUgraph>,
    nodes: Maybe<*const CUgraphNode>,
    edges: Maybe<*const CUgraphEdgeData>,
    count: Maybe<usize>,
) -> Answer {
    edges.set(std::ptr::null());
    capture_info_v2(stream, out, id, graph, nodes, count)
}

/// `cuThreadExchangeStreamCaptureMode`: kept, and of no effect; no call here disturbs a capture.
pub fn exchange_mode(mode: Out<CUstreamCaptureMode>) -> Answer {
    mode.set(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    Ok(())
}

/// `cuGraphInstantiateWithFlags`
pub fn instantiate(out: Out<CUgraphExec>, graph: CUgraph, _flags: u64) -> Answer {
    let ops = GRAPHS.get(graph as usize).ok_or(INVALID)?.ops.clone();
    out.set(EXECUTABLES.add(|handle| Graph { handle, ops }).handle as CUgraphExec);
    Ok(())
}

/// `cuGraphInstantiateWithParams`
pub fn instantiate_with(
    out: Out<CUgraphExec>,
    graph: CUgraph,
    parameters: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Answer {
    instantiate(out, graph, 0)?;
    parameters.set(CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        hUploadStream: std::ptr::null_mut(),
        hErrNode_out: std::ptr::null_mut(),
        result_out: CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
    });
    Ok(())
}

/// `cuGraphLaunch`
pub fn launch(graph: CUgraphExec, stream: CUstream) -> Answer {
    let graph = EXECUTABLES.get(graph as usize).ok_or(INVALID)?;
    let stream = stream::resolve(stream)?;
    if graph.ops.is_empty() { Ok(()) } else { stream.submit_all(graph.ops.clone()) }
}

/// `cuGraphUpload`
pub fn upload(graph: CUgraphExec, stream: CUstream) -> Answer {
    EXECUTABLES.get(graph as usize).ok_or(INVALID)?;
    stream::resolve(stream).map(drop)
}

/// `cuGraphDestroy`
pub fn destroy(graph: CUgraph) -> Answer {
    GRAPHS.remove(graph as usize).map(drop).ok_or(INVALID)
}

/// `cuGraphExecDestroy`
pub fn destroy_executable(graph: CUgraphExec) -> Answer {
    context::current()?;
    EXECUTABLES.remove(graph as usize).map(drop).ok_or(INVALID)
}

fn status(stream: &Stream) -> Status {
    match stream.capture() {
        Some(_) => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
    }
}
