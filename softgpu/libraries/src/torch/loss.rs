//! The logarithm of a softmax (PersistentSoftmax.cuh), and the negative log likelihood (Loss.cu).

use crate::kernel::{Device, kernels};

/// An index of a class among so many; none: what is to be ignored, or out of range.
fn class(target: i64, ignored: i64, classes: i64) -> Option<i64> {
    (target != ignored && (0..classes).contains(&target)).then_some(target)
}

fn weight(weights: Device<f32>, class: i64) -> f32 {
    if weights.is_null() { 1.0 } else { weights.get(class) }
}

kernels! {
    /// Each of `batch` rows lies `stride` elements behind the one before.
    fn torch_log_softmax, torch_log_softmax_params(
        result: Device<f32>, values: Device<f32>, batch: i32, stride: i32, count: i32,
        _mask: u64, _chunk: i32, _is_transformer: u8,
    ) {
        for row in 0..i64::from(batch.max(0)) {
            let row = row * i64::from(stride)..row * i64::from(stride) + i64::from(count.max(0));
            let largest = row.clone().map(|index| values.get(index)).fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.clone().map(|index| (values.get(index) - largest).exp()).sum();
            row.for_each(|index| result.set(index, values.get(index) - largest - sum.ln()));
        }
    }

    fn torch_log_softmax_backward, torch_log_softmax_backward_params(
        result: Device<f32>, gradient: Device<f32>, output: Device<f32>, batch: i32, stride: i32, count: i32,
        _mask: u64,
    ) {
        for row in 0..i64::from(batch.max(0)) {
            let row = row * i64::from(stride)..row * i64::from(stride) + i64::from(count.max(0));
            let sum: f32 = row.clone().map(|index| gradient.get(index)).sum();
            row.for_each(|index| result.set(index, gradient.get(index) - output.get(index).exp() * sum));
        }
    }

    /// `input` has `classes_apart` elements for each of `rows`.
    fn torch_nll_loss, torch_nll_loss_params(
        output: Device<f32>, total_weight: Device<f32>, input: Device<f32>, target: Device<i64>,
        weights: Device<f32>, is_mean: u8, rows: i64, classes_apart: i64, classes: i64, ignored: i64,
    ) {
        let (mut sum, mut total) = (0.0f32, 0.0f32);
        for row in 0..rows {
            if let Some(class) = class(target.get(row), ignored, classes) {
                let weight = weight(weights, class);
                sum -= input.get(row * classes_apart + class) * weight;
                total += weight;
            }
        }
        total_weight.set(0, total);
        output.set(0, if is_mean != 0 { sum / total } else { sum });
    }

    fn torch_nll_loss_backward, torch_nll_loss_backward_params(
        result: Device<f32>, gradient: Device<f32>, target: Device<i64>, weights: Device<f32>,
        total_weight: Device<f32>, is_mean: u8, rows: i32, classes_apart: i32, classes: i64, ignored: i64,
    ) {
        let part = gradient.get(0) / if is_mean != 0 { total_weight.get(0) } else { 1.0 };
        for row in 0..i64::from(rows.max(0)) {
            if let Some(class) = class(target.get(row), ignored, classes) {
                result.set(row * i64::from(classes_apart) + class, -part * weight(weights, class));
            }
        }
    }
}
