//! The real driver, and the calls that the shim makes of its own accord.
//!
//! Invariant: the driver is opened at the first need, never closed, and called by pointer, so
//! none of our calls comes back through our own exports.

use crate::symbols;
use once_cell::race::OnceBox;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::units::GpuUuid;

/// The handle of the calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub const PER_THREAD: usize = 2;
/// `CU_DEVICE_CPU`.
const HOST: CUdevice = -1;

static DRIVER: OnceBox<Driver> = OnceBox::new();
/// The driver's library, null without one. Set before [`DRIVER`].
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The driver. Without one on this machine, every function of it answers `NOT_FOUND`.
#[inline(always)]
pub fn get() -> &'static Driver {
    match DRIVER.get() {
        Some(driver) => driver,
        None => load(),
    }
}

#[cold]
#[inline(never)]
fn load() -> &'static Driver {
    DRIVER.get_or_init(|| {
        // SAFETY: the name is a C string. Opening the driver is what any CUDA program does; a
        // program that has opened it already gets the same library again.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        LIBRARY.store(library, Ordering::Release);
        let resolve = |name: &CStr| find(library, name);
        // SAFETY: the real dlsym yields null or the library's function of that name (1); the
        // library is never closed (2).
        Box::new(unsafe { Driver::with(resolve) })
    })
}

/// The driver's function of that name, whatever the table says of it; null when it has none.
pub fn address_of(name: &CStr) -> *mut c_void {
    get();
    find(LIBRARY.load(Ordering::Acquire), name)
}

fn find(library: *mut c_void, name: &CStr) -> *mut c_void {
    if library.is_null() { ptr::null_mut() } else { symbols::real_dlsym(library, name) }
}

/// A context's handle: a name for the driver, nothing that we look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Context(pub CUcontext);

// SAFETY: the handle is only compared and passed to the driver, whose functions take it on any
// thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The calling thread's current context, if any.
pub fn current_context() -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the result goes to our own variable.
    unsafe { get().cuCtxGetCurrent(&mut context) }.ok()?;
    (!context.is_null()).then_some(Context(context))
}

/// The device of the calling thread's current context.
pub fn current_device() -> Result<CUdevice, DriverError> {
    let mut device = 0;
    // SAFETY: the result goes to our own variable.
    unsafe { get().cuCtxGetDevice(&mut device) }?;
    Ok(device)
}

/// Takes part in a device's primary context.
pub fn retain_primary(device: CUdevice) -> Result<Context, DriverError> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the result goes to our own variable; the driver checks the device.
    unsafe { get().cuDevicePrimaryCtxRetain(&mut context, device) }?;
    Ok(Context(context))
}

/// Takes part in it no longer.
pub fn release_primary(device: CUdevice) -> Result<(), DriverError> {
    // SAFETY: no pointers; the driver counts.
    unsafe { get().cuDevicePrimaryCtxRelease_v2(device) }
}

/// An attribute of a device; `None`: the driver does not know it.
pub fn device_attribute(device: CUdevice, attribute: CUdevice_attribute) -> Option<i32> {
    let mut value = 0;
    // SAFETY: the result goes to our own variable; the driver checks the device.
    unsafe { get().cuDeviceGetAttribute(&mut value, attribute.into(), device) }.ok()?;
    Some(value)
}

/// A device's UUID.
pub fn uuid(device: CUdevice) -> Result<GpuUuid, DriverError> {
    let mut uuid = CUuuid_st { bytes: [0; 16] };
    // SAFETY: the result goes to our own variable; the driver checks the device.
    unsafe { get().cuDeviceGetUuid_v2(&mut uuid, device) }?;
    Ok(GpuUuid(uuid.bytes.map(|byte| byte as u8)))
}

/// Waits until all work of the current context has ended.
pub fn synchronize() -> Result<(), DriverError> {
    // SAFETY: no arguments.
    unsafe { get().cuCtxSynchronize() }
}

/// Says that this thread's calls must not disturb other threads' captures (FACTS §3).
pub fn relax_captures_of_this_thread() {
    exchange_capture_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
}

/// While it lives, a context is current on this thread.
pub struct Current(());

impl Current {
    /// Makes `context`, which is alive for as long as the result, current.
    pub fn make(context: Context) -> Result<Self, DriverError> {
        // SAFETY: the driver checks the handle; a context kept by `Contexts` is alive.
        unsafe { get().cuCtxPushCurrent_v2(context.0) }?;
        Ok(Self(()))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: the result goes to our own variable; what is popped was pushed by `make`.
        let ended = unsafe { get().cuCtxPopCurrent_v2(&mut popped) };
        debug_assert!(ended.is_ok(), "popping our own context: {ended:?}");
    }
}

/// The error that the current context answers all calls with, if there is one.
pub fn check_context() -> Result<(), DriverError> {
    let _relaxed = Relaxed::begin();
    // An event behind nothing is passed.
    Mark::recorded(|_| Ok(()))?.is_passed().map(|_| ())
}

/// While it lives, what this thread calls does not disturb a capture, be it its own.
pub struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    /// From now on.
    pub fn begin() -> Self {
        Self(exchange_capture_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange_capture_mode(self.0);
    }
}

