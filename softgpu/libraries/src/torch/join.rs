//! Tensors put together and taken apart, as `torch.cat` does, and fully sharded data parallelism before and after
//! its collectives.

use crate::kernel::{Device, kernels};

/// Tensors of one launch, at most.
const BATCH: usize = 128;

/// `CatArrInputTensorMetadata<T, unsigned, 128, 1>` (Shape.cu).
#[repr(C)]
#[derive(Clone, Copy)]
struct Inputs {
    addresses: [Device<u32>; BATCH],
    /// Where in the result each begins, in the dimension along which they are put together.
    starts: [u32; BATCH],
    _sizes: [u32; BATCH],
    elements: [u32; BATCH],
    _are_contiguous: [u8; BATCH],
    _shape: Shape,
}

/// `TensorSizeStride<unsigned, 4>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    _sizes: [u32; 4],
    strides: [u32; 4],
}

fn copy(from: Device<u8>, to: Device<u8>, bytes: i64) {
    (0..bytes).for_each(|at| to.set(at, from.get(at)));
}

kernels! {
    /// `CatArrayBatchedCopy_alignedK_contig` of one dimension, with elements of four bytes.
    fn torch_cat_4, torch_cat_4_params of launch (
        result: Device<u32>, inputs: Inputs, shape: Shape, _dimension: i32, stride: u32,
    ) {
        for tensor in 0..(launch.grid[1] as usize).min(BATCH) {
            let start = i64::from(inputs.starts[tensor]) * i64::from(stride);
            for index in 0..i64::from(inputs.elements[tensor]) {
                let value = inputs.addresses[tensor].get(index);
                result.set(start + index * i64::from(shape.strides[0]), value);
            }
        }
    }

    /// `split_with_sizes_copy_out_contiguous_no_cast_kernel` (TensorShape.cu): blocks are dealt out to parts, each of
    /// which takes `chunks` pieces of the source, that lie `stride` bytes apart.
    fn torch_split_copy, torch_split_copy_params of launch (
        results: Device<Device<u8>>, sources: Device<Device<u8>>, sizes: Device<i64>, part_of_block: Device<i64>,
        first_block: Device<i64>, stride: i64, chunks: i64,
    ) {
        for block in 0..i64::from(launch.grid[0]) {
            let part = part_of_block.get(block);
            if first_block.get(part) != block {
                continue;
            }
            let (result, source, bytes) = (results.get(part), sources.get(part), sizes.get(part));
            for chunk in 0..chunks {
                copy(source.offset((chunk * stride) as u64), result.offset((chunk * bytes) as u64), bytes);
            }
        }
    }

    /// `chunk_cat_cuda_kernel<char, char>` (TensorShape.cu): chunk after chunk of every tensor, filled up with zeros;
    /// all of it for each slice. Sizes are in bytes.
    fn torch_chunk_cat, torch_chunk_cat_params of launch (
        sources: Device<Device<u8>>, result: Device<u8>, tensor_of_block: Device<i64>, starts: Device<i64>,
        first_block: Device<i64>, sizes: Device<i64>, chunk_sizes: Device<i64>, _blocks: Device<i64>,
        slice_bytes: i64, chunk_bytes: i64, _ratio: i64,
    ) {
        let [blocks, chunks, slices] = launch.grid.map(i64::from);
        for block in 0..blocks {
            let tensor = tensor_of_block.get(block);
            if first_block.get(tensor) != block {
                continue;
            }
            let (all, each) = (sizes.get(tensor), chunk_sizes.get(tensor));
            for (slice, chunk) in (0..slices).flat_map(|slice| (0..chunks).map(move |chunk| (slice, chunk))) {
                let there = (all - chunk * each).clamp(0, each);
                let from = sources.get(tensor).offset((slice * all + chunk * each) as u64);
                let to = result.offset((slice * slice_bytes + chunk * chunk_bytes + starts.get(tensor)) as u64);
                copy(from, to, there);
                (there..each).for_each(|at| to.set(at, 0));
            }
        }
    }
}

const _: () = assert!(size_of::<Inputs>() == 2720, "as PyTorch has it");
