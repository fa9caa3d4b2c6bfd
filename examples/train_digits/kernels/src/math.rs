//! What the kernels compute, on slices. Matrices are row-major.
//!
//! The inner loops run over whole rows, so that the compiler makes vector instructions of them;
//! every sum has one order, written out here, so that the result is always the same bits.

#![forbid(unsafe_code)]

/// Sums kept apart in a dot product: enough to fill the vector units, added up at its end.
const LANES: usize = 16;

/// Rows added to a row at a time, so that it is loaded and stored once for all of them.
const BAND: usize = 4;

/// `out = x · weights + bias`; `x` has `inner` columns, `out` as many as `bias`.
pub fn linear(x: &[f32], weights: &[f32], bias: &[f32], out: &mut [f32], inner: usize) {
    let rows = x.chunks_exact(inner);
    for (x_row, out_row) in rows.zip(out.chunks_exact_mut(bias.len())) {
        out_row.copy_from_slice(bias);
        add_combination(out_row, x_row, weights);
    }
}

/// `gradient = xᵀ · delta`; `x` has `inner` columns, `delta` has `cols`.
pub fn linear_backward_weights(x: &[f32], delta: &[f32], gradient: &mut [f32], inner: usize, cols: usize) {
    let mut column = Vec::with_capacity(x.len() / inner);
    for (k, gradient_row) in gradient.chunks_exact_mut(cols).enumerate() {
        column.clear();
        column.extend(x.iter().skip(k).step_by(inner));
        gradient_row.fill(0.0);
        add_combination(gradient_row, &column, delta);
    }
}

/// `gradient` = the sums of `delta`'s columns, of which there are as many as `gradient` is long.
pub fn linear_backward_bias(delta: &[f32], gradient: &mut [f32]) {
    gradient.fill(0.0);
    for row in delta.chunks_exact(gradient.len()) {
        add_scaled(gradient, 1.0, row);
    }
}

/// `out = delta · weightsᵀ`; `out` has `inner` columns, `delta` has `cols`.
pub fn linear_backward_inputs(delta: &[f32], weights: &[f32], out: &mut [f32], inner: usize, cols: usize) {
    let rows = delta.chunks_exact(cols);
    for (delta_row, out_row) in rows.zip(out.chunks_exact_mut(inner)) {
        for (out, weights_row) in out_row.iter_mut().zip(weights.chunks_exact(cols)) {
            *out = dot(delta_row, weights_row);
        }
    }
}

/// `out = max(x, 0)`
pub fn relu(x: &[f32], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = if x > 0.0 { x } else { 0.0 };
    }
}

/// Clears those of `delta` whose `x` was not positive.
pub fn relu_backward(x: &[f32], delta: &mut [f32]) {
    for (delta, &x) in delta.iter_mut().zip(x) {
        *delta = if x > 0.0 { *delta } else { 0.0 };
    }
}

/// The loss of each row, and the gradient of the rows' mean loss.
pub fn softmax_cross_entropy(
    logits: &[f32],
    targets: &[f32],
    losses: &mut [f32],
    delta: &mut [f32],
    classes: usize,
) {
    let share = 1.0 / losses.len() as f32;
    let rows =
        logits.chunks_exact(classes).zip(targets.chunks_exact(classes)).zip(delta.chunks_exact_mut(classes));
    for (((logits, targets), delta), loss) in rows.zip(losses) {
        *loss = softmax_cross_entropy_row(logits, targets, delta, share);
    }
}

/// One row: its loss, and `delta = (softmax(logits) - targets) * share`.
fn softmax_cross_entropy_row(logits: &[f32], targets: &[f32], delta: &mut [f32], share: f32) -> f32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let total: f32 = logits.iter().map(|logit| (logit - top).exp()).sum();
    let log_total = total.ln();
    let mut loss = 0.0;
    for ((delta, &logit), &target) in delta.iter_mut().zip(logits).zip(targets) {
        *delta = ((logit - top).exp() / total - target) * share;
        loss += target * (log_total - (logit - top));
    }
    loss
}

/// The mean, summed from the first to the last.
pub fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}

/// The numbers of one step of Adam (Kingma and Ba, 2015, the form at the end of their section 2).
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

impl AdamStep {
    /// Updates the moments with the gradient, and the values with the moments.
    pub fn apply(&self, gradient: &[f32], value: &mut [f32], first: &mut [f32], second: &mut [f32]) {
        let moments = first.iter_mut().zip(second);
        for ((&gradient, value), (first, second)) in gradient.iter().zip(value).zip(moments) {
            *first = self.beta1 * *first + (1.0 - self.beta1) * gradient;
            *second = self.beta2 * *second + (1.0 - self.beta2) * gradient * gradient;
            *value -= self.rate * *first / (second.sqrt() + self.epsilon);
        }
    }
}

/// `out += Σ coefficients[k] · rows[k]`; each row is as long as `out`.
fn add_combination(out: &mut [f32], coefficients: &[f32], rows: &[f32]) {
    let (quads, rest) = coefficients.as_chunks::<BAND>();
    let (bands, rest_rows) = rows.split_at(quads.len() * BAND * out.len());
    for (quad, band) in quads.iter().zip(bands.chunks_exact(BAND * out.len())) {
        add_band(out, quad, band);
    }
    for (&coefficient, row) in rest.iter().zip(rest_rows.chunks_exact(out.len())) {
        add_scaled(out, coefficient, row);
    }
}

/// `out += Σ coefficients[k] · rows[k]` for one band of rows.
fn add_band(out: &mut [f32], coefficients: &[f32; BAND], rows: &[f32]) {
    let [a, b, c, d] = *coefficients;
    let (first, second) = rows.split_at(2 * out.len());
    let (row_a, row_b) = first.split_at(out.len());
    let (row_c, row_d) = second.split_at(out.len());
    let rows = row_a.iter().zip(row_b).zip(row_c.iter().zip(row_d));
    for (out, ((x, y), (z, w))) in out.iter_mut().zip(rows) {
        *out += (a * x + b * y) + (c * z + d * w);
    }
}

/// `out += coefficient · row`
fn add_scaled(out: &mut [f32], coefficient: f32, row: &[f32]) {
    for (out, x) in out.iter_mut().zip(row) {
        *out += coefficient * x;
    }
}

/// The dot product, in [`LANES`] partial sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}
