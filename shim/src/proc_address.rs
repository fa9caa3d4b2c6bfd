//! `cuGetProcAddress`: the route by which the CUDA runtime gets the driver's functions.
//!
//! Invariant: an answer is mapped *by the address* that the driver returned: no table of
//! versions and flags to keep (FACTS §1). An address that belongs to no name of the table is a
//! function that is newer than this table.

use crate::driver;
use crate::hooks;
use crate::hooks::abi::{Out, Real};
use crate::status::Answer;
use once_cell::race::OnceBox;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use tidegate_ffi::cuda::functions;

/// Asks the driver, and answers with our function where we have one for the driver's.
pub fn get(real: Real<'_>, name: *const c_char, found: Option<Out<'_, *mut c_void>>) -> Answer {
    let Some(found) = found else { return real() };
    // The older form fails where it finds nothing, and leaves the place as it is.
    real()?;
    let found = found.written();
    if !crate::settings::is_off()
        && !found.get().is_null()
        && let Some(ours) = instead_of(name, found.get())
    {
        found.set(ours);
    }
    Ok(())
}

fn instead_of(name: *const c_char, theirs: *mut c_void) -> Option<*mut c_void> {
    match known().get(&theirs.addr()) {
        Some(ours) => ours.map(|ours| ours as *mut c_void),
        // SAFETY: a name that the driver has found something for is a C string.
        None => hooks::by_name::stand_in_for(unsafe { CStr::from_ptr(name) }, theirs),
    }
}

/// Of each address of a driver's function that the table names: that of ours, if ours is to answer.
fn known() -> &'static HashMap<usize, Option<usize>> {
    static KNOWN: OnceBox<HashMap<usize, Option<usize>>> = OnceBox::new();
    KNOWN.get_or_init(|| {
        let mut known = HashMap::new();
        for function in functions::all() {
            let Ok(name) = CString::new(function.name) else { continue };
            let ours = hooks::ours(function.name).flatten().map(|ours| ours as usize);
            let theirs = known.entry(driver::address_of(&name).addr()).or_insert(ours);
            // Where two names share an address, one of them hooked, it is hooked.
            *theirs = theirs.or(ours);
        }
        known.remove(&0);
        Box::new(known)
    })
}
