//! What the training needs of a device, and the CUDA device that has it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaEvent, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, HostSlice,
    LaunchConfig, PinnedHostSlice, PushKernelArg,
};

use crate::kernels::Kernels;
use crate::tidegate::{self, Tensor};

const KERNELS: Kernels = Kernels {
    cuda: include_str!("kernels.cu"),
    host: "libtrain_digits_kernels.so",
    package: "train-digits-kernels",
};

/// An argument of a kernel.
pub enum Arg<'a, B> {
    /// A buffer that the kernel reads.
    In(&'a B),
    /// A buffer that the kernel writes or updates.
    Out(&'a mut B),
    /// A size, `unsigned` in the kernel.
    Size(u32),
    /// A number.
    Real(f32),
}

/// A device with the kernels of this example. What is submitted runs in its order.
pub trait Device {
    /// Device memory for floats; given back when dropped.
    type Buffer;

    /// Room for `count` floats, not set to anything.
    fn alloc(&self, count: usize) -> Result<Self::Buffer>;
    /// Room for `count` floats, all zero.
    fn zeros(&self, count: usize) -> Result<Self::Buffer>;
    /// New device memory with a copy of `data`, for what is uploaded once.
    fn upload(&self, data: &[f32]) -> Result<Self::Buffer>;
    /// The same through page-locked memory that is kept for the next upload of this length, so
    /// that the device can copy while the program goes on.
    fn upload_pinned(&self, data: &[f32]) -> Result<Self::Buffer>;
    /// Waits for all work submitted and copies the buffer.
    fn download(&self, buffer: &Self::Buffer) -> Result<Vec<f32>>;
    /// Submits a kernel. The arguments are those that it is declared with, in `kernels.cu`.
    fn launch(&self, kernel: &'static str, shape: LaunchConfig, args: &mut [Arg<Self::Buffer>])
    -> Result<()>;
}

/// The first CUDA device that is visible.
pub struct Cuda {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    functions: RefCell<HashMap<&'static str, CudaFunction>>,
    pinned: RefCell<HashMap<usize, Staging>>,
    describe: bool,
}

impl Cuda {
    /// Opens the device and loads the kernels: for the software GPU `host_kernels`, or the
    /// library built with this program. Whether to tell Tidegate what each kernel uses.
    pub fn open(host_kernels: Option<&Path>, describe: bool) -> Result<Self> {
        let (context, module) = KERNELS.open(host_kernels)?;
        Ok(Cuda {
            stream: context.default_stream(),
            module,
            functions: RefCell::default(),
            pinned: RefCell::default(),
            describe,
        })
    }

    /// The device's name.
    pub fn name(&self) -> Result<String> {
        Ok(self.stream.context().name()?)
    }

    /// The kernel of this name, loaded when it is first asked for.
    fn function(&self, kernel: &'static str) -> Result<CudaFunction> {
        let mut functions = self.functions.borrow_mut();
        if let Some(function) = functions.get(kernel) {
            return Ok(function.clone());
        }
        let function = self.module.load_function(kernel);
        let function = function.with_context(|| format!("there is no kernel `{kernel}`"))?;
        functions.insert(kernel, function.clone());
        Ok(function)
    }

    /// Memory for a buffer. When there is none, what was freed on the way may not be free yet: once all of
    /// that is done, it asks again, as frameworks do.
    fn allocate<T>(&self, ask: impl Fn(&Arc<CudaStream>) -> Result<T, DriverError>) -> Result<T> {
        match ask(&self.stream) {
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                self.stream.synchronize()?;
                Ok(ask(&self.stream)?)
            }
            answer => Ok(answer?),
        }
    }

    /// What a kernel with these arguments uses.
    fn operands(&self, args: &[Arg<CudaSlice<f32>>]) -> Vec<Tensor> {
        let buffer = |arg: &Arg<CudaSlice<f32>>| match arg {
            Arg::In(buffer) => Some(self.tensor(buffer)),
            Arg::Out(buffer) => Some(self.tensor(buffer)),
            Arg::Size(_) | Arg::Real(_) => None,
        };
        args.iter().filter_map(buffer).collect()
    }

    fn tensor(&self, buffer: &CudaSlice<f32>) -> Tensor {
        Tensor::of_floats(buffer.device_ptr(&self.stream).0, buffer.len())
    }

    /// A buffer with a copy of `data`.
    fn filled(&self, data: &(impl HostSlice<f32> + ?Sized)) -> Result<CudaSlice<f32>> {
        let mut buffer = self.alloc(data.len())?;
        self.stream.memcpy_htod(data, &mut buffer)?;
        Ok(buffer)
    }
}

/// Pinned memory that uploads go through.
struct Staging {
    memory: PinnedHostSlice<f32>,
    /// Behind the last upload.
    read: CudaEvent,
}

impl Staging {
    fn new(stream: &CudaStream, count: usize) -> Result<Self> {
        // SAFETY: any bytes are valid floats; it is written as a whole before it is read.
        let memory = unsafe { stream.context().alloc_pinned(count) }?;
        Ok(Self { memory, read: stream.record_event(None)? })
    }
}

impl Device for Cuda {
    type Buffer = CudaSlice<f32>;

    fn alloc(&self, count: usize) -> Result<Self::Buffer> {
        // SAFETY: any bytes are valid floats, and every kernel writes all of a buffer that it
        // is the first to be given.
        self.allocate(|stream| unsafe { stream.alloc(count) })
    }

    fn zeros(&self, count: usize) -> Result<Self::Buffer> {
        self.allocate(|stream| stream.alloc_zeros(count))
    }

    fn upload(&self, data: &[f32]) -> Result<Self::Buffer> {
        let buffer = self.filled(data)?;
        self.stream.synchronize()?;
        Ok(buffer)
    }

    fn upload_pinned(&self, data: &[f32]) -> Result<Self::Buffer> {
        let mut kept = self.pinned.borrow_mut();
        let staging = match kept.entry(data.len()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Staging::new(&self.stream, data.len())?),
        };
        // The device must have read what was uploaded before. (With one stream, cudarc does not record
        // its own event.)
        staging.read.synchronize()?;
        staging.memory.as_mut_slice()?.copy_from_slice(data);
        let buffer = self.filled(&staging.memory)?;
        staging.read.record(&self.stream)?;
        Ok(buffer)
    }

    fn download(&self, buffer: &Self::Buffer) -> Result<Vec<f32>> {
        let data = self.stream.clone_dtoh(buffer)?;
        self.stream.synchronize()?;
        Ok(data)
    }

    fn launch(
        &self,
        kernel: &'static str,
        shape: LaunchConfig,
        args: &mut [Arg<Self::Buffer>],
    ) -> Result<()> {
        let function = self.function(kernel)?;
        let operands = if self.describe { Some(self.operands(args)) } else { None };
        let mut launch = self.stream.launch_builder(&function);
        for arg in args {
            match arg {
                Arg::In(buffer) => launch.arg(*buffer),
                Arg::Out(buffer) => launch.arg(&mut **buffer),
                Arg::Size(size) => launch.arg(&*size),
                Arg::Real(number) => launch.arg(&*number),
            };
        }
        // SAFETY: only `ops` launches: the arguments are the kernel's own, in number and size
        // (its tests compare them with the kernels' tables), the buffers are as long as the sizes
        // say, and `Out` is exclusive. A buffer is freed by cudarc after the stream's work.
        let mut submit = || unsafe { launch.launch(shape) };
        let submitted = match operands {
            Some(operands) => tidegate::described(&operands, submit),
            None => submit(),
        };
        submitted.with_context(|| format!("cannot launch `{kernel}`"))?;
        Ok(())
    }
}
