//! Managed memory: the driver's own, which it moves page by page to where it is used.
//!
//! A job that is switched keeps it: the program's threads may use it on the host meanwhile, and its kernels find it again. But
//! its pages on the GPU are memory that other jobs lack. So when memory of a stopped process is wanted, the driver is asked to move
//! them to the host (`cuMemPrefetchAsync`); they come back as they are used.
//!
//! Where host and GPU cannot use it at the same time (`CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS` is 0) it lies on the GPU for as
//! long as it exists, and the job is [not stopped](crate::hooks) any more.
//!
//! Invariant: a range that the program has freed is at most asked for once more, which the driver refuses.

use crate::contexts::Used;
use crate::driver::{self, Context, Current, Relaxed};
use crate::log::debug;
use crate::process::Process;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::{CUdevice_attribute, CUdeviceptr};

/// See the module.
#[derive(Default)]
pub struct ManagedMemory {
    /// By where they start.
    ranges: Mutex<BTreeMap<CUdeviceptr, Range>>,
}

#[derive(Clone, Copy)]
struct Range {
    bytes: usize,
    /// In which it was allocated.
    context: Context,
}

/// Whether the current context's GPU and the host use managed memory at the same time.
pub fn is_concurrent() -> bool {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    let device = driver::current_device().ok();
    device.and_then(|device| driver::device_attribute(device, attribute)).is_some_and(|value| value != 0)
}

impl ManagedMemory {
    /// There are `bytes` bytes of it, which that context has allocated.
    pub fn note(&self, address: CUdeviceptr, bytes: usize, context: Context) {
        self.ranges.lock().insert(address, Range { bytes, context });
    }

    /// The program frees what starts there.
    pub fn forget(&self, address: CUdeviceptr) {
        self.ranges.lock().remove(&address);
    }

    /// Moves all of it to the host, and returns when it is there. All work of the process has ended.
    pub fn evict(&self, process: &Process) {
        // The program may free some meanwhile, and does not wait for this.
        let ranges = self.ranges.lock().clone();
        let _relaxed = Relaxed::begin();
        for (address, Range { bytes, context }) in ranges {
            let moved = process.contexts.keep(context).map(|used| evict_one(&used, address, bytes));
            if let Some(Err(error)) = &moved {
                debug!("{bytes} bytes of managed memory stay where they are: {error}");
            }
            // Else it was freed, or has gone with its context.
            if !matches!(moved, Some(Ok(()))) {
                self.forget(address);
            }
        }
    }
}

fn evict_one(used: &Used<'_>, address: CUdeviceptr, bytes: usize) -> Result<(), DriverError> {
    let _current = Current::make(used.context)?;
    driver::prefetch_to_host(address, bytes)
}
