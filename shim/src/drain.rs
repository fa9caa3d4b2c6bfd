//! Has all submitted work ended?
//!
//! A [`Probe`] marks the end of all work of all contexts at one moment, and is asked until the
//! GPU has passed the marks. Where the driver has no context-wide event, a helper thread waits
//! in `cuCtxSynchronize` instead.
//!
//! Invariant: a probe never blocks its asker and never takes a lock of the program.

use crate::contexts::Used;
use crate::driver::{Context, Current, Mark, relax_captures_of_this_thread, synchronize};
use crate::gate::Pause;
use crate::process::Process;
use crate::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::CUresult;

/// Marks behind the work of all contexts.
pub struct Probe {
    parts: Vec<Part>,
}

/// The mark of one context.
struct Part {
    kind: Kind,
    used: Used<'static>,
}

enum Kind {
    Event(Option<Mark>),
    Helper(Arc<AtomicU32>),
}

/// A helper's answer while it waits.
const RUNNING: u32 = u32::MAX;

/// Why it is not known that all work has ended.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// It had not at the deadline.
    #[error("the work on the GPU did not end in time")]
    Late,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// No thread could be started.
    #[error("no helper thread: {0}")]
    Helper(#[from] std::io::Error),
}

impl Probe {
    /// Marks the work submitted so far.
    pub fn start(process: &'static Process) -> Result<Self, DrainError> {
        let contexts = process.contexts.keep_all();
        let parts = contexts.into_iter().map(|used| Part::start(process, used)).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// Whether it has ended.
    pub fn is_passed(&self) -> Result<bool, DrainError> {
        for part in &self.parts {
            if !part.is_passed()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until it has ended.
    pub fn wait(&self, until: Instant) -> Result<(), DrainError> {
        let mut pause = Pause::default();
        while !self.is_passed()? {
            if !pause.before(until) {
                return Err(DrainError::Late);
            }
        }
        Ok(())
    }
}

impl Part {
    fn start(process: &'static Process, used: Used<'static>) -> Result<Self, DrainError> {
        let current = Current::make(used.context)?;
        let mark = Mark::after_all_of(used.context);
        drop(current);
        let kind = match mark {
            Ok(mark) => Kind::Event(Some(mark)),
            Err(error) if is_missing(error) => Kind::Helper(help(process, used.context)?),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { kind, used })
    }

    fn is_passed(&self) -> Result<bool, DriverError> {
        match &self.kind {
            Kind::Event(mark) => mark.as_ref().map_or(Ok(true), Mark::is_passed),
            Kind::Helper(answer) => match answer.load(Ordering::Acquire) {
                RUNNING => Ok(false),
                0 => Ok(true),
                _ => Err(DriverError { call: "cuCtxSynchronize", code: CUresult::CUDA_ERROR_UNKNOWN }),
            },
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // An event is destroyed with its context current, and before the context is let go.
        if let Kind::Event(mark) = &mut self.kind {
            let _current = Current::make(self.used.context);
            drop(mark.take());
        }
    }
}

fn is_missing(error: DriverError) -> bool {
    matches!(error.code, CUresult::CUDA_ERROR_NOT_FOUND | CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

fn help(process: &'static Process, context: Context) -> std::io::Result<Arc<AtomicU32>> {
    let answer = Arc::new(AtomicU32::new(RUNNING));
    let told = answer.clone();
    threads::spawn("tidegate-drain", move || {
        relax_captures_of_this_thread();
        told.store(wait_for(process, context).is_err().into(), Ordering::Release);
    })?;
    Ok(answer)
}

fn wait_for(process: &Process, context: Context) -> Result<(), DriverError> {
    // Destroyed meanwhile: its work has ended with it.
    let Some(used) = process.contexts.keep(context) else { return Ok(()) };
    let _current = Current::make(used.context)?;
    synchronize()
}
