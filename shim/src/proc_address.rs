//! `cuGetProcAddress`: the route by which the CUDA runtime gets the driver's functions.
//!
//! Invariant: an answer is mapped *by the address* that the driver returned: no table of
//! versions and flags to keep (FACTS §1). What the table does not name stays the driver's.

use crate::driver;
use crate::hooks;
use crate::hooks::abi::{Out, Real};
use crate::status::Answer;
use std::ffi::c_void;

/// Asks the driver, and answers with our function where we have one for the driver's.
pub fn get(real: Real<'_>, found: Option<Out<'_, *mut c_void>>) -> Answer {
    let Some(found) = found else { return real() };
    let found = found.preset(std::ptr::null_mut());
    real()?;
    if !crate::settings::is_off()
        && let Some(ours) = hooks::replacement_of(driver::get(), found.get())
    {
        found.set(ours);
    }
    Ok(())
}
