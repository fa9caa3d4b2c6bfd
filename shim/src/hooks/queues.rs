//! In which stream a call would queue what it submits, and whether it would have to wait there.

use super::pool::per_thread;
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

/// Whether what a call of this name submits would be queued behind work that has not ended. A call that names no stream is
/// for the default stream.
pub fn are_busy<const ARGUMENTS: usize>(name: &str, streams: [Option<CUstream>; ARGUMENTS]) -> bool {
    let stream = streams.into_iter().flatten().next().unwrap_or_default();
    let is_per_thread = name.ends_with("_ptsz") || name.ends_with("_ptds");
    is_busy(if is_per_thread { per_thread(stream) } else { stream })
}

/// Whether what is submitted to a stream would be queued behind work that has not ended. While streams capture none is
/// asked: that would spoil the capture which it is part of. Then that of a thread which captures is taken to begin at once, so
/// that the capture comes to its end, and that of others is not.
pub fn is_busy(stream: CUstream) -> bool {
    match process::active() {
        Some(process) => {
            let asked = process.captures.unless_any(|| driver::is_busy(stream));
            asked.unwrap_or_else(|| !process.captures.any_of_this_thread())
        }
        None => driver::is_busy(stream),
    }
}
