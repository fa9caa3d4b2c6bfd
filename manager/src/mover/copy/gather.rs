//! Many tiny ranges go over the link as one: a kernel gathers them on the GPU first, or scatters them last.
//!
//! ```text
//! pieces    ▓ ░   ▓▓  ▒ ░    tiny ranges, wherever they lie
//!           │ └┐ ┌┘┌──┘ │    kernel: gathers for a save, scatters for a restore
//! staging   ▓░▓▓▒░           memory of the GPU, one for each way
//!           │                one copy
//! host      ▓░▓▓▒░           where they lie next to each other, in one memory
//! ```
//! A copy engine needs some microseconds for each copy of a batch, so ranges of 4 KiB go at a few percent of the link
//! (FACTS §4). A kernel needs none of that, but it has to be compiled by the driver, to find its memory, and to copy
//! rightly: so it is tried first, when an order has enough of such ranges (`trial`), and used where it is faster.
//!
//! Invariant: what is not gathered is left to be copied as ever. No failure of this module fails an order, unless it
//! breaks the context; then the next mover, which is given the order again, does without.
//!
//! ◇ Where jobs compute meanwhile, their kernels share the GPU's time with this one, which copies do not (FACTS §8.0).

use super::gpu::{Context, log_memory_release, log_release, read};
use super::piece::DeviceRange;
use super::trial::{self, TrialError};
use super::{Gpu, Transfer, Way};
use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, c_uint, c_void};
use std::ptr::NonNull;
use tidegate_ffi::cuda::sys::{CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};
use tidegate_ffi::cuda::{Driver, DriverError};

/// Ranges of so many bytes are not gathered: from there on batches are as fast (vLLM #57342).
const TINY: usize = 32 << 10;
/// Nor are fewer ranges in a row: gathering costs a launch and a copy, which are as many copies of a batch.
const LEAST_RANGES: usize = 16;
/// So many ranges that could be gathered are worth a trial, which takes milliseconds.
const WORTH_A_TRIAL: usize = 256;
/// How often memory for a trial is looked for: jobs may leave some later.
const TRIES: u32 = 4;
/// Staging memory of each way: a copy of so many bytes takes far longer than to launch it.
const STAGING_BYTES: u64 = 4 << 20;
/// Nor a larger part of the GPU.
const PART_OF_GPU: u64 = 128;
/// With less there is nothing to be gained, or to be timed.
const LEAST_STAGING_BYTES: usize = 128 << 10;
const _: () = assert!(TINY <= LEAST_STAGING_BYTES, "a tiny range finds room");
/// What one submission can gather: twice as many ranges as an order has moves.
const LIST_RANGES: usize = 16 << 10;
/// A warp copies a range: few blocks are fast enough for the link, and leave most of the GPU to others.
const MOST_BLOCKS: usize = 64;
const WARPS_PER_BLOCK: usize = 8;
const WARP: usize = 32;

const IMAGE: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("gather.ptx"), "\0").as_bytes()) {
    Ok(image) => image,
    Err(_) => panic!("a text"),
};
const KERNEL: &CStr = c"tidegate_copy_ranges";

/// Whether tiny ranges are gathered, and by what.
#[derive(Default)]
pub struct Gather {
    /// Since the trial.
    means: OnceCell<Means>,
    tries: Cell<u32>,
    is_given_up: Cell<bool>,
}

impl Gather {
    /// From now on nothing is gathered.
    pub fn give_up(&self, why: impl std::fmt::Display) {
        if !self.is_given_up.replace(true) {
            tracing::info!(%why, "tiny ranges are not gathered on the GPU: they go in batches");
        }
    }

