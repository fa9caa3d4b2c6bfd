//! Launches, and the configurations that `kernel<<<…>>>` puts down for them.

use std::cell::RefCell;

use cudarc::driver::sys::CUlaunchConfig;
use cudarc::runtime::sys::{cudaLaunchConfig_t, dim3};

use crate::abi::{Function, Host, In, Kernel, Out, Parameters, Stream, Value};
use crate::driver::Driver;
use crate::error::{Answer, Error};
use crate::register;

/// Threads that no GPU's block can have more of.
const MOST_THREADS: u64 = 1024;

/// What is between the angle brackets of a launch.
#[derive(Clone, Copy)]
struct Configuration {
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: Stream,
}

thread_local! {
    /// Configurations that wait for their launch, the latest last.
    static PUSHED: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

impl Configuration {
    /// The driver's word for an impossible shape is the one for any bad value.
    fn check(&self) -> Answer {
        let product = |sides: dim3| u64::from(sides.x) * u64::from(sides.y) * u64::from(sides.z);
        let (blocks, threads) = (product(self.grid), product(self.block));
        let sensible =
            blocks > 0 && (1..=MOST_THREADS).contains(&threads) && self.shared <= u32::MAX as usize;
        if sensible { Ok(()) } else { Err(Error::INVALID_CONFIGURATION) }
    }
}

fn launch(driver: &Driver, function: Function, how: Configuration, arguments: Parameters) -> Answer {
    how.check()?;
    let (grid, block) = (how.grid, how.block);
    driver.cuLaunchKernel(
        function,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        how.shared as u32,
        how.stream,
        arguments,
        Parameters(0),
    )
}

/// `cudaLaunchKernel`
pub fn kernel(
    driver: &Driver,
    function: Host,
    grid: dim3,
    block: dim3,
    arguments: Parameters,
    shared: usize,
    stream: Stream,
) -> Answer {
    let function = register::find_function(driver, function)?;
    launch(driver, function, Configuration { grid, block, shared, stream }, arguments)
}

/// `__cudaLaunchKernel`: by the kernel's handle.
pub fn by_handle(
    driver: &Driver,
    kernel: Kernel,
    grid: dim3,
    block: dim3,
    arguments: Parameters,
    shared: usize,
    stream: Stream,
) -> Answer {
    launch(driver, Function::new(kernel.0), Configuration { grid, block, shared, stream }, arguments)
}

/// `cudaLaunchCooperativeKernel`
pub fn cooperative(
    driver: &Driver,
    function: Host,
    grid: dim3,
    block: dim3,
    arguments: Parameters,
    shared: usize,
    stream: Stream,
) -> Answer {
    let function = register::find_function(driver, function)?;
    Configuration { grid, block, shared, stream }.check()?;
    driver.cuLaunchCooperativeKernel(
        function,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared as u32,
        stream,
        arguments,
    )
}

impl Value for cudaLaunchConfig_t {
    type Driver = ();
    type Runtime = cudaLaunchConfig_t;
}

/// `cudaLaunchKernelExC`: the attributes are the driver's, too.
pub fn with_attributes(
    driver: &Driver,
    config: In<cudaLaunchConfig_t>,
    function: Host,
    arguments: Parameters,
) -> Answer {
    let function = register::find_function(driver, function)?;
    let config = config.get();
    let (grid, block, shared) = (config.gridDim, config.blockDim, config.dynamicSmemBytes);
    Configuration { grid, block, shared, stream: Stream::new(config.stream as usize) }.check()?;
    let config = CUlaunchConfig {
        gridDimX: grid.x,
        gridDimY: grid.y,
        gridDimZ: grid.z,
        blockDimX: block.x,
        blockDimY: block.y,
        blockDimZ: block.z,
        sharedMemBytes: shared as u32,
        hStream: config.stream.cast(),
        attrs: config.attrs.cast(),
        numAttrs: config.numAttrs,
    };
    driver.cuLaunchKernelEx(In::to(&config), function, arguments, Parameters(0))
}

/// `__cudaPushCallConfiguration`: 0, since there is always room.
pub fn push_configuration(grid: dim3, block: dim3, shared: usize, stream: usize) -> u32 {
    let stream = Stream::new(stream);
    // While the thread ends nothing is launched any more.
    let _ = PUSHED.try_with(|pushed| pushed.borrow_mut().push(Configuration { grid, block, shared, stream }));
    0
}

/// `__cudaPopCallConfiguration`
pub fn pop_configuration(
    _: &Driver,
    mut grid: Out<dim3>,
    mut block: Out<dim3>,
    mut shared: Out<usize>,
    mut stream: Out<Stream>,
) -> Answer {
    let pushed = PUSHED.try_with(|pushed| pushed.borrow_mut().pop()).ok().flatten();
    let configuration = pushed.ok_or(Error::MISSING_CONFIGURATION)?;
    grid.set(configuration.grid);
    block.set(configuration.block);
    shared.set(configuration.shared);
    stream.set(configuration.stream);
    Ok(())
}
