//! `vectorized_elementwise_kernel(int N, functor, std::array<char*, n> data)` (CUDALoops.cuh): the first of
//! `data` is the result.

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

/// What `threshold_kernel_impl`'s lambda captures.
#[repr(C)]
#[derive(Clone, Copy)]
struct Threshold {
    threshold: f32,
    value: f32,
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
    /// Of ReLU backwards too: `other` where `x` is above.
    fn torch_threshold, torch_threshold_params(count: i32, functor: Threshold, data: [Device<f32>; 3]) {
        let [result, x, other] = data;
        for index in 0..i64::from(count.max(0)) {
            let is_below = x.get(index) <= functor.threshold;
            result.set(index, if is_below { functor.value } else { other.get(index) });
        }
    }
}
