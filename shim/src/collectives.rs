//! Launches of collectives, as a measure of where the processes of a job are.
//!
//! A collective's kernel ends when all ranks have launched theirs. A program that reports no boundaries is stopped where
//! all of its ranks have launched the same number of them: then each of them ends ([`crate::gate`], `docs/gangs.md`).
//!
//! A kernel is a collective's if its name begins as those of NCCL do. The driver is asked for the name of each kernel
//! once. What it does not name (before CUDA 12.3), and what graphs replay, is not counted.

use crate::driver;
use crate::gate::GATE;
use crate::process;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_ffi::cuda::sys::CUfunction;

/// How the names of NCCL's kernels begin: `ncclDevKernel_…`, `ncclKernel_…`.
const PREFIX: &[u8] = b"nccl";
/// Kernels that are known at once: each has one place where it can be.
const KNOWN: usize = 4096;
/// The same of those that are looked for first.
const ORDINARY: usize = 256;

/// Kernels that are no collective's, by a part of their addresses: all that a launch costs, nearly always.
static ORDINARY_KERNELS: [AtomicU64; ORDINARY] = [const { AtomicU64::new(0) }; ORDINARY];
/// By a part of its address: a kernel, doubled, and 1 for a collective's.
static KERNELS: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Whether a kernel is a collective's.
#[inline(always)]
pub fn is_one(kernel: CUfunction) -> bool {
    let address = kernel.addr() as u64;
    let place = &ORDINARY_KERNELS[(address >> 4) as usize % ORDINARY];
    place.load(Ordering::Relaxed) != address && look(kernel, place)
}

#[cold]
#[inline(never)]
fn look(kernel: CUfunction, ordinary: &AtomicU64) -> bool {
    let address = kernel.addr() as u64;
    let place = &KERNELS[(address >> 4 ^ address >> 16) as usize % KNOWN];
    let known = place.load(Ordering::Relaxed);
    // SAFETY: the kernel is about to be launched.
    let name = || unsafe { driver::kernel_name(kernel) };
    let is_named_so = || name().is_some_and(|name| name.to_bytes().starts_with(PREFIX));
    let is_one = if known >> 1 == address { known & 1 == 1 } else { is_named_so() };
    // Of an address that cannot be doubled nothing is kept.
    if address >> 63 == 0 {
        place.store(address << 1 | u64::from(is_one), Ordering::Relaxed);
    }
    if !is_one {
        ordinary.store(address, Ordering::Relaxed);
    }
    is_one
}

/// The calling thread is about to launch a collective. Waits here when a closing waits for that.
#[cold]
#[inline(never)]
pub fn come() {
    // The caller, a function that C has called, must not unwind.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let Some(process) = process::active() else { return };
        let number = process.count_collective();
        // A thread that captures is never held.
        if !process.captures.any() {
            GATE.collective(number);
        }
    }));
}
