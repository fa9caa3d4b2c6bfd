//! Streams, events, and the order they keep.

use std::ptr::null_mut;
use std::time::Instant;

use cudarc::driver::sys::{CUresult, CUstream};

use crate::support::*;

fn append(list: u64, value: u32, stream: CUstream) {
    let append = kernel(c"append");
    assert_eq!(launch(append, stream, &[arg(&list), arg(&value)]), CUresult::CUDA_SUCCESS);
}

fn list() -> u64 {
    zeroes(4096)
}

promise! {
    fn work_is_asynchronous_and_in_order() on PLAIN; {
        start();
        let (lane, list) = (stream(1), list());
        append(list, 99, lane);
        ok!(cuCtxSynchronize());
        ok!(cuMemsetD8_v2(list, 0, 4096));
        ok!(cuCtxSynchronize());
        let held = hold(lane);
        for value in 0..100 {
            append(list, value, lane);
        }
        assert_eq!(cu!(cuStreamQuery(lane)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(list, 101)[1..], (0..100).collect::<Vec<u32>>());
    }
}

promise! {
    fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() on PLAIN; {
        start();
        let (blocking, list) = (stream(0), list());
        let held = hold(blocking);
        append(list, 1, blocking);
        append(list, 2, null_mut());
        append(list, 3, blocking);
        assert_eq!(cu!(cuStreamQuery(null_mut())), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(blocking));
        assert_eq!(read::<u32>(list, 4), [3, 1, 2, 3]);
    }
}

promise! {
    fn non_blocking_streams_do_not_wait_for_the_legacy_stream() on PLAIN; {
        start();
        let (free, list) = (stream(1), list());
        let held = hold(null_mut());
        append(list, 1, free);
        ok!(cuStreamSynchronize(free));
        assert_eq!(cu!(cuStreamQuery(null_mut())), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
    }
}

promise! {
    fn a_per_thread_stream_belongs_to_its_thread() on PLAIN; {
        let context = start() as usize;
        let per_thread = || 2 as CUstream;
        let list = list();
        let held = hold(per_thread());
        append(list, 1, per_thread());
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            ok!(cuStreamQuery(per_thread()));
        }).join().unwrap();
        held.let_go();
        ok!(cuStreamSynchronize(per_thread()));
        assert_eq!(read::<u32>(list, 2), [1, 1]);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            append(list, 2, per_thread());
        }).join().unwrap();
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn events_order_streams_and_measure_time() on PLAIN; {
        start();
        let (one, other, list) = (stream(1), stream(1), list());
        let (begin, end) = (event(), event());
        ok!(cuEventQuery(begin));
        let started = Instant::now();
        ok!(cuEventRecord(begin, one));
        nap(one, 100);
        let held = hold(one);
        append(list, 1, one);
        ok!(cuEventRecord(end, one));
        assert_eq!(cu!(cuEventQuery(end)), CUresult::CUDA_ERROR_NOT_READY);
        ok!(cuStreamWaitEvent(other, end, 0));
        append(list, 2, other);
        held.let_go();
        ok!(cuStreamSynchronize(other));
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
        let mut milliseconds = 0.0;
        ok!(cuEventElapsedTime_v2(&mut milliseconds, begin, end));
        let host = started.elapsed().as_secs_f32() * 1e3;
        assert!((100.0..=host).contains(&milliseconds), "{milliseconds} of {host}");
    }
}

promise! {
    fn a_context_records_and_awaits_all_its_streams() on PLAIN; {
        let context = start();
        let (one, other, list) = (stream(1), stream(0), list());
        let (mark, end_of_one) = (event(), event());
        ok!(cuCtxRecordEvent(context, mark));
        ok!(cuEventSynchronize(mark));
        ok!(cuEventQuery(mark));
        let (first, second) = (hold(one), hold(other));
        ok!(cuEventRecord(end_of_one, one));
        ok!(cuCtxRecordEvent(context, mark));
        assert_eq!(cu!(cuEventQuery(mark)), CUresult::CUDA_ERROR_NOT_READY);
        ok!(cuCtxWaitEvent(context, mark));
        let late = stream(1);
        append(list, 1, late);
        assert_eq!(cu!(cuStreamQuery(late)), CUresult::CUDA_ERROR_NOT_READY);
        first.let_go();
        ok!(cuEventSynchronize(end_of_one));
        assert_eq!(cu!(cuEventQuery(mark)), CUresult::CUDA_ERROR_NOT_READY);
        second.let_go();
        ok!(cuEventSynchronize(mark));
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(list, 2), [1, 1]);
    }
}

