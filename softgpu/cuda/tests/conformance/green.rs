//! Green contexts.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUdevResource, CUdevResourceType, CUgreenCtx, CUresult};

use crate::support::*;

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
const DEFAULT_STREAM: u32 = 1;

fn resource() -> CUdevResource {
    // SAFETY: plain C data; zero is a value of its enum.
    unsafe { std::mem::zeroed() }
}

fn all() -> CUdevResource {
    let mut whole = resource();
    ok!(cuDeviceGetDevResource(0, &mut whole, SM));
    whole
}

fn multiprocessors(of: &CUdevResource) -> u32 {
    // SAFETY: resources here are multiprocessors.
    unsafe { of.__bindgen_anon_1.sm.smCount }
}

/// A group of the GPU's multiprocessors, at least so many, and what is left.
fn split(least: u32) -> (CUdevResource, CUdevResource) {
    let (mut group, mut rest, mut count) = (resource(), resource(), 1);
    ok!(cuDevSmResourceSplitByCount(&mut group, &mut count, &all(), &mut rest, 0, least));
    assert_eq!(count, 1);
    (group, rest)
}

fn green(mut of: CUdevResource) -> CUgreenCtx {
    let (mut description, mut green) = (null_mut(), null_mut());
    ok!(cuDevResourceGenerateDesc(&mut description, &mut of, 1));
    ok!(cuGreenCtxCreate(&mut green, description, 0, DEFAULT_STREAM));
    green
}

promise! {
    fn multiprocessors_are_split_into_groups_and_a_rest() on PLAIN; {
        start();
        let mut count = 0;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        ok!(cuDeviceGetAttribute(&mut count, attribute, 0));
        assert_eq!(multiprocessors(&all()), count as u32);
        let (group, rest) = split(8);
        assert!(multiprocessors(&group) >= 8);
        assert!(multiprocessors(&group) + multiprocessors(&rest) <= count as u32);
        let mut groups = 0;
        ok!(cuDevSmResourceSplitByCount(null_mut(), &mut groups, &all(), null_mut(), 0, 8));
        assert!(groups >= 1);
    }
}

promise! {
    fn work_of_a_green_context_runs_in_its_streams() on PLAIN; {
        let primary = start();
        let list = zeroes(4096);
        let green = green(split(8).0);
        let (mut context, mut lane) = (null_mut(), null_mut());
        ok!(cuCtxFromGreenCtx(&mut context, green));
        assert_ne!(context, primary);
        ok!(cuGreenCtxStreamCreate(&mut lane, green, 1, 0));
        let (mut of_stream, mut of_green) = (null_mut(), null_mut());
        ok!(cuStreamGetCtx_v2(lane, &mut of_stream, &mut of_green));
        assert_eq!(of_green, green);
        ok!(cuCtxSetCurrent(context));
        let value = 3u32;
        assert_eq!(launch(kernel(c"append"), lane, &[arg(&list), arg(&value)]), CUresult::CUDA_SUCCESS);
        ok!(cuStreamSynchronize(lane));
        assert_eq!(read::<u32>(list, 2), [1, 3]);
    }
}

promise! {
    fn a_green_context_tells_what_it_was_given() on PLAIN; {
        start();
        let group = split(8).0;
        let green = green(group);
        let mut told = resource();
        ok!(cuGreenCtxGetDevResource(green, &mut told, SM));
        assert_eq!(multiprocessors(&told), multiprocessors(&group));
        let mut context = null_mut();
        ok!(cuCtxFromGreenCtx(&mut context, green));
        ok!(cuCtxGetDevResource(context, &mut told, SM));
        assert_eq!(multiprocessors(&told), multiprocessors(&group));
        ok!(cuGreenCtxDestroy(green));
    }
}

promise! {
    fn streams_of_a_green_context_are_non_blocking() on PLAIN; {
        start();
        let (green, mut lane) = (green(split(8).0), null_mut());
        let blocking = cu!(cuGreenCtxStreamCreate(&mut lane, green, 0, 0));
        assert_eq!(blocking, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn a_green_context_has_its_default_stream_asked_for() on PLAIN; {
        start();
        let (mut description, mut green, mut group) = (null_mut(), null_mut(), split(8).0);
        ok!(cuDevResourceGenerateDesc(&mut description, &mut group, 1));
        let refused = cu!(cuGreenCtxCreate(&mut green, description, 0, 0));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

promise! {
    fn a_primary_context_waits_for_its_green_contexts() on PLAIN; {
        let primary = start();
        let (green, mut lane, mut event, mut flag) = (green(split(8).0), null_mut(), null_mut(), null_mut());
        ok!(cuGreenCtxStreamCreate(&mut lane, green, 1, 0));
        ok!(cuEventCreate(&mut event, 0));
        ok!(cuMemHostAlloc(&mut flag, 4, 0));
        let flag = flag.cast::<u32>();
        // SAFETY: pinned memory of that size.
        unsafe { flag.write_volatile(0) };
        ok!(cuStreamWaitValue32_v2(lane, flag.addr() as u64, 1, 0));
        ok!(cuCtxRecordEvent(primary, event));
        assert_eq!(cu!(cuEventQuery(event)), CUresult::CUDA_ERROR_NOT_READY);
        // SAFETY: as above; the GPU reads it meanwhile.
        unsafe { flag.write_volatile(1) };
        ok!(cuCtxSynchronize());
        ok!(cuEventQuery(event));
    }
}
