//! Stream memory operations: what waits for a word of memory, and what writes one.
//!
//! They go through the gate as all other work does. What waits for a value that was not submitted is known to
//! [`value_waits`](crate::value_waits): a closing waits for the value.

use super::abi::{self, Real};
use super::pool::per_thread;
use super::queues;
use crate::driver::{self, Current, Mark};
use crate::gate::{GATE, Role};
use crate::operands;
use crate::process::Process;
use crate::status::Answer;
use crate::value_waits::{Comparison, Condition, Place, Word};
use std::ffi::c_uint;
use tidegate_ffi::cuda::sys::*;

/// Follows a wait, and changes nothing of what ends it.
const FLUSH: c_uint = 1 << 30;

/// What one operation does to a word.
enum Operation {
    Wait(Condition),
    Write(Word, u64),
}

impl Operation {
    /// `None`: the driver knows more than we do.
    fn wait(word: Word, value: u64, flags: c_uint) -> Option<Self> {
        let comparison = match flags & !FLUSH {
            0 => Comparison::Geq,
            1 => Comparison::Eq,
            2 => Comparison::And,
            3 => Comparison::Nor,
            _ => return None,
        };
        Some(Self::Wait(Condition { word, value, comparison }))
    }
}

/// The beginning of `CUstreamBatchMemOpParams`, as a wait and a write have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Listed {
    kind: u32,
    padding: u32,
    address: u64,
    value: u64,
    flags: u32,
    padding_of_flags: u32,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Listed>() == size_of::<CUstreamBatchMemOpParams>());

impl Listed {
    /// `None`: nothing waits for it, and it waits for nothing.
    fn operation(&self) -> Option<Operation> {
        let word = |is_wide| Word { address: self.address, is_wide };
        let narrow = self.value & u64::from(u32::MAX);
        // CUstreamBatchMemOpType
        match self.kind {
            1 => Operation::wait(word(false), narrow, self.flags),
            2 => Some(Operation::Write(word(false), narrow)),
            4 => Operation::wait(word(true), self.value, self.flags),
            5 => Some(Operation::Write(word(true), self.value)),
            _ => None,
        }
    }
}

/// `cuStreamWaitValue32`.
pub fn wait_32(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> Answer {
    let operation = Operation::wait(Word { address, is_wide: false }, value.into(), flags);
    submit(process, real, stream, operation.as_slice())
}

/// `cuStreamWaitValue32` for per-thread default streams.
pub fn wait_32_per_thread(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    flags: c_uint,
) -> Answer {
    wait_32(process, real, per_thread(stream), address, value, flags)
}

/// `cuStreamWaitValue64`.
pub fn wait_64(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> Answer {
    let operation = Operation::wait(Word { address, is_wide: true }, value, flags);
    submit(process, real, stream, operation.as_slice())
}

/// `cuStreamWaitValue64` for per-thread default streams.
pub fn wait_64_per_thread(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint64_t,
    flags: c_uint,
) -> Answer {
    wait_64(process, real, per_thread(stream), address, value, flags)
}

/// `cuStreamWriteValue32`.
pub fn write_32(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint32_t,
    _flags: c_uint,
) -> Answer {
    submit(process, real, stream, &[Operation::Write(Word { address, is_wide: false }, value.into())])
}

/// `cuStreamWriteValue64`.
pub fn write_64(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    address: CUdeviceptr,
    value: cuuint64_t,
    _flags: c_uint,
) -> Answer {
    submit(process, real, stream, &[Operation::Write(Word { address, is_wide: true }, value)])
}

/// `cuStreamBatchMemOp`.
pub fn batch(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    count: c_uint,
    list: *mut CUstreamBatchMemOpParams,
    _flags: c_uint,
) -> Answer {
    // SAFETY: by the driver's manual the program passes so many there; they are of one layout, and only those parts
    // of one are used that its kind has. A null is the driver's to refuse, as below.
    let listed = unsafe { abi::slice(list.cast::<Listed>(), count as usize) }.unwrap_or_default();
    let operations: Vec<Operation> = listed.iter().filter_map(Listed::operation).collect();
    submit(process, real, stream, &operations)
}

/// `cuStreamBatchMemOp` for per-thread default streams.
pub fn batch_per_thread(
    process: &'static Process,
    real: Real<'_>,
    stream: CUstream,
    count: c_uint,
    list: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Answer {
    batch(process, real, per_thread(stream), count, list, flags)
}

/// The gate, the driver, and what is known then.
fn submit(process: &Process, real: Real<'_>, stream: CUstream, operations: &[Operation]) -> Answer {
    let queue = || queues::Stream::new(stream);
    let pass = GATE.pass_as(|| role(process, operations), operands::are_resident, queue)?;
    real()?;
    // What is captured is done when the graph is launched, and is not looked for there.
    if !process.captures.any() || !driver::is_capturing(stream).unwrap_or(true) {
        note(process, stream, operations);
    }
    pass.note_submission();
    Ok(())
}

/// What releases others is not held back for what it waits for itself; nor a thread that captures, for a closing waits
/// for the capture's end.
fn role(process: &Process, operations: &[Operation]) -> Role {
    let waits = |operation: &Operation| match operation {
        Operation::Wait(condition) => process.value_waits.would_wait(condition),
        Operation::Write(..) => false,
    };
    let releases = |operation: &Operation| match operation {
        Operation::Write(word, value) => process.value_waits.would_release(*word, *value),
        Operation::Wait(_) => false,
    };
    let is_held = operations.iter().any(waits)
        && !operations.iter().any(releases)
        && !process.captures.any_of_this_thread();
    if is_held { Role::Waits } else { Role::Works }
}

fn note(process: &Process, stream: CUstream, operations: &[Operation]) {
    for operation in operations {
        match operation {
            Operation::Write(word, value) => process.value_waits.note_write(*word, *value),
            Operation::Wait(condition) if process.value_waits.is_released(condition) => {}
            Operation::Wait(condition) => note_wait(process, stream, *condition),
        }
    }
}

/// A wait whose end cannot be marked is not known of.
fn note_wait(process: &Process, stream: CUstream, condition: Condition) {
    let Ok(context) = driver::context_of(stream) else { return };
    let Ok(_current) = Current::make(context) else { return };
    let place = Place::new(process.contexts.home_of(context), stream.addr());
    let end = process.value_waits.wants_mark(place).then(|| Mark::after(stream));
    let Ok(end) = end.transpose() else { return };
    process.value_waits.note_wait(condition, place, end);
}
