//! Driver functions of which we know only the name: refused ones, and ones that the table does not
//! know at all.
//!
//! Their parameters are not known here, so a call of one is either answered without them, or goes on
//! in the driver by a [`jump`](crate::symbols::jump), as if nothing had been in between.

use super::abi;
use crate::driver;
use crate::log::{Once, warning};
use crate::symbols::jump::{Decision, ENTRY_BYTES, entries};
use once_cell::race::OnceBox;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_ffi::cuda::sys::CUresult;

/// A function that is refused.
pub struct Refused {
    name: &'static CStr,
    said: Once,
}

impl Refused {
    /// The function `name`, which ends with a zero byte.
    pub const fn new(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, said: Once::new() },
            Err(_) => panic!("a C name"),
        }
    }
}

/// Refuses a call, by name; without a manager the driver answers.
pub unsafe extern "C" fn refuse(
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    row: *const Refused,
) -> Decision {
    // SAFETY: `entry!` passes the address of the static that it was given.
    let row = unsafe { &*row };
    if abi::is_refused(row.name, &row.said) {
        return refusal(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    match driver::address_of(row.name) {
        real if real.is_null() => refusal(CUresult::CUDA_ERROR_NOT_FOUND),
        real => Decision::pass_on(real),
    }
}

fn refusal(code: CUresult) -> Decision {
    Decision::answer(std::ptr::without_provenance_mut(code as usize))
}

/// Unknown functions that one process can be told of, at most.
const MOST_UNKNOWN: usize = 256;

/// A function of the driver that the table does not know: it was made after this version of Tidegate.
struct Unknown {
    name: CString,
    real: usize,
    said: Once,
}

static UNKNOWN: [OnceBox<Unknown>; MOST_UNKNOWN] = [const { OnceBox::new() }; MOST_UNKNOWN];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What a program gets in place of the driver's function `name` at `real`, of which nothing is known:
/// one that says its name when it is first called, and goes on there. `None`: there are too many.
pub fn stand_in_for(name: &CStr, real: *mut c_void) -> Option<*mut c_void> {
    let is_it = |unknown: &Unknown| unknown.real == real as usize;
    let index = match UNKNOWN.iter().position(|slot| slot.get().is_some_and(is_it)) {
        Some(index) => index,
        None => {
            let index = COUNT.fetch_add(1, Ordering::Relaxed);
            let unknown = Unknown { name: name.to_owned(), real: real as usize, said: Once::new() };
            UNKNOWN.get(index)?.set(Box::new(unknown)).ok()?;
            index
        }
    };
    Some((stand_ins as *const () as usize + index * ENTRY_BYTES) as *mut c_void)
}

/// `MOST_UNKNOWN` functions.
#[unsafe(naked)]
unsafe extern "C" fn stand_ins() {
    entries!(MOST_UNKNOWN, tell)
}

unsafe extern "C" fn tell(_: *mut c_void, _: *mut c_void, _: *mut c_void, at: *const c_void) -> Decision {
    let index = (at as usize - stand_ins as *const () as usize) / ENTRY_BYTES;
    let Some(unknown) = UNKNOWN.get(index).and_then(OnceBox::get) else {
        // Nobody is given a stand-in before its slot is filled.
        return refusal(CUresult::CUDA_ERROR_NOT_FOUND);
    };
    if crate::process::active().is_some() && unknown.said.is_first() {
        let name = unknown.name.to_string_lossy();
        // A panic while speaking changes nothing about the call.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            warning!("{name} is new to this version of Tidegate: what it does is neither counted nor gated");
        }));
    }
    Decision::pass_on(unknown.real as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn sum(a: u64, b: f64, c: u64, d: u64, e: u64, f: u64, g: u64, h: f64) -> f64 {
        (a + 2 * c + 3 * d + 4 * e + 5 * f + 6 * g) as f64 + b * 100.0 + h * 1000.0
    }

    extern "C" fn other() -> u64 {
        7
    }

    #[test]
    fn an_unknown_function_gets_its_arguments_and_has_one_stand_in() {
        let first = stand_in_for(c"cuOther", other as *mut c_void).unwrap();
        let stand_in = stand_in_for(c"cuSum", sum as *mut c_void).unwrap();
        assert_ne!(first, stand_in);
        assert_eq!(stand_in_for(c"cuSum", sum as *mut c_void), Some(stand_in));
        type Sum = extern "C" fn(u64, f64, u64, u64, u64, u64, u64, f64) -> f64;
        // SAFETY: the stand-in of a function is called as that function.
        let call = unsafe { std::mem::transmute::<*mut c_void, Sum>(stand_in) };
        assert_eq!(call(1, 0.5, 2, 3, 4, 5, 6, 0.25), sum(1, 0.5, 2, 3, 4, 5, 6, 0.25));
        // SAFETY: as above.
        let call = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(first) };
        assert_eq!(call(), 7);
    }
}
