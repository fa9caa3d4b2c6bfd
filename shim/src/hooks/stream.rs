//! Streams: to wait for one is a moment at which little may be alive; and with one ends what it captures.

use super::abi::Real;
use super::{capture, graph};
use crate::process::Process;
use crate::status::Answer;
use tidegate_ffi::cuda::sys::*;

/// `cuStreamSynchronize`: as the driver says. A program without boundaries may be stopped here.
pub fn synchronize(process: &'static Process, real: Real<'_>, _stream: CUstream) -> Answer {
    wait(process, real)
}

/// `cuCtxSynchronize`: the same.
pub fn synchronize_context(process: &'static Process, real: Real<'_>) -> Answer {
    wait(process, real)
}

/// `cuEventSynchronize`: the same.
pub fn synchronize_event(process: &'static Process, real: Real<'_>, _event: CUevent) -> Answer {
    wait(process, real)
}

fn wait(process: &'static Process, real: Real<'_>) -> Answer {
    real()?;
    process.captures.note_waiting();
    process.ahead.waited();
    process.waits.come();
    Ok(())
}

/// `cuStreamDestroy`: a capture that the stream began has ended, and never can otherwise. What it allocated is not used any more.
pub fn destroy(process: &'static Process, real: Real<'_>, stream: CUstream) -> Answer {
    let captures = process.captures.has_begun_in(stream.addr());
    if !captures && !process.captures.are_noted() {
        return real();
    }
    let capture = captures.then(|| capture::number_of(process, stream)).flatten();
    process.captures.destroy(stream.addr(), real)?;
    capture.into_iter().for_each(|capture| graph::end(process, capture));
    Ok(())
}
