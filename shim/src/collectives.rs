//! Launches of collectives, as a measure of where the processes of a job are.
//!
//! A collective's kernel ends when all ranks have launched theirs. A program that reports no boundaries is stopped where
//! all of its ranks have launched the same number of them: then each of them ends ([`crate::gate`], `docs/gangs.md`).
//!
//! A kernel is a collective's if its name begins as those of NCCL do. The driver is asked for the name of each kernel
//! once. What it does not name (before CUDA 12.3), and what graphs replay, is not counted.

use crate::driver;
use crate::gate::GATE;
use crate::{kernels, process};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_ffi::cuda::sys::CUfunction;

/// How the names of NCCL's kernels begin: `ncclDevKernel_…`, `ncclKernel_…`.
const PREFIX: &[u8] = b"nccl";
/// Kernels that are known at once: each has one place where it can be.
const KNOWN: usize = 4096;
/// The same of those that are looked for first.
const ORDINARY: usize = 256;

/// Kernels that are no collective's, by a part of their addresses: all that a launch costs, nearly always. None is here while the user
/// [lists](crate::kernels) kernels, of which each launch is looked at.
static ORDINARY_KERNELS: [AtomicU64; ORDINARY] = [const { AtomicU64::new(0) }; ORDINARY];
/// By a part of its address: a kernel, doubled, and 1 for a collective's.
static KERNELS: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Whether nothing has to be done before a launch of this kernel, as far as it is known.
#[inline(always)]
pub fn is_ordinary(kernel: CUfunction) -> bool {
    ordinary_place(kernel).load(Ordering::Relaxed) == kernel.addr() as u64
}

#[inline(always)]
fn ordinary_place(kernel: CUfunction) -> &'static AtomicU64 {
    &ORDINARY_KERNELS[(kernel.addr() >> 4) % ORDINARY]
}

/// The calling thread is about to launch this kernel. If it is a collective's, waits here when a closing waits for that.
#[cold]
#[inline(never)]
pub fn come_if_one(kernel: CUfunction) {
    if is_one(kernel) {
        come();
    } else if !kernels::are_listed() {
        ordinary_place(kernel).store(kernel.addr() as u64, Ordering::Relaxed);
    }
}

/// Whether a kernel is a collective's.
fn is_one(kernel: CUfunction) -> bool {
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
    is_one
}

fn come() {
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
