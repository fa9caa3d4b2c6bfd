//! Captured graphs.

use std::ptr::null_mut;

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
