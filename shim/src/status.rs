//! What a hook answers.

use crate::gate::Failed;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::{CUresult, Code};

/// An error code for the program. Never `CUDA_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub CUresult);

/// What a hook answers: nothing more than success, or an error code.
pub type Answer = Result<(), Status>;

impl Status {
    /// An argument is not as the driver's manual asks.
    pub const INVALID_VALUE: Self = Self(CUresult::CUDA_ERROR_INVALID_VALUE);
    /// There is no memory; programs free caches and try again.
    pub const OUT_OF_MEMORY: Self = Self(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    /// Work that was asked for has not ended.
    pub const NOT_ENDED: Self = Self(CUresult::CUDA_ERROR_NOT_READY);
    /// The GPU cannot be used now.
    pub const NOT_READY: Self = Self(CUresult::CUDA_ERROR_SYSTEM_NOT_READY);
    /// We failed in a way that we did not foresee.
    pub const UNKNOWN: Self = Self(CUresult::CUDA_ERROR_UNKNOWN);
}

impl From<DriverError> for Status {
    fn from(error: DriverError) -> Self {
        Self(error.code)
    }
}

impl From<Failed> for Status {
    fn from(Failed: Failed) -> Self {
        Self::NOT_READY
    }
}

/// An answer as the program gets it.
pub fn code(answer: Answer) -> Code {
    match answer {
        Ok(()) => CUresult::CUDA_SUCCESS.into(),
        Err(Status(code)) => code.into(),
    }
}
