//! Memory and events shared between processes by handles.

use std::ffi::c_char;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};

use crate::support::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const LAZY: u32 = 1;
const FOR_OTHERS: u32 = 6; // without times

fn memory_handle(at: u64) -> sys::CUipcMemHandle {
    // SAFETY: plain bytes.
    let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
    ok!(cuIpcGetMemHandle(&mut handle, at));
    handle
}

fn open(handle: sys::CUipcMemHandle) -> u64 {
    let mut at = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut at, handle, LAZY));
    at
}

fn shared_event() -> sys::CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, FOR_OTHERS));
    event
}

/// Handles travel in the environment.
fn to_text(handle: &[c_char; 64]) -> String {
    handle.iter().map(|byte| format!("{:02x}", *byte as u8)).collect()
}

fn handle_named(name: &str) -> [c_char; 64] {
    let text = std::env::var(name).unwrap();
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap() as c_char)
}

fn given_memory() -> sys::CUipcMemHandle {
    sys::CUipcMemHandle { reserved: handle_named("SOFTGPU_MEMORY") }
}

/// Runs the other part with a handle to memory, to its end.
fn give_memory(part: &str, handle: &sys::CUipcMemHandle) {
    let mut other = partner(part);
    other.env("SOFTGPU_MEMORY", to_text(&handle.reserved));
    finish(other.spawn().unwrap(), part);
}

promise! {
    fn memory_is_shared_by_handle() on PLAIN; {
        start();
        if part() == "opener" {
            let at = open(given_memory());
            assert_eq!(read::<u32>(at, 2), [1, 2]);
            write(at + 4, &[9u32]);
            ok!(cuIpcCloseMemHandle(at));
            return;
        }
        let at = alloc(1 << 20);
        write(at, &[1u32, 2]);
        give_memory("opener", &memory_handle(at));
        assert_eq!(read::<u32>(at, 2), [1, 9]);
    }
}

promise! {
    fn a_handle_of_an_inner_address_opens_the_whole_allocation() on PLAIN; {
        start();
        if part() == "opener" {
            let at = open(given_memory());
            let (mut base, mut size) = (0, 0);
            ok!(cuMemGetAddressRange_v2(&mut base, &mut size, at));
            assert_eq!(base, at);
            assert!(size >= 1 << 20);
            assert_eq!(read::<u32>(at + 4096, 1), [5]);
            return;
        }
        let at = alloc(1 << 20);
        write(at + 4096, &[5u32]);
        give_memory("opener", &memory_handle(at + 4096));
    }
}

promise! {
    fn a_handle_opened_twice_is_one_mapping_that_is_closed_twice() on PLAIN; {
        start();
        if part() == "opener" {
            let (first, second) = (open(given_memory()), open(given_memory()));
            assert_eq!(first, second);
            ok!(cuIpcCloseMemHandle(first));
            assert_eq!(read::<u32>(first, 1), [3]);
            ok!(cuIpcCloseMemHandle(first));
            assert_eq!(cu!(cuIpcCloseMemHandle(first)), INVALID);
            return;
        }
        let at = alloc(4096);
        write(at, &[3u32]);
        give_memory("opener", &memory_handle(at));
    }
}

promise! {
    fn kernels_use_memory_of_another_process() on PLAIN; {
        start();
        if part() == "opener" {
            let (at, value) = (open(given_memory()), 8u32);
            assert_eq!(launch(kernel(c"poke"), null_mut(), &[arg(&at), arg(&value)]), CUresult::CUDA_SUCCESS);
            ok!(cuCtxSynchronize());
            ok!(cuIpcCloseMemHandle(at));
            return;
        }
        let at = alloc(4096);
        give_memory("opener", &memory_handle(at));
        assert_eq!(read::<u32>(at, 1), [8]);
    }
}

