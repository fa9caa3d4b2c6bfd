//! Contexts: a GPU is attached before its first one; what was allocated in one dies with it.

use super::abi::{Out, Real};
use super::{peer, room};
use crate::driver::Context;
use crate::process::Process;
use crate::status::{Answer, Status};
use std::ffi::{c_int, c_uint};
use tidegate_ffi::cuda::sys::*;

/// `cuDevicePrimaryCtxRetain`.
pub fn retain_primary(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    device: CUdevice,
) -> Answer {
    let context = made(process, real, context, device)?;
    process.contexts.retained(context, device);
    Ok(())
}

/// `cuCtxCreate_v2`.
pub fn create_v2(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    _flags: c_uint,
    device: CUdevice,
) -> Answer {
    create(process, real, context, device)
}

/// `cuCtxCreate_v3`.
pub fn create_v3(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    _affinity: *mut CUexecAffinityParam,
    _count: c_int,
    _flags: c_uint,
    device: CUdevice,
) -> Answer {
    create(process, real, context, device)
}

/// `cuCtxCreate_v4`.
pub fn create_v4(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    _parameters: *mut CUctxCreateParams,
    _flags: c_uint,
    device: CUdevice,
) -> Answer {
    create(process, real, context, device)
}

fn create(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    device: CUdevice,
) -> Answer {
    let context = made(process, real, context, device)?;
    process.contexts.created(context, device);
    Ok(())
}

/// Lets the driver make a context on an attached GPU, if need be with room that the manager makes.
fn made(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    device: CUdevice,
) -> Result<Context, Status> {
    let context = context.preset(std::ptr::null_mut());
    process.attach(device)?;
    room::for_gpu(process, device, real)?;
    Ok(Context(context.get()))
}

/// `cuCtxDestroy_v2`.
pub fn destroy(process: &'static Process, real: Real<'_>, context: CUcontext) -> Answer {
    let context = Context(context);
    let ending = process.contexts.begin_to_end();
    process.contexts.forget(context, || process.ahead.let_go());
    wait_for_ordered(process, context);
    real()?;
    drop(ending);
    process.contexts.has_ended(context);
    free_all_of(process, context);
    Ok(())
}

/// `cuCtxAttach`: the current context needs one `cuCtxDetach` more to end.
pub fn attach(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    _flags: c_uint,
) -> Answer {
    let context = context.preset(std::ptr::null_mut());
    real()?;
    process.contexts.attached(Context(context.get()));
    Ok(())
}

/// `cuCtxDetach`: the last one ends the context.
pub fn detach(process: &'static Process, real: Real<'_>, context: CUcontext) -> Answer {
    let context = Context(context);
    let ending = process.contexts.begin_to_end();
    let Some(device) = process.contexts.detach(context, || process.ahead.let_go()) else { return real() };
    wait_for_ordered(process, context);
    real().inspect_err(|_| process.contexts.created(context, device))?;
    drop(ending);
    process.contexts.has_ended(context);
    free_all_of(process, context);
    Ok(())
}

/// `cuDevicePrimaryCtxRelease_v2`: the last release ends the context.
pub fn release_primary(process: &'static Process, real: Real<'_>, device: CUdevice) -> Answer {
    let ending = process.contexts.begin_to_end();
    let ended = process.contexts.release_primary(device, || process.ahead.let_go());
    ended.into_iter().for_each(|context| wait_for_ordered(process, context));
    real()?;
    drop(ending);
    if let Some(context) = ended {
        process.contexts.has_ended(context);
        free_all_of(process, context);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxReset_v2`: the context is emptied, but those who retain it keep it.
pub fn reset_primary(process: &'static Process, real: Real<'_>, device: CUdevice) -> Answer {
    let ending = process.contexts.begin_to_end();
    let primary = process.contexts.primary(device);
    primary.into_iter().for_each(|context| wait_for_ordered(process, context));
    real()?;
    drop(ending);
    if let Some(context) = primary {
        process.contexts.part_from_all(context);
        free_all_of(process, context);
    }
    Ok(())
}

/// What was freed in stream order is free before the context's events end with it. What is known of its waits ends
/// with them, too.
fn wait_for_ordered(process: &Process, context: Context) {
    process.value_waits.forget(context);
    process.captures.leave_context(context);
    process.tenants.all().iter().for_each(|tenant| tenant.wait_for_ordered_of(context));
}

fn free_all_of(process: &Process, context: Context) {
    process.captures.ended_with(context);
    // What it shared with contexts of other devices it shares no more.
    let _ = peer::renew(process);
    process.tenants.all().iter().for_each(|tenant| tenant.free_all_of(process, context));
}