promise! {
    fn a_record_of_a_whole_context_is_no_operation_of_its_streams() on PLAIN; {
        let context = start();
        let (lane, mark) = (stream(1) as usize, event());
        let shared = context as usize;
        let naps = std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(shared as _));
            let is_busy = |_: &u32| {
                nap(lane as _, 1);
                ok!(cuStreamSynchronize(lane as _));
                cu!(cuStreamQuery(lane as _)) != CUresult::CUDA_SUCCESS
            };
            (0..200).filter(is_busy).count()
        });
        while !naps.is_finished() {
            ok!(cuCtxRecordEvent(context, mark));
        }
        assert_eq!(naps.join().unwrap(), 0, "so often a stream was busy that had been waited for");
    }
}

promise! {
    fn a_destroyed_stream_still_does_its_work() on PLAIN; {
        start();
        let (lane, list) = (stream(1), list());
        let held = hold(lane);
        append(list, 1, lane);
        ok!(cuStreamDestroy_v2(lane));
        held.let_go();
        if on_software() {
            assert_eq!(cu!(cuStreamSynchronize(lane)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        ok!(cuCtxSynchronize());
        assert_eq!(read::<u32>(list, 2), [1, 1]);
    }
}

promise! {
    fn host_functions_run_in_stream_order() on PLAIN; {
        unsafe extern "C" fn note(data: *mut std::ffi::c_void) {
            // SAFETY: the test passes a counter that outlives the stream's work.
            unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() }.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        start();
        let lane = stream(1);
        let noted = std::sync::atomic::AtomicU32::new(0);
        let held = hold(lane);
        ok!(cuLaunchHostFunc(lane, Some(note), (&raw const noted).cast_mut().cast()));
        assert_eq!(noted.load(std::sync::atomic::Ordering::SeqCst), 0);
        held.let_go();
        ok!(cuStreamSynchronize(lane));
        assert_eq!(noted.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

promise! {
    fn a_call_that_submits_much_more_than_is_done_waits() on PLAIN; {
        const MANY: u32 = 20_000;
        let context = start() as usize;
        let (lane, word, submitted) = (stream(1), alloc(4096), std::sync::atomic::AtomicU32::new(0));
        let held = hold(lane);
        let lane = lane as usize;
        std::thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                ok!(cuCtxSetCurrent(context as _));
                for value in 1..=MANY {
                    ok!(cuMemsetD32Async(word, value, 1, lane as CUstream));
                    submitted.store(value, std::sync::atomic::Ordering::SeqCst);
                }
            });
            // As many as are not waited for: what comes later waits, for however long.
            let so_far = || submitted.load(std::sync::atomic::Ordering::SeqCst);
            let (mut last, mut alike) = (0, 0);
            while alike < 20 && !submitter.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(5));
                alike = if so_far() == last && last > 0 { alike + 1 } else { 0 };
                last = so_far();
            }
            assert!(so_far() < MANY, "all of it");
            held.let_go();
        });
        ok!(cuStreamSynchronize(lane as CUstream));
        assert_eq!(read::<u32>(word, 1), [MANY]);
    }
}

promise! {
    fn an_idle_process_has_no_threads_of_ours() on PLAIN; {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        start();
        let at = alloc(4096);
        write(at, &[1u32]);
        ok!(cuMemFree_v2(at));
        stream(0);
        ok!(cuCtxSynchronize());
        assert_eq!(threads(), before);
    }
}

promise! {
    fn a_process_may_end_with_work_under_way() on PLAIN; {
        start();
        let lane = stream(1);
        let _held = hold(lane);
        append(alloc(4096), 1, lane);
        std::process::exit(0);
    }
}

promise! {
    fn many_threads_share_streams_without_losing_work() on PLAIN; {
        let context = start() as usize;
        let (shared, own) = (stream(0) as usize, zeroes(8 * 4096));
        let threads: Vec<_> = (0..8u64).map(|number| std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            let append = kernel(c"append");
            let list = own + number * 4096;
            for value in 0..500u32 {
                let lane = if value % 3 == 0 { null_mut() } else { shared as CUstream };
                assert_eq!(launch(append, lane, &[arg(&list), arg(&value)]), CUresult::CUDA_SUCCESS);
            }
        })).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ok!(cuCtxSynchronize());
        for number in 0..8 {
            assert_eq!(read::<u32>(own + number * 4096, 501)[1..], (0..500).collect::<Vec<u32>>());
        }
    }
}

