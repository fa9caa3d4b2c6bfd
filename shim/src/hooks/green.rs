//! Green contexts: parts of a device's primary context, with streams and processors of their own.
//!
//! A green context may be current to one thread at a time, so none of ours makes it current: its work is
//! waited for, and its memory mapped, in the primary context, of which it is a part; that is kept while
//! there is one. Its memory is the primary context's, as the driver's manual has it.

use super::abi::{Out, Real};
use super::{context, room};
use crate::driver::{self, Context};
use crate::process::Process;
use crate::status::{Answer, Status};
use std::ffi::c_uint;
use tidegate_ffi::cuda::sys::{CUcontext, CUdevResourceDesc, CUdevice, CUgreenCtx};

/// `cuGreenCtxCreate`.
pub fn create(
    process: &'static Process,
    real: Real<'_>,
    green: Out<'_, CUgreenCtx>,
    _resources: CUdevResourceDesc,
    device: CUdevice,
    _flags: c_uint,
) -> Answer {
    let green = green.preset(std::ptr::null_mut());
    process.attach(device)?;
    room::for_gpu(process, device, &|| {
        let primary = driver::retain_primary(device).map_err(Status::from)?;
        process.contexts.retained(primary, device);
        Ok(())
    })?;
    room::for_gpu(process, device, real).inspect_err(|_| let_go(process, device))?;
    process.contexts.green_made(green.get().addr(), device);
    Ok(())
}

/// `cuCtxFromGreenCtx`.
pub fn context(
    process: &'static Process,
    real: Real<'_>,
    context: Out<'_, CUcontext>,
    green: CUgreenCtx,
) -> Answer {
    let context = context.preset(std::ptr::null_mut());
    real()?;
    process.contexts.green_is(green.addr(), Context(context.get()));
    Ok(())
}

/// `cuGreenCtxDestroy`.
pub fn destroy(process: &'static Process, real: Real<'_>, green: CUgreenCtx) -> Answer {
    real()?;
    if let Some(device) = process.contexts.green_gone(green.addr()) {
        let_go(process, device);
    }
    Ok(())
}

/// One green context less needs the primary context.
fn let_go(process: &'static Process, device: CUdevice) {
    let release = || driver::release_primary(device).map_err(Status::from);
    // A driver that does not release it keeps it: nothing is lost by that.
    let _ = context::release_primary(process, &release, device);
}
