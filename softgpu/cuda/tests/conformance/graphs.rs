//! Captured graphs.

use std::ptr::null_mut;

use cudarc::driver::sys::{CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::support::*;

promise! {
    fn a_captured_graph_replays_its_work_and_nothing_runs_while_capturing() on PLAIN; {
        start();
        let (lane, side, list) = (stream(1), stream(1), alloc(4096));
        ok!(cuMemsetD8_v2(list, 0, 4096));
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
        let sync = cu!(cuStreamSynchronize(lane));
        assert_eq!(sync, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
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
