//! The kernels of `examples/train_digits` as host functions: what `kernels.cu` is on a GPU, this
//! library is on the software GPU, which loads it with `cuModuleLoad` as any module.
//!
//! Names and parameter lists are those of `kernels.cu` (a test compares them). All sums run in a
//! fixed order and nothing is contracted, so the results are the same bits each time.

mod abi;
mod math;

use abi::{kernels, parameter_size};

kernels! {
    /// `out[rows, cols] = x[rows, inner] · weights[inner, cols] + bias[cols]`
    fn linear(
        read { x[rows * inner], weights[inner * cols], bias[cols] },
        write { out[rows * cols] },
        sizes { rows, inner, cols },
        reals {}
    ) {
        math::linear(x, weights, bias, out, inner);
    }

    /// `gradient[inner, cols] = xᵀ · delta` with `x[rows, inner]`, `delta[rows, cols]`
    fn linear_backward_weights(
        read { x[rows * inner], delta[rows * cols] },
        write { gradient[inner * cols] },
        sizes { rows, inner, cols },
        reals {}
    ) {
        math::linear_backward_weights(x, delta, gradient, inner, cols);
    }

    /// `gradient[cols]` = the column sums of `delta[rows, cols]`
    fn linear_backward_bias(
        read { delta[rows * cols] },
        write { gradient[cols] },
        sizes { rows, cols },
        reals {}
    ) {
        math::linear_backward_bias(delta, gradient);
    }

    /// `out[rows, inner] = delta[rows, cols] · weightsᵀ` with `weights[inner, cols]`
    fn linear_backward_inputs(
        read { delta[rows * cols], weights[inner * cols] },
        write { out[rows * inner] },
        sizes { rows, inner, cols },
        reals {}
    ) {
        math::linear_backward_inputs(delta, weights, out, inner, cols);
    }

    /// `out = max(x, 0)`
    fn relu(
        read { x[count] },
        write { out[count] },
        sizes { count },
        reals {}
    ) {
        math::relu(x, out);
    }

    /// Clears those of `delta` whose `x` was not positive.
    fn relu_backward(
        read { x[count] },
        write { delta[count] },
        sizes { count },
        reals {}
    ) {
        math::relu_backward(x, delta);
    }

    /// Of each row of `logits[rows, classes]` the cross-entropy of its softmax against
    /// `targets[rows, classes]`, and the gradient of the rows' mean loss, `delta[rows, classes]`.
    fn softmax_cross_entropy(
        read { logits[rows * classes], targets[rows * classes] },
        write { losses[rows], delta[rows * classes] },
        sizes { rows, classes },
        reals {}
    ) {
        math::softmax_cross_entropy(logits, targets, losses, delta, classes);
    }

    /// `out[0]` = the mean of `values`
    fn mean(
        read { values[count] },
        write { out[1] },
        sizes { count },
        reals {}
    ) {
        out[0] = math::mean(values);
    }

    /// One step of Adam; `rate` already holds the correction for the moments' start at zero.
    fn adam(
        read { gradient[count] },
        write { value[count], first[count], second[count] },
        sizes { count },
        reals { rate, beta1, beta2, epsilon }
    ) {
        let step = math::AdamStep { rate, beta1, beta2, epsilon };
        step.apply(gradient, value, first, second);
    }
}

#[cfg(test)]
mod tests;
