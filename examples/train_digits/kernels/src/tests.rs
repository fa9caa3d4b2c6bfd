//! The kernels against what they promise, written out plainly; and against `kernels.cu`.

use super::*;

const CUDA_SOURCE: &str = include_str!("../../kernels.cu");

/// Numbers that are neither all positive nor regular, the same each time.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let scatter = |i: u32| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(13) % 2001;
    (0..count as u32).map(|i| scatter(i) as f32 / 1000.0 - 1.0).collect()
}

fn assert_close(got: &[f32], wanted: impl Fn(usize) -> f64) {
    for (i, &got) in got.iter().enumerate() {
        let wanted = wanted(i);
        assert!((f64::from(got) - wanted).abs() < 1e-4, "at {i}: {got} for {wanted}");
    }
}

/// Row and column of place `i`, for sizes that divide by none of the loops' widths.
const ROWS: usize = 7;
const INNER: usize = 37;
const COLS: usize = 21;

#[test]
fn linear_is_the_product_plus_the_bias() {
    let (x, w, bias) = (numbers(ROWS * INNER, 1), numbers(INNER * COLS, 2), numbers(COLS, 3));
    let mut out = vec![f32::NAN; ROWS * COLS];
    math::linear(&x, &w, &bias, &mut out, INNER);
    assert_close(&out, |i| {
        let (row, col) = (i / COLS, i % COLS);
        let term = |k| f64::from(x[row * INNER + k]) * f64::from(w[k * COLS + col]);
        f64::from(bias[col]) + (0..INNER).map(term).sum::<f64>()
    });
}

#[test]
fn the_weights_gradient_is_the_transposed_inputs_times_delta() {
    let (x, delta) = (numbers(ROWS * INNER, 4), numbers(ROWS * COLS, 5));
    let mut out = vec![f32::NAN; INNER * COLS];
    math::linear_backward_weights(&x, &delta, &mut out, INNER, COLS);
    assert_close(&out, |i| {
        let (k, col) = (i / COLS, i % COLS);
        let term = |row| f64::from(x[row * INNER + k]) * f64::from(delta[row * COLS + col]);
        (0..ROWS).map(term).sum::<f64>()
    });
}

#[test]
fn the_bias_gradient_is_the_sum_of_each_column() {
    let delta = numbers(ROWS * COLS, 6);
    let mut out = vec![f32::NAN; COLS];
    math::linear_backward_bias(&delta, &mut out);
    assert_close(&out, |col| (0..ROWS).map(|row| f64::from(delta[row * COLS + col])).sum());
}

#[test]
fn the_inputs_gradient_is_delta_times_the_transposed_weights() {
    let (delta, w) = (numbers(ROWS * COLS, 7), numbers(INNER * COLS, 8));
    let mut out = vec![f32::NAN; ROWS * INNER];
    math::linear_backward_inputs(&delta, &w, &mut out, INNER, COLS);
    assert_close(&out, |i| {
        let (row, k) = (i / INNER, i % INNER);
        let term = |col| f64::from(delta[row * COLS + col]) * f64::from(w[k * COLS + col]);
        (0..COLS).map(term).sum::<f64>()
    });
}

#[test]
fn relu_and_its_gradient_stop_what_is_not_positive() {
    let x = [-1.0, 0.0, 2.0];
    let (mut out, mut delta) = ([f32::NAN; 3], [5.0, 6.0, 7.0]);
    math::relu(&x, &mut out);
    math::relu_backward(&x, &mut delta);
    assert_eq!((out, delta), ([0.0, 0.0, 2.0], [0.0, 0.0, 7.0]));
}

#[test]
fn the_softmax_loss_and_its_gradient_are_exact_and_do_not_overflow() {
    let (logits, targets) = ([1.0, 2.0, 0.5, 900.0, 899.0, 0.0], [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let (mut losses, mut delta) = ([f32::NAN; 2], [f32::NAN; 6]);
    math::softmax_cross_entropy(&logits, &targets, &mut losses, &mut delta, 3);
    let share = |i: usize| {
        let row = &logits[i / 3 * 3..][..3];
        let total: f64 = row.iter().map(|&x| f64::from(x - row[i % 3]).exp()).sum();
        1.0 / total
    };
    assert_close(&losses, |row| -share([1, 3][row]).ln());
    assert_close(&delta, |i| (share(i) - f64::from(targets[i])) / 2.0);
}

#[test]
fn adam_moves_against_the_gradient_by_the_rate_at_first() {
    let step = math::AdamStep { rate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 0.0 };
    let (mut value, mut first, mut second) = ([1.0, 1.0], [0.0; 2], [0.0; 2]);
    step.apply(&[4.0, -0.5], &mut value, &mut first, &mut second);
    assert_close(&first, |i| [0.4, -0.05][i]);
    assert_close(&second, |i| [0.16, 0.0025][i]);
    assert_close(&value, |i| [0.9, 1.1][i]);
}

#[test]
fn a_launch_reads_its_arguments_from_their_table() {
    let (values, mut out, count) = ([1.0_f32, 2.0, 6.0], 0.0_f32, 3_u32);
    let (values, target) = (values.as_ptr(), &raw mut out);
    let args = [(&raw const values).cast(), (&raw const target).cast(), (&raw const count).cast()];
    // SAFETY: three arguments as `mean` declares them: three floats, room for one, and a count.
    unsafe { mean(std::ptr::null(), args.as_ptr()) };
    assert_eq!(out, 3.0);
}

/// The parameters of each kernel in `kernels.cu`: its name, and each one's declaration.
fn cuda_signatures() -> Vec<(String, Vec<String>)> {
    let (_, kernels) = CUDA_SOURCE.split_once("extern \"C\" __global__").expect("a kernel");
    kernels.split("extern \"C\" __global__").map(cuda_signature).collect()
}

fn cuda_signature(text: &str) -> (String, Vec<String>) {
    let (head, rest) = text.split_once('(').expect("a parameter list");
    let (params, _) = rest.split_once(')').expect("its end");
    let words = |param: &str| param.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = head.trim().strip_prefix("void ").expect("kernels return nothing");
    (name.to_owned(), params.split(',').map(words).collect())
}

/// The same, of the kernels declared here.
fn host_signatures() -> Vec<(String, Vec<String>)> {
    let params = |entry: &abi::Entry| entry.params.iter().map(|(text, _)| (*text).into()).collect();
    TABLE.iter().map(|entry| (entry.name.to_owned(), params(entry))).collect()
}

#[test]
fn host_and_cuda_kernels_have_the_same_names_and_parameters() {
    assert_eq!(host_signatures(), cuda_signatures());
}
