//! Modelled time, and injected faults.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUmemLocationType, CUresult, CUstream};

use crate::arrays::IN_ORDER;
use crate::support::*;
use crate::vmm::{map, properties, range};

/// What is modelled takes so long on an idle machine; on a busy one it is tried so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asserts that `act` never takes less than was modelled, and once hardly more: what others on this
/// machine take is not the model's.
fn takes(modelled: f64, act: impl Fn()) {
    let once = || {
        let begin = Instant::now();
        act();
        begin.elapsed().as_secs_f64()
    };
    let close = |took: &f64| {
        assert!(*took >= modelled * 0.99, "{took} s, modelled {modelled} s");
        *took <= modelled * 1.1 + 0.002
    };
    assert!(sometime(|| close(&once())), "modelled {modelled} s, it always took much longer");
}

/// Whether something is so at one of many tries.
fn sometime(so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    std::iter::repeat_with(so).take_while(|_| began.elapsed() < PATIENCE).any(|so| so)
}

promise! {
    fn a_link_takes_bytes_over_bandwidth_and_does_both_directions_at_once() on Node { settings: "link = 200e6", ..PLAIN }; {
        start();
        let (at, other, host) = (alloc(8 << 20), alloc(8 << 20), pinned(8 << 20));
        let (one, two) = (stream(1), stream(1));
        let wait = |lane: CUstream| ok!(cuStreamSynchronize(lane));
        takes(0.0419, || { ok!(cuMemcpyHtoDAsync_v2(at, host, 8 << 20, one)); wait(one) });
        takes(0.0210, || { ok!(cuMemcpyHtoDAsync_v2(at, host, 4 << 20, one)); wait(one) });
        takes(0.0419, || {
            ok!(cuMemcpyHtoDAsync_v2(at, host, 4 << 20, one));
            ok!(cuMemcpyHtoDAsync_v2(at, host, 4 << 20, two));
            wait(one);
            wait(two);
        });
        takes(0.0419, || {
            ok!(cuMemcpyHtoDAsync_v2(at, host, 8 << 20, one));
            ok!(cuMemcpyDtoHAsync_v2(host, other, 8 << 20, two));
            wait(one);
            wait(two);
        });
        let quick = || {
            let begin = Instant::now();
            ok!(cuMemcpyDtoD_v2(at, other, 8 << 20));
            ok!(cuCtxSynchronize());
            begin.elapsed() < Duration::from_millis(41)
        };
        assert!(sometime(quick), "a copy within the device crosses no link");
    }
}

promise! {
    fn what_lies_in_host_memory_is_reached_over_the_link() on Node { settings: "link = 200e6", ..PLAIN }; {
        start();
        let (bytes, lane, poke) = (4 << 20, stream(1), kernel(c"poke"));
        let mut host = properties();
        host.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
        let (mut handle, at, other) = (0, range(bytes), alloc(bytes));
        ok!(cuMemCreate(&mut handle, bytes, &host, 0));
        map(at, bytes, handle);
        let touch = |address: u64| {
            assert_eq!(launch(poke, lane, &[arg(&address), arg(&1u32)]), CUresult::CUDA_SUCCESS);
            ok!(cuStreamSynchronize(lane));
        };
        takes(0.0210, || touch(at));
        takes(0.0105, || touch(at + bytes as u64 / 2));
        takes(0.0210, || ok!(cuMemcpyDtoD_v2(other, at, bytes)));
        takes(0.0210, || { ok!(cuMemsetD8Async(at, 1, bytes, lane)); ok!(cuStreamSynchronize(lane)); });
        let quick = || {
            let begin = Instant::now();
            touch(other);
            begin.elapsed() < Duration::from_millis(20)
        };
        assert!(sometime(quick), "what lies on the GPU crosses no link");
    }
}

promise! {
    fn kernels_and_calls_take_what_was_set() on Node { settings: "call_cost_ns = 100000\n[gpu.kernels]\nnap = 1000000", ..PLAIN }; {
        start();
        let (lane, nap, none) = (stream(1), kernel(c"nap"), 0u64);
        takes(0.033, || {
            for _ in 0..30 {
                assert_eq!(launch(nap, lane, &[arg(&none)]), CUresult::CUDA_SUCCESS);
            }
            ok!(cuStreamSynchronize(lane));
        });
        let at = alloc(1024);
        takes(0.010, || {
            for _ in 0..100 {
                ok!(cuMemsetD8Async(at, 0, 1024, lane));
            }
            ok!(cuStreamSynchronize(lane));
        });
    }
}

promise! {
    fn each_copy_of_a_batch_takes_what_was_set() on Node { settings: "copy_cost_ns = 100000", ..PLAIN }; {
        start();
        let (lane, from, to) = (stream(1), alloc(1 << 20), alloc(1 << 20));
        let place = |start: u64| (0..100).map(|at| start + at * 4096).collect::<Vec<u64>>();
        takes(0.010, || {
            let (mut ends, mut starts, mut sizes) = (place(to), place(from), [64usize; 100]);
            let mut attributes = IN_ORDER;
            let attributes = (&raw mut attributes).cast();
            ok!(cuMemcpyBatchAsync_v2(ends.as_mut_ptr(), starts.as_mut_ptr(), sizes.as_mut_ptr(), 100, attributes, &mut 0, 1, lane));
            ok!(cuStreamSynchronize(lane));
        });
        let quick = || {
            let begin = Instant::now();
            ok!(cuMemcpyDtoDAsync_v2(to, from, 1 << 20, lane));
            ok!(cuStreamSynchronize(lane));
            begin.elapsed() < Duration::from_millis(5)
        };
        assert!(sometime(quick), "a single copy is none of a batch");
    }
}

promise! {
    fn faults_strike_at_the_named_call() on Node { env: &[("TIDEGATE_SOFTGPU_FAULTS", "cuMemAlloc_v2@2=OUT_OF_MEMORY,cuStreamCreate@2+=UNKNOWN")], ..PLAIN }; {
        start();
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at, 8));
        assert_eq!(cu!(cuMemAlloc_v2(&mut at, 8)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        ok!(cuMemAlloc_v2(&mut at, 8));
        let mut stream = null_mut();
        ok!(cuStreamCreate(&mut stream, 0));
        for _ in 0..3 {
            assert_eq!(cu!(cuStreamCreate(&mut stream, 0)), CUresult::CUDA_ERROR_UNKNOWN);
        }
    }
}
