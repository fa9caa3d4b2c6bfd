//! What NVML tells a program of its GPU's memory: its quota and its own use, as the driver's API does.
//!
//! Programs link `libnvidia-ml.so.1` or open it and look its functions up. Two of them are ours; each
//! asks the library first, and answers for a GPU that the process is on, or whose quota the environment
//! names. All else passes.
//!
//! Invariants: where there is no such library, there is none by our doing: its functions are looked up
//! where the program has it, and nothing of it is loaded by us. No answer without the library's own.

#![cfg_attr(test, expect(non_snake_case, reason = "the library's own names, exempt only as exports"))]

use crate::driver;
use crate::process;
use crate::settings;
use crate::symbols::{find_in_loaded, real_dlsym};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use tidegate_ffi::units::GpuUuid;

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVML_ERROR_LIBRARY_NOT_FOUND`.
const NOT_FOUND: c_int = 12;
/// Room for a UUID as text (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// A function of the library, as far as the program has shown it.
struct Function {
    name: &'static CStr,
    real: AtomicPtr<c_void>,
}

static UUID: Function = Function::new(c"nvmlDeviceGetUUID");
static MEMORY: Function = Function::new(c"nvmlDeviceGetMemoryInfo");
static MEMORY_V2: Function = Function::new(c"nvmlDeviceGetMemoryInfo_v2");

/// The program's `nvmlDeviceGetMemoryInfo`.
///
/// # Safety
/// What NVML's manual asks of the arguments.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory) -> c_int {
    // SAFETY: the program's own arguments, and its promise.
    let answer = unsafe { MEMORY.ask(device, memory) };
    if let (SUCCESS, Some(own)) = (answer, own(device)) {
        // SAFETY: the library has just written there.
        let memory = unsafe { &mut *memory };
        own.show(&mut memory.total, &mut memory.used, &mut memory.free);
    }
    answer
}

/// The program's `nvmlDeviceGetMemoryInfo_v2`.
///
/// # Safety
/// What NVML's manual asks of the arguments.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut MemoryV2) -> c_int {
    // SAFETY: the program's own arguments, and its promise.
    let answer = unsafe { MEMORY_V2.ask(device, memory) };
    if let (SUCCESS, Some(own)) = (answer, own(device)) {
        // SAFETY: the library has just written there.
        let memory = unsafe { &mut *memory };
        own.show(&mut memory.total, &mut memory.used, &mut memory.free);
        // What the driver itself needs is nobody's quota.
        memory.reserved = 0;
    }
    answer
}

/// What a program gets in place of `theirs`, which it looked up in `handle` as `name`; `None`: that.
pub fn instead_of(handle: *mut c_void, name: &CStr, theirs: *mut c_void) -> Option<*mut c_void> {
    let (function, ours) = [
        (&MEMORY, nvmlDeviceGetMemoryInfo as *const () as *mut c_void),
        (&MEMORY_V2, nvmlDeviceGetMemoryInfo_v2 as *const () as *mut c_void),
    ]
    .into_iter()
    .find(|(function, _)| function.name == name)?;
    if theirs == ours {
        // It looked everywhere, and found our export. Is there a library at all?
        return Some(if function.real().is_null() { ptr::null_mut() } else { ours });
    }
    if theirs.is_null() || settings::is_off() {
        return None;
    }
    function.real.store(theirs, Ordering::Release);
    UUID.real.store(real_dlsym(handle, UUID.name), Ordering::Release);
    Some(ours)
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The library's own: where the program found it, else behind us among what it is linked with, else in a
    /// library that is there already. Null when the program has none.
    fn real(&self) -> *mut c_void {
        let mut real = self.real.load(Ordering::Acquire);
        if real.is_null() {
            real = real_dlsym(libc::RTLD_NEXT, self.name);
        }
        if real.is_null() {
            real = find_in_loaded(c"libnvidia-ml.so.1", self.name);
        }
        self.real.store(real, Ordering::Release);
        real
    }

    /// Asks the library about a device.
    ///
    /// # Safety
    /// What its manual asks of the arguments, of which this function has these two.
    unsafe fn ask<T>(&self, device: *mut c_void, result: *mut T) -> c_int {
        let real = self.real();
        if real.is_null() {
            return NOT_FOUND;
        }
        // SAFETY: the library's function of this name, which takes a device and a place.
        let real = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut T) -> c_int>(real)
        };
        // SAFETY: the caller's promise.
        unsafe { real(device, result) }
    }
}

/// What a program has of a GPU, and what of that it uses.
struct Own {
    total: u64,
    used: u64,
}

impl Own {
    /// Writes it over what the library says.
    fn show(&self, total: &mut u64, used: &mut u64, free: &mut u64) {
        *total = self.total.min(*total);
        *used = self.used.min(*total);
        *free = *total - *used;
    }
}

/// `None`: it is not its, or cannot be known.
fn own(device: *mut c_void) -> Option<Own> {
    // Called by C: nothing of ours unwinds there.
    catch_unwind(|| own_of(uuid(device)?)).ok()?
}

fn own_of(gpu: GpuUuid) -> Option<Own> {
    if settings::is_off() || process::is_without_manager() {
        return None;
    }
    let Some(process) = process::active() else {
        // It has not asked for CUDA yet.
        return settings::quota().map(|total| Own { total, used: 0 });
    };
    let tenants = process.tenants.all();
    match tenants.into_iter().find(|tenant| driver::uuid(tenant.device) == Ok(gpu)) {
        Some(tenant) => Some(Own { total: tenant.layout.total_bytes, used: tenant.allocated_bytes() }),
        None => process.settings.memory.map(|total| Own { total, used: 0 }),
    }
}

/// Which GPU a handle of the library means.
fn uuid(device: *mut c_void) -> Option<GpuUuid> {
    let real = UUID.real();
    if real.is_null() {
        return None;
    }
    type Ask = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int;
    // SAFETY: the library's function of this name, which takes a device and a place for a text.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Ask>(real) };
    let mut text: [c_char; UUID_BYTES] = [0; UUID_BYTES];
    // SAFETY: a handle that the library has just taken, and our own place of that length.
    let answer = unsafe { ask(device, text.as_mut_ptr(), UUID_BYTES as c_uint) };
    text[UUID_BYTES - 1] = 0;
    // SAFETY: the text ends within our own place.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    (answer == SUCCESS).then(|| text.to_str().ok()?.parse().ok())?
}