    /// Makes the trial, if it has not been made and the transfers are worth it. Waits for the streams.
    pub fn prepare(&self, gpu: &Gpu, context: &Context, transfers: &[Transfer<'_>]) {
        let is_decided = self.is_given_up.get() || self.means.get().is_some();
        if is_decided || gathered_ranges(transfers) < WORTH_A_TRIAL {
            return;
        }
        self.tries.update(|tries| tries + 1);
        match trial::run(gpu, context) {
            Ok(means) => drop(self.means.set(means)),
            Err(error) if error.is_out_of_memory() && self.tries.get() < TRIES => {
                tracing::info!(%error, "tiny ranges are not gathered on the GPU yet: they go in batches");
            }
            Err(error) => self.give_up(error),
        }
    }

    /// Submits what is gathered; the result is what is not.
    pub fn submit<'t, 'a>(
        &self,
        transfers: &'t [Transfer<'a>],
        way: Way,
        stream: CUstream,
    ) -> Vec<&'t Transfer<'a>> {
        let means = self.means.get().filter(|_| !self.is_given_up.get());
        let Some(means) = means else { return transfers.iter().collect() };
        let (left, outcome) = means.submit(transfers, way, stream);
        if let Err(error) = outcome {
            self.give_up(error);
        }
        left
    }
}

/// To and from the host.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    pub out: bool,
    pub back: bool,
}

/// What gathers. The fields are dropped in this order.
pub struct Means {
    kernel: Kernel,
    pub(super) out: Option<Staging>,
    pub(super) back: Option<Staging>,
}

impl Means {
    /// Memory first: it is what may be lacking.
    pub fn make(gpu: &Gpu) -> Result<Self, TrialError> {
        let driver = gpu.driver();
        let bytes = STAGING_BYTES.min(gpu.properties().total_bytes / PART_OF_GPU) as usize;
        if bytes < LEAST_STAGING_BYTES {
            return Err(TrialError::SmallGpu);
        }
        let (out, back) = (Staging::make(driver, bytes)?, Staging::make(driver, bytes)?);
        Ok(Self { kernel: Kernel::load(driver)?, out: Some(out), back: Some(back) })
    }

    /// Submits what can be gathered, each run by a launch and a copy, until the driver refuses one. The result is what
    /// was not submitted, or may not have been.
    pub fn submit<'t, 'a>(
        &self,
        transfers: &'t [Transfer<'a>],
        way: Way,
        stream: CUstream,
    ) -> (Vec<&'t Transfer<'a>>, Result<(), DriverError>) {
        let Some(staging) = self.staging(way) else { return (transfers.iter().collect(), Ok(())) };
        let (groups, mut left) = divide(transfers, staging.memory.bytes);
        let (mut listed, mut outcome) = (0, Ok(()));
        for group in groups {
            if outcome.is_ok() && listed + group.len() <= LIST_RANGES {
                outcome = staging.submit(&self.kernel, group, listed, way, stream);
                listed += group.len();
                if outcome.is_ok() {
                    continue;
                }
            }
            left.extend(group);
        }
        (left, outcome)
    }

    /// Gives the memory of the other ways back.
    pub fn keep(&mut self, ways: Ways) {
        self.out.take_if(|_| !ways.out);
        self.back.take_if(|_| !ways.back);
    }

    fn staging(&self, way: Way) -> Option<&Staging> {
        match way {
            Way::Out => self.out.as_ref(),
            Way::In => self.back.as_ref(),
        }
    }
}

/// Memory of one stream: what lies in it is used in the stream's order.
pub struct Staging {
    pub(super) memory: DeviceMemory,
    list: LockedMemory,
}

/// What the kernel is told of a range.
#[repr(C)]
struct Entry {
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: u64,
}

impl Staging {
    fn make(driver: &'static Driver, bytes: usize) -> Result<Self, DriverError> {
        let memory = DeviceMemory::make(driver, bytes)?;
        Ok(Self { memory, list: LockedMemory::make(driver, LIST_RANGES * size_of::<Entry>())? })
    }