/// Returns the mode from before.
fn exchange_capture_mode(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // A driver without captures has none to disturb.
    // SAFETY: the mode is read from, and the old one written to, our own variable.
    let _ = unsafe { get().cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// Whether a stream is capturing.
pub fn is_capturing(stream: CUstream) -> Result<bool, DriverError> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the result goes to our own variable; the driver checks the stream.
    unsafe { get().cuStreamIsCapturing(stream, &mut status) }?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Whether work that was submitted to a stream has not ended. It must not capture; nor, if it is a default stream, may another
/// of its context.
pub fn is_busy(stream: CUstream) -> bool {
    // SAFETY: the driver checks the stream.
    let asked = unsafe { get().cuStreamQuery(stream) };
    asked.is_err_and(|error| error.code == CUresult::CUDA_ERROR_NOT_READY)
}

/// The number of the capture that a stream is part of, which no other has or will have.
pub fn capture_number(stream: CUstream) -> Result<u64, DriverError> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut number, none) = (0, ptr::null_mut());
    let (dependencies, count) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the results go to our own variables, what is optional is not asked for; the driver
    // checks the stream.
    unsafe { get().cuStreamGetCaptureInfo_v2(stream, &mut status, &mut number, none, dependencies, count) }?;
    Ok(number)
}

/// The driver's number for a stream, which no other has or will have; `None` where it has no numbers.
pub fn stream_number(stream: CUstream) -> Option<u64> {
    let mut number = 0;
    // SAFETY: the result goes to our own variable; the driver checks the stream.
    unsafe { get().cuStreamGetId(stream, &mut number) }.ok()?;
    Some(number)
}

/// The driver's name for a kernel; `None` where it tells none (before CUDA 12.3).
///
/// # Safety
/// The kernel is not unloaded while the name is used.
pub unsafe fn kernel_name<'a>(kernel: CUfunction) -> Option<&'a CStr> {
    let mut name = ptr::null();
    // SAFETY: the result goes to our own variable; the driver checks the kernel.
    unsafe { get().cuFuncGetName(&mut name, kernel) }.ok()?;
    // SAFETY: a C string that stays as long as the kernel: the caller's promise.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// Moves managed memory of the current context to the host, and returns when it is there.
pub fn prefetch_to_host(address: CUdeviceptr, bytes: usize) -> Result<(), DriverError> {
    // The calling thread's own, which no work of the program is in.
    let stream = ptr::without_provenance_mut(PER_THREAD);
    // SAFETY: the driver checks the range, which it does not change, and knows the stream.
    unsafe { get().cuMemPrefetchAsync(address, bytes, HOST, stream) }?;
    // SAFETY: as above.
    unsafe { get().cuStreamSynchronize(stream) }
}

/// The context of a stream.
pub fn context_of(stream: CUstream) -> Result<Context, DriverError> {
    let mut context = ptr::null_mut();
    // SAFETY: the result goes to our own variable; the driver checks the stream.
    unsafe { get().cuStreamGetCtx(stream, &mut context) }?;
    Ok(Context(context))
}

/// An event behind the work that a context, or a stream, has at one moment.
pub struct Mark {
    event: CUevent,
}

impl Mark {
    /// Records an event behind everything submitted to `context`, which is current.
    fn after_all_of(context: Context) -> Result<Self, DriverError> {
        // SAFETY: the context is current, so it is alive.
        Self::recorded(|event| unsafe { get().cuCtxRecordEvent(context.0, event) })
    }

    /// Records an event behind everything submitted to a stream of the current context.
    pub fn after(stream: CUstream) -> Result<Self, DriverError> {
        // SAFETY: the driver checks the program's stream.
        Self::recorded(|event| unsafe { get().cuEventRecord(event, stream) })
    }

    fn recorded(record: impl FnOnce(CUevent) -> Result<(), DriverError>) -> Result<Self, DriverError> {
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the result goes to our own variable.
        unsafe { get().cuEventCreate(&mut event, flags) }?;
        let mark = Self { event };
        record(event)?;
        Ok(mark)
    }

    /// Waits until that work has ended.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is ours and alive.
        unsafe { get().cuEventSynchronize(self.event) }
    }

    /// Whether that work has ended.
    pub fn is_passed(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is ours and alive.
        match unsafe { get().cuEventQuery(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError { code: CUresult::CUDA_ERROR_NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event is ours and used no more. A failure means that its context died
        // first, and the event with it.
        let _ = unsafe { get().cuEventDestroy_v2(self.event) };
    }
}

// SAFETY: an event's handle may be used on any thread.
unsafe impl Send for Mark {}

/// A mark behind work of a context, which is alive.
pub struct Behind {
    context: Context,
    /// `None`: the context has come to an end by an error, and its work with it.
    mark: Option<Mark>,
}

impl Behind {
    /// Sets it, with the context current.
    fn new(context: Context, mark: impl FnOnce() -> Result<Mark, DriverError>) -> Result<Self, DriverError> {
        match Current::make(context).and_then(|_current| mark()) {
            Ok(mark) => Ok(Self { context, mark: Some(mark) }),
            Err(error) if error.ends_context() => Ok(Self { context, mark: None }),
            Err(error) => Err(error),
        }
    }

    /// Sets it behind what a stream of that context has.
    pub fn in_stream(context: Context, stream: CUstream) -> Result<Self, DriverError> {
        Self::new(context, || Mark::after(stream))
    }

    /// Sets it behind all that was submitted to that context.
    pub fn all_of(context: Context) -> Result<Self, DriverError> {
        Self::new(context, || Mark::after_all_of(context))
    }

    /// The context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Whether that work has ended.
    pub fn is_passed(&self) -> Result<bool, DriverError> {
        let passed = self.mark.as_ref().map_or(Ok(true), Mark::is_passed);
        passed.or_else(|error| if error.ends_context() { Ok(true) } else { Err(error) })
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take() {
            // An event is destroyed with its context current.
            let _current = Current::make(self.context);
            drop(mark);
        }
    }
}
