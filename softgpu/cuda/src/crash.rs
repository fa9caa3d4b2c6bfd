//! Kernels that touch what is not mapped fault their context, not the process.
//!
//! A kernel runs on a worker thread and dereferences addresses itself, so the fault is a signal
//! there. The handler marks the context, wakes a watcher through a pipe and parks the thread for
//! good: no stack is unwound. A fault on any other thread is the program's own and goes to the
//! handler that was there before.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use cudarc::driver::sys::CUresult;

use crate::abi::Answer;
use crate::context;

thread_local! {
    /// The fault flag of the context this worker thread works for; null on other threads.
    static FLAG: Cell<*const AtomicBool> = const { Cell::new(ptr::null()) };
}

/// The write end of the watcher's pipe.
static ALARM: AtomicI32 = AtomicI32::new(-1);

/// The handlers that were there before ours: of SIGSEGV, of SIGBUS.
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Faults of this thread belong to the context that owns `flag`, which must live for ever: contexts
/// that ever had a worker are not freed.
pub fn adopt_thread(flag: &'static AtomicBool) {
    FLAG.set(flag);
}

/// Runs the program's own code on a worker: its faults are the program's.
pub fn as_program(body: impl FnOnce()) {
    let flag = FLAG.replace(ptr::null());
    body();
    FLAG.set(flag);
}

/// Prepares handler and watcher; done before the first worker thread starts.
pub fn prepare() -> Answer {
    static PREPARED: OnceLock<Answer> = OnceLock::new();
    *PREPARED.get_or_init(|| {
        watch().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        SIGNALS.iter().enumerate().for_each(|(at, signal)| install(at, *signal));
        Ok(())
    })
}

/// Starts the thread that tells waiters of a fault.
fn watch() -> std::io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    start_thread("softgpu-watch", move || {
        announce_faults(&reader);
        // The program has closed it, and may have a file of its own at that number.
        std::mem::forget(reader);
    })?;
    ALARM.store(writer.as_raw_fd(), Ordering::Release);
    std::mem::forget(writer);
    Ok(())
}

fn announce_faults(reader: &OwnedFd) {
    let mut byte = [0];
    while let Ok(1..) | Err(rustix::io::Errno::INTR) = rustix::io::read(reader, &mut byte) {
        context::announce_all();
    }
}

/// Starts a thread that takes none of the program's signals but its own faults.
pub fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let before = mask_signals();
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: `before` is the mask this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    started.map(drop)
}

/// Blocks all signals that are no faults, and returns the mask from before.
fn mask_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the whole set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT] {
        // SAFETY: the set was initialised above, the signal exists.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    // SAFETY: both point to sets; the second is written by the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: a valid request fills the old mask.
    unsafe { before.assume_init() }
}

fn install(at: usize, signal: c_int) {
    let before = Box::into_raw(Box::new(empty_action()));
    let mut ours = empty_action();
    ours.sa_sigaction = handle as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    BEFORE[at].store(before, Ordering::Release);
    // SAFETY: `ours` is a complete action with a handler of the SA_SIGINFO form; `before` is
    // writable and never freed.
    unsafe { libc::sigaction(signal, &ours, before) };
}

fn empty_action() -> libc::sigaction {
    // SAFETY: `sigaction` is a C structure for which all zeroes means the default action.
    unsafe { std::mem::zeroed() }
}

/// Async-signal-safe: atomics, `write`, `pause`, and a thread-local that is already there.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let flag = FLAG.get();
    if flag.is_null() {
        return pass_on(signal, info, context);
    }
    // SAFETY: `adopt_thread` only takes flags that live for ever.
    unsafe { &*flag }.store(true, Ordering::SeqCst);
    let byte = 1u8;
    // SAFETY: the descriptor is the watcher's pipe, `byte` is readable.
    unsafe { libc::write(ALARM.load(Ordering::Acquire), ptr::from_ref(&byte).cast(), 1) };
    loop {
        // SAFETY: `pause` has no preconditions.
        unsafe { libc::pause() };
    }
}

/// Does what would have been done without us.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = usize::from(signal == libc::SIGBUS);
    // SAFETY: set before our handler was, and never freed.
    let before = unsafe { &*BEFORE[at].load(Ordering::Acquire) };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => restore_default(signal),
        handler => call_handler(handler, before.sa_flags, signal, info, context),
    }
}

/// The faulting instruction runs again when the handler returns, now with the default action.
fn restore_default(signal: c_int) {
    let default = empty_action();
    // SAFETY: a complete action; the old one is not asked for.
    unsafe { libc::sigaction(signal, &default, ptr::null_mut()) };
}

fn call_handler(
    handler: usize,
    flags: c_int,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    if flags & libc::SA_SIGINFO == 0 {
        // SAFETY: without SA_SIGINFO the system takes the number as such a function, so may we.
        let plain: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        return plain(signal);
    }
    type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: with SA_SIGINFO the system takes the number as such a function, so may we.
    let full: Full = unsafe { std::mem::transmute(handler) };
    full(signal, info, context);
}