    /// Submits ranges that lie next to each other on the host. The list has others in its first `listed` places.
    fn submit(
        &self,
        kernel: &Kernel,
        group: &[Transfer<'_>],
        listed: usize,
        way: Way,
        stream: CUstream,
    ) -> Result<(), DriverError> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let host = first.host.to(last.host);
        let whole = Transfer::new(self.memory.range(0, host.bytes() as usize), host);
        let list = self.enter(group, listed, way);
        match way {
            Way::Out => {
                kernel.launch(list, group.len(), stream)?;
                whole.submit(way, kernel.driver, stream)
            }
            Way::In => {
                whole.submit(way, kernel.driver, stream)?;
                kernel.launch(list, group.len(), stream)
            }
        }
    }

    /// Enters ranges in the list; the result is where.
    fn enter(&self, group: &[Transfer<'_>], listed: usize, way: Way) -> CUdeviceptr {
        let mut staged = self.memory.address;
        let entry = |one: &Transfer<'_>| {
            let (piece, bytes) = (one.device.address(), one.bytes as u64);
            let (to, from) = match way {
                Way::Out => (staged, piece),
                Way::In => (piece, staged),
            };
            staged += bytes;
            Entry { to, from, bytes }
        };
        let entries: Vec<Entry> = group.iter().map(entry).collect();
        self.list.write(listed * size_of::<Entry>(), &entries)
    }
}

/// What is gathered together, at most `most` bytes each (as many as a tiny range has, at least); and what is not.
fn divide<'t, 'a>(
    transfers: &'t [Transfer<'a>],
    most: usize,
) -> (Vec<&'t [Transfer<'a>]>, Vec<&'t Transfer<'a>>) {
    let (mut groups, mut left) = (Vec::new(), Vec::new());
    for run in runs(transfers) {
        match run.len() {
            LEAST_RANGES.. => groups.extend(cut(run, most)),
            _ => left.extend(run),
        }
    }
    (groups, left)
}

/// Tiny ranges that lie next to each other on the host, and each other range by itself.
fn runs<'t, 'a>(transfers: &'t [Transfer<'a>]) -> impl Iterator<Item = &'t [Transfer<'a>]> {
    let is_tiny = |one: &Transfer<'_>| one.bytes > 0 && one.bytes < TINY;
    transfers.chunk_by(move |one, next| is_tiny(one) && is_tiny(next) && one.host.is_followed_by(next.host))
}

