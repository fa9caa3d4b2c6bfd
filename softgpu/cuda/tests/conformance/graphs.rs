//! Graphs: captured, built by hand, changed, launched.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{
    self, CUevent, CUgraph, CUgraphExec, CUgraphExecUpdateResult as Verdict, CUgraphNode,
    CUgraphNodeType as Kind, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::support::*;

promise! {
    fn a_captured_graph_replays_its_work_and_nothing_runs_while_capturing() on PLAIN; {
        start();
        let (lane, side, list) = (stream(1), stream(1), list());
        let (fork, join) = (event(), event());
        let append = kernel(c"append");
        let add = |value: u32, stream| {
            assert_eq!(launch(append, stream, &[arg(&list), arg(&value)]), CUresult::CUDA_SUCCESS);
        };
        ok!(cuStreamBeginCapture_v2(lane, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        add(1, lane);
        ok!(cuEventRecord(fork, lane));
        ok!(cuStreamWaitEvent(side, fork, 0));
        add(2, side);
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        ok!(cuStreamIsCapturing(side, &mut status));
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        ok!(cuEventRecord(join, side));
        ok!(cuStreamWaitEvent(lane, join, 0));
        let (mut graph, mut executable) = (null_mut(), null_mut());
        ok!(cuStreamEndCapture(lane, &mut graph));
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(list, 1), [0]);
        ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        ok!(cuGraphDestroy(graph));
        for _ in 0..3 {
            ok!(cuGraphLaunch(executable, lane));
        }
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(list, 7), [6, 1, 2, 1, 2, 1, 2]);
        ok!(cuGraphExecDestroy(executable));
    }
}

const FINE: CUresult = CUresult::CUDA_SUCCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const AUTO_FREE: u64 = 1;

fn list() -> u64 {
    zeroes(4096)
}

fn graph() -> CUgraph {
    let mut graph = null_mut();
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

fn begin(stream: CUstream, mode: CUstreamCaptureMode) {
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    graph
}

/// Ends a capture that was broken: there is no graph.
fn end_broken(stream: CUstream) {
    let mut graph = null_mut();
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(graph.is_null());
}

fn status(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    instantiate_with(graph, 0)
}

fn instantiate_with(graph: CUgraph, flags: u64) -> CUgraphExec {
    let mut executable = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, flags));
    executable
}

fn run(executable: CUgraphExec, stream: CUstream) {
    ok!(cuGraphLaunch(executable, stream));
    ok!(cuStreamSynchronize(stream));
}

/// A kernel node that appends a value to a list, and what it is made of.
fn append_params(arguments: &mut [*mut c_void; 2]) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: kernel(c"append"),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

fn add_append(graph: CUgraph, after: &[CUgraphNode], list: u64, value: u32) -> CUgraphNode {
    let mut node = null_mut();
    let mut arguments = [arg(&list).cast_mut(), arg(&value).cast_mut()];
    ok!(cuGraphAddKernelNode_v2(
        &mut node,
        graph,
        after.as_ptr(),
        after.len(),
        &append_params(&mut arguments)
    ));
    node
}

fn add_empty(graph: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
    let mut node = null_mut();
    ok!(cuGraphAddEmptyNode(&mut node, graph, after.as_ptr(), after.len()));
    node
}

fn append(list: u64, value: u32, stream: CUstream) {
    assert_eq!(launch(kernel(c"append"), stream, &[arg(&list), arg(&value)]), FINE);
}

fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    let mut nodes = vec![null_mut(); count];
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    nodes
}

fn roots(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    ok!(cuGraphGetRootNodes(graph, null_mut(), &mut count));
    let mut nodes = vec![null_mut(); count];
    ok!(cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), &mut count));
    nodes
}

fn edges(graph: CUgraph) -> Vec<(CUgraphNode, CUgraphNode)> {
    let mut count = 0;
    ok!(cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count));
    if count == 0 {
        return Vec::new();
    }
    let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
    // SAFETY: plain C data.
    let mut data = vec![unsafe { std::mem::zeroed() }; count];
    ok!(cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count));
    from.into_iter().zip(to).collect()
}

fn kind(node: CUgraphNode) -> Kind {
    let mut kind = Kind::CU_GRAPH_NODE_TYPE_EMPTY;
    ok!(cuGraphNodeGetType(node, &mut kind));
    kind
}

fn add_edge(graph: CUgraph, from: CUgraphNode, to: CUgraphNode) -> CUresult {
    cu!(cuGraphAddDependencies_v2(graph, &from, &to, std::ptr::null(), 1))
}

fn remove_edge(graph: CUgraph, from: CUgraphNode, to: CUgraphNode) -> CUresult {
    cu!(cuGraphRemoveDependencies_v2(graph, &from, &to, std::ptr::null(), 1))
}

