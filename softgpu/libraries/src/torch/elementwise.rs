//! `vectorized_elementwise_kernel(int N, functor, std::array<char*, n> data)` (CUDALoops.cuh): the first of
//! `data` is the result. And `elementwise_kernel(int N, lambda)`, where elements lie apart: the lambda has
//! captured where.

use crate::kernel::{Device, kernels};

/// What `launch_clamp_scalar`'s lambda captures.
#[repr(C)]
#[derive(Clone, Copy)]
struct Clamp {
    /// 0: from below, 1: from above, 2: both.
    kind: u32,
    first: f32,
    second: f32,
}

/// `AUnaryFunctor<float, float, float, MulFunctor<float>>`, or `BUnaryFunctor`: of which argument it is makes no difference.
#[repr(C)]
#[derive(Clone, Copy)]
struct Scale {
    _functor: u8,
    factor: f32,
}

/// What `threshold_kernel_impl`'s lambda captures.
#[repr(C)]
#[derive(Clone, Copy)]
struct Threshold {
    threshold: f32,
    value: f32,
}

/// A number to divide by (`at::cuda::detail::IntDivider<unsigned int>`), and how to do so fast.
#[repr(C)]
#[derive(Clone, Copy)]
struct Divider {
    divisor: u32,
    _fast: [u32; 2],
}

/// The most dimensions that a tensor may have (`MAX_DIMS`).
const DIMENSIONS: usize = 25;

/// Where elements lie (`OffsetCalculator<2>`): sizes, the innermost first, and distances in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offsets {
    dimensions: i32,
    sizes: [Divider; DIMENSIONS],
    strides: [[u32; 2]; DIMENSIONS],
}

impl Offsets {
    /// Of element `index` of the result and of the argument, in bytes.
    fn of(&self, mut index: u32) -> [u64; 2] {
        let dimensions = usize::try_from(self.dimensions).map_or(0, |count| count.min(DIMENSIONS));
        let mut offsets = [0; 2];
        for (size, strides) in self.sizes[..dimensions].iter().zip(&self.strides) {
            let place = index % size.divisor.max(1);
            index /= size.divisor.max(1);
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += u64::from(place) * u64::from(*stride);
            }
        }
        offsets
    }
}

/// What the lambda of `gpu_kernel_impl_nocast` captures: of the functor, a copy, nothing is left.
#[repr(C)]
#[derive(Clone, Copy)]
struct Apart<T> {
    offsets: Offsets,
    data: [Device<T>; 2],
    _functor: u64,
}

fn copy<T: Copy>(count: i32, Apart { offsets, data: [result, values], .. }: Apart<T>) {
    for index in 0..count.max(0) as u32 {
        let [to, from] = offsets.of(index);
        result.offset(to).set(0, values.offset(from).get(0));
    }
}

fn fill<T: Copy>(count: i32, value: T, data: Device<T>) {
    (0..i64::from(count.max(0))).for_each(|index| data.set(index, value));
}

fn clamp(functor: Clamp, value: f32) -> f32 {
    let Clamp { kind, first, second } = functor;
    match kind {
        _ if value.is_nan() => value,
        0 => value.max(first),
        1 => value.min(first),
        _ => value.max(first).min(second),
    }
}

kernels! {
    fn torch_fill_1, torch_fill_1_params(count: i32, value: u8, data: Device<u8>) {
        fill(count, value, data);
    }
    fn torch_fill_2, torch_fill_2_params(count: i32, value: u16, data: Device<u16>) {
        fill(count, value, data);
    }
    fn torch_fill_4, torch_fill_4_params(count: i32, value: u32, data: Device<u32>) {
        fill(count, value, data);
    }
    fn torch_fill_8, torch_fill_8_params(count: i32, value: u64, data: Device<u64>) {
        fill(count, value, data);
    }
    fn torch_clamp, torch_clamp_params(count: i32, functor: Clamp, data: [Device<f32>; 2]) {
        let [result, values] = data;
        (0..i64::from(count.max(0))).for_each(|index| result.set(index, clamp(functor, values.get(index))));
    }
    fn torch_scale, torch_scale_params(count: i32, scale: Scale, data: [Device<f32>; 2]) {
        let [result, values] = data;
        (0..i64::from(count.max(0))).for_each(|index| result.set(index, scale.factor * values.get(index)));
    }
    /// The functor is the factor of the second argument.
    fn torch_add, torch_add_params(count: i32, factor: f32, data: [Device<f32>; 3]) {
        let [result, first, second] = data;
        for index in 0..i64::from(count.max(0)) {
            result.set(index, first.get(index) + factor * second.get(index));
        }
    }
    fn torch_copy_4, torch_copy_4_params(count: i32, apart: Apart<u32>) {
        copy(count, apart);
    }
    fn torch_copy_8, torch_copy_8_params(count: i32, apart: Apart<u64>) {
        copy(count, apart);
    }
    /// Of ReLU backwards too: `other` where `x` is above.
    fn torch_threshold, torch_threshold_params(count: i32, functor: Threshold, data: [Device<f32>; 3]) {
        let [result, x, other] = data;
        for index in 0..i64::from(count.max(0)) {
            let is_below = x.get(index) <= functor.threshold;
            result.set(index, if is_below { functor.value } else { other.get(index) });
        }
    }
}
