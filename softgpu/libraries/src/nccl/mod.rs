//! A stand-in for NCCL: collectives and messages between ranks on software GPUs, computed.
//!
//! Written from the public `nccl.h` (release 2.28). Ranks are processes of one machine, or threads.
//!
//! ```text
//! ncclAllReduce ─ api ─ group ─► comm: a plan ─► driver ─► nccl_softgpu_kernel, a kernel in the caller's stream
//!                                                 cuLaunchKernelEx      │
//!                                                                       ▼
//!                                       engine: offers, then data ◄─► segment ◄─► the other ranks' engines
//!                                       watch: a peer's end ─────────────┘
//! ```
//!
//! - **An operation occupies its stream** from the moment at which the stream comes to it until all ranks that
//!   take part have come to theirs and the data has passed. It is a kernel, launched by `cuLaunchKernelEx`, so
//!   what stands in front of the driver sees what it sees of NCCL.
//! - **Data passes through a segment** of shared memory (see [`segment`]) of bounded size: a sender waits for the
//!   receiver to make room.
//! - **Sums are taken in the order of the ranks** (see [`element`]), so results are the same bits each time.
//! - **Nothing waits for what cannot come.** A rank's process that ends, a rank that fails, aborts or is destroyed
//!   ends the operations that need it, with an error that `ncclCommGetAsyncError` reports. Operations that do
//!   not match end with `ncclInvalidUsage` at all ranks that take part.

mod api;
mod comm;
mod element;
mod engine;
mod group;
mod join;
mod segment;
mod watch;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `ncclResult_t`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

impl Code {
    /// By its number; unknown numbers are internal errors.
    fn of(number: i32) -> Self {
        match number {
            0 => Self::Success,
            1 => Self::UnhandledCudaError,
            2 => Self::SystemError,
            4 => Self::InvalidArgument,
            5 => Self::InvalidUsage,
            6 => Self::RemoteError,
            7 => Self::InProgress,
            _ => Self::InternalError,
        }
    }

    /// `ncclGetErrorString`.
    fn text(self) -> &'static CStr {
        match self {
            Self::Success => c"success",
            Self::UnhandledCudaError => c"a call of the CUDA driver failed",
            Self::SystemError => c"a system call failed",
            Self::InternalError => c"internal error of the NCCL stand-in",
            Self::InvalidArgument => c"invalid argument",
            Self::InvalidUsage => c"invalid usage",
            Self::RemoteError => c"another rank ended or failed",
            Self::InProgress => c"not complete yet",
        }
    }
}

/// Why a call or an operation failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub why: String,
}

impl Failure {
    fn new(code: Code, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }

    /// Of the last system call.
    fn system(what: &str) -> Self {
        Self::of_system(what, &std::io::Error::last_os_error())
    }

    fn of_system(what: &str, error: &std::io::Error) -> Self {
        Self::new(Code::SystemError, format!("{what}: {error}"))
    }

    fn argument(why: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, why)
    }

    fn usage(why: impl Into<String>) -> Self {
        Self::new(Code::InvalidUsage, why)
    }
}

type Answer<T = ()> = Result<T, Failure>;

/// The data of a mutex. What it guards here is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of the process's last error, for `ncclGetLastError`. Texts are never freed: the caller may keep them,
/// and there are few different ones.
static LAST: Mutex<Option<&'static CStr>> = Mutex::new(None);

fn note(failure: &Failure) {
    static TEXTS: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let text = CString::new(failure.why.replace('\0', " ")).unwrap_or_default();
    let mut texts = lock(&TEXTS);
    let known = texts.get(text.as_c_str()).copied();
    let text = known.unwrap_or_else(|| {
        let text: &'static CStr = Box::leak(text.into_boxed_c_str());
        texts.insert(text);
        text
    });
    *lock(&LAST) = Some(text);
}

fn last_error() -> &'static CStr {
    lock(&LAST).unwrap_or(c"no error so far")
}
