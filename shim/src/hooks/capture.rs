//! Stream capture: what it records is not submitted yet, and while one is under way a closing may not ask for the end of all work
//! at once, which would break it.

use super::abi::{Out, Real};
use crate::driver;
use crate::gate::{GATE, Nowhere, Role};
use crate::graphs::User;
use crate::process::Process;
use crate::status::Answer;
use std::ffi::c_void;
use tidegate_ffi::cuda::sys::*;

/// `cuStreamBeginCapture`.
pub fn begin_v1(process: &'static Process, real: Real<'_>, stream: CUstream) -> Answer {
    begin_any(process, real, stream)
}

/// `cuStreamBeginCapture_v2`.
pub fn begin(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    _mode: CUstreamCaptureMode,
) -> Answer {
    begin_any(process, real, stream)
}

/// `cuStreamBeginCaptureToGraph`.
pub fn begin_to_graph(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _data: *const CUgraphEdgeData,
    _count: usize,
    _mode: CUstreamCaptureMode,
) -> Answer {
    begin_any(process, real, stream)
}

/// `cuStreamBeginRecaptureToGraph`.
pub fn begin_again(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    _mode: CUstreamCaptureMode,
    _graph: CUgraph,
    _callback: *mut c_void,
    _data: *mut c_void,
) -> Answer {
    begin_any(process, real, stream)
}

/// Begins inside the gate: a closing sees the capture, or the capture waits for the opening. A closing that waits for
/// captures to end holds new ones back, but for those of a thread that captures already.
fn begin_any(process: &'static Process, real: Real<'_>, stream: CUstream) -> Answer {
    let _beginning = process.captures.prepare(process);
    let role = || if process.captures.any_of_this_thread() { Role::Works } else { Role::Waits };
    let _pass = GATE.pass_as(role, || false, || Nowhere)?;
    process.captures.begin(stream.addr(), driver::current_context(), real)
}

/// `cuStreamEndCapture`: also a capture that failed has ended, but where the call was refused, as that of another thread. What it
/// allocated is the graph's.
pub fn end(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    graph: Option<Out<'_, CUgraph>>,
) -> Answer {
    let capture = number_of(process, stream);
    let graph = graph.map(|graph| graph.preset(std::ptr::null_mut()));
    let ended = real();
    if ended.is_err() && driver::is_capturing(stream).unwrap_or(false) {
        return ended;
    }
    process.captures.ended(stream.addr());
    if let Some(capture) = capture {
        if let (Ok(()), Some(graph)) = (ended, graph) {
            process.graphs.share(capture, User::Graph(graph.get().addr()));
        }
        super::graph::end(process, capture);
    }
    ended
}

/// The stream's capture, if that may have to do with memory.
pub fn number_of(process: &'static Process, stream: CUstream) -> Option<User> {
    let number = (!process.graphs.is_empty()).then(|| driver::capture_number(stream).ok());
    number.flatten().map(User::Capture)
}
