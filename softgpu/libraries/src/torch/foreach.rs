//! `multi_tensor_apply_kernel` (MultiTensorApply.cuh): one launch for chunks of many tensors.

use crate::kernel::{Device, kernels};

/// Elements of a chunk.
const CHUNK: i64 = 65_536;
/// Chunks of a launch, at most.
const BLOCKS: usize = 320;

/// `TensorListMetadata<depth>`: `depth` lists with so many tensors, at most.
#[repr(C)]
#[derive(Clone, Copy)]
struct Lists<const DEPTH: usize, const TENSORS: usize> {
    addresses: [[Device<f32>; TENSORS]; DEPTH],
    elements: [i64; TENSORS],
    tensor_of_block: [u8; BLOCKS],
    chunk_of_block: [i32; BLOCKS],
    first_tensor: i32,
}

impl<const DEPTH: usize, const TENSORS: usize> Lists<DEPTH, TENSORS> {
    /// Calls `apply` with the tensors of each list, and the index of an element in them.
    fn each(&self, blocks: u32, apply: impl Fn([Device<f32>; DEPTH], i64)) {
        for block in 0..(blocks as usize).min(BLOCKS) {
            let tensor = usize::from(self.tensor_of_block[block]);
            let first = i64::from(self.chunk_of_block[block]) * CHUNK;
            let end = self.elements[tensor].min(first + CHUNK);
            let tensors = self.addresses.map(|list| list[tensor]);
            (first..end).for_each(|index| apply(tensors, index));
        }
    }
}

kernels! {
    /// `first += alpha * second`
    fn torch_foreach_add, torch_foreach_add_params of launch (
        lists: Lists<2, 64>, _functor: u8, _operation: u8, alpha: f32,
    ) {
        lists.each(launch.grid[0], |[first, second], index| {
            first.set(index, first.get(index) + alpha * second.get(index));
        });
    }

    /// `first *= factor`
    fn torch_foreach_mul, torch_foreach_mul_params of launch (
        lists: Lists<1, 110>, _functor: u8, _operation: u8, factor: f32,
    ) {
        lists.each(launch.grid[0], |[first], index| first.set(index, first.get(index) * factor));
    }

    /// `second = first`
    fn torch_foreach_copy, torch_foreach_copy_params of launch (lists: Lists<2, 64>, _functor: u8, _operation: u8) {
        lists.each(launch.grid[0], |[first, second], index| second.set(index, first.get(index)));
    }
}
