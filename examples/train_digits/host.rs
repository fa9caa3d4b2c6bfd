//! A device for tests: the kernels of the software GPU called as plain functions, through the
//! same argument arrays; it counts what is allocated.

use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

use anyhow::{Context, Result};
use cudarc::driver::LaunchConfig;

use crate::device::{Arg, Device};

#[path = "kernels/src/lib.rs"]
mod kernels;

/// Bytes allocated now, and at most until now.
#[derive(Default)]
pub struct Usage {
    pub live: Cell<usize>,
    pub peak: Cell<usize>,
}

impl Usage {
    fn add(&self, bytes: usize) {
        self.live.set(self.live.get() + bytes);
        self.peak.set(self.peak.get().max(self.live.get()));
    }
}

/// Runs every kernel at once, on the caller's thread.
#[derive(Default)]
pub struct Host {
    pub usage: Rc<Usage>,
}

/// "Device" memory.
pub struct HostBuffer {
    data: Vec<f32>,
    usage: Rc<Usage>,
}

impl HostBuffer {
    fn new(data: Vec<f32>, usage: &Rc<Usage>) -> Self {
        usage.add(size_of_val(&*data));
        HostBuffer { data, usage: usage.clone() }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let live = self.usage.live.get() - size_of_val(&*self.data);
        self.usage.live.set(live);
    }
}

impl Device for Host {
    type Buffer = HostBuffer;

    /// Not-a-numbers, so that a result shows it if any is read before it is written.
    fn alloc(&self, count: usize) -> Result<HostBuffer> {
        Ok(HostBuffer::new(vec![f32::NAN; count], &self.usage))
    }

    fn zeros(&self, count: usize) -> Result<HostBuffer> {
        Ok(HostBuffer::new(vec![0.0; count], &self.usage))
    }

    fn upload(&self, data: &[f32]) -> Result<HostBuffer> {
        Ok(HostBuffer::new(data.to_vec(), &self.usage))
    }

    fn upload_pinned(&self, data: &[f32]) -> Result<HostBuffer> {
        self.upload(data)
    }

    fn download(&self, buffer: &HostBuffer) -> Result<Vec<f32>> {
        Ok(buffer.data.clone())
    }

    fn launch(&self, kernel: &'static str, shape: LaunchConfig, args: &mut [Arg<HostBuffer>]) -> Result<()> {
        let entry = kernels::TABLE.iter().find(|entry| entry.name == kernel);
        let entry = entry.with_context(|| format!("there is no kernel `{kernel}`"))?;
        let declared: Vec<_> = entry.params.iter().map(|(text, _)| kind_of(text)).collect();
        let given: Vec<_> = args.iter().map(kind).collect();
        assert_eq!(given, declared, "the arguments of `{kernel}`");
        assert!(shape.grid_dim.0 > 0 && shape.grid_dim.1 > 0, "an empty grid for `{kernel}`");

        let values: Vec<Value> = args.iter_mut().map(Value::of).collect();
        let pointers: Vec<*const c_void> = values.iter().map(Value::address).collect();
        // SAFETY: the arguments are of the kinds declared, as compared above, and `values` lives;
        // that the buffers are long enough is `ops`' promise, which these tests are about.
        unsafe { (entry.function)(std::ptr::null(), pointers.as_ptr()) };
        Ok(())
    }
}

/// How CUDA declares such an argument, without its name.
fn kind(arg: &Arg<HostBuffer>) -> &'static str {
    match arg {
        Arg::In(_) => "const float *",
        Arg::Out(_) => "float *",
        Arg::Size(_) => "unsigned ",
        Arg::Real(_) => "float ",
    }
}

/// A parameter's declaration without its name.
fn kind_of(declaration: &str) -> &str {
    declaration.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_')
}

/// An argument's value, as a kernel reads it.
enum Value {
    Pointer(*const f32),
    Size(u32),
    Real(f32),
}

impl Value {
    fn of(arg: &mut Arg<HostBuffer>) -> Self {
        match arg {
            Arg::In(buffer) => Value::Pointer(buffer.data.as_ptr()),
            Arg::Out(buffer) => Value::Pointer(buffer.data.as_mut_ptr()),
            Arg::Size(size) => Value::Size(*size),
            Arg::Real(number) => Value::Real(*number),
        }
    }

    fn address(&self) -> *const c_void {
        match self {
            Value::Pointer(pointer) => std::ptr::from_ref(pointer).cast(),
            Value::Size(size) => std::ptr::from_ref(size).cast(),
            Value::Real(number) => std::ptr::from_ref(number).cast(),
        }
    }
}
