//! Initialisation, devices, contexts, and the faults that end one context only.

use std::ptr::null_mut;

use cudarc::driver::sys::{CUcontext, CUresult};

use crate::support::*;

promise! {
    fn nothing_is_answered_before_cu_init() on PLAIN; {
        let mut count = 0;
        assert_eq!(cu!(cuDeviceGetCount(&mut count)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        ok!(cuDriverGetVersion(&mut count));
        assert!(count == 13000 || !on_software() && count >= 12000, "version {count}");
        assert_eq!(cu!(cuInit(1)), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok!(cuInit(0));
        ok!(cuDeviceGetCount(&mut count));
        assert!(count == 1 || !on_software() && count >= 1);
    }
}

promise! {
    fn a_bad_node_is_not_ready() on Node { settings: "colour = 3", ..PLAIN }; {
        assert_eq!(cu!(cuInit(0)), CUresult::CUDA_ERROR_SYSTEM_NOT_READY);
    }
}

promise! {
    fn without_a_context_calls_say_so() on PLAIN; {
        ok!(cuInit(0));
        let mut at = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut at, 8)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(cu!(cuCtxSynchronize()), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        let mut stream = std::ptr::null_mut();
        let made = cu!(cuStreamCreate(&mut stream, 0));
        assert_eq!(made, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
}

promise! {
    fn devices_have_their_uuid_and_their_own_memory() on Node { gpus: 2, ..PLAIN }; {
        ok!(cuInit(0));
        for device in 0..2 {
            // SAFETY: plain bytes.
            let mut uuid = unsafe { std::mem::zeroed::<cudarc::driver::sys::CUuuid>() };
            ok!(cuDeviceGetUuid_v2(&mut uuid, device));
            assert_eq!(uuid.bytes[15], device as _);
        }
        let mut peers = 0;
        ok!(cuDeviceCanAccessPeer(&mut peers, 0, 1));
        assert_eq!(peers, 1);
        start_on(1);
        alloc(4096);
        start_on(0);
        assert_eq!(free_memory(), MEMORY);
        let mut device = 0;
        assert_eq!(cu!(cuDeviceGet(&mut device, 2)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
}

promise! {
    fn an_ended_context_gives_its_memory_back() on PLAIN; {
        start();
        let mut context = std::ptr::null_mut();
        ok!(cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, 0));
        alloc(1 << 20);
        stream(0);
        nap(std::ptr::null_mut(), 5);
        ok!(cuCtxDestroy_v2(context));
        expect_free(MEMORY);
        // Hardware accepts a handle that is none any more.
        if on_software() {
            assert_eq!(cu!(cuCtxSetCurrent(context)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
    }
}

promise! {
    fn a_released_primary_context_comes_back_under_its_handle() on PLAIN; {
        let first = start();
        alloc(4096);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        let (mut flags, mut active) = (0, 1);
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 0);
        let mut at = 0;
        let gone = cu!(cuMemAlloc_v2(&mut at, 8));
        assert_eq!(gone, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        assert_eq!(start(), first);
        expect_free(MEMORY);
    }
}

promise! {
    fn a_kernel_that_touches_nothing_of_ours_faults_its_context_and_only_it() on Node { gpus: 2, ..PLAIN }; {
        let other = start_on(1);
        let safe = alloc(4);
        let broken = start_on(0);
        let (mut at, value) = (0u64, 1u32);
        ok!(cuMemAddressReserve(&mut at, unit(), 0, 0, 0));
        let lane = stream(1);
        assert_eq!(launch(kernel(c"poke"), lane, &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
        let fault = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(cu!(cuStreamSynchronize(lane)), fault);
        let mut more = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut more, 8)), fault);
        assert_eq!(cu!(cuCtxSynchronize()), fault);
        ok!(cuCtxSetCurrent(other));
        write(safe, &[3u32]);
        assert_eq!(read::<u32>(safe, 1), [3]);
        ok!(cuCtxSetCurrent(broken));
        ok!(cuDevicePrimaryCtxReset_v2(0));
        start_on(0);
        write(alloc(4), &[3u32]);
    }
}

promise! {
    fn waiters_for_a_faulted_context_are_woken() on PLAIN; {
        start_on(0);
        let (nowhere, value) = (8u64, 1u32);
        let (mark, poke) = (event(), kernel(c"poke"));
        nap(std::ptr::null_mut(), 30);
        assert_eq!(launch(poke, std::ptr::null_mut(), &[arg(&nowhere), arg(&value)]), CUresult::CUDA_SUCCESS);
        ok!(cuEventRecord(mark, std::ptr::null_mut()));
        assert_eq!(cu!(cuEventSynchronize(mark)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

promise! {
    fn a_copy_out_of_bounds_faults_the_context_for_good() on PLAIN; {
        start();
        let at = alloc(4096);
        let bytes = [0u8; 64];
        let fault = CUresult::CUDA_ERROR_LAUNCH_FAILED;
        assert_eq!(cu!(cuMemcpyHtoD_v2(at + 4090, bytes.as_ptr().cast(), 64)), fault);
        assert_eq!(cu!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), 64)), fault);
        assert_eq!(cu!(cuMemFree_v2(at)), fault);
    }
}

promise! {
    fn faults_of_the_program_stay_its_own() on PLAIN; {
        use std::os::unix::process::ExitStatusExt;
        if part() == "crasher" {
            start();
            nap(std::ptr::null_mut(), 1);
            ok!(cuCtxSynchronize());
            // SAFETY: none; this process is here to fault.
            unsafe { std::ptr::without_provenance_mut::<u32>(16).write_volatile(1) };
        }
        let status = partner("crasher").status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGSEGV));
    }
}

promise! {
    fn a_forked_child_finds_the_driver_uninitialised() on PLAIN; {
        start();
        // SAFETY: the child only asks the driver and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0;
            let answer = cu!(cuDeviceGetCount(&mut count)) as i32;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(answer) };
        }
        let mut status = 0;
        // SAFETY: waits for our child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), CUresult::CUDA_ERROR_NOT_INITIALIZED as i32);
        alloc(8);
    }
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NO_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;

fn new_context() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxCreate_v4(&mut context, null_mut(), 0, 0));
    context
}

fn current() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    context
}

promise! {
    fn contexts_are_a_stack_of_the_thread() on PLAIN; {
        ok!(cuInit(0));
        let (one, other) = (new_context(), new_context());
        assert_eq!(current(), other);
        let mut popped = null_mut();
        ok!(cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current()), (other, one));
        ok!(cuCtxPushCurrent_v2(other));
        ok!(cuCtxPushCurrent_v2(one));
        ok!(cuCtxPopCurrent_v2(null_mut()));
        assert_eq!(current(), other);
        ok!(cuCtxSetCurrent(one));
        ok!(cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current()), (one, one));
    }
}

promise! {
    fn an_empty_stack_has_nothing_to_pop() on PLAIN; {
        ok!(cuInit(0));
        let mut popped = null_mut();
        assert_eq!(cu!(cuCtxPopCurrent_v2(&mut popped)), NO_CONTEXT);
        new_context();
        ok!(cuCtxSetCurrent(null_mut()));
        assert!(current().is_null());
        assert_eq!(cu!(cuCtxPopCurrent_v2(&mut popped)), NO_CONTEXT);
    }
}

promise! {
    fn a_destroyed_context_leaves_the_stack_of_who_destroys_it() on PLAIN; {
        ok!(cuInit(0));
        let (one, other) = (new_context(), new_context());
        ok!(cuCtxDestroy_v2(other));
        assert_eq!(current(), one);
    }
}

promise! {
    fn a_context_that_is_gone_stays_current_to_others_and_answers_so() on PLAIN; {
        ok!(cuInit(0));
        let context = new_context() as usize;
        std::thread::spawn(move || ok!(cuCtxDestroy_v2(context as CUcontext))).join().unwrap();
        assert_eq!(current(), context as CUcontext);
        let (mut at, mut device) = (0, 9);
        assert_eq!(cu!(cuMemAlloc_v2(&mut at, 64)), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        // The device is told all the same.
        ok!(cuCtxGetDevice(&mut device));
        assert_eq!(device, 0);
    }
}

promise! {
    fn a_new_thread_has_no_context() on PLAIN; {
        let context = start() as usize;
        std::thread::spawn(move || {
            assert!(current().is_null());
            let mut at = 0;
            assert_eq!(cu!(cuMemAlloc_v2(&mut at, 64)), NO_CONTEXT);
            ok!(cuCtxSetCurrent(context as CUcontext));
            alloc(64);
        }).join().unwrap();
        assert_eq!(current(), context as CUcontext);
    }
}

promise! {
    fn a_primary_context_is_one_for_all_who_retain_it() on PLAIN; {
        let first = start();
        let mut second = null_mut();
        ok!(cuDevicePrimaryCtxRetain(&mut second, 0));
        assert_eq!(first, second);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        alloc(64);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), NO_CONTEXT);
    }
}

promise! {
    fn a_reset_primary_context_has_lost_its_allocations() on PLAIN; {
        start();
        let at = alloc(1 << 20);
        ok!(cuDevicePrimaryCtxReset_v2(0));
        start();
        assert_eq!(cu!(cuMemFree_v2(at)), INVALID);
        expect_free(MEMORY);
    }
}

promise! {
    fn flags_of_a_primary_context_are_those_set() on PLAIN; {
        const BLOCKING_SYNC: u32 = 4;
        ok!(cuInit(0));
        ok!(cuDevicePrimaryCtxSetFlags_v2(0, BLOCKING_SYNC));
        let (mut flags, mut active) = (0, 9);
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((flags & BLOCKING_SYNC, active), (BLOCKING_SYNC, 0));
        start();
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((flags & BLOCKING_SYNC, active), (BLOCKING_SYNC, 1));
    }
}

promise! {
    fn contexts_tell_their_device_and_number() on PLAIN; {
        ok!(cuInit(0));
        let (one, other) = (new_context(), new_context());
        let (mut device, mut first, mut second) = (9, 0, 0);
        ok!(cuCtxGetDevice(&mut device));
        ok!(cuCtxGetId(one, &mut first));
        ok!(cuCtxGetId(other, &mut second));
        assert_eq!(device, 0);
        assert_ne!(first, second);
    }
}

promise! {
    fn limits_that_are_none_are_refused() on PLAIN; {
        start();
        let mut value = 0;
        ok!(cuCtxGetLimit(&mut value, cudarc::driver::sys::CUlimit::CU_LIMIT_STACK_SIZE));
        assert!(value > 0);
        ok!(cuCtxSetLimit(cudarc::driver::sys::CUlimit::CU_LIMIT_STACK_SIZE, 4096));
        ok!(cuCtxGetLimit(&mut value, cudarc::driver::sys::CUlimit::CU_LIMIT_STACK_SIZE));
        assert!(value >= 4096);
    }
}

promise! {
    fn devices_that_are_none_are_refused() on PLAIN; {
        ok!(cuInit(0));
        let (mut device, mut context) = (0, null_mut());
        assert_eq!(cu!(cuDeviceGet(&mut device, -1)), CUresult::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, 99)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
}

promise! {
    fn memory_of_one_context_serves_another_on_the_same_device() on PLAIN; {
        ok!(cuInit(0));
        new_context();
        let at = alloc(64);
        write(at, &[4u32; 16]);
        new_context();
        assert_eq!(read::<u32>(at, 16), [4; 16]);
    }
}