/// Cuts a run between ranges.
fn cut<'t, 'a>(run: &'t [Transfer<'a>], most: usize) -> Vec<&'t [Transfer<'a>]> {
    let (mut groups, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, one) in run.iter().enumerate() {
        if bytes + one.bytes > most {
            groups.push(&run[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += one.bytes;
    }
    groups.push(&run[start..]);
    groups
}

fn gathered_ranges(transfers: &[Transfer<'_>]) -> usize {
    runs(transfers).map(<[_]>::len).filter(|ranges| *ranges >= LEAST_RANGES).sum()
}

/// The kernel that copies a list of ranges.
struct Kernel {
    driver: &'static Driver,
    module: CUmodule,
    function: CUfunction,
}

impl Kernel {
    fn load(driver: &'static Driver) -> Result<Self, DriverError> {
        // SAFETY: `out` is a valid place for a module; the image is a text with its zero, in PTX.
        let module = read_pointer(|out| unsafe { driver.cuModuleLoadData(out, IMAGE.as_ptr().cast()) })?;
        let mut kernel = Self { driver, module, function: std::ptr::null_mut() };
        // SAFETY: `out` is a valid place for a function, the module is loaded, the name is a string.
        kernel.function =
            read_pointer(|out| unsafe { driver.cuModuleGetFunction(out, module, KERNEL.as_ptr()) })?;
        Ok(kernel)
    }

    /// Submits copies of the `count` ranges of a list.
    fn launch(&self, list: CUdeviceptr, count: usize, stream: CUstream) -> Result<(), DriverError> {
        let blocks = count.div_ceil(WARPS_PER_BLOCK).min(MOST_BLOCKS) as c_uint;
        let threads = (WARPS_PER_BLOCK * WARP) as c_uint;
        let count = count as c_uint;
        let mut arguments =
            [(&raw const list).cast_mut().cast::<c_void>(), (&raw const count).cast_mut().cast()];
        // SAFETY: the kernel's two parameters, read during the call. Each range of the list lies in a window or a
        // staging memory, which the GPU may read and write, and which stay until whoever submits has waited for the
        // stream; so does the list, whose entries are not written again before.
        unsafe {
            self.driver.cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once, here; every launch has been waited for (Stream::run).
        log_memory_release("a module", unsafe { self.driver.cuModuleUnload(self.module) });
    }
}

fn read_pointer<T>(call: impl FnOnce(*mut *mut T) -> Result<(), DriverError>) -> Result<*mut T, DriverError> {
    let mut value = std::ptr::null_mut();
    call(&mut value)?;
    Ok(value)
}

/// Memory of the GPU that is this process's alone.
pub struct DeviceMemory {
    driver: &'static Driver,
    address: CUdeviceptr,
    pub(super) bytes: usize,
}

impl DeviceMemory {
    fn make(driver: &'static Driver, bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: `out` is a valid place for an address; a context is current (Gpu::engage).
        let address = read(|out| unsafe { driver.cuMemAlloc_v2(out, bytes) })?;
        Ok(Self { driver, address, bytes })
    }

    /// Some of its bytes.
    pub(super) fn range(&self, offset: usize, bytes: usize) -> DeviceRange<'_> {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes from {offset} on, of {}", self.bytes);
        DeviceRange::new(self.address + offset as u64, bytes as u64)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: made by `make`, freed once, here; what used it has been waited for (Stream::run).
        log_memory_release("staging memory", unsafe { self.driver.cuMemFree_v2(self.address) });
    }
}

/// Page-locked host memory, which the GPU finds at the same address (unified addressing).
pub struct LockedMemory {
    driver: &'static Driver,
    address: NonNull<u8>,
    bytes: usize,
}

impl LockedMemory {
    /// Zeros.
    pub(super) fn make(driver: &'static Driver, bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: `out` is a valid place for an address; a context is current (Gpu::engage).
        let address = read_pointer(|out| unsafe { driver.cuMemHostAlloc(out, bytes, 0) })?;
        let refused = DriverError { call: "cuMemHostAlloc", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY };
        let address = NonNull::new(address.cast::<u8>()).ok_or(refused)?;
        // SAFETY: so many bytes, which nobody else knows.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { driver, address, bytes })
    }

    /// Its bytes. Copies that write or read them borrow the result (`HostRange::whole`).
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: all of it, initialised by `make`; borrowed as long as the result.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }

    /// Writes entries `at` some byte; the result is where the GPU finds them.
    fn write(&self, at: usize, entries: &[Entry]) -> CUdeviceptr {
        assert!(at + size_of_val(entries) <= self.bytes, "{} entries at {at}", entries.len());
        // SAFETY: inside the memory (just checked).
        let place = unsafe { self.address.add(at) }.cast::<Entry>();
        // SAFETY: so many entries lie inside, aligned: the memory begins with a page, `at` is a multiple of an
        // entry's size. The GPU reads what was entered before, and these only once they are submitted.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(entries).cast(), entries.len()) };
        place.as_ptr() as CUdeviceptr
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        // SAFETY: made by `make`, freed once, here; what used it has been waited for (Stream::run).
        log_release("page-locked memory", unsafe { self.driver.cuMemFreeHost(self.address.as_ptr().cast()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::copy::HostRange;

    /// Ranges of so many bytes, each in the memory and at the place that it is given.
    fn transfers(memories: &[Vec<u8>], ranges: &[(usize, u64, u64)]) -> Vec<Transfer<'static>> {
        let transfer = |&(memory, start, bytes): &(usize, u64, u64)| {
            let memory = &memories[memory];
            let whole = HostRange::new(NonNull::from(&memory[0]), memory.len() as u64);
            Transfer::new(DeviceRange::new(0, bytes), whole.slice(start, bytes).unwrap())
        };
        ranges.iter().map(transfer).collect()
    }

    /// How many ranges each group has, and how many ranges are left.
    fn divided(memories: &[Vec<u8>], ranges: &[(usize, u64, u64)], most: usize) -> (Vec<usize>, usize) {
        let transfers = transfers(memories, ranges);
        let (groups, left) = divide(&transfers, most);
        assert_eq!(groups.iter().map(|group| group.len()).sum::<usize>() + left.len(), ranges.len());
        (groups.iter().map(|group| group.len()).collect(), left.len())
    }

    fn row(memory: usize, start: u64, bytes: u64, count: u64) -> Vec<(usize, u64, u64)> {
        (0..count).map(|at| (memory, start + at * bytes, bytes)).collect()
    }

    #[test]
    fn neighbours_on_the_host_are_gathered_together() {
        let memories = [vec![0; 4 << 20], vec![0; 1 << 20]];
        let least = LEAST_RANGES as u64;
        let all = |rows: &[Vec<_>]| rows.concat();
        let divided = |rows: &[Vec<_>]| divided(&memories, &all(rows), 1 << 20);
        assert_eq!(divided(&[row(0, 0, 100, least)]), (vec![LEAST_RANGES], 0));
        assert_eq!(divided(&[row(0, 0, 100, least - 1)]), (vec![], LEAST_RANGES - 1), "too few");
        // A gap, a larger range, an empty one, another memory: each ends a run.
        let two = vec![LEAST_RANGES; 2];
        let next = 100 * least;
        assert_eq!(divided(&[row(0, 0, 100, least), row(0, next + 1, 100, least)]), (two.clone(), 0));
        let large = TINY as u64;
        let rows = [row(0, 0, 100, least), row(0, next, large, 1), row(0, next + large, 100, least)];
        assert_eq!(divided(&rows), (two.clone(), 1));
        let rows = [row(0, 0, 100, least), row(0, next, 0, 1), row(0, next, 100, least)];
        assert_eq!(divided(&rows), (two.clone(), 1));
        assert_eq!(divided(&[row(0, 0, 100, least), row(1, 0, 100, least)]), (two, 0));
        assert_eq!(divided(&[]), (vec![], 0));
    }

    #[test]
    fn neighbours_in_two_memories_are_not_copied_as_one() {
        // Both halves of one vector, as if each were a memory of its own.
        let bytes = vec![0u8; 64 << 10];
        let (low, high) = bytes.split_at(32 << 10);
        let of = |half: &[u8]| {
            let whole = HostRange::new(NonNull::from(&half[0]), half.len() as u64);
            (0..16).map(move |at| whole.slice(at * 2048, 2048).unwrap()).collect::<Vec<_>>()
        };
        let ranges = [of(low), of(high)].concat();
        let transfers: Vec<_> =
            ranges.into_iter().map(|host| Transfer::new(DeviceRange::new(0, 2048), host)).collect();
        let groups = divide(&transfers, 1 << 20).0;
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [16, 16]);
    }

    #[test]
    fn a_long_run_is_cut_where_the_staging_is_full() {
        let memories = [vec![0; 4 << 20]];
        let cut = |bytes, count, most| divided(&memories, &row(0, 0, bytes, count), most);
        assert_eq!(cut(4096, 40, 64 << 10), (vec![16, 16, 8], 0));
        assert_eq!(cut(3000, 40, 64 << 10), (vec![21, 19], 0));
        assert_eq!(cut(TINY as u64 - 1, 17, TINY), (vec![1; 17], 0));
    }
}
