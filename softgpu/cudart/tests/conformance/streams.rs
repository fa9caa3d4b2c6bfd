//! Streams, events, host functions, default streams of threads.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::runtime::sys::cudaError::{cudaErrorNotReady, cudaSuccess};
use cudarc::runtime::sys::*;

use crate::support::*;

static CALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn call(by: *mut c_void) {
    CALLED.fetch_add(by as u32, Ordering::SeqCst);
}

extern "C" fn call_back(_: cudaStream_t, status: cudaError_t, by: *mut c_void) {
    assert_eq!(status, cudaSuccess);
    call(by);
}

/// Keeps a stream busy until it is let go.
struct Held(*mut u32);

impl Held {
    fn on(stream: cudaStream_t) -> Held {
        let mut word = null_mut();
        ok!(cudaHostAlloc(&mut word, 4, 0));
        let word = word.cast::<u32>();
        // SAFETY: four bytes of ours.
        unsafe { word.write_volatile(0) };
        let program = Program::with(c"hold", c"counters", 32);
        assert_eq!(program.launch(stream, &[arg(&word)]), 0);
        Held(word)
    }

    fn let_go(&self) {
        // SAFETY: four bytes that are never freed.
        unsafe { self.0.write_volatile(1) };
    }
}

promise! {
    fn work_runs_in_the_order_of_its_stream() on 1; {
        let (busy, at) = (stream(), alloc(64));
        let held = Held::on(busy);
        ok!(cudaMemsetAsync(at, 3, 64, busy));
        ok!(cudaLaunchHostFunc(busy, Some(call), 3 as *mut c_void));
        ok!(cudaStreamAddCallback(busy, Some(call_back), 5 as *mut c_void, 0));
        assert_eq!(rt!(cudaStreamQuery(busy)), cudaErrorNotReady);
        held.let_go();
        ok!(cudaStreamSynchronize(busy));
        assert_eq!(CALLED.load(Ordering::SeqCst), 8);
        assert_eq!(read::<u8>(at, 64), [3; 64]);
        ok!(cudaStreamDestroy(busy));
    }
}

promise! {
    fn events_order_and_time_streams() on 1; {
        let (first, second, at) = (stream(), stream(), alloc(4));
        let (mut start, mut end) = (null_mut(), null_mut());
        ok!(cudaEventCreate(&mut start));
        ok!(cudaEventCreateWithFlags(&mut end, 0));
        ok!(cudaEventRecord(start, first));
        let held = Held::on(first);
        ok!(cudaMemsetAsync(at, 1, 4, first));
        ok!(cudaEventRecord(end, first));
        ok!(cudaStreamWaitEvent(second, end, 0));
        ok!(cudaMemsetAsync(at, 2, 4, second));
        assert_eq!(rt!(cudaEventQuery(end)), cudaErrorNotReady);
        held.let_go();
        ok!(cudaStreamSynchronize(second));
        assert_eq!(read::<u8>(at, 4), [2; 4]);
        let mut milliseconds = -1.0;
        ok!(cudaEventElapsedTime(&mut milliseconds, start, end));
        assert!(milliseconds >= 0.0);
        ok!(cudaEventDestroy(start));
    }
}

promise! {
    fn a_thread_can_have_its_own_default_stream() on 1; {
        let (busy, at, value) = (stream(), alloc(8), 5u64);
        let copy = undeclared!(c"cudaMemcpy_ptds", fn(*mut c_void, *const c_void, usize, cudaMemcpyKind) -> u32);
        let wait = undeclared!(c"cudaStreamSynchronize_ptsz", fn(cudaStream_t) -> u32);
        // The legacy default stream would wait for this one.
        let held = Held::on(busy);
        // SAFETY: eight bytes on either side.
        assert_eq!(unsafe { copy(at, arg(&value), 8, cudaMemcpyKind::cudaMemcpyHostToDevice) }, 0);
        // SAFETY: the default stream.
        assert_eq!(unsafe { wait(null_mut()) }, 0);
        held.let_go();
        assert_eq!(read::<u64>(at, 1), [5]);
    }
}
