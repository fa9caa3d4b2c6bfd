//! Every block that PyTorch's allocator deals out and takes back.
//!
//! PyTorch gets memory in segments and deals it out itself. For each block its CUDA library calls a
//! function of its core library, meant for the profiler, through the dynamic linker: ours comes first,
//! notes the block and calls the real one.
//!
//! ```text
//! libc10_cuda.so: malloc, free ──► c10::reportMemoryUsageToProfiler (here) ──► libc10.so's
//!                                     │ the sum of all blocks, as told = as counted?
//!                                     └ no: nothing is believed, segments are alive as a whole
//! ```
//! The name and the five arguments are the same in PyTorch 2.4 to 2.15. It is not called by the
//! `cudaMallocAsync` backend and without caching: there every tensor is an allocation of the driver's.
//!
//! Invariant: whatever PyTorch says, no live byte is lost (I1). A block is told before anything is
//! submitted that uses it, and what is not told is alive.

use crate::blocks::Mismatch;
use crate::log::{Level, Once, info};
use crate::process::{self, Part, Process};
use crate::symbols;
use crate::tenant::Tenant;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `c10::Device`, as it is passed: by value, in one register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    kind: i8,
    index: i8,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;

/// `void c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`. It may throw.
type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device);

/// PyTorch has dealt out (`change` > 0) or taken back a block at `address`; its blocks on that device have
/// `allocated` bytes now, its segments `reserved`.
#[cfg_attr(not(test), unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))]
pub unsafe extern "C-unwind" fn report(
    address: *mut c_void,
    change: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    if device.kind == CUDA
        && let Some(process) = process::active()
    {
        let told = Told { address: address as u64, change, total: allocated as i64 };
        let note = AssertUnwindSafe(|| process.reports.note(process, device.index, told));
        if catch_unwind(note).is_err() {
            distrust(process, Mismatch::Unforeseen);
        }
    }
    if let Some(theirs) = theirs() {
        // SAFETY: PyTorch's function of this name, with the arguments that it was called with.
        unsafe { theirs(address, change, allocated, reserved, device) }
    }
}

/// The function that PyTorch meant. `None`: it has none in a library of its own.
fn theirs() -> Option<Report> {
    static THEIRS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut theirs = THEIRS.load(Ordering::Acquire);
    if theirs.is_null() {
        let name = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
        theirs = symbols::find_in_loaded(c"libc10.so", name);
        THEIRS.store(theirs, Ordering::Release);
    }
    // SAFETY: null, or a function of the C++ name that says exactly these types.
    unsafe { std::mem::transmute::<*mut c_void, Option<Report>>(theirs) }
}

/// What a call says.
#[derive(Clone, Copy)]
struct Told {
    address: u64,
    change: i64,
    total: i64,
}

/// What was told, by PyTorch's number of the device.
#[derive(Default)]
pub struct Reports {
    devices: Mutex<Vec<Tally>>,
}

/// What was told of one device.
struct Tally {
    device: i8,
    bytes: i64,
    is_distrusted: bool,
}

impl Reports {
    fn note(&self, process: &Process, device: i8, told: Told) {
        let mut devices = self.devices.lock();
        let index = devices.iter().position(|tally| tally.device == device).unwrap_or_else(|| {
            devices.push(Tally { device, bytes: 0, is_distrusted: false });
            devices.len() - 1
        });
        let tally = &mut devices[index];
        if tally.is_distrusted {
            return;
        }
        tally.bytes += told.change;
        let sum = Mismatch::Sum { ours: tally.bytes, theirs: told.total };
        let is_right = tally.bytes == told.total;
        let noted = told.note(process).and(if is_right { Ok(()) } else { Err(sum) });
        if let Err(mismatch) = noted {
            tally.is_distrusted = true;
            distrust(process, mismatch);
        }
    }

    /// Compares what was told block by block with a list of all blocks: address and bytes.
    pub fn audit(&self, process: &Process, blocks: &[[u64; 2]]) {
        // Nothing is told meanwhile.
        let devices = self.devices.lock();
        if devices.iter().any(|tally| tally.is_distrusted) {
            return;
        }
        let mut theirs = BTreeSet::new();
        for [address, bytes] in blocks {
            let noted = process.for_each_part(*address, *bytes, |part| {
                theirs.insert((part.tenant.id, part.class, part.bytes.start, part.bytes.end));
                Ok(())
            });
            if let Err(mismatch) = noted {
                return distrust(process, mismatch);
            }
        }
        let of = |tenant: &'static Tenant| {
            let blocks = tenant.blocks().into_iter();
            blocks.map(|(class, start, bytes)| (tenant.id, class, start, start + bytes))
        };
        let ours: BTreeSet<_> = process.tenants.all().into_iter().flat_map(of).collect();
        match ours.symmetric_difference(&theirs).count() {
            0 => info!("audit: {} blocks are as PyTorch has them", ours.len()),
            count => distrust(process, Mismatch::Blocks(count)),
        }
    }
}

/// Nothing that was told of blocks is believed any more.
fn distrust(process: &Process, mismatch: Mismatch) {
    static SAID: Once = Once::new();
    let words = format_args!(
        "what PyTorch says of its memory does not add up ({mismatch}): \
         its segments are kept as a whole, which makes switches slower"
    );
    SAID.say(Level::Warn, words);
    process.tenants.all().into_iter().for_each(|tenant| tenant.disbelieve(process));
}

impl Told {
    fn note(self, process: &Process) -> Result<(), Mismatch> {
        let bytes = self.change.unsigned_abs();
        process.for_each_part(self.address, bytes, |Part { tenant, class, bytes }| match self.change {
            0 => Ok(()),
            1.. => tenant.deal_out(process, class, bytes),
            ..0 => tenant.take_back(process, class, bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_manager_and_without_pytorch_a_report_is_harmless() {
        for (change, kind) in [(512, CUDA), (-512, CUDA), (7, 0)] {
            // SAFETY: the address is only compared, and there is no PyTorch to be called.
            unsafe { report(ptr::null_mut(), change, 512, 2 << 20, Device { kind, index: 0 }) };
        }
    }
}
