//! The operations of the network: each allocates its result and launches a kernel that fills it.
//!
//! Matrices are row-major floats. The launch geometry is the one that `kernels.cu` is written for.

use anyhow::Result;
use cudarc::driver::LaunchConfig;

use crate::device::Arg::{In, Out, Real, Size};
use crate::device::Device;

/// Edge of a block's tile of a matrix product: `TILE` of `kernels.cu`.
const TILE: u32 = 16;
/// Threads of a block where each thread has one element, row or column.
const BLOCK: u32 = 256;
/// Threads of the one block that a mean takes: `MEAN_THREADS` of `kernels.cu`.
const MEAN_THREADS: u32 = 256;

/// The sizes of one linear layer applied to a batch.
#[derive(Clone, Copy)]
pub struct Dims {
    /// Images of the batch.
    pub rows: u32,
    /// Numbers into the layer, for each image.
    pub inner: u32,
    /// Numbers out of it.
    pub cols: u32,
}

/// The numbers of one step of Adam.
#[derive(Clone, Copy)]
pub struct AdamStep {
    /// Learning rate with the correction for the moments' start at zero.
    pub rate: f32,
    /// How much of the first moment is kept.
    pub beta1: f32,
    /// How much of the second moment is kept.
    pub beta2: f32,
    /// Keeps the quotient finite.
    pub epsilon: f32,
}

/// `x[rows, inner] · weights[inner, cols] + bias[cols]`
pub fn linear<D: Device>(
    device: &D,
    dims: Dims,
    x: &D::Buffer,
    weights: &D::Buffer,
    bias: &D::Buffer,
) -> Result<D::Buffer> {
    let Dims { rows, inner, cols } = dims;
    let mut out = device.alloc(area(rows, cols))?;
    let buffers = [In(x), In(weights), In(bias), Out(&mut out)];
    launch(device, "linear", tiles(rows, cols), buffers, [rows, inner, cols])?;
    Ok(out)
}

/// The gradient of the weights: `xᵀ · delta`, `[inner, cols]`.
pub fn linear_backward_weights<D: Device>(
    device: &D,
    dims: Dims,
    x: &D::Buffer,
    delta: &D::Buffer,
) -> Result<D::Buffer> {
    let Dims { rows, inner, cols } = dims;
    let mut out = device.alloc(area(inner, cols))?;
    let buffers = [In(x), In(delta), Out(&mut out)];
    let shape = tiles(inner, cols);
    launch(device, "linear_backward_weights", shape, buffers, [rows, inner, cols])?;
    Ok(out)
}

/// The gradient of the bias: the column sums of `delta`, `[cols]`.
pub fn linear_backward_bias<D: Device>(device: &D, dims: Dims, delta: &D::Buffer) -> Result<D::Buffer> {
    let Dims { rows, cols, .. } = dims;
    let mut out = device.alloc(cols as usize)?;
    let buffers = [In(delta), Out(&mut out)];
    launch(device, "linear_backward_bias", threads(cols), buffers, [rows, cols])?;
    Ok(out)
}

/// The gradient of the layer's inputs: `delta · weightsᵀ`, `[rows, inner]`.
pub fn linear_backward_inputs<D: Device>(
    device: &D,
    dims: Dims,
    delta: &D::Buffer,
    weights: &D::Buffer,
) -> Result<D::Buffer> {
    let Dims { rows, inner, cols } = dims;
    let mut out = device.alloc(area(rows, inner))?;
    let buffers = [In(delta), In(weights), Out(&mut out)];
    let shape = tiles(rows, inner);
    launch(device, "linear_backward_inputs", shape, buffers, [rows, inner, cols])?;
    Ok(out)
}

/// `max(x, 0)` of `count` numbers.
pub fn relu<D: Device>(device: &D, count: u32, x: &D::Buffer) -> Result<D::Buffer> {
    let mut out = device.alloc(count as usize)?;
    launch(device, "relu", threads(count), [In(x), Out(&mut out)], [count])?;
    Ok(out)
}

/// Clears those of `delta` whose `x` was not positive.
pub fn relu_backward<D: Device>(device: &D, count: u32, x: &D::Buffer, delta: &mut D::Buffer) -> Result<()> {
    launch(device, "relu_backward", threads(count), [In(x), Out(delta)], [count])
}

/// The mean loss of the rows, and its gradient by `logits`, `[rows, classes]`.
pub fn softmax_cross_entropy<D: Device>(
    device: &D,
    (rows, classes): (u32, u32),
    logits: &D::Buffer,
    targets: &D::Buffer,
) -> Result<(D::Buffer, D::Buffer)> {
    let mut losses = device.alloc(rows as usize)?;
    let mut delta = device.alloc(area(rows, classes))?;
    let buffers = [In(logits), In(targets), Out(&mut losses), Out(&mut delta)];
    launch(device, "softmax_cross_entropy", threads(rows), buffers, [rows, classes])?;

    let mut loss = device.alloc(1)?;
    launch(device, "mean", one_block(MEAN_THREADS), [In(&losses), Out(&mut loss)], [rows])?;
    Ok((loss, delta))
}

/// One step of Adam for `count` numbers and their two moments.
pub fn adam<D: Device>(
    device: &D,
    count: u32,
    step: AdamStep,
    gradient: &D::Buffer,
    [value, first, second]: [&mut D::Buffer; 3],
) -> Result<()> {
    let AdamStep { rate, beta1, beta2, epsilon } = step;
    let args = &mut [
        In(gradient),
        Out(value),
        Out(first),
        Out(second),
        Size(count),
        Real(rate),
        Real(beta1),
        Real(beta2),
        Real(epsilon),
    ];
    device.launch("adam", threads(count), args)
}

/// Launches a kernel whose arguments are buffers, then sizes.
fn launch<'a, D: Device>(
    device: &D,
    kernel: &'static str,
    shape: LaunchConfig,
    buffers: impl IntoIterator<Item = crate::device::Arg<'a, D::Buffer>>,
    sizes: impl IntoIterator<Item = u32>,
) -> Result<()>
where
    D::Buffer: 'a,
{
    let sizes = sizes.into_iter().map(Size);
    let mut args: Vec<_> = buffers.into_iter().chain(sizes).collect();
    device.launch(kernel, shape, &mut args)
}

fn area(rows: u32, cols: u32) -> usize {
    rows as usize * cols as usize
}

/// A block per tile of a `[rows, cols]` result.
fn tiles(rows: u32, cols: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (cols.div_ceil(TILE), rows.div_ceil(TILE), 1),
        block_dim: (TILE, TILE, 1),
        shared_mem_bytes: 0,
    }
}

/// A thread for each of `count` things.
fn threads(count: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (count.div_ceil(BLOCK), 1, 1), ..one_block(BLOCK) }
}

fn one_block(threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}
