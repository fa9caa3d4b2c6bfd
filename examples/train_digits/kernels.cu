// The kernels of the example, compiled by NVRTC when the program starts.
//
// Matrices are row-major. Every sum has a fixed order and there are no atomics, so a launch gives
// the same bits each time. `kernels/` holds the same functions for the software GPU, with the same
// names and parameters (a test compares them). Launch geometry: see `ops.rs`.

// Edge of the square of the result that one block of TILE x TILE threads computes.
#define TILE 16

// Threads of the one block that `mean` runs in.
#define MEAN_THREADS 256

// out[rows, cols] = a[rows, inner] . b[inner, cols] (+ bias[cols], if there is one), where
// a[i, k] lies at a[i * a_row + k * a_col] and b[k, j] at b[k * b_row + j * b_col]: with the steps
// exchanged a matrix is read transposed.
__device__ void product(const float *a, unsigned a_row, unsigned a_col,
                        const float *b, unsigned b_row, unsigned b_col,
                        const float *bias, float *out,
                        unsigned rows, unsigned inner, unsigned cols)
{
    __shared__ float a_tile[TILE][TILE + 1];
    __shared__ float b_tile[TILE][TILE + 1];
    const unsigned x = threadIdx.x, y = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;

    // Threads outside of `out` load zeros and take part in every barrier.
    float sum = 0.0f;
    for (unsigned start = 0; start < inner; start += TILE) {
        const unsigned a_k = start + x, b_k = start + y;
        a_tile[y][x] = row < rows && a_k < inner ? a[row * a_row + a_k * a_col] : 0.0f;
        b_tile[y][x] = b_k < inner && col < cols ? b[b_k * b_row + col * b_col] : 0.0f;
        __syncthreads();
        for (unsigned k = 0; k < TILE; ++k)
            sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();
    }
    if (row < rows && col < cols)
        out[row * cols + col] = bias ? sum + bias[col] : sum;
}

// out[rows, cols] = x[rows, inner] . weights[inner, cols] + bias[cols]; tiles over out.
extern "C" __global__ void linear(
    const float *x, const float *weights, const float *bias,
    float *out,
    unsigned rows, unsigned inner, unsigned cols)
{
    product(x, inner, 1, weights, cols, 1, bias, out, rows, inner, cols);
}

// gradient[inner, cols] = transposed x[rows, inner] . delta[rows, cols]; tiles over gradient.
extern "C" __global__ void linear_backward_weights(
    const float *x, const float *delta,
    float *gradient,
    unsigned rows, unsigned inner, unsigned cols)
{
    product(x, 1, inner, delta, cols, 1, nullptr, gradient, inner, rows, cols);
}

// gradient[cols] = the column sums of delta[rows, cols]; a thread per column.
extern "C" __global__ void linear_backward_bias(
    const float *delta,
    float *gradient,
    unsigned rows, unsigned cols)
{
    const unsigned col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols)
        return;
    float sum = 0.0f;
    for (unsigned row = 0; row < rows; ++row)
        sum += delta[row * cols + col];
    gradient[col] = sum;
}

// out[rows, inner] = delta[rows, cols] . transposed weights[inner, cols]; tiles over out.
extern "C" __global__ void linear_backward_inputs(
    const float *delta, const float *weights,
    float *out,
    unsigned rows, unsigned inner, unsigned cols)
{
    product(delta, cols, 1, weights, 1, cols, nullptr, out, rows, cols, inner);
}

// out = max(x, 0); a thread per element.
extern "C" __global__ void relu(
    const float *x,
    float *out,
    unsigned count)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

// Clears those of delta whose x was not positive; a thread per element.
extern "C" __global__ void relu_backward(
    const float *x,
    float *delta,
    unsigned count)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && !(x[i] > 0.0f))
        delta[i] = 0.0f;
}

// Of each row of logits[rows, classes] the cross-entropy of its softmax against
// targets[rows, classes], and the gradient of the rows' mean loss; a thread per row.
extern "C" __global__ void softmax_cross_entropy(
    const float *logits, const float *targets,
    float *losses, float *delta,
    unsigned rows, unsigned classes)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    logits += row * classes;
    targets += row * classes;
    delta += row * classes;

    float top = logits[0];
    for (unsigned i = 1; i < classes; ++i)
        top = fmaxf(top, logits[i]);
    float total = 0.0f;
    for (unsigned i = 0; i < classes; ++i)
        total += expf(logits[i] - top);

    const float log_total = logf(total), share = 1.0f / (float)rows;
    float loss = 0.0f;
    for (unsigned i = 0; i < classes; ++i) {
        const float logit = logits[i] - top;
        delta[i] = (expf(logit) / total - targets[i]) * share;
        loss += targets[i] * (log_total - logit);
    }
    losses[row] = loss;
}

// out[0] = the mean of values; one block of MEAN_THREADS threads.
extern "C" __global__ void mean(
    const float *values,
    float *out,
    unsigned count)
{
    __shared__ float sums[MEAN_THREADS];
    const unsigned thread = threadIdx.x;
    float sum = 0.0f;
    for (unsigned i = thread; i < count; i += MEAN_THREADS)
        sum += values[i];
    sums[thread] = sum;
    __syncthreads();

    for (unsigned half = MEAN_THREADS / 2; half > 0; half /= 2) {
        if (thread < half)
            sums[thread] += sums[thread + half];
        __syncthreads();
    }
    if (thread == 0)
        out[0] = sums[0] / (float)count;
}

// One step of Adam; rate already holds the correction for the moments' start at zero; a thread
// per element.
extern "C" __global__ void adam(
    const float *gradient,
    float *value, float *first, float *second,
    unsigned count,
    float rate, float beta1, float beta2, float epsilon)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    first[i] = beta1 * first[i] + (1.0f - beta1) * gradient[i];
    second[i] = beta2 * second[i] + (1.0f - beta2) * gradient[i] * gradient[i];
    value[i] -= rate * first[i] / (sqrtf(second[i]) + epsilon);
}
