//! `reduce_kernel(ReduceOp)` (Reduce.cuh): each output is made of many inputs, found by calculators of offsets.

use crate::kernel::{Device, kernels};

/// The most dimensions of a tensor there.
const DIMENSIONS: usize = 25;

/// `IntDivider<unsigned>`: only what is divided by.
#[repr(C)]
#[derive(Clone, Copy)]
struct Divider {
    divisor: u32,
    _magic: [u32; 2],
}

/// `OffsetCalculator<arguments, unsigned>`: bytes from an index of elements, for each argument.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offsets<const ARGUMENTS: usize> {
    dimensions: i32,
    sizes: [Divider; DIMENSIONS],
    strides: [[u32; ARGUMENTS]; DIMENSIONS],
}

impl<const ARGUMENTS: usize> Offsets<ARGUMENTS> {
    fn of(&self, mut index: u64) -> [u64; ARGUMENTS] {
        let mut offsets = [0; ARGUMENTS];
        for (size, strides) in self.sizes.iter().zip(&self.strides).take(self.dimensions.max(0) as usize) {
            let at = index % u64::from(size.divisor.max(1));
            index /= u64::from(size.divisor.max(1));
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += at * u64::from(*stride);
            }
        }
        offsets
    }
}

/// `ReduceConfig`: how the work is dealt out to threads, and how much it is.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    element_bytes: i32,
    inputs: i32,
    outputs: i32,
    _dealt: [i32; 11],
    _vectorize_input: u8,
    _output_vector: i32,
}

/// `ReduceOp<float, func_wrapper_t<float, …>, unsigned, float, 4, 4>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Reduction {
    _operation: u8,
    identity: f32,
    config: Config,
    input: Offsets<1>,
    output: Offsets<2>,
    source: Device<f32>,
    destinations: [Device<f32>; 2],
    _buffers: [u64; 3],
    _base: i64,
    accumulates: u8,
    _is_final: u8,
    _results: i32,
}

kernels! {
    fn torch_sum, torch_sum_params(reduction: Reduction) {
        let Reduction { config, input, output, source, destinations: [destination, _], .. } = reduction;
        for index in 0..config.outputs.max(0) as u64 {
            let [to, from] = output.of(index);
            let (to, from) = (destination.offset(to), source.offset(from));
            let values = (0..config.inputs.max(0) as u64).map(|input_index| {
                let [at] = input.of(input_index);
                from.offset(at).get(0)
            });
            let sum = values.fold(reduction.identity, |sum, value| sum + value);
            to.set(0, if reduction.accumulates != 0 { to.get(0) + sum } else { sum });
        }
    }
}

const _: () = assert!(size_of::<Reduction>() == 1048, "as PyTorch has it");
