//! Managed memory: the driver's own. It lies where it is touched, on the host or on the GPU, so no
//! switch can take it away: from its first success on the process's job is not stopped any more.

use super::abi::Real;
use super::room;
use crate::gate::GATE;
use crate::log::warning;
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
    _address: *mut CUdeviceptr,
    _bytes: usize,
    _flags: c_uint,
) -> Answer {
    get(process, real)
}

/// `cuLibraryGetManaged`: a `__managed__` variable.
pub fn variable(
    process: &'static Process,
    real: Real<'_>,
    _address: *mut CUdeviceptr,
    _bytes: *mut usize,
    _library: CUlibrary,
    _name: *const c_char,
) -> Answer {
    get(process, real)
}

/// Waits for the job's turn first: what it gets then stays.
fn get(process: &'static Process, real: Real<'_>) -> Answer {
    drop(GATE.pass()?);
    room::for_current_gpu(process, real)?;
    run_unsliced(process);
    Ok(())
}

/// Tells the manager and the user, once for a process.
fn run_unsliced(process: &Process) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        warning!("managed memory cannot be switched: this job keeps the GPU's time until it ends");
        // Without a manager nobody would stop it.
        let _ = process.link.send(FromShim::Unsliceable { reason: REASON.into() });
    });
}
