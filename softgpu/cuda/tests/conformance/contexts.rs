//! Initialisation, devices, contexts, and the faults that end one context only.

use cudarc::driver::sys::CUresult;

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
        assert_eq!(free_memory(), MEMORY);
        assert_eq!(cu!(cuCtxSetCurrent(context)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
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
        assert_eq!(free_memory(), MEMORY);
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
        let fault = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
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
