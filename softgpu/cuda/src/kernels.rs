//! Kernels of real GPUs' code whose work is known here: an opaque image has them as it has any other, and the
//! libraries of `TIDEGATE_SOFTGPU_KERNELS` come first.

use std::ffi::c_void;

use crate::image::{Kernel, Shape};

/// The kernel of that name.
pub fn kernel(name: &str) -> Option<Kernel> {
    match name {
        "tidegate_copy_ranges" => Some(Kernel { code: Some(copy_ranges), sizes: vec![8, 4] }),
        _ => None,
    }
}

/// An entry of the list that `copy_ranges` is given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    to: usize,
    from: usize,
    bytes: usize,
}

/// `(list, count)`: copies ranges that meet nowhere.
unsafe extern "C" fn copy_ranges(_: *const Shape, arguments: *const *const c_void) {
    // SAFETY: the kernel ABI: two arguments, of the sizes above.
    let [list, count] = unsafe { arguments.cast::<[*const c_void; 2]>().read() };
    // SAFETY: the first is an address.
    let list = unsafe { list.cast::<*const Range>().read() };
    // SAFETY: the second is a number.
    let count = unsafe { count.cast::<u32>().read() } as usize;
    for at in 0..count {
        // SAFETY: the launch says how many ranges its list has; if it lies, the fault is its context's.
        let Range { to, from, bytes } = unsafe { list.wrapping_add(at).read() };
        // SAFETY: as above, of the ranges; they meet nowhere.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    }
}
