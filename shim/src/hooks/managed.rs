//! Calls that get managed memory: [`crate::managed`] says what becomes of it.

use super::abi::Real;
use super::{memory, room};
use crate::gate::GATE;
use crate::log::warning;
use crate::managed;
use crate::process::Process;
use crate::status::Answer;
use std::ffi::{c_char, c_uint};
use std::sync::Once;
use tidegate_ffi::cuda::sys::{CUdeviceptr, CUlibrary};
use tidegate_ffi::wire::message::FromShim;

/// What the manager, and people, are told.
const REASON: &str = "it uses managed memory";

/// `cuMemAllocManaged`.
pub fn allocate(
    process: &'static Process,
    real: Real<'_>,
    address: *mut CUdeviceptr,
    bytes: usize,
    _flags: c_uint,
) -> Answer {
    get(process, real)?;
    // SAFETY: the driver has written it.
    if let Some(address) = unsafe { address.as_ref() } {
        note(process, *address, bytes);
    }
    Ok(())
}

/// `cuLibraryGetManaged`: a `__managed__` variable.
pub fn variable(
    process: &'static Process,
    real: Real<'_>,
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    _library: CUlibrary,
    _name: *const c_char,
) -> Answer {
    get(process, real)?;
    // The program may not want both. A variable of which not both are known stays where it is.
    // SAFETY: the driver has written what is not null.
    let address = unsafe { address.as_ref() };
    // SAFETY: as above.
    let bytes = unsafe { bytes.as_ref() };
    if let (Some(address), Some(bytes)) = (address, bytes) {
        note(process, *address, *bytes);
    }
    Ok(())
}

fn note(process: &Process, address: CUdeviceptr, bytes: usize) {
    // It was got in a context.
    if let Ok(context) = memory::owner() {
        process.managed.note(address, bytes, context);
    }
}

/// Waits for the job's turn first. Memory that the driver cannot move to the host stays then.
fn get(process: &'static Process, real: Real<'_>) -> Answer {
    drop(GATE.pass()?);
    room::for_current_gpu(process, real)?;
    if !managed::is_concurrent() {
        run_unsliced(process);
    }
    Ok(())
}

/// Tells the manager and the user, once for a process.
fn run_unsliced(process: &Process) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        warning!("managed memory cannot be switched on this GPU: this job keeps its time until it ends");
        // Without a manager nothing would stop it.
        let _ = process.link.send(FromShim::Unsliceable { reason: REASON.into() });
    });
}