promise! {
    fn opened_memory_is_closed_and_not_freed() on PLAIN; {
        start();
        if part() == "opener" {
            let at = open(given_memory());
            assert_eq!(cu!(cuMemFree_v2(at)), INVALID);
            return;
        }
        give_memory("opener", &memory_handle(alloc(4096)));
    }
}

promise! {
    fn only_memory_of_plain_allocations_has_a_legacy_handle() on PLAIN; {
        start();
        // SAFETY: plain bytes.
        let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        let mapped = crate::vmm::range(unit());
        crate::vmm::map(mapped, unit(), crate::vmm::piece(unit()));
        assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, mapped)), INVALID);
        let mut ordered = 0;
        ok!(cuMemAllocAsync(&mut ordered, 4096, null_mut()));
        assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, ordered)), INVALID);
        assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, pinned(64) as u64)), INVALID);
    }
}

promise! {
    fn a_process_does_not_open_its_own_handle() on PLAIN; {
        start();
        let (handle, mut at) = (memory_handle(alloc(4096)), 0);
        assert_ne!(cu!(cuIpcOpenMemHandle_v2(&mut at, handle, LAZY)), CUresult::CUDA_SUCCESS);
    }
}

promise! {
    fn an_opener_is_told_that_peer_access_is_enabled_lazily() on PLAIN; {
        start();
        if part() == "opener" {
            let mut at = 0;
            assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut at, given_memory(), 0)), INVALID);
            return;
        }
        give_memory("opener", &memory_handle(alloc(4096)));
    }
}

promise! {
    fn an_event_orders_the_work_of_two_processes() on PLAIN; {
        start();
        let lane = stream(1);
        if part() == "waiter" {
            let (at, mut theirs) = (open(given_memory()), null_mut());
            let handle = sys::CUipcEventHandle { reserved: handle_named("SOFTGPU_EVENT") };
            ok!(cuIpcOpenEventHandle(&mut theirs, handle));
            assert_eq!(cu!(cuEventQuery(theirs)), CUresult::CUDA_ERROR_NOT_READY);
            ok!(cuStreamWaitEvent(lane, theirs, 0));
            let back = pinned(4).cast::<u32>();
            ok!(cuMemcpyDtoHAsync_v2(back.cast(), at, 4, lane));
            // The other process waits for this line.
            println!("waiting");
            ok!(cuStreamSynchronize(lane));
            // SAFETY: pinned memory, and the copy is done.
            assert_eq!(unsafe { back.read() }, 0x0404_0404);
            ok!(cuEventSynchronize(theirs));
            ok!(cuEventDestroy_v2(theirs));
            return;
        }
        let (at, mark) = (zeroes(4096), shared_event());
        let held = hold(lane);
        ok!(cuMemsetD8Async(at, 4, 4096, lane));
        ok!(cuEventRecord(mark, lane));
        // SAFETY: plain bytes.
        let mut handle: sys::CUipcEventHandle = unsafe { std::mem::zeroed() };
        ok!(cuIpcGetEventHandle(&mut handle, mark));
        let mut waiter = partner("waiter");
        waiter.env("SOFTGPU_MEMORY", to_text(&memory_handle(at).reserved));
        waiter.env("SOFTGPU_EVENT", to_text(&handle.reserved));
        let mut waiter = waiter.spawn().unwrap();
        let _output = wait_for_line(&mut waiter, "waiting");
        held.let_go();
        finish(waiter, "waiter");
    }
}

promise! {
    fn only_events_made_for_it_have_a_handle() on PLAIN; {
        start();
        // SAFETY: plain bytes.
        let mut handle: sys::CUipcEventHandle = unsafe { std::mem::zeroed() };
        assert_ne!(cu!(cuIpcGetEventHandle(&mut handle, event())), CUresult::CUDA_SUCCESS);
        const WITH_TIMES: u32 = 4;
        let mut event = null_mut();
        assert_eq!(cu!(cuEventCreate(&mut event, WITH_TIMES)), INVALID);
    }
}