promise! {
    fn synchronising_with_a_captured_stream_breaks_its_capture() on PLAIN; {
        start();
        let lane = stream(1);
        begin(lane, RELAXED);
        let broken = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(cu!(cuStreamSynchronize(lane)), broken);
        assert_eq!(status(lane), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        end_broken(lane);
        assert_eq!(status(lane), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        ok!(cuStreamSynchronize(lane));
    }
}

promise! {
    fn querying_a_captured_stream_breaks_its_capture() on PLAIN; {
        start();
        let lane = stream(1);
        begin(lane, RELAXED);
        assert_eq!(cu!(cuStreamQuery(lane)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_broken(lane);
    }
}

promise! {
    fn what_concerns_all_streams_of_a_context_breaks_its_captures() on PLAIN; {
        let context = start();
        let (lane, mark) = (stream(1), event());
        for record in [true, false] {
            begin(lane, RELAXED);
            let refused = if record { cu!(cuCtxRecordEvent(context, mark)) } else { cu!(cuCtxWaitEvent(context, mark)) };
            assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            end_broken(lane);
        }
    }
}

promise! {
    fn a_capture_ends_with_its_stream() on PLAIN; {
        let context = start();
        let lane = stream(1);
        begin(lane, GLOBAL);
        ok!(cuStreamDestroy_v2(lane));
        ok!(cuMemFree_v2(alloc(8)));
        ok!(cuCtxRecordEvent(context, event()));
        begin(stream(1), RELAXED);
        ok!(cuDevicePrimaryCtxReset_v2(0));
        let context = start();
        ok!(cuCtxRecordEvent(context, event()));
    }
}

/// Begins a capture that forbids other threads what is unsafe, has one do something with an event, and returns the stream.
fn beside_a_global_capture(act: impl FnOnce(CUevent) + Send + 'static) -> CUstream {
    let context = start() as usize;
    let (lane, mark) = (stream(1), event());
    ok!(cuEventRecord(mark, stream(1)));
    ok!(cuCtxSynchronize());
    let mark = mark as usize;
    begin(lane, GLOBAL);
    let other = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context as _));
        act(mark as _);
    });
    other.join().unwrap();
    lane
}

