//! The shim's own threads.
//!
//! Invariant: they take none of the program's signals, hold nothing that must be joined, and a
//! panic in one of them reaches neither the program nor its output.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::thread::Builder;
use tidegate_ffi::os;

/// Enough for driver calls, and only address space until it is used.
const STACK_BYTES: usize = 512 << 10;

/// Starts a thread that nobody joins.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = Blocked::all_signals();
    os::start_thread(Builder::new().name(name.into()).stack_size(STACK_BYTES), body).map(drop)
}

/// The calling thread takes no signals; a thread that it starts inherits that.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn all_signals() -> Self {
        let mut all = MaybeUninit::uninit();
        // SAFETY: the result goes to our own variable.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::zeroed();
        // SAFETY: sigfillset has initialised the set; the old one goes to our own variable.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: written by the call, and zero bytes are a valid (empty) set besides.
        Self { before: unsafe { before.assume_init() } }
    }
}

/// While it lives, the calling thread is not cancelled (`pthread_cancel`): it would be in the middle of a
/// system call of ours, and what we hold would stay so for ever.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// From now on.
    pub fn begin() -> Self {
        let mut before = 0;
        // SAFETY: the old state goes to our own variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the thread's own earlier state; null: the old one is not asked for.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// Of `pthread.h`, in all C libraries of Linux.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the thread's own earlier mask; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
