//! The C interface for programs that know Tidegate: `include/tidegate.h`.
//!
//! Invariant: every function is harmless without a manager, on any thread, with any argument.

use crate::classify::Scopes;
use crate::log::{Once, info};
use crate::process;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use tidegate_ffi::units::Class;
use tidegate_ffi::wire::message::FromShim;

thread_local! {
    static SCOPES: Cell<Scopes> = const { Cell::new(Scopes::NONE) };
}

/// The class of memory that the calling thread allocates now.
pub fn birth_class() -> Class {
    SCOPES.get().birth_class()
}

fn class(number: c_int) -> Option<Class> {
    match number {
        1 => Some(Class::Persistent),
        2 => Some(Class::Temporary),
        _ => None,
    }
}

fn change_scopes(change: impl FnOnce(&mut Scopes)) {
    let mut scopes = SCOPES.get();
    change(&mut scopes);
    SCOPES.set(scopes);
}

/// No panic reaches the program.
fn shielded(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        info!("a call of tidegate.h failed in a way that was not foreseen");
    }
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_scope_push(number: c_int) {
    change_scopes(|scopes| scopes.push(class(number)));
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_scope_pop() {
    change_scopes(Scopes::pop);
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_tag(address: u64, number: c_int) {
    shielded(|| {
        if let (Some(process), Some(class)) = (process::active(), class(number)) {
            process.tag(address, 1, class);
        }
    });
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_boundary() -> c_int {
    shielded(|| {
        if let Some(process) = process::active() {
            process.told_boundary();
        }
    });
    0
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_hold(address: u64) {
    shielded(|| {
        if let Some(process) = process::active()
            && let Some(tenant) = process.tenants.with_address(address)
        {
            tenant.hold(process, address);
        }
    });
}

/// See tidegate.h.
///
/// # Safety
/// `text` has room for `size` bytes, or `size` is 0.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn tidegate_status(text: *mut c_char, size: usize) -> usize {
    let mut needed = 0;
    shielded(|| {
        if let Some(process) = process::active() {
            let status = process.status();
            needed = status.len() + 1;
            if needed <= size {
                // SAFETY: it has room for so many bytes, as promised; the text is ours.
                unsafe { ptr::copy_nonoverlapping(status.as_ptr().cast(), text, status.len()) };
                // SAFETY: the last of these bytes.
                unsafe { text.wrapping_add(status.len()).write(0) };
            }
        }
    });
    needed
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_job_done() {
    shielded(|| {
        if let Some(process) = process::active() {
            static SAID: Once = Once::new();
            if SAID.is_first() {
                // When the session is over there is nobody to tell.
                let _ = process.link.send(FromShim::JobDone);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_manager_every_function_is_harmless() {
        tidegate_scope_pop();
        tidegate_scope_push(77);
        tidegate_scope_push(1);
        assert_eq!(birth_class(), Class::Persistent);
        tidegate_scope_pop();
        assert_eq!(birth_class(), Class::Temporary);
        tidegate_tag(1, 1);
        tidegate_hold(u64::MAX);
        assert_eq!(tidegate_boundary(), 0);
        tidegate_job_done();
        // SAFETY: no room is said to be there.
        assert_eq!(unsafe { tidegate_status(ptr::null_mut(), 0) }, 0);
    }

    #[test]
    fn the_header_names_every_function_and_the_classes() {
        let header = include_str!("../include/tidegate.h");
        for line in [
            "void tidegate_scope_push(int cls);",
            "void tidegate_scope_pop(void);",
            "void tidegate_tag(uint64_t device_address, int cls);",
            "int tidegate_boundary(void);",
            "void tidegate_hold(uint64_t device_address);",
            "void tidegate_job_done(void);",
            "size_t tidegate_status(char *text, size_t size);",
            "#define TIDEGATE_PERSISTENT 1",
            "#define TIDEGATE_TEMPORARY 2",
        ] {
            assert!(header.contains(line), "{line}");
        }
    }
}
