//! Graphs, captured and made by hand.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use cudarc::runtime::sys::cudaStreamCaptureStatus::*;
use cudarc::runtime::sys::*;

use crate::support::*;

promise! {
    fn a_captured_graph_replays() on 1; {
        let (stream, at) = (stream(), alloc(64));
        let program = Program::with(c"append", c"counters", 32);
        write(at, &[0u32; 16]);
        ok!(cudaStreamBeginCapture(stream, cudaStreamCaptureMode::cudaStreamCaptureModeGlobal));
        assert_eq!(program.launch(stream, &[arg(&at), arg(&6u32)]), 0);
        let mut status = cudaStreamCaptureStatusNone;
        ok!(cudaStreamIsCapturing(stream, &mut status));
        assert_eq!(status, cudaStreamCaptureStatusActive);
        let (mut graph, mut executable) = (null_mut(), null_mut());
        ok!(cudaStreamEndCapture(stream, &mut graph));
        ok!(cudaGraphInstantiate(&mut executable, graph, 0));
        assert_eq!(read::<u32>(at, 1), [0]);
        for _ in 0..3 {
            ok!(cudaGraphLaunch(executable, stream));
        }
        ok!(cudaStreamSynchronize(stream));
        assert_eq!(read::<u32>(at, 4), [3, 6, 6, 6]);
        ok!(cudaGraphExecDestroy(executable));
        ok!(cudaGraphDestroy(graph));
    }
}

/// A graph whose one chain is a memset, a kernel and a copy to the host.
fn by_hand(program: &Program, at: *mut c_void, host: &mut [u32; 2]) -> (cudaGraph_t, [cudaGraphNode_t; 3]) {
    let (mut graph, mut nodes) = (null_mut(), [null_mut(); 3]);
    ok!(cudaGraphCreate(&mut graph, 0));
    let memset = cudaMemsetParams { dst: at, pitch: 0, value: 0, elementSize: 4, width: 2, height: 1 };
    ok!(cudaGraphAddMemsetNode(&mut nodes[0], graph, null_mut(), 0, &memset));
    let value = 6u32;
    let mut arguments = [arg(&at).cast_mut(), arg(&value).cast_mut()];
    let kernel = cudaKernelNodeParams {
        func: program.kernel().cast_mut(),
        gridDim: ONE,
        blockDim: ONE,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: null_mut(),
    };
    let after = nodes[0];
    ok!(cudaGraphAddKernelNode(&mut nodes[1], graph, &after, 1, &kernel));
    let (after, to) = (nodes[1], host.as_mut_ptr().cast());
    let kind = cudaMemcpyKind::cudaMemcpyDeviceToHost;
    ok!(cudaGraphAddMemcpyNode1D(&mut nodes[2], graph, &after, 1, to, at, 8, kind));
    (graph, nodes)
}

promise! {
    fn a_graph_made_by_hand_runs() on 1; {
        let (program, at, mut host) = (Program::with(c"append", c"counters", 32), alloc(8), [0u32; 2]);
        let (graph, nodes) = by_hand(&program, at, &mut host);
        let mut executable = null_mut();
        ok!(cudaGraphInstantiateWithFlags(&mut executable, graph, 0));
        ok!(cudaGraphLaunch(executable, null_mut()));
        ok!(cudaStreamSynchronize(null_mut()));
        // SAFETY: an array of ours, which the graph has written.
        assert_eq!(unsafe { (&raw const host).read_volatile() }, [1, 6]);
        let (mut count, mut before, mut kind) = (0, [null_mut(); 2], cudaGraphNodeType::cudaGraphNodeTypeCount);
        ok!(cudaGraphGetNodes(graph, null_mut(), &mut count));
        assert_eq!(count, 3);
        count = 2;
        ok!(cudaGraphNodeGetDependencies(nodes[2], before.as_mut_ptr(), null_mut(), &mut count));
        assert_eq!((count, before[0]), (1, nodes[1]));
        ok!(cudaGraphNodeGetType(nodes[1], &mut kind));
        assert_eq!(kind, cudaGraphNodeType::cudaGraphNodeTypeKernel);
    }
}

promise! {
    fn what_is_captured_can_be_looked_at() on 1; {
        let (stream, at) = (stream(), alloc(64));
        ok!(cudaStreamBeginCapture(stream, cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed));
        ok!(cudaMemsetAsync(at, 1, 64, stream));
        let (mut status, mut graph, mut nodes, mut count) = (cudaStreamCaptureStatusNone, null_mut(), null(), 0);
        ok!(cudaStreamGetCaptureInfo(
            stream, &mut status, null_mut(), &mut graph, &mut nodes, null_mut(), &mut count
        ));
        assert_eq!((status, count), (cudaStreamCaptureStatusActive, 1));
        let mut ended = null_mut();
        ok!(cudaStreamEndCapture(stream, &mut ended));
        assert_eq!(graph, ended);
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().as_os_str().as_encoded_bytes()).unwrap();
        ok!(cudaGraphDebugDotPrint(graph, path.as_ptr(), 0));
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("digraph"));
    }
}
