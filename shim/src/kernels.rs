//! Kernels that the user lists: each touches only the allocations that its parameters point into.
//!
//! Invariant: a launch counts as described only if every 8 bytes of its parameters, from the start of each, that are an
//! address of ours lie in a live allocation. What the driver does not tell (a packed buffer of parameters, a name, a
//! size), and memory that the program maps itself, makes it undescribed. Who lists kernels pays for it at each launch:
//! the driver is asked for names.

use crate::driver;
use crate::operands;
use crate::process::{self, Process};
use std::collections::BTreeSet;
use std::ffi::{CString, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_ffi::cuda::sys::{CUdeviceptr, CUfunction, CUlaunchConfig, CUresult, CUstream};
use tidegate_ffi::tensor::Region;

/// More parameters than a kernel can have: they take 32764 bytes at most.
const MOST_PARAMETERS: usize = 1 << 15;
/// Bytes of an address.
const ADDRESS: usize = size_of::<CUdeviceptr>();

static ARE_LISTED: AtomicBool = AtomicBool::new(false);

/// Whether the user lists any kernels. Where there are any no launch is an [ordinary](crate::collectives::is_ordinary) one.
pub fn are_listed() -> bool {
    ARE_LISTED.load(Ordering::Relaxed)
}

/// The kernels that are listed, by the names that the driver has for them.
#[derive(Debug, Default)]
pub struct Listed(BTreeSet<CString>);

impl Listed {
    /// From names with commas between them.
    pub fn read(names: &str) -> Self {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self(names.filter_map(|name| CString::new(name).ok()).collect())
    }

    /// From now on launches are looked at, if there is anything to be found.
    pub fn begin(&self) {
        ARE_LISTED.store(!self.0.is_empty(), Ordering::Relaxed);
    }
}

/// What is launched, with its parameters one by one; null: they are in a buffer.
#[derive(Clone, Copy)]
pub struct Launch {
    function: CUfunction,
    parameters: *mut *mut c_void,
}

/// `cuLaunchKernel`'s arguments.
type Plain = (
    CUfunction,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
);
/// `cuLaunchKernelEx`'s arguments.
type Configured = (*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
/// `cuLaunchCooperativeKernel`'s arguments.
type Cooperative =
    (CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void);

impl From<Plain> for Launch {
    fn from(arguments: Plain) -> Self {
        Self { function: arguments.0, parameters: arguments.9 }
    }
}

impl From<Configured> for Launch {
    fn from((_, function, parameters, _): Configured) -> Self {
        Self { function, parameters }
    }
}

impl From<Cooperative> for Launch {
    fn from(arguments: Cooperative) -> Self {
        Self { function: arguments.0, parameters: arguments.9 }
    }
}

/// While it lives, what the thread submits is described by a launch's parameters.
struct Described(());

impl Drop for Described {
    fn drop(&mut self) {
        operands::pop();
    }
}

/// Notes what a launch uses, if kernels are listed and its is one of them.
///
/// # Safety
/// What the driver's manual asks of the launch's arguments.
#[cold]
#[inline(never)]
pub unsafe fn note_use(launch: Launch) {
    if are_listed() {
        // SAFETY: the caller's promise.
        drop(unsafe { describe(launch) });
    }
}

/// Whether all that a launch uses is known, by its list or by the program, and there.
///
/// # Safety
/// What the driver's manual asks of the launch's arguments.
#[cold]
#[inline(never)]
pub unsafe fn are_operands_resident(launch: Launch) -> bool {
    // SAFETY: the caller's promise.
    let _described = if are_listed() { unsafe { describe(launch) } } else { None };
    operands::are_resident()
}

/// Describes a launch, if its kernel is listed and the program does not describe it itself.
///
/// # Safety
/// What the driver's manual asks of the launch's arguments.
unsafe fn describe(launch: Launch) -> Option<Described> {
    let describe = || {
        let process = process::active().filter(|_| !operands::are_described())?;
        // SAFETY: the caller's promise.
        let operands = unsafe { launch.operands(process) }?;
        let described = Described(());
        operands::push(operands.len(), operands.into_iter().map(Some));
        Some(described)
    };
    // The caller, a function that C has called, must not unwind.
    catch_unwind(AssertUnwindSafe(describe)).ok().flatten()
}

impl Launch {
    /// What is launched.
    pub fn function(self) -> CUfunction {
        self.function
    }

    /// The allocations that its parameters point into, if that is all it touches.
    ///
    /// # Safety
    /// What the driver's manual asks of the launch's arguments.
    unsafe fn operands(&self, process: &Process) -> Option<Vec<Region>> {
        let mut operands = Vec::new();
        if self.parameters.is_null() || !self.is_listed(&process.settings.kernels) {
            return None;
        }
        for index in 0..MOST_PARAMETERS {
            // What has no parameters at all may have some that the driver does not tell.
            let Some(bytes) = self.parameter_bytes(index)? else { return (index > 0).then_some(operands) };
            // SAFETY: as many pointers lie there as the kernel has parameters: the caller's promise.
            let parameter = unsafe { self.parameters.wrapping_add(index).read() };
            if parameter.is_null() {
                return None;
            }
            for word in 0..bytes / ADDRESS {
                let place = parameter.cast::<CUdeviceptr>().wrapping_add(word);
                // SAFETY: each points to as many bytes as the parameter has, likewise.
                let address = unsafe { place.read_unaligned() };
                operands.extend(allocation_at(process, address)?);
            }
        }
        None
    }

    fn is_listed(&self, listed: &Listed) -> bool {
        // SAFETY: the function is about to be launched.
        unsafe { driver::kernel_name(self.function) }.is_some_and(|name| listed.0.contains(name))
    }

    /// The size of a parameter, `Some(None)` behind the last. `None`: the driver does not tell.
    fn parameter_bytes(&self, index: usize) -> Option<Option<usize>> {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the results go to our own variables; the driver checks the rest.
        match unsafe { driver::get().cuFuncGetParamInfo(self.function, index, &mut offset, &mut bytes) } {
            Ok(()) => Some(Some(bytes)),
            Err(error) if error.code == CUresult::CUDA_ERROR_INVALID_VALUE => Some(None),
            Err(_) => None,
        }
    }
}

/// The whole allocation that a word of a parameter points into, if it is an address of ours. `None`: it is, and
/// nothing is allocated there, or the program has mapped it itself: then nobody knows what else belongs to it.
fn allocation_at(process: &Process, address: CUdeviceptr) -> Option<Option<Region>> {
    if let Some(tenant) = process.tenants.with_address(address) {
        let found = tenant.find(address)?;
        return Region::range(found.start, found.bytes).ok().map(Some);
    }
    process.loose.handles.lock().mapped_at(address).is_none().then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn names_are_read_as_people_write_them() {
        let Listed(names) = Listed::read(" _Z3addPf, ,scale,");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), [c"_Z3addPf", c"scale"]);
        assert!(Listed::read("").0.is_empty());
    }

    #[test]
    fn without_a_list_no_launch_is_looked_at() {
        Listed::default().begin();
        assert!(!are_listed());
        let launch = Launch { function: ptr::null_mut(), parameters: ptr::null_mut() };
        // SAFETY: nothing is launched.
        assert!(unsafe { describe(launch) }.is_none());
    }
}
