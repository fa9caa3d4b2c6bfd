//! One GPU and its peers.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};

use crate::support::*;

const TWO: Node = Node { gpus: 2, ..PLAIN };

promise! {
    fn a_gpu_is_no_peer_of_itself() on PLAIN; {
        let context = start();
        let mut reaches = 9;
        ok!(cuDeviceCanAccessPeer(&mut reaches, 0, 0));
        assert_eq!(reaches, 0);
        assert_ne!(cu!(cuCtxEnablePeerAccess(context, 0)), CUresult::CUDA_SUCCESS);
    }
}

promise! {
    fn access_to_a_peer_is_enabled_once_and_disabled_once() on TWO; {
        let peer = start_on(1);
        start_on(0);
        ok!(cuCtxEnablePeerAccess(peer, 0));
        assert_eq!(cu!(cuCtxEnablePeerAccess(peer, 0)), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        ok!(cuCtxDisablePeerAccess(peer));
        assert_eq!(cu!(cuCtxDisablePeerAccess(peer)), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        assert_eq!(cu!(cuCtxEnablePeerAccess(peer, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn kernels_reach_the_memory_of_a_peer() on TWO; {
        let peer = start_on(1);
        let (at, value) = (alloc(4), 6u32);
        start_on(0);
        ok!(cuCtxEnablePeerAccess(peer, 0));
        assert_eq!(launch(kernel(c"poke"), null_mut(), &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(at, 1), [6]);
    }
}

promise! {
    fn copies_between_gpus_keep_the_streams_order() on TWO; {
        let there = start_on(1);
        let far = alloc(64);
        let here = start_on(0);
        let (near, lane) = (alloc(64), stream(1));
        let held = hold(lane);
        ok!(cuMemsetD8Async(near, 5, 64, lane));
        ok!(cuMemcpyPeerAsync(far, there, near, here, 64, lane));
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        ok!(cuCtxSetCurrent(there));
        assert_eq!(read::<u8>(far, 64), [5; 64]);
    }
}

promise! {
    fn addresses_tell_the_gpu_they_are_on() on TWO; {
        let mut ordinals = [9i32; 2];
        for device in 0..2 {
            start_on(device);
            let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            let place = (&raw mut ordinals[device as usize]).cast();
            ok!(cuPointerGetAttribute(place, attribute, alloc(64)));
        }
        assert_eq!(ordinals, [0, 1]);
    }
}

promise! {
    fn a_stream_waits_for_an_event_of_another_gpu() on TWO; {
        start_on(1);
        let (there, mark, word) = (stream(1), event(), alloc(4));
        let held = hold(there);
        ok!(cuMemsetD8Async(word, 2, 4, there));
        ok!(cuEventRecord(mark, there));
        start_on(0);
        let here = stream(1);
        ok!(cuStreamWaitEvent(here, mark, 0));
        assert_eq!(cu!(cuStreamQuery(here)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(here));
        assert_eq!(read::<u8>(word, 4), [2; 4]);
    }
}
