//! Memsets: of 8, 16 or 32 bits, in one or two dimensions.

use std::time::Duration;

use cudarc::driver::sys::{CUDA_MEMSET_NODE_PARAMS, CUresult, CUstream};

use crate::abi::Answer;
use crate::context::Context;
use crate::model::Timeline;
use crate::pointer;
use crate::space::{self, Side, Touch};
use crate::stream;
use crate::work::Op;

/// One memset.
#[derive(Clone, Copy)]
pub struct Fill {
    start: usize,
    /// Bytes from row to row.
    pitch: usize,
    /// Elements of a row.
    width: usize,
    height: usize,
    value: Value,
}

/// What is written over and over.
#[derive(Clone, Copy)]
enum Value {
    D8(u8),
    D16(u16),
    D32(u32),
}

impl Value {
    fn size(self) -> usize {
        match self {
            Value::D8(_) => 1,
            Value::D16(_) => 2,
            Value::D32(_) => 4,
        }
    }

    /// Writes `count` elements.
    fn write(self, at: usize, count: usize) {
        match self {
            // SAFETY: the caller found the range mapped and writable; any address suits bytes.
            Value::D8(value) => unsafe { std::ptr::write_bytes(at as *mut u8, value, count) },
            Value::D16(value) => fill(at as *mut u16, count, value),
            Value::D32(value) => fill(at as *mut u32, count, value),
        }
    }
}

/// `at` is aligned for its type: checked at submission.
fn fill<T: Copy>(at: *mut T, count: usize, value: T) {
    // SAFETY: the caller found the range mapped and writable. Others see it change only in racing
    // programs.
    unsafe { std::slice::from_raw_parts_mut(at, count) }.fill(value);
}

impl Fill {
    /// What a memset node does.
    pub fn of_node(node: &CUDA_MEMSET_NODE_PARAMS) -> Answer<Fill> {
        let value = match node.elementSize {
            1 => Value::D8(node.value as u8),
            2 => Value::D16(node.value as u16),
            4 => Value::D32(node.value),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let fill = Fill::plane(node.dst, node.pitch, node.width, node.height, value);
        let some = fill.check()?;
        some.then_some(fill).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// As parameters of a node.
    pub fn describe(&self) -> CUDA_MEMSET_NODE_PARAMS {
        let value = match self.value {
            Value::D8(value) => value.into(),
            Value::D16(value) => value.into(),
            Value::D32(value) => value,
        };
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.start as u64,
            pitch: self.pitch,
            value,
            elementSize: self.value.size() as u32,
            width: self.width,
            height: self.height,
        }
    }

    fn line(start: u64, width: usize, value: Value) -> Fill {
        Fill { start: start as usize, pitch: 0, width, height: 1, value }
    }

    fn plane(start: u64, pitch: usize, width: usize, height: usize, value: Value) -> Fill {
        Fill { start: start as usize, pitch, width, height, value }
    }

    /// Carries it out; a range that may not be touched faults the context.
    pub fn run(&self, context: &Context, clock: &mut Timeline) {
        let Ok(gpu) = context.gpu() else { return };
        clock.begin(gpu.config.call_cost());
        if !self.allowed(context.device) {
            return context.fault();
        }
        for row in 0..self.height {
            self.value.write(self.start + row * self.pitch, self.width);
        }
        let is_hosted = gpu.outward.is_modelled() && space::look().hosted_bytes(self.start) > 0;
        let bytes = self.height * self.width * self.value.size();
        clock.finish(Duration::ZERO, is_hosted.then(|| gpu.outward.book(bytes)).flatten());
    }

    fn allowed(&self, device: usize) -> bool {
        let bytes = (self.height - 1) * self.pitch + self.width * self.value.size();
        let touch = Touch { start: self.start, bytes, side: Side::Device, write: true };
        space::look().allows(device, touch)
    }

    fn check(&self) -> Answer<bool> {
        let size = self.value.size();
        let aligned = self.start.is_multiple_of(size) && self.pitch.is_multiple_of(size);
        if !aligned || (self.height > 1 && self.pitch < self.width * size) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(self.width > 0 && self.height > 0)
    }

    /// In the default stream; as CUDA documents it, the caller waits only where host memory is set, or asked to wait.
    fn now(self) -> Answer {
        let stream = stream::default()?;
        if !self.check()? {
            return Ok(());
        }
        let waits = space::look().is_on_host(self.start) || pointer::is_synchronous(self.start);
        if waits { stream.run_to_end(Op::Fill(self)) } else { stream.start(Op::Fill(self)) }
    }

    fn later(self, stream: CUstream) -> Answer {
        let stream = stream::resolve(stream)?;
        if self.check()? { stream.submit(Op::Fill(self)) } else { Ok(()) }
    }
}

/// `cuMemsetD8_v2`
pub fn d8(at: u64, value: u8, count: usize) -> Answer {
    Fill::line(at, count, Value::D8(value)).now()
}

/// `cuMemsetD16_v2`
pub fn d16(at: u64, value: u16, count: usize) -> Answer {
    Fill::line(at, count, Value::D16(value)).now()
}

/// `cuMemsetD32_v2`
pub fn d32(at: u64, value: u32, count: usize) -> Answer {
    Fill::line(at, count, Value::D32(value)).now()
}

/// `cuMemsetD8Async`
pub fn d8_async(at: u64, value: u8, count: usize, stream: CUstream) -> Answer {
    Fill::line(at, count, Value::D8(value)).later(stream)
}

/// `cuMemsetD16Async`
pub fn d16_async(at: u64, value: u16, count: usize, stream: CUstream) -> Answer {
    Fill::line(at, count, Value::D16(value)).later(stream)
}

/// `cuMemsetD32Async`
pub fn d32_async(at: u64, value: u32, count: usize, stream: CUstream) -> Answer {
    Fill::line(at, count, Value::D32(value)).later(stream)
}

/// `cuMemsetD2D8_v2`
pub fn d2d8(at: u64, pitch: usize, value: u8, width: usize, height: usize) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D8(value)).now()
}

/// `cuMemsetD2D16_v2`
pub fn d2d16(at: u64, pitch: usize, value: u16, width: usize, height: usize) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D16(value)).now()
}

/// `cuMemsetD2D32_v2`
pub fn d2d32(at: u64, pitch: usize, value: u32, width: usize, height: usize) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D32(value)).now()
}

/// `cuMemsetD2D8Async`
pub fn d2d8_async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D8(value)).later(stream)
}

/// `cuMemsetD2D16Async`
pub fn d2d16_async(
    at: u64,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D16(value)).later(stream)
}

/// `cuMemsetD2D32Async`
pub fn d2d32_async(
    at: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Answer {
    Fill::plane(at, pitch, width, height, Value::D32(value)).later(stream)
}
