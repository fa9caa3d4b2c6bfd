//! Launches: parameters are copied at the call, the kernel runs in its stream.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUfunction, CUlaunchConfig, CUoccupancyB2DSize, CUresult, CUstream,
};

use crate::abi::{Answer, In, Mirror, Out, Parameters};
use crate::context::Context;
use crate::device;
use crate::image::Shape;
use crate::model::Timeline;
use crate::module::{self, Function};
use crate::space;
use crate::stream;
use crate::work::Op;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// One launch of a kernel.
pub struct Launch {
    function: Arc<Function>,
    shape: Shape,
    _arguments: Vec<Cell>,
    /// Where in there each argument lies.
    addresses: Vec<usize>,
}

/// Room for argument bytes, aligned for any parameter.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Cell([u8; 16]);

impl Mirror for CUlaunchConfig {
    type Of = CUlaunchConfig;
}

impl Launch {
    /// Runs the kernel on this thread; it takes at least what the model says, and no less than its operands in
    /// host memory take over the link.
    pub fn run(&self, context: &Context, clock: &mut Timeline) {
        let Ok(gpu) = context.gpu() else { return };
        clock.begin(gpu.config.call_cost());
        self.call();
        let hosted = gpu.inward.is_modelled().then(|| self.hosted_bytes());
        let arrival = hosted.filter(|bytes| *bytes > 0).and_then(|bytes| gpu.inward.book(bytes));
        clock.finish(gpu.config.kernel_time(&self.function.name), arrival);
    }

    /// Bytes in host memory behind the kernel's pointers. What it touches of them is unknown: as a model, each
    /// once, from where the pointer points to the end of the piece.
    fn hosted_bytes(&self) -> usize {
        let space = space::look();
        let pointers = self.addresses.iter().zip(&self.function.kernel.sizes);
        let pointers = pointers.filter(|(_, size)| **size == size_of::<usize>());
        // SAFETY: each address is that of an argument of this size, in the cells of this launch.
        let values = pointers.map(|(at, _)| unsafe { (*at as *const usize).read_unaligned() });
        values.map(|value| space.hosted_bytes(value)).sum()
    }

    fn call(&self) {
        let Some(code) = self.function.kernel.code else { return };
        // SAFETY: the kernel ABI: the image declared these parameters for this function. What it
        // does with addresses in them is the program's, and a fault is the context's.
        unsafe { code(&self.shape, self.addresses.as_ptr().cast()) };
    }

    fn new(function: CUfunction, shape: Shape, each: Parameters, buffer: Parameters) -> Answer<Arc<Launch>> {
        let function = module::find(function)?;
        shape.check()?;
        let arguments = copy_arguments(&function, each, buffer)?;
        let start = arguments.as_ptr() as usize;
        let addresses = function.offsets.iter().map(|offset| start + offset).collect();
        Ok(Arc::new(Launch { function, shape, _arguments: arguments, addresses }))
    }

    /// The launch of a kernel node.
    pub fn of_node(node: &CUDA_KERNEL_NODE_PARAMS) -> Answer<Arc<Launch>> {
        let function = if node.func.is_null() { node.kern as CUfunction } else { node.func };
        let shape = Shape {
            grid: [node.gridDimX, node.gridDimY, node.gridDimZ],
            block: [node.blockDimX, node.blockDimY, node.blockDimZ],
            shared_bytes: node.sharedMemBytes,
        };
        Launch::new(function, shape, Parameters(node.kernelParams), Parameters(node.extra))
    }