promise! {
    fn times_are_measured_between_recorded_events_that_keep_them() on PLAIN; {
        start();
        let (one, other, lane) = (event(), event(), stream(1));
        let mut milliseconds = 0.0;
        let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
        assert_eq!(cu!(cuEventElapsedTime_v2(&mut milliseconds, one, other)), invalid);
        ok!(cuEventRecord(one, lane));
        let held = hold(lane);
        ok!(cuEventRecord(other, lane));
        assert_eq!(cu!(cuEventElapsedTime_v2(&mut milliseconds, one, other)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuEventSynchronize(other));
        ok!(cuEventElapsedTime_v2(&mut milliseconds, one, other));
        assert!(milliseconds >= 0.0);
        let mut timeless = null_mut();
        ok!(cuEventCreate(&mut timeless, 2));
        ok!(cuEventRecord(timeless, lane));
        ok!(cuEventSynchronize(timeless));
        assert_eq!(cu!(cuEventElapsedTime_v2(&mut milliseconds, one, timeless)), invalid);
    }
}

promise! {
    fn a_wait_is_for_the_record_it_saw() on PLAIN; {
        start();
        let (one, other, later, mark) = (stream(1), stream(1), stream(1), event());
        ok!(cuEventRecord(mark, one));
        ok!(cuEventSynchronize(mark));
        ok!(cuStreamWaitEvent(other, mark, 0));
        let held = hold(one);
        ok!(cuEventRecord(mark, one));
        ok!(cuStreamSynchronize(other));
        ok!(cuStreamWaitEvent(later, mark, 0));
        assert_eq!(cu!(cuStreamQuery(later)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuStreamSynchronize(later));
    }
}

promise! {
    fn an_event_may_be_destroyed_before_it_comes() on PLAIN; {
        start();
        let (one, other, mark, list) = (stream(1), stream(1), event(), list());
        let held = hold(one);
        append(list, 1, one);
        ok!(cuEventRecord(mark, one));
        ok!(cuStreamWaitEvent(other, mark, 0));
        ok!(cuEventDestroy_v2(mark));
        append(list, 2, other);
        held.let_go();
        ok!(cuStreamSynchronize(other));
        assert_eq!(read::<u32>(list, 3), [2, 1, 2]);
    }
}

promise! {
    fn an_event_is_recorded_on_streams_of_its_own_context() on PLAIN; {
        start();
        let mark = event();
        let mut context = null_mut();
        ok!(cuCtxCreate_v4(&mut context, null_mut(), 0, 0));
        assert_eq!(cu!(cuEventRecord(mark, stream(1))), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

promise! {
    fn flags_that_are_none_are_refused() on PLAIN; {
        start();
        let (mut lane, mut mark) = (null_mut(), null_mut());
        assert_eq!(cu!(cuStreamCreate(&mut lane, 64)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cu!(cuEventCreate(&mut mark, 64)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn the_per_thread_stream_and_the_legacy_stream_wait_for_each_other() on PLAIN; {
        start();
        let (own, list) = (2 as CUstream, list());
        let held = hold(own);
        append(list, 1, own);
        append(list, 2, null_mut());
        append(list, 3, own);
        held.let_go();
        ok!(cuStreamSynchronize(own));
        assert_eq!(read::<u32>(list, 4), [3, 1, 2, 3]);
    }
}

promise! {
    fn callbacks_are_told_their_stream_and_that_all_is_well() on PLAIN; {
        unsafe extern "C" fn note(stream: CUstream, status: CUresult, data: *mut std::ffi::c_void) {
            let told = if status == CUresult::CUDA_SUCCESS { stream as usize } else { 1 };
            // SAFETY: the promise passes a number that outlives the stream's work.
            unsafe { &*data.cast::<std::sync::atomic::AtomicUsize>() }.store(told, std::sync::atomic::Ordering::SeqCst);
        }
        start();
        let (lane, told) = (stream(1), std::sync::atomic::AtomicUsize::new(0));
        ok!(cuStreamAddCallback(lane, Some(note), (&raw const told).cast_mut().cast(), 0));
        ok!(cuStreamSynchronize(lane));
        assert_eq!(told.load(std::sync::atomic::Ordering::SeqCst), lane as usize);
    }
}

promise! {
    fn work_of_a_destroyed_stream_counts_as_a_contexts_until_it_ends() on PLAIN; {
        let context = start();
        let (lane, mark) = (stream(1), event());
        let held = hold(lane);
        ok!(cuStreamDestroy_v2(lane));
        for _ in 0..3 {
            ok!(cuCtxRecordEvent(context, mark));
        }
        assert_eq!(cu!(cuEventQuery(mark)), CUresult::CUDA_ERROR_NOT_READY);
        held.let_go();
        ok!(cuEventSynchronize(mark));
        ok!(cuCtxSynchronize());
    }
}
