//! Hints for Tidegate, for any program: copy this file into yours (it needs only `libc`).
//!
//! Under Tidegate the functions of `tidegate.h` are in the process and are found by name; without
//! it every call here does nothing. Hints are for speed alone: whatever is told, or wrongly told,
//! Tidegate keeps every live byte.

use std::ffi::{CStr, c_int, c_void};
use std::sync::LazyLock;

/// `TIDEGATE_PERSISTENT`: memory that stays allocated over many iterations.
const PERSISTENT: c_int = 1;

/// The C functions, as far as they are there.
struct Api {
    scope_push: Option<unsafe extern "C" fn(c_int)>,
    scope_pop: Option<unsafe extern "C" fn()>,
    operands_push: Option<unsafe extern "C" fn(*const Tensor, usize) -> c_int>,
    operands_pop: Option<unsafe extern "C" fn()>,
    boundary: Option<unsafe extern "C" fn() -> c_int>,
    job_done: Option<unsafe extern "C" fn()>,
}

static API: LazyLock<Api> = LazyLock::new(|| {
    let [push, pop] = [c"tidegate_scope_push", c"tidegate_scope_pop"].map(find);
    let [describe, forget] = [c"tidegate_operands_push", c"tidegate_operands_pop"].map(find);
    let [boundary, done] = [c"tidegate_boundary", c"tidegate_job_done"].map(find);
    Api {
        // SAFETY: the type is that of this name in `tidegate.h`; an `Option` of a function is
        // a pointer that may be null.
        scope_push: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(push) },
        // SAFETY: as above.
        scope_pop: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(pop) },
        // SAFETY: as above.
        operands_push: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(describe) },
        // SAFETY: as above.
        operands_pop: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(forget) },
        // SAFETY: as above.
        boundary: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(boundary) },
        // SAFETY: as above.
        job_done: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(done) },
    }
});

/// The address of a function loaded into this process, or null.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` ends in a zero byte; the look-up has no other demands.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Runs `allocate`; the device memory that this thread allocates meanwhile is for many iterations:
/// weights, optimizer state. Everything else is taken as temporary until it lives long.
pub fn persistent<T>(allocate: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(PERSISTENT);
    allocate()
}

/// A tensor in the device's memory: `tidegate_tensor`.
#[repr(C)]
#[derive(Default)]
pub struct Tensor {
    address: u64,
    element: u64,
    rank: u64,
    sizes: [i64; 8],
    strides: [i64; 8],
}

impl Tensor {
    /// Floats, one behind the other.
    pub fn of_floats(address: u64, count: usize) -> Self {
        let mut tensor = Self { address, element: 4, rank: 1, ..Self::default() };
        (tensor.sizes[0], tensor.strides[0]) = (count as i64, 4);
        tensor
    }
}

/// Runs `submit`; what this thread submits meanwhile uses these operands of the device's memory and nothing else of it. So
/// it need not wait until all of the job's memory is back, when it is the job's turn again.
pub fn described<T>(operands: &[Tensor], submit: impl FnOnce() -> T) -> T {
    let _described = Described::enter(operands);
    submit()
}

/// Says that an iteration ended: the moment when the least memory is alive, so the cheapest one
/// to let another job run. May wait here until it is this job's turn again.
pub fn boundary() {
    if let Some(boundary) = API.boundary {
        // SAFETY: no arguments. What it returns tells whether the hint was of use; there is
        // nothing for a program to do about it.
        let _ = unsafe { boundary() };
    }
}

/// Says that the last iteration ended and the program will ask little more of the GPU.
pub fn job_done() {
    if let Some(job_done) = API.job_done {
        // SAFETY: no arguments, no result.
        unsafe { job_done() };
    }
}

/// A scope of this thread, left when dropped, also by `?` or a panic.
struct Scope;

impl Scope {
    fn enter(class: c_int) -> Self {
        if let Some(push) = API.scope_push {
            // SAFETY: `class` is one that `tidegate.h` names; `drop` leaves the scope.
            unsafe { push(class) };
        }
        Scope
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(pop) = API.scope_pop {
            // SAFETY: pairs with the `push` of `enter`, on the same thread: a `Scope` never
            // leaves `persistent`.
            unsafe { pop() };
        }
    }
}

/// A description of what this thread submits, taken back when dropped.
struct Described;

impl Described {
    fn enter(operands: &[Tensor]) -> Self {
        if let Some(push) = API.operands_push {
            // SAFETY: so many tensors, of the type that `tidegate.h` has. What it returns tells whether the
            // description was of use.
            let _ = unsafe { push(operands.as_ptr(), operands.len()) };
        }
        Described
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        if let Some(pop) = API.operands_pop {
            // SAFETY: pairs with the `push` of `enter`, on the same thread.
            unsafe { pop() };
        }
    }
}
