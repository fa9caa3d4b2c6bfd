//! Symbols: our own `dlsym` and `dlvsym`, and the real ones behind them.
//!
//! Programs get driver functions from `dlsym` (FACTS §1). Ours answers with our function where
//! the table of driver functions says so (or it is one of [`nvml`]'s) and the real `dlsym` finds one in
//! that library;
//! everything else is passed on by a [`jump`], so that the real one still sees who called.
//!
//! Invariant: nothing here allocates, locks, or uses anything that must be initialised first;
//! it works in the first moments of a process. (A function that the table does not know is an
//! exception: then the driver is there.)

mod elf;
pub mod jump;

use crate::{hooks, nvml};
use jump::{Decision, entry};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A look-up function of the C library, found when it is first needed.
pub struct LookUp {
    name: &'static CStr,
    real: AtomicPtr<c_void>,
}

static DLSYM: LookUp = LookUp::new(c"dlsym");
static DLVSYM: LookUp = LookUp::new(c"dlvsym");

/// The program's `dlsym`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    entry!(DLSYM, decide)
}

/// The program's `dlvsym`. NVIDIA's driver gives its symbols no versions, so it finds none there; what it
/// does find in a driver is ours to answer too.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    entry!(DLVSYM, decide)
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

unsafe extern "C" fn decide(
    handle: *mut c_void,
    name: *mut c_void,
    version: *mut c_void,
    look_up: *const LookUp,
) -> Decision {
    // SAFETY: `entry!` passes the address of the static that it was given.
    let look_up = unsafe { &*look_up };
    let pass_on = Decision::pass_on(look_up.real());
    if name.is_null() || handle == libc::RTLD_NEXT {
        return pass_on;
    }
    // SAFETY: not null, and a C string by dlsym's contract.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    let is_drivers = name.to_bytes().starts_with(b"cu");
    if !is_drivers && !name.to_bytes().starts_with(b"nvmlDeviceGetMemoryInfo") {
        return pass_on;
    }
    // SAFETY: the program's own arguments.
    let theirs = unsafe { look_up.call(handle, name, version.cast()) };
    let ours =
        if is_drivers { hooks::instead_of(name, theirs) } else { nvml::instead_of(handle, name, theirs) };
    match ours {
        Some(ours) => Decision::answer(ours),
        None => pass_on,
    }
}

/// `dlsym` of the C library, for our own look-ups. Null when there is no such symbol.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string, and dlsym answers null for a handle that it does not know.
    unsafe { DLSYM.call(handle, name, ptr::null()) }
}

/// A function of a library that the process has loaded already, by the library's SONAME. Null when there is
/// none; nothing is loaded.
pub fn find_in_loaded(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: a C string; with NOLOAD nothing is loaded and no code runs.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() { ptr::null_mut() } else { real_dlsym(library, name) }
}

/// Stands in where no C library has such a function: it finds nothing.
unsafe extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

impl LookUp {
    const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicPtr::new(ptr::null_mut()) }
    }

    fn real(&self) -> *mut c_void {
        let mut real = self.real.load(Ordering::Acquire);
        if real.is_null() {
            real = elf::find_in_c_library(self.name).unwrap_or(nothing as *mut c_void);
            self.real.store(real, Ordering::Release);
        }
        real
    }

    /// Looks a symbol up. `dlsym` ignores the version.
    ///
    /// # Safety
    /// What `dlsym` and `dlvsym` ask of their arguments.
    unsafe fn call(&self, handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
        let real = self.real();
        if ptr::eq(self, &DLVSYM) && real != nothing as *mut c_void {
            // SAFETY: what `real` found under this name: the C library's function `dlvsym`.
            let dlvsym = unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(real) };
            // SAFETY: the caller's promise.
            return unsafe { dlvsym(handle, name.as_ptr(), version) };
        }
        // SAFETY: the C library's function `dlsym`, or `nothing`, which has its type.
        let dlsym = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) };
        // SAFETY: the caller's promise.
        unsafe { dlsym(handle, name.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_functions_are_found_without_asking_for_a_version() {
        for name in [c"dlsym", c"dlvsym"] {
            // SAFETY: a look-up of a symbol of the C library.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(elf::find_in_c_library(name), Some(expected));
        }
        assert_eq!(elf::find_in_c_library(c"tidegate_has_no_such_function"), None);
    }

    #[test]
    fn names_that_are_not_the_drivers_are_passed_on() {
        // SAFETY: a look-up of a symbol of the C library.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        // SAFETY: the same by our own function.
        let found = unsafe { dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        assert_eq!(found, expected);
        // SAFETY: as above; no library of this test has the driver's functions.
        assert!(unsafe { dlsym(libc::RTLD_DEFAULT, c"cuLaunchKernel".as_ptr()) }.is_null());
    }

    #[test]
    fn a_version_is_looked_up_by_the_real_function() {
        for (version, is_there) in [(c"GLIBC_2.2.5", true), (c"GLIBC_1.0", false)] {
            // SAFETY: a look-up of a symbol of the C library, by our own function.
            let found = unsafe { dlvsym(libc::RTLD_DEFAULT, c"getpid".as_ptr(), version.as_ptr()) };
            assert_eq!(!found.is_null(), is_there && cfg!(target_arch = "x86_64"), "{version:?}");
        }
    }
}