promise! {
    fn an_event_that_another_thread_asks_breaks_a_global_capture() on PLAIN; {
        let lane = beside_a_global_capture(|mark| {
            assert_eq!(cu!(cuEventQuery(mark)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
        end_broken(lane);
    }
}

promise! {
    fn a_thread_that_has_excused_itself_asks_events_during_the_captures_of_others() on PLAIN; {
        let lane = beside_a_global_capture(|mark| {
            let mut mode = RELAXED;
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            ok!(cuEventQuery(mark));
            ok!(cuEventDestroy_v2(mark));
            let created = event();
            ok!(cuEventDestroy_v2(created));
        });
        end(lane);
    }
}

promise! {
    fn a_fork_that_is_not_joined_is_an_error() on PLAIN; {
        start();
        let (lane, side, fork, at) = (stream(1), stream(1), event(), alloc(4));
        begin(lane, RELAXED);
        ok!(cuEventRecord(fork, lane));
        ok!(cuStreamWaitEvent(side, fork, 0));
        ok!(cuMemsetD32Async(at, 1, 1, side));
        let mut graph = null_mut();
        assert_eq!(cu!(cuStreamEndCapture(lane, &mut graph)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        assert!(graph.is_null());
        assert_eq!(status(side), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    }
}

promise! {
    fn a_capture_ends_on_the_stream_where_it_began() on PLAIN; {
        start();
        let (lane, side, fork) = (stream(1), stream(1), event());
        begin(lane, RELAXED);
        ok!(cuEventRecord(fork, lane));
        ok!(cuStreamWaitEvent(side, fork, 0));
        let mut graph = null_mut();
        assert_eq!(cu!(cuStreamEndCapture(side, &mut graph)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
}

promise! {
    fn a_capture_ends_in_the_thread_where_it_began_unless_it_is_relaxed() on PLAIN; {
        let context = start() as usize;
        for (mode, expected) in [(THREAD_LOCAL, CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD), (RELAXED, FINE)] {
            let lane = stream(1);
            begin(lane, mode);
            let lane = lane as usize;
            let ended = std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(context as _));
                let mut graph = null_mut();
                cu!(cuStreamEndCapture(lane as CUstream, &mut graph))
            });
            assert_eq!(ended.join().unwrap(), expected);
        }
    }
}

promise! {
    fn the_legacy_stream_cannot_be_captured() on PLAIN; {
        start();
        let refused = cu!(cuStreamBeginCapture_v2(null_mut(), RELAXED));
        assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let lane = stream(1);
        begin(lane, RELAXED);
        assert_eq!(cu!(cuStreamBeginCapture_v2(lane, RELAXED)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        end(lane);
        let mut graph = null_mut();
        assert_eq!(cu!(cuStreamEndCapture(lane, &mut graph)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
}

promise! {
    fn the_legacy_stream_cannot_wait_for_a_captured_one() on PLAIN; {
        start();
        let (blocking, at) = (stream(0), alloc(4));
        begin(blocking, RELAXED);
        let implicit = cu!(cuMemsetD8Async(at, 0, 4, null_mut()));
        assert_eq!(implicit, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        end_broken(blocking);
    }
}

promise! {
    fn the_legacy_stream_cannot_say_whether_it_captures_beside_a_capture_that_it_would_wait_for() on PLAIN; {
        start();
        let ask = || {
            let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            cu!(cuStreamIsCapturing(null_mut(), &mut status))
        };
        for (flags, answer) in [(0, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT), (1, CUresult::CUDA_SUCCESS)] {
            let lane = stream(flags);
            begin(lane, RELAXED);
            assert_eq!(ask(), answer);
            // It breaks nothing.
            end(lane);
        }
    }
}

promise! {
    fn a_thread_that_has_excused_itself_marks_other_streams_during_captures() on PLAIN; {
        let context = start() as usize;
        let (lane, at) = (stream(1), alloc(4));
        begin(lane, GLOBAL);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            let mut mode = RELAXED;
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            for lane in [stream(1), stream(0), null_mut(), 2 as _] {
                ok!(cuMemsetD8Async(at, 1, 4, lane));
                let mark = event();
                ok!(cuEventRecord(mark, lane));
                ok!(cuEventSynchronize(mark));
                ok!(cuEventDestroy_v2(mark));
            }
        }).join().unwrap();
        end(lane);
    }
}

promise! {
    fn a_non_blocking_capture_leaves_the_legacy_stream_alone() on PLAIN; {
        start();
        let (lane, at) = (stream(1), alloc(4));
        begin(lane, RELAXED);
        ok!(cuMemsetD8Async(at, 1, 4, null_mut()));
        end(lane);
        assert_eq!(read::<u8>(at, 4), [1; 4]);
    }
}

promise! {
    fn events_of_a_capture_cannot_be_asked() on PLAIN; {
        start();
        let (lane, mark) = (stream(1), event());
        begin(lane, RELAXED);
        ok!(cuEventRecord(mark, lane));
        assert_eq!(cu!(cuEventQuery(mark)), CUresult::CUDA_ERROR_CAPTURED_EVENT);
        assert_eq!(cu!(cuEventSynchronize(mark)), INVALID);
    }
}

promise! {
    fn a_capture_cannot_wait_for_an_event_from_before_it() on PLAIN; {
        start();
        let (lane, other, mark) = (stream(1), stream(1), event());
        let held = hold(other);
        ok!(cuEventRecord(mark, other));
        begin(lane, RELAXED);
        let isolated = cu!(cuStreamWaitEvent(lane, mark, 0));
        assert_eq!(isolated, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        held.let_go();
    }
}

promise! {
    fn two_captures_cannot_become_one() on PLAIN; {
        start();
        let (one, other, mark) = (stream(1), stream(1), event());
        begin(one, RELAXED);
        begin(other, RELAXED);
        ok!(cuEventRecord(mark, one));
        assert_eq!(cu!(cuStreamWaitEvent(other, mark, 0)), CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
}

promise! {
    fn allocations_in_the_capturing_thread_break_a_capture_unless_relaxed() on PLAIN; {
        start();
        let lane = stream(1);
        let mut at = 0;
        begin(lane, THREAD_LOCAL);
        let refused = cu!(cuMemAlloc_v2(&mut at, 4096));
        assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_broken(lane);
        begin(lane, RELAXED);
        ok!(cuMemAlloc_v2(&mut at, 4096));
        end(lane);
    }
}

promise! {
    fn a_thread_can_excuse_itself_from_the_captures_of_others() on PLAIN; {
        let context = start() as usize;
        let lane = stream(1);
        begin(lane, GLOBAL);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            let mut mode = RELAXED;
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, GLOBAL);
            alloc(4096);
            ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
            assert_eq!(mode, RELAXED);
            let mut at = 0;
            let refused = cu!(cuMemAlloc_v2(&mut at, 4096));
            assert_eq!(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }).join().unwrap();
        assert_eq!(status(lane), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    }
}

promise! {
    fn a_capture_of_one_thread_does_not_forbid_others_to_allocate() on PLAIN; {
        let context = start() as usize;
        let lane = stream(1);
        begin(lane, THREAD_LOCAL);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            alloc(4096);
        }).join().unwrap();
        end(lane);
    }
}

promise! {
    fn a_fork_and_its_join_are_edges() on PLAIN; {
        start();
        let (lane, side, at) = (stream(1), stream(1), alloc(16));
        let (fork, join) = (event(), event());
        begin(lane, RELAXED);
        ok!(cuMemsetD32Async(at, 1, 1, lane));
        ok!(cuEventRecord(fork, lane));
        ok!(cuStreamWaitEvent(side, fork, 0));
        ok!(cuMemsetD32Async(at + 4, 2, 1, lane));
        ok!(cuMemsetD32Async(at + 8, 3, 1, side));
        ok!(cuEventRecord(join, side));
        ok!(cuStreamWaitEvent(lane, join, 0));
        ok!(cuMemsetD32Async(at + 12, 4, 1, lane));
        let graph = end(lane);
        assert_eq!((nodes(graph).len(), roots(graph).len(), edges(graph).len()), (4, 1, 4));
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(at, 4), [1, 2, 3, 4]);
    }
}

promise! {
    fn a_capture_shows_its_identity_graph_and_dependencies() on PLAIN; {
        start();
        let (lane, at) = (stream(1), alloc(4));
        let mut state = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut list, mut count) = (0, null_mut(), std::ptr::null(), 9);
        begin(lane, RELAXED);
        ok!(cuStreamGetCaptureInfo_v3(lane, &mut state, &mut id, &mut graph, &mut list, null_mut(), &mut count));
        assert_eq!((state, count), (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, 0));
        let first = id;
        ok!(cuMemsetD32Async(at, 1, 1, lane));
        ok!(cuStreamGetCaptureInfo_v3(lane, &mut state, &mut id, &mut graph, &mut list, null_mut(), &mut count));
        assert_eq!((id, count), (first, 1));
        // SAFETY: the driver showed one node.
        assert_eq!(unsafe { list.read() }, nodes(graph)[0]);
        assert_eq!(end(lane), graph);
        begin(lane, RELAXED);
        ok!(cuStreamGetCaptureInfo_v3(lane, &mut state, &mut id, &mut graph, &mut list, null_mut(), &mut count));
        assert_ne!(id, first);
    }
}

promise! {
    fn dependencies_of_a_capture_can_be_set() on PLAIN; {
        start();
        let (lane, at) = (stream(1), alloc(8));
        let mut state = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut graph, mut list, mut count) = (null_mut(), std::ptr::null(), 0);
        begin(lane, RELAXED);
        ok!(cuMemsetD32Async(at, 1, 1, lane));
        ok!(cuStreamGetCaptureInfo_v3(lane, &mut state, null_mut(), &mut graph, &mut list, null_mut(), &mut count));
        let mut own = add_empty(graph, &nodes(graph));
        const SET: u32 = 1;
        ok!(cuStreamUpdateCaptureDependencies_v2(lane, &mut own, std::ptr::null(), 1, SET));
        ok!(cuMemsetD32Async(at + 4, 2, 1, lane));
        let graph = end(lane);
        let last = nodes(graph)[2];
        assert_eq!(edges(graph), [(nodes(graph)[0], own), (own, last)]);
    }
}

promise! {
    fn a_stream_can_be_captured_into_a_graph_that_is_there() on PLAIN; {
        start();
        let (lane, at, graph) = (stream(1), alloc(4), graph());
        let first = add_empty(graph, &[]);
        ok!(cuStreamBeginCaptureToGraph(lane, graph, &first, std::ptr::null(), 1, RELAXED));
        ok!(cuMemsetD32Async(at, 5, 1, lane));
        assert_eq!(end(lane), graph);
        assert_eq!(edges(graph), [(first, nodes(graph)[1])]);
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(at, 1), [5]);
    }
}

promise! {
    fn an_executable_graph_cannot_be_launched_into_a_capture() on PLAIN; {
        start();
        let (lane, list, inner) = (stream(1), list(), graph());
        add_append(inner, &[], list, 4);
        let inner = instantiate(inner);
        begin(lane, RELAXED);
        assert_eq!(cu!(cuGraphLaunch(inner, lane)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        // Whether that breaks the capture is not known of hardware.
        let mut outer = null_mut();
        let ended = cu!(cuStreamEndCapture(lane, &mut outer));
        note(format_args!("cuStreamEndCapture after a cuGraphLaunch: {ended:?}"));
        if on_software() {
            assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        run(inner, lane);
        assert_eq!(read::<u32>(list, 2), [1, 4]);
    }
}

promise! {
    fn kernels_of_a_graph_run_in_the_order_of_its_edges() on PLAIN; {
        start();
        let (lane, list, graph) = (stream(1), list(), graph());
        let last = add_append(graph, &[], list, 3);
        let first = add_append(graph, &[], list, 1);
        let middle = add_append(graph, &[first], list, 2);
        assert_eq!(add_edge(graph, middle, last), FINE);
        let executable = instantiate(graph);
        run(executable, lane);
        run(executable, lane);
        assert_eq!(read::<u32>(list, 7), [6, 1, 2, 3, 1, 2, 3]);
    }
}

promise! {
    fn a_graph_tells_its_nodes_roots_edges_and_kinds() on PLAIN; {
        start();
        let graph = graph();
        let one = add_empty(graph, &[]);
        let two = add_empty(graph, &[one]);
        let three = add_empty(graph, &[one, two]);
        assert_eq!(nodes(graph).len(), 3);
        assert_eq!(roots(graph), [one]);
        let mut all = edges(graph);
        all.sort_unstable();
        let mut expected = [(one, two), (one, three), (two, three)];
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!(kind(one), Kind::CU_GRAPH_NODE_TYPE_EMPTY);
        let (mut before, mut count) = ([null_mut(); 3], 3);
        ok!(cuGraphNodeGetDependencies_v2(three, before.as_mut_ptr(), null_mut(), &mut count));
        assert_eq!(count, 2);
        assert!(before[..2].contains(&one) && before[..2].contains(&two) && before[2].is_null());
        let (mut after, mut count) = ([null_mut(); 2], 2);
        ok!(cuGraphNodeGetDependentNodes_v2(one, after.as_mut_ptr(), null_mut(), &mut count));
        assert_eq!(count, 2);
    }
}

promise! {
    fn edges_are_added_and_removed_once() on PLAIN; {
        start();
        let graph = graph();
        let (one, two) = (add_empty(graph, &[]), add_empty(graph, &[]));
        assert_eq!(add_edge(graph, one, two), FINE);
        assert_eq!(add_edge(graph, one, two), INVALID);
        assert_eq!(add_edge(graph, one, one), INVALID);
        assert_eq!(remove_edge(graph, one, two), FINE);
        assert_eq!(remove_edge(graph, one, two), INVALID);
        assert!(edges(graph).is_empty());
    }
}

promise! {
    fn places_for_edges_are_for_one_at_least() on PLAIN; {
        start();
        let (graph, mut count) = (graph(), 0);
        let (one, two) = (add_empty(graph, &[]), add_empty(graph, &[]));
        let (mut from, mut to) = (null_mut(), null_mut());
        // SAFETY: plain C data.
        let mut data = unsafe { std::mem::zeroed() };
        assert_eq!(cu!(cuGraphGetEdges_v2(graph, &mut from, &mut to, &mut data, &mut count)), INVALID);
        assert_eq!(add_edge(graph, one, two), FINE);
        count = 1;
        ok!(cuGraphGetEdges_v2(graph, &mut from, &mut to, &mut data, &mut count));
        assert_eq!((count, from), (1, one));
    }
}

promise! {
    fn a_circle_cannot_be_instantiated() on PLAIN; {
        start();
        let graph = graph();
        let one = add_empty(graph, &[]);
        let two = add_empty(graph, &[one]);
        let circle = add_edge(graph, two, one);
        let mut executable = null_mut();
        let made = cu!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        assert!(circle != FINE || made != FINE);
    }
}

promise! {
    fn nodes_come_after_nodes_of_their_own_graph_named_once() on PLAIN; {
        start();
        let (one, other) = (graph(), graph());
        let (own, foreign) = (add_empty(one, &[]), add_empty(other, &[]));
        let mut node = null_mut();
        let mixed = [own, foreign];
        assert_eq!(cu!(cuGraphAddEmptyNode(&mut node, one, mixed.as_ptr(), 2)), INVALID);
        let twice = [own, own];
        assert_eq!(cu!(cuGraphAddEmptyNode(&mut node, one, twice.as_ptr(), 2)), INVALID);
    }
}

promise! {
    fn a_destroyed_node_leaves_with_its_edges() on PLAIN; {
        start();
        let graph = graph();
        let one = add_empty(graph, &[]);
        let two = add_empty(graph, &[one]);
        let three = add_empty(graph, &[two]);
        ok!(cuGraphDestroyNode(two));
        assert_eq!(nodes(graph), [one, three]);
        assert!(edges(graph).is_empty());
    }
}

promise! {
    fn copies_memsets_and_host_functions_are_nodes() on PLAIN; {
        unsafe extern "C" fn note(data: *mut c_void) {
            // SAFETY: the promise passes four bytes of its own.
            unsafe { data.cast::<u32>().write_volatile(9) };
        }
        let context = start();
        let (lane, graph, at) = (stream(1), graph(), alloc(8));
        let (host, noted) = (pinned(8).cast::<u32>(), pinned(4).cast::<u32>());
        let fill = sys::CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value: 7, elementSize: 4, width: 2, height: 1 };
        let (mut first, mut second, mut third) = (null_mut(), null_mut(), null_mut());
        ok!(cuGraphAddMemsetNode(&mut first, graph, std::ptr::null(), 0, &fill, context));
        let copy = to_host(at, host.cast(), 8);
        ok!(cuGraphAddMemcpyNode(&mut second, graph, &first, 1, &copy, context));
        let call = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(note), userData: noted.cast() };
        ok!(cuGraphAddHostNode(&mut third, graph, &second, 1, &call));
        run(instantiate(graph), lane);
        // SAFETY: pinned memory, and the work is done.
        assert_eq!(unsafe { host.cast::<[u32; 2]>().read() }, [7, 7]);
        // SAFETY: as above.
        assert_eq!(unsafe { noted.read() }, 9);
        assert_eq!(kind(first), Kind::CU_GRAPH_NODE_TYPE_MEMSET);
        assert_eq!(kind(second), Kind::CU_GRAPH_NODE_TYPE_MEMCPY);
        assert_eq!(kind(third), Kind::CU_GRAPH_NODE_TYPE_HOST);
        // SAFETY: plain C data; zero is a value of each of its enums.
        let mut shown: sys::CUDA_MEMSET_NODE_PARAMS = unsafe { std::mem::zeroed() };
        ok!(cuGraphMemsetNodeGetParams(first, &mut shown));
        assert_eq!((shown.dst, shown.value, shown.elementSize, shown.width), (at, 7, 4, 2));
    }
}

/// A copy of bytes from the device to the host, as a node wants it.
fn to_host(from: u64, to: *mut c_void, bytes: usize) -> sys::CUDA_MEMCPY3D {
    let mut copy = volume([bytes, 1, 1]);
    (copy.srcMemoryType, copy.srcDevice) = (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, from);
    (copy.dstMemoryType, copy.dstHost) = (sys::CUmemorytype::CU_MEMORYTYPE_HOST, to);
    copy
}

promise! {
    fn a_kernel_node_keeps_a_copy_of_its_arguments() on PLAIN; {
        start();
        let (lane, list, graph) = (stream(1), list(), graph());
        let mut value = 1u32;
        let mut node = null_mut();
        let mut arguments = [arg(&list).cast_mut(), (&raw mut value).cast()];
        ok!(cuGraphAddKernelNode_v2(&mut node, graph, std::ptr::null(), 0, &append_params(&mut arguments)));
        value += 1;
        let mut shown = append_params(&mut arguments);
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut shown));
        assert_eq!((shown.func, shown.gridDimX), (kernel(c"append"), 1));
        // SAFETY: the driver shows one pointer for each of the two parameters.
        let [_, second] = unsafe { shown.kernelParams.cast::<[*const u32; 2]>().read() };
        // SAFETY: the second parameter is such a number.
        assert_eq!(unsafe { second.read() }, 1);
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(list, 2), [1, 1], "{value}");
        ok!(cuGraphKernelNodeSetParams_v2(node, &append_params(&mut arguments)));
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn a_change_of_a_graph_does_not_change_what_was_instantiated() on PLAIN; {
        start();
        let (lane, list, graph) = (stream(1), list(), graph());
        let one = add_append(graph, &[], list, 1);
        let executable = instantiate(graph);
        add_append(graph, &[one], list, 2);
        run(executable, lane);
        assert_eq!(read::<u32>(list, 3), [1, 1, 0]);
        ok!(cuGraphDestroy(graph));
        run(executable, lane);
        assert_eq!(read::<u32>(list, 3), [2, 1, 1]);
    }
}

promise! {
    fn kernels_of_an_executable_graph_can_get_other_arguments() on PLAIN; {
        start();
        let (lane, list, graph, value) = (stream(1), list(), graph(), 8u32);
        let node = add_append(graph, &[], list, 1);
        let executable = instantiate(graph);
        let mut arguments = [arg(&list).cast_mut(), arg(&value).cast_mut()];
        ok!(cuGraphExecKernelNodeSetParams_v2(executable, node, &append_params(&mut arguments)));
        run(executable, lane);
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(list, 3), [2, 8, 1]);
    }
}

promise! {
    fn an_executable_graph_takes_the_parameters_of_a_graph_of_its_shape() on PLAIN; {
        start();
        let lists = list();
        let (lane, one, other, third) = (stream(1), graph(), graph(), graph());
        add_append(one, &[], lists, 1);
        add_append(other, &[], lists, 2);
        let first = add_append(third, &[], lists, 3);
        add_append(third, &[first], lists, 4);
        let executable = instantiate(one);
        let mut result = sys::CUgraphExecUpdateResultInfo {
            result: Verdict::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        ok!(cuGraphExecUpdate_v2(executable, other, &mut result));
        assert_eq!(result.result, Verdict::CU_GRAPH_EXEC_UPDATE_SUCCESS);
        let failed = cu!(cuGraphExecUpdate_v2(executable, third, &mut result));
        assert_eq!(failed, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        assert_eq!(result.result, Verdict::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        run(executable, lane);
        assert_eq!(read::<u32>(lists, 2), [1, 2]);
    }
}

promise! {
    fn an_update_to_nodes_of_another_kind_fails() on PLAIN; {
        start();
        let (one, other) = (graph(), graph());
        add_append(one, &[], list(), 1);
        add_empty(other, &[]);
        let mut result = sys::CUgraphExecUpdateResultInfo {
            result: Verdict::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        let failed = cu!(cuGraphExecUpdate_v2(instantiate(one), other, &mut result));
        assert_eq!(failed, CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        assert_ne!(result.result, Verdict::CU_GRAPH_EXEC_UPDATE_SUCCESS);
    }
}

promise! {
    fn a_disabled_node_is_left_out_until_it_is_enabled() on PLAIN; {
        start();
        let (lane, list, graph) = (stream(1), list(), graph());
        let one = add_append(graph, &[], list, 1);
        add_append(graph, &[one], list, 2);
        let empty = add_empty(graph, &[]);
        let executable = instantiate(graph);
        ok!(cuGraphNodeSetEnabled(executable, one, 0));
        let mut enabled = 1;
        ok!(cuGraphNodeGetEnabled(executable, one, &mut enabled));
        assert_eq!(enabled, 0);
        run(executable, lane);
        ok!(cuGraphNodeSetEnabled(executable, one, 1));
        run(executable, lane);
        assert_eq!(read::<u32>(list, 4), [3, 2, 1, 2]);
        assert_eq!(cu!(cuGraphNodeSetEnabled(executable, empty, 0)), INVALID);
    }
}

promise! {
    fn a_child_graph_is_a_copy() on PLAIN; {
        start();
        let (lane, list, inner, outer) = (stream(1), list(), graph(), graph());
        let first = add_append(inner, &[], list, 1);
        let mut child = null_mut();
        ok!(cuGraphAddChildGraphNode(&mut child, outer, std::ptr::null(), 0, inner));
        add_append(outer, &[child], list, 3);
        add_append(inner, &[first], list, 2);
        let mut embedded = null_mut();
        ok!(cuGraphChildGraphNodeGetGraph(child, &mut embedded));
        assert_eq!(nodes(embedded).len(), 1);
        run(instantiate(outer), lane);
        assert_eq!(read::<u32>(list, 3), [2, 1, 3]);
    }
}

promise! {
    fn a_clone_has_twins_of_all_nodes() on PLAIN; {
        start();
        let (lane, list, original) = (stream(1), list(), graph());
        let one = add_append(original, &[], list, 1);
        add_append(original, &[one], list, 2);
        let (mut clone, mut twin) = (null_mut(), null_mut());
        ok!(cuGraphClone(&mut clone, original));
        ok!(cuGraphNodeFindInClone(&mut twin, one, clone));
        assert_ne!(twin, one);
        assert_eq!(roots(clone), [twin]);
        ok!(cuGraphDestroy(original));
        run(instantiate(clone), lane);
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn event_nodes_order_a_graph_and_a_stream() on PLAIN; {
        start();
        let (lane, other, list, mark) = (stream(1), stream(1), list(), event());
        let graph = graph();
        let first = add_append(graph, &[], list, 1);
        let (mut node, mut shown) = (null_mut(), null_mut());
        ok!(cuGraphAddEventRecordNode(&mut node, graph, &first, 1, mark));
        ok!(cuGraphEventRecordNodeGetEvent(node, &mut shown));
        assert_eq!(shown, mark);
        let executable = instantiate(graph);
        let held = hold(lane);
        ok!(cuGraphLaunch(executable, lane));
        ok!(cuStreamWaitEvent(other, mark, 0));
        append(list, 2, other);
        assert_eq!(cu!(cuStreamQuery(other)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(other));
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn external_events_of_a_capture_are_nodes() on PLAIN; {
        const EXTERNAL: u32 = 1;
        start();
        let (lane, mark) = (stream(1), event());
        begin(lane, RELAXED);
        ok!(cuEventRecordWithFlags(mark, lane, EXTERNAL));
        ok!(cuStreamWaitEvent(lane, mark, EXTERNAL));
        let graph = end(lane);
        let kinds: Vec<_> = nodes(graph).into_iter().map(kind).collect();
        assert_eq!(kinds, [Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD, Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT]);
        run(instantiate(graph), lane);
        ok!(cuEventQuery(mark));
    }
}

promise! {
    fn memory_allocated_in_a_capture_has_one_address_for_all_replays() on PLAIN; {
        start();
        let lane = stream(1);
        let (mut at, back) = (0, pinned(4).cast::<u32>());
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut at, 1 << 20, lane));
        ok!(cuMemsetD32Async(at, 6, 1, lane));
        ok!(cuMemcpyDtoHAsync_v2(back.cast(), at, 4, lane));
        ok!(cuMemFreeAsync(at, lane));
        let graph = end(lane);
        let kinds: Vec<_> = nodes(graph).into_iter().map(kind).collect();
        assert_eq!(kinds[0], Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        assert_eq!(kinds[3], Kind::CU_GRAPH_NODE_TYPE_MEM_FREE);
        // SAFETY: the parameters are written by the driver; zero is a value of each of the enums.
        let mut shown: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
        ok!(cuGraphMemAllocNodeGetParams(nodes(graph)[0], &mut shown));
        assert_eq!((shown.dptr, shown.bytesize), (at, 1 << 20));
        let executable = instantiate(graph);
        for _ in 0..3 {
            // SAFETY: pinned memory, and no work uses it now.
            unsafe { back.write(0) };
            run(executable, lane);
            // SAFETY: as above.
            assert_eq!(unsafe { back.read() }, 6);
        }
    }
}

promise! {
    fn memory_that_a_graph_leaves_allocated_is_used_and_freed_outside() on PLAIN; {
        start();
        let lane = stream(1);
        let mut at = 0;
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut at, 4096, lane));
        ok!(cuMemsetD8Async(at, 3, 4096, lane));
        let executable = instantiate(end(lane));
        run(executable, lane);
        assert_eq!(read::<u8>(at, 4), [3; 4]);
        assert_eq!(cu!(cuGraphLaunch(executable, lane)), INVALID);
        ok!(cuMemFreeAsync(at, lane));
        run(executable, lane);
        ok!(cuMemFree_v2(at));
    }
}

promise! {
    fn memory_that_a_graph_left_allocated_outlives_it() on PLAIN; {
        start();
        let lane = stream(1);
        let (mut at, mut other) = (0, 0);
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut at, 4096, lane));
        ok!(cuMemsetD8Async(at, 3, 4096, lane));
        let graph = end(lane);
        let executable = instantiate_with(graph, AUTO_FREE);
        run(executable, lane);
        ok!(cuGraphExecDestroy(executable));
        ok!(cuGraphDestroy(graph));
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut other, 4096, lane));
        ok!(cuMemsetD8Async(other, 4, 4096, lane));
        let executable = instantiate(end(lane));
        assert_ne!(at, other);
        run(executable, lane);
        assert_eq!((read::<u8>(at, 4), read::<u8>(other, 4)), (vec![3; 4], vec![4; 4]));
        begin(lane, RELAXED);
        ok!(cuMemFreeAsync(at, lane));
        run(instantiate(end(lane)), lane);
        ok!(cuMemFree_v2(other));
    }
}

promise! {
    fn a_graph_may_free_at_its_launch_what_it_left_allocated() on PLAIN; {
        start();
        let lane = stream(1);
        let mut at = 0;
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut at, 4096, lane));
        let executable = instantiate_with(end(lane), AUTO_FREE);
        let mut flags = 0;
        ok!(cuGraphExecGetFlags(executable, &mut flags));
        assert_eq!(flags, AUTO_FREE);
        run(executable, lane);
        run(executable, lane);
    }
}

promise! {
    fn a_capture_frees_only_memory_of_graphs() on PLAIN; {
        start();
        let (lane, at) = (stream(1), alloc(4096));
        begin(lane, RELAXED);
        assert_eq!(cu!(cuMemFreeAsync(at, lane)), INVALID);
    }
}

promise! {
    fn memory_nodes_are_built_by_hand_too() on PLAIN; {
        start();
        let (lane, graph) = (stream(1), graph());
        // SAFETY: plain C data; the enums are set below, and zero is a value of each.
        let mut asked: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
        asked.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        asked.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        asked.bytesize = 64;
        let (mut made, mut used, mut freed) = (null_mut(), null_mut(), null_mut());
        ok!(cuGraphAddMemAllocNode(&mut made, graph, std::ptr::null(), 0, &mut asked));
        assert_ne!(asked.dptr, 0);
        let host = pinned(64).cast::<u8>();
        let copy = to_host(asked.dptr, host.cast(), 64);
        let mut context = null_mut();
        ok!(cuCtxGetCurrent(&mut context));
        ok!(cuGraphAddMemcpyNode(&mut used, graph, &made, 1, &copy, context));
        ok!(cuGraphAddMemFreeNode(&mut freed, graph, &used, 1, asked.dptr));
        let mut shown = 0;
        ok!(cuGraphMemFreeNodeGetParams(freed, &mut shown));
        assert_eq!(shown, asked.dptr);
        run(instantiate(graph), lane);
    }
}

promise! {
    fn memory_of_graphs_is_kept_until_it_is_trimmed() on PLAIN; {
        use sys::CUgraphMem_attribute as Memory;
        start();
        let lane = stream(1);
        let get = |attribute| {
            let mut value = 0u64;
            ok!(cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut value).cast()));
            value
        };
        let mut at = 0;
        begin(lane, RELAXED);
        ok!(cuMemAllocAsync(&mut at, 1 << 20, lane));
        ok!(cuMemFreeAsync(at, lane));
        let executable = instantiate(end(lane));
        run(executable, lane);
        // Used is what belongs to a graph, though no launch is under way.
        assert!(get(Memory::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= 1 << 20);
        assert!(get(Memory::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= 1 << 20);
        assert!(get(Memory::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= 1 << 20);
        ok!(cuDeviceGraphMemTrim(0));
        // How much hardware keeps of a graph that can be launched again is not known.
        let used = get(Memory::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
        let reserved = get(Memory::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
        note(format_args!("after cuDeviceGraphMemTrim used {used}, reserved {reserved} bytes"));
        if on_software() {
            assert_eq!((used, reserved), (0, 0));
        }
        run(executable, lane);
    }
}

promise! {
    fn all_forms_of_instantiation_make_the_same() on PLAIN; {
        start();
        let (lane, list, graph) = (stream(1), list(), graph());
        add_append(graph, &[], list, 1);
        let mut executable = null_mut();
        let mut asked = sys::CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 0,
            hUploadStream: null_mut(),
            hErrNode_out: null_mut(),
            result_out: sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        ok!(cuGraphInstantiateWithParams(&mut executable, graph, &mut asked));
        assert_eq!(asked.result_out, sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS);
        ok!(cuGraphUpload(executable, lane));
        run(executable, lane);
        let mut other = null_mut();
        assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut other, graph, 1 << 20)), INVALID);
        assert_eq!(read::<u32>(list, 2), [1, 1]);
    }
}

promise! {
    fn nodes_of_any_kind_are_added_by_one_call() on PLAIN; {
        start();
        let (lane, list, graph, value) = (stream(1), list(), graph(), 5u32);
        let mut arguments = [arg(&list).cast_mut(), arg(&value).cast_mut()];
        // SAFETY: plain C data; the kind is set below, and its parameters.
        let mut asked: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        asked.type_ = Kind::CU_GRAPH_NODE_TYPE_KERNEL;
        let body = (&raw mut asked.__bindgen_anon_1).cast::<sys::CUDA_KERNEL_NODE_PARAMS>();
        // SAFETY: the parameters of a kernel lie at the beginning of the body.
        unsafe { body.write(append_params(&mut arguments)) };
        let mut node = null_mut();
        ok!(cuGraphAddNode_v2(&mut node, graph, std::ptr::null(), std::ptr::null(), 0, &mut asked));
        assert_eq!(kind(node), Kind::CU_GRAPH_NODE_TYPE_KERNEL);
        run(instantiate(graph), lane);
        assert_eq!(read::<u32>(list, 2), [1, 5]);
    }
}

promise! {
    fn a_user_object_ends_with_its_last_reference() on PLAIN; {
        unsafe extern "C" fn note(data: *mut c_void) {
            // SAFETY: the promise passes a counter that is never given back.
            unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
        }
        start();
        let ended: &'static AtomicU32 = Box::leak(Box::default());
        let data = std::ptr::from_ref(ended).cast_mut().cast();
        let (mut object, graph) = (null_mut(), graph());
        const NO_SYNC: u32 = 1;
        const MOVE: u32 = 1;
        ok!(cuUserObjectCreate(&mut object, data, Some(note), 2, NO_SYNC));
        ok!(cuGraphRetainUserObject(graph, object, 1, MOVE));
        ok!(cuUserObjectRelease(object, 1));
        let executable = instantiate(graph);
        ok!(cuGraphDestroy(graph));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        ok!(cuGraphExecDestroy(executable));
        while ended.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(cu!(cuUserObjectCreate(&mut object, data, Some(note), 1, 0)), INVALID);
    }
}
