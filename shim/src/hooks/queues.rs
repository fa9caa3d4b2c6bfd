//! In which stream a call would queue what it submits, and whether it would have to wait there.

use super::pool::per_thread;
use crate::driver::{PER_THREAD, Relaxed};
use crate::gate::Queue;
use crate::{driver, process};
use tidegate_ffi::cuda::sys::{CUlaunchConfig, CUstream};

/// An argument of a call, which may say for which stream the call is.
pub struct Argument<T>(pub T);

impl Argument<CUstream> {
    /// # Safety
    /// Nothing has to hold: it is unsafe because an argument of another kind is read through a pointer.
    pub unsafe fn stream(&self) -> Option<CUstream> {
        Some(self.0)
    }
}

impl Argument<*const CUlaunchConfig> {
    /// # Safety
    /// It is null, or a launch's configuration.
    pub unsafe fn stream(&self) -> Option<CUstream> {
        // SAFETY: the caller's promise.
        unsafe { self.0.as_ref() }.map(|config| config.hStream)
    }
}

/// Any other argument says nothing of it.
pub trait SaysNothing {
    /// # Safety
    /// Nothing has to hold: it is unsafe because an argument of another kind is read through a pointer.
    unsafe fn stream(&self) -> Option<CUstream> {
        None
    }
}

impl<T> SaysNothing for Argument<T> {}

/// Where a call submits to a stream.
pub struct Stream {
    stream: CUstream,
    /// And to no other.
    is_only_one: bool,
}

impl Stream {
    /// Where one submits to this stream.
    pub fn new(stream: CUstream) -> Self {
        Self { stream, is_only_one: true }
    }
}

impl Queue for Stream {
    /// What is captured is not submitted.
    fn stream(&self) -> Option<usize> {
        process::active().is_some_and(|process| !process.captures.any()).then(|| self.stream.addr())
    }

    fn handle(&self) -> Option<usize> {
        Some(self.stream.addr())
    }

    fn goes_beside_captures(&self) -> Option<bool> {
        let is_beside = |process: &&process::Process| process.captures.any() && !process.value_waits.any();
        let process = process::active().filter(is_beside)?;
        Some(process.ahead.may_go_beside_captures(process, self.stream))
    }

    fn is_busy(&self) -> bool {
        is_busy(self.stream)
    }

    fn goes_behind_a_wait(&self) -> bool {
        process::active().is_some_and(|process| process.value_waits.lets_go(self.stream.addr()))
    }

    fn note_submission(&self) -> bool {
        let stream = self.is_only_one.then_some(self.stream);
        process::active().is_some_and(|process| process.captures.note_submission(stream))
    }

    fn note_waiting(&self) -> bool {
        process::active().is_some_and(|process| process.captures.note_waiting())
    }
}

/// Where a call of this name queues what it submits. One that names no stream is for the default stream.
pub fn of_call<const ARGUMENTS: usize>(name: &str, streams: [Option<CUstream>; ARGUMENTS]) -> Stream {
    let named = streams.into_iter().flatten().next();
    // The default streams of several contexts, or what a list says.
    let names_several = name.contains("Peer") || name.contains("MultiDevice");
    Stream {
        stream: stream_of(name, named.unwrap_or_default()),
        is_only_one: named.is_some() || !names_several,
    }
}

/// The stream that a call of this name means by `stream`.
pub fn stream_of(name: &str, stream: CUstream) -> CUstream {
    let is_per_thread = name.ends_with("_ptsz") || name.ends_with("_ptds");
    if is_per_thread { per_thread(stream) } else { stream }
}

/// Whether what is submitted to a stream would be queued behind work that has not ended. What is captured is taken to begin at once:
/// it is not submitted yet.
fn is_busy(stream: CUstream) -> bool {
    let Some(process) = process::active() else { return driver::is_busy(stream) };
    let asked = process.captures.unless_any(|| driver::is_busy(stream));
    asked.unwrap_or_else(|| is_busy_beside_captures(stream))
}

/// The same where some stream captures: asked, a stream that is part of a capture would break it, and a default stream any of its
/// context.
fn is_busy_beside_captures(stream: CUstream) -> bool {
    let _relaxed = Relaxed::begin();
    let is_default = stream.addr() <= PER_THREAD;
    is_default || !driver::is_capturing(stream).unwrap_or(false) && driver::is_busy(stream)
}
