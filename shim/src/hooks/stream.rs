//! Streams: to wait for one is a moment at which little may be alive.

use super::abi::Real;
use crate::process::Process;
use crate::status::Answer;
use tidegate_ffi::cuda::sys::*;

/// `cuStreamSynchronize`: as the driver says. A program without boundaries may be stopped here.
pub fn synchronize(process: &'static Process, real: Real<'_>, _stream: CUstream) -> Answer {
    real()?;
    process.waits.come();
    Ok(())
}
