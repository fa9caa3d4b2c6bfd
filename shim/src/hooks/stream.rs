//! Streams: to wait for one, or to ask until its work has ended, is a moment at which little may be alive; and with one ends what it captures.

use super::abi::Real;
use super::{capture, graph};
use crate::process::Process;
use crate::status::{Answer, Status};
use crate::waits::Waits;
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

/// `cuStreamQuery`: as the driver says. A thread that asks until work has ended waits for it.
pub fn query(process: &'static Process, real: Real<'_>, stream: CUstream) -> Answer {
    ask(process, real, stream.addr())
}

/// `cuEventQuery`: the same.
pub fn query_event(process: &'static Process, real: Real<'_>, event: CUevent) -> Answer {
    ask(process, real, event.addr())
}

fn ask(process: &'static Process, real: Real<'_>, of: usize) -> Answer {
    let answer = real();
    match answer {
        Ok(()) => process.waits.found_ended(of),
        Err(Status::NOT_ENDED) => Waits::found_under_way(of),
        Err(_) => {}
    }
    answer
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
