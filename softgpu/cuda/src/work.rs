//! What streams carry out, one operation after the other.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUresult, CUstream};

use crate::abi::Answer;
use crate::context::Context;
use crate::copy::Transfer;
use crate::crash;
use crate::event::Record;
use crate::launch::Launch;
use crate::mark::Mark;
use crate::memset::Fill;
use crate::model::Timeline;
use crate::pool;
use crate::stream::Stream;
use crate::value::Operation;

/// One operation. Cloned when a graph is launched.
#[derive(Clone)]
pub enum Op {
    /// Run a kernel.
    Kernel(Arc<Launch>),
    /// Copy.
    Transfer(Transfer),
    /// The copies of one call.
    Transfers(Arc<[Transfer]>),
    /// Fill.
    Fill(Fill),
    /// Call the program back.
    Call(Callback),
    /// Wait for words of memory, or write them.
    Values(Arc<[Operation]>),
    /// Free what the allocation with that number of [`pool`] was given.
    Free(u64),
    /// Note that the stream came here.
    Record(Arc<Record>),
    /// Wait until an event's record is complete.
    Await(Arc<Record>),
    /// Wait until the record with that number of some process is complete.
    AwaitMark(Arc<Mark>, u64),
    /// Wait until another stream has come as far as it was submitted by then.
    After(Arc<Stream>, u64),
    /// End the stream.
    Stop,
}

/// A host function in a stream.
#[derive(Clone, Copy)]
pub struct Callback {
    pub function: Function,
    /// The caller's `void *`.
    pub data: usize,
}

/// The two forms host functions have.
#[derive(Clone, Copy)]
pub enum Function {
    Plain(unsafe extern "C" fn(*mut c_void)),
    OfStream(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize),
}

impl Op {
    /// Carries it out for a stream of `context`; what goes wrong is the context's.
    pub fn run(&self, context: &Context, clock: &mut Timeline) -> Answer {
        match self {
            Op::Kernel(launch) => launch.run(context, clock),
            Op::Transfer(transfer) => transfer.run(context, clock),
            Op::Transfers(transfers) => Transfer::run_batch(transfers, context, clock),
            Op::Fill(fill) => fill.run(context, clock),
            Op::Call(callback) => callback.run(),
            Op::Values(operations) => operations.iter().for_each(|operation| operation.run(context)),
            Op::Free(number) => pool::arrive(*number),
            Op::Record(record) => record.arrive(),
            Op::Await(record) => record.wait(context),
            Op::AwaitMark(mark, number) => mark.wait(*number, || context.is_faulted()),
            Op::After(stream, ticket) => stream.wait_for(*ticket, context),
            Op::Stop => {}
        }
        context.check()
    }
}

impl Callback {
    fn run(self) {
        let data = self.data as *mut c_void;
        crash::as_program(|| match self.function {
            // SAFETY: the program passed the function to be called with this argument.
            Function::Plain(function) => unsafe { function(data) },
            Function::OfStream(function, stream) => {
                // SAFETY: the program passed the function to be called with these arguments.
                unsafe { function(stream as CUstream, CUresult::CUDA_SUCCESS, data) }
            }
        });
    }
}
