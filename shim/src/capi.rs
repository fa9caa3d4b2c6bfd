//! The C interface for programs that know Tidegate: `include/tidegate.h`.
//!
//! Invariant: every function is harmless without a manager, on any thread, with any argument.

use crate::classify::Scopes;
use crate::log::{Once, info};
use crate::operands;
use crate::process;
use crate::status::Status;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use tidegate_ffi::tensor::{MOST_DIMENSIONS, Region};
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
pub extern "C" fn tidegate_hold(address: u64) -> c_int {
    let mut held = Err(Status::UNKNOWN);
    shielded(|| {
        held = match process::active().map(|process| (process, process.tenants.with_address(address))) {
            Some((process, Some(tenant))) => tenant.hold(process, address),
            _ => Ok(()),
        };
    });
    held.map_or_else(|Status(error)| error as c_int, |()| 0)
}

/// A `tidegate_tensor`, see tidegate.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tensor {
    address: u64,
    element: u64,
    rank: u64,
    sizes: [i64; MOST_DIMENSIONS],
    strides: [i64; MOST_DIMENSIONS],
}

impl Tensor {
    /// Where it lies; `None`: it cannot be.
    fn region(&self) -> Option<Region> {
        let rank = usize::try_from(self.rank).ok()?;
        let (sizes, strides) = (self.sizes.get(..rank)?, self.strides.get(..rank)?);
        Region::mapping(self.address, self.element, sizes, strides).ok()
    }
}

/// See tidegate.h.
///
/// # Safety
/// `count` tensors lie at `list`, through the call, unless it is null.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn tidegate_operands_push(list: *const Tensor, count: usize) -> c_int {
    let mut is_described = false;
    shielded(|| {
        let tensors: Option<&[Tensor]> = match count {
            0 => Some(&[]),
            // SAFETY: not null, and the caller's promise.
            _ if !list.is_null() => Some(unsafe { std::slice::from_raw_parts(list, count) }),
            _ => None,
        };
        is_described = match tensors {
            Some(tensors) => operands::push(count, tensors.iter().map(Tensor::region)),
            None => operands::push(1, std::iter::once(None)),
        };
    });
    c_int::from(!is_described)
}

/// See tidegate.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn tidegate_operands_pop() {
    shielded(operands::pop);
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
        // SAFETY: no tensor is said to be there, or nowhere.
        assert_eq!(unsafe { tidegate_operands_push(ptr::null(), 0) }, 0);
        // SAFETY: as above.
        assert_ne!(unsafe { tidegate_operands_push(ptr::null(), 3) }, 0);
        (0..3).for_each(|_| tidegate_operands_pop());
        // SAFETY: no room is said to be there.
        assert_eq!(unsafe { tidegate_status(ptr::null_mut(), 0) }, 0);
    }

    #[test]
    fn descriptions_of_what_cannot_be_are_told_apart() {
        let good = Tensor { address: 4096, element: 4, rank: 2, sizes: [3; 8], strides: [-16; 8] };
        let told = |tensors: &[Tensor]| {
            // SAFETY: a slice of that length.
            let answer = unsafe { tidegate_operands_push(tensors.as_ptr(), tensors.len()) };
            tidegate_operands_pop();
            answer == 0
        };
        assert!(told(&[good, Tensor { rank: 0, ..good }, Tensor { rank: 8, strides: [0; 8], ..good }]));
        for bad in [
            Tensor { element: 0, ..good },
            Tensor { rank: 9, ..good },
            Tensor { rank: u64::MAX, ..good },
            Tensor { sizes: [-1; 8], ..good },
            Tensor { address: 8, ..good },
            Tensor { strides: [i64::MAX; 8], ..good },
        ] {
            assert!(!told(&[good, bad]));
        }
    }

    #[test]
    fn the_header_names_every_function_and_the_classes() {
        let header = include_str!("../include/tidegate.h");
        for line in [
            "void tidegate_scope_push(int cls);",
            "void tidegate_scope_pop(void);",
            "void tidegate_tag(uint64_t device_address, int cls);",
            "int tidegate_boundary(void);",
            "int tidegate_hold(uint64_t device_address);",
            "int tidegate_operands_push(const tidegate_tensor *operands, size_t count);",
            "void tidegate_operands_pop(void);",
            "uint64_t address, element, rank;",
            "int64_t sizes[8], strides[8];",
            "void tidegate_job_done(void);",
            "size_t tidegate_status(char *text, size_t size);",
            "#define TIDEGATE_PERSISTENT 1",
            "#define TIDEGATE_TEMPORARY 2",
        ] {
            assert!(header.contains(line), "{line}");
        }
    }
}