    /// As parameters of a node; the arguments are valid as long as the launch.
    pub fn describe(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let Shape { grid, block, shared_bytes } = self.shape;
        CUDA_KERNEL_NODE_PARAMS {
            func: self.function.handle as CUfunction,
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared_bytes,
            kernelParams: self.addresses.as_ptr().cast_mut().cast(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }
}

impl Shape {
    fn check(&self) -> Answer {
        let product = |sides: &[u32; 3]| sides.iter().map(|side| u64::from(*side)).product::<u64>();
        let threads = product(&self.block);
        if product(&self.grid) == 0 || threads == 0 || self.block[2] > 64 {
            return Err(INVALID);
        }
        let limit = u64::from(device::MOST_THREADS.unsigned_abs());
        let fits = threads <= limit && i64::from(self.shared_bytes) <= device::SHARED_OPT_IN.into();
        if fits { Ok(()) } else { Err(INVALID) }
    }
}

/// The bytes of the arguments, from either form in which a launch gets them.
fn copy_arguments(function: &Function, each: Parameters, buffer: Parameters) -> Answer<Vec<Cell>> {
    let sizes = &function.kernel.sizes;
    let (Some(last), Some(size)) = (function.offsets.last(), sizes.last()) else {
        return Ok(Vec::new());
    };
    let bytes = last + size;
    let mut cells = vec![Cell([0; 16]); bytes.div_ceil(16)];
    let to = cells.as_mut_ptr().cast::<u8>();
    if !each.0.is_null() {
        copy_each(function, each, to)?;
        return Ok(cells);
    }
    // As on hardware a buffer that is too short is accepted; what it lacks is zero here.
    let (from, given) = packed_buffer(buffer)?;
    // SAFETY: the caller's buffer has `given` bytes; the cells have room for `bytes`.
    unsafe { to.copy_from_nonoverlapping(from, given.min(bytes)) };
    Ok(cells)
}

/// From `kernelParams`: one pointer per parameter.
fn copy_each(function: &Function, each: Parameters, to: *mut u8) -> Answer {
    let sizes = &function.kernel.sizes;
    // SAFETY: `kernelParams` has one entry per parameter of the kernel.
    let pointers = unsafe { std::slice::from_raw_parts(each.0, sizes.len()) };
    for ((from, size), offset) in pointers.iter().zip(sizes).zip(&function.offsets) {
        if from.is_null() {
            return Err(INVALID);
        }
        let to = to.wrapping_add(*offset);
        // SAFETY: each entry points to a value of its parameter's size; offsets and sizes were what
        // the buffer was made for.
        unsafe { to.copy_from_nonoverlapping(from.cast::<u8>(), *size) };
    }
    Ok(())
}

/// From `extra`: pairs of a name and a value, up to the name 0.
fn packed_buffer(extra: Parameters) -> Answer<(*const u8, usize)> {
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    if extra.0.is_null() {
        return Err(INVALID);
    }
    for pair in (0..).step_by(2) {
        match entry(extra, pair) as usize {
            0 => break,
            BUFFER => buffer = entry(extra, pair + 1) as *const u8,
            SIZE => size = read_size(entry(extra, pair + 1))?,
            _ => return Err(INVALID),
        }
    }
    if buffer.is_null() { Err(INVALID) } else { Ok((buffer, size)) }
}

fn entry(extra: Parameters, at: usize) -> *mut c_void {
    // SAFETY: the caller's list ends with the name 0, and nothing behind that is asked for.
    unsafe { extra.0.wrapping_add(at).read() }
}

fn read_size(at: *mut c_void) -> Answer<usize> {
    if at.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the value for CU_LAUNCH_PARAM_BUFFER_SIZE is a pointer to a size.
    Ok(unsafe { at.cast::<usize>().read_unaligned() })
}

fn submit(
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    each: Parameters,
    buffer: Parameters,
) -> Answer {
    module::find(function)?;
    let stream = stream::resolve(stream)?;
    stream.submit(Op::Kernel(Launch::new(function, shape, each, buffer)?))
}

/// `cuLaunchKernel`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn launch(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    each: Parameters,
    buffer: Parameters,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    submit(function, Shape { grid, block, shared_bytes }, stream, each, buffer)
}

/// `cuLaunchCooperativeKernel`
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub fn launch_cooperative(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    each: Parameters,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let no_buffer = Parameters(std::ptr::null_mut());
    submit(function, Shape { grid, block, shared_bytes }, stream, each, no_buffer)
}

/// `cuLaunchKernelEx`
pub fn launch_with(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    each: Parameters,
    buffer: Parameters,
) -> Answer {
    let config = config.get();
    let shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared_bytes: config.sharedMemBytes,
    };
    submit(function, shape, config.hStream, each, buffer)
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`
pub fn active_blocks(out: Out<i32>, function: CUfunction, block: i32, shared: usize) -> Answer {
    module::find(function)?;
    if block <= 0 {
        return Err(INVALID);
    }
    let by_threads = device::THREADS_PER_SM / (block.saturating_add(31) / 32 * 32);
    let by_shared = i32::try_from(device::SHARED_PER_SM as usize / shared.max(1));
    let fits = block <= device::MOST_THREADS;
    let blocks = by_threads.min(by_shared.unwrap_or(i32::MAX)).min(32);
    out.set(if fits { blocks } else { 0 });
    Ok(())
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`
pub fn active_blocks_with(
    out: Out<i32>,
    function: CUfunction,
    block: i32,
    shared: usize,
    _flags: u32,
) -> Answer {
    active_blocks(out, function, block, shared)
}

/// `cuOccupancyMaxPotentialBlockSize`
pub fn best_block(
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    _shared_of: CUoccupancyB2DSize,
    _shared: usize,
    limit: i32,
) -> Answer {
    module::find(function)?;
    let most = if limit > 0 { limit.min(device::MOST_THREADS) } else { device::MOST_THREADS };
    block.set(most);
    grid.set(device::MULTIPROCESSORS * (device::THREADS_PER_SM / most.max(32)));
    Ok(())
}

/// `cuOccupancyMaxPotentialBlockSizeWithFlags`
pub fn best_block_with(
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> Answer {
    best_block(grid, block, function, shared_of, shared, limit)
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`
pub fn available_shared(out: Out<usize>, function: CUfunction, blocks: i32, block: i32) -> Answer {
    module::find(function)?;
    if blocks <= 0 || block <= 0 {
        return Err(INVALID);
    }
    out.set((device::SHARED_PER_SM / blocks).min(device::SHARED_OPT_IN) as usize);
    Ok(())
}
