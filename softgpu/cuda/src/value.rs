//! Stream memory operations: a stream waits for a word of memory, or writes one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{CUresult, CUstream, CUstreamBatchMemOpParams};

use crate::abi::{Answer, InMut, Mirror};
use crate::context::Context;
use crate::space::{self, Side, Touch};
use crate::stream;
use crate::work::Op;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A word is looked at again so soon: nobody announces that it has been written.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// What `cuda.h` calls the operations.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH_REMOTE_WRITES: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;

/// More than this in one batch is refused, as by the driver.
const MOST: u32 = 256;

/// One operation.
#[derive(Clone, Copy)]
pub enum Operation {
    /// Until the word compares so.
    Wait(Word, Comparison),
    Write(Word),
    /// Writes are seen by all at once here.
    Nothing,
}

/// A word of memory and the value it is compared with or gets.
#[derive(Clone, Copy)]
pub struct Word {
    address: usize,
    value: u64,
    wide: bool,
}

/// How a wait compares the word with its value.
#[derive(Clone, Copy)]
pub enum Comparison {
    /// Not before it, as numbers on a circle.
    Geq,
    Eq,
    And,
    Nor,
}

impl Word {
    fn checked(address: u64, value: u64, wide: bool) -> Answer<Word> {
        let size = if wide { 8 } else { 4 };
        if address == 0 || !address.is_multiple_of(size) {
            return Err(INVALID);
        }
        Ok(Word { address: address as usize, value, wide })
    }

    fn touch(self, write: bool) -> Touch {
        let bytes = if self.wide { 8 } else { 4 };
        Touch { start: self.address, bytes, side: Side::Device, write }
    }

    /// What it is now, from somebody who may read it.
    fn read(self) -> u64 {
        if self.wide {
            // SAFETY: aligned and found mapped and readable; atomic, since others write it meanwhile.
            unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.load(Ordering::SeqCst)
        } else {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(self.address as *mut u32) }.load(Ordering::SeqCst).into()
        }
    }

    fn write(self) {
        if self.wide {
            // SAFETY: aligned and found mapped and writable; atomic, since others read it meanwhile.
            unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.store(self.value, Ordering::SeqCst);
        } else {
            let value = self.value as u32;
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(self.address as *mut u32) }.store(value, Ordering::SeqCst);
        }
    }

    fn compares(self, comparison: Comparison) -> bool {
        let now = self.read();
        match comparison {
            Comparison::Geq if self.wide => now.wrapping_sub(self.value) as i64 >= 0,
            Comparison::Geq => (now as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            Comparison::Eq => now == self.value,
            Comparison::And => now & self.value != 0,
            Comparison::Nor if self.wide => !(now | self.value) != 0,
            Comparison::Nor => !((now | self.value) as u32) != 0,
        }
    }
}

impl Comparison {
    fn of_flags(flags: u32) -> Answer<Comparison> {
        match flags & !FLUSH {
            0 => Ok(Comparison::Geq),
            1 => Ok(Comparison::Eq),
            2 => Ok(Comparison::And),
            3 => Ok(Comparison::Nor),
            _ => Err(INVALID),
        }
    }
}

/// Follows a wait: remote writes before it are seen. They always are here.
const FLUSH: u32 = 1 << 30;

impl Operation {
    /// Carries it out; a word that may not be touched faults the context.
    pub fn run(self, context: &Context) {
        match self {
            Operation::Wait(word, comparison) if allowed(context, word.touch(false)) => {
                while !word.compares(comparison) && !context.is_faulted() {
                    std::thread::sleep(LOOK_AGAIN);
                }
            }
            Operation::Write(word) if allowed(context, word.touch(true)) => word.write(),
            Operation::Nothing => {}
            Operation::Wait(..) | Operation::Write(_) => context.fault(),
        }
    }
}

fn allowed(context: &Context, touch: Touch) -> bool {
    space::look().allows(context.device, touch)
}

/// `CUstreamBatchMemOpParams`: an operation's kind, then its fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawOperation {
    kind: u32,
    padding: u32,
    address: u64,
    value: u64,
    flags: u32,
    padding_of_flags: u32,
    alias: u64,
    rest: u64,
}

impl Mirror for RawOperation {
    type Of = CUstreamBatchMemOpParams;
}

impl RawOperation {
    fn operation(&self) -> Answer<Operation> {
        let wide = matches!(self.kind, WAIT_64 | WRITE_64);
        let value = if wide { self.value } else { self.value & u64::from(u32::MAX) };
        let word = || Word::checked(self.address, value, wide);
        match self.kind {
            WAIT_32 | WAIT_64 => Ok(Operation::Wait(word()?, Comparison::of_flags(self.flags)?)),
            WRITE_32 | WRITE_64 if self.flags <= 1 => Ok(Operation::Write(word()?)),
            FLUSH_REMOTE_WRITES | BARRIER => Ok(Operation::Nothing),
            _ => Err(INVALID),
        }
    }
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawBatch {
    context: usize,
    count: u32,
    list: *const RawOperation,
    flags: u32,
}

impl RawBatch {
    /// The operations it names.
    pub fn operations(&self) -> Answer<Arc<[Operation]>> {
        if self.list.is_null() || self.count == 0 || self.count > MOST || self.flags != 0 {
            return Err(INVALID);
        }
        // SAFETY: the program passes these parameters in a call, with an array of so many items.
        let list = unsafe { std::slice::from_raw_parts(self.list, self.count as usize) };
        list.iter().map(RawOperation::operation).collect()
    }
}

fn submit(stream: CUstream, operation: Operation) -> Answer {
    stream::resolve(stream)?.submit(Op::Values(Arc::new([operation])))
}

fn wait(stream: CUstream, word: Answer<Word>, flags: u32) -> Answer {
    submit(stream, Operation::Wait(word?, Comparison::of_flags(flags)?))
}

fn write(stream: CUstream, word: Answer<Word>, flags: u32) -> Answer {
    if flags > 1 { Err(INVALID) } else { submit(stream, Operation::Write(word?)) }
}

/// `cuStreamWaitValue32_v2`
pub fn wait_32(stream: CUstream, address: u64, value: u32, flags: u32) -> Answer {
    wait(stream, Word::checked(address, value.into(), false), flags)
}

/// `cuStreamWaitValue64_v2`
pub fn wait_64(stream: CUstream, address: u64, value: u64, flags: u32) -> Answer {
    wait(stream, Word::checked(address, value, true), flags)
}

/// `cuStreamWriteValue32_v2`
pub fn write_32(stream: CUstream, address: u64, value: u32, flags: u32) -> Answer {
    write(stream, Word::checked(address, value.into(), false), flags)
}

/// `cuStreamWriteValue64_v2`
pub fn write_64(stream: CUstream, address: u64, value: u64, flags: u32) -> Answer {
    write(stream, Word::checked(address, value, true), flags)
}

/// `cuStreamBatchMemOp_v2`
pub fn batch(stream: CUstream, count: u32, list: InMut<RawOperation>, flags: u32) -> Answer {
    let stream = stream::resolve(stream)?;
    if flags != 0 || count == 0 || count > MOST {
        return Err(INVALID);
    }
    let operations = list.many(count as usize);
    let operations = operations.iter().map(RawOperation::operation).collect::<Answer<Arc<[_]>>>()?;
    stream.submit(Op::Values(operations))
}
