//! Peer access: what one context may do with the memory of another device's context.
//!
//! The driver's own switch does not cover mapped pieces: those are made accessible for each device by
//! name (FACTS §3), the ones that are here and the ones that will come.

use super::abi::Real;
use crate::driver::{self, Context, current_context};
use crate::process::Process;
use crate::status::{Answer, Status};
use std::ffi::c_uint;
use tidegate_ffi::cuda::sys::CUcontext;

/// `cuCtxEnablePeerAccess`.
pub fn enable(process: &'static Process, real: Real<'_>, peer: CUcontext, _flags: c_uint) -> Answer {
    real()?;
    let Some(current) = current_context() else { return Ok(()) };
    process.contexts.befriend(current, Context(peer));
    renew(process).inspect_err(|_| {
        process.contexts.part(current, Context(peer));
        // SAFETY: no pointers but the handle that the driver has just taken.
        let _ = unsafe { driver::get().cuCtxDisablePeerAccess(peer) };
    })
}

/// `cuCtxDisablePeerAccess`.
pub fn disable(process: &'static Process, real: Real<'_>, peer: CUcontext) -> Answer {
    real()?;
    let Some(current) = current_context() else { return Ok(()) };
    process.contexts.part(current, Context(peer));
    renew(process)
}

/// Every device's memory is for those who may use it now.
pub fn renew(process: &Process) -> Answer {
    for tenant in process.tenants.all() {
        tenant.share_with(process.contexts.peers_of(tenant.device)).map_err(Status::from)?;
    }
    Ok(())
}
