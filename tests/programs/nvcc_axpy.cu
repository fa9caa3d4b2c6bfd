// y += a x by a kernel that nvcc compiles; it says a word at each step and waits after the first.
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int COUNT = (4 << 20) / 2 / sizeof(float); // two arrays are 4 MiB

__global__ void axpy(int n, float a, const float *x, float *y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += a * x[i];
}

static void check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    printf("%s: %s (%s)\n", what, cudaGetErrorString(code), cudaGetErrorName(code));
    exit(1);
}
#define CHECK(call) check(call, #call)

int main()
{
    float *x, *y;
    std::vector<float> values(COUNT), ones(COUNT, 1), result(COUNT);
    for (int i = 0; i < COUNT; i++)
        values[i] = i % 1000;
    CHECK(cudaMalloc(&x, COUNT * sizeof(float)));
    CHECK(cudaMalloc(&y, COUNT * sizeof(float)));
    CHECK(cudaMemcpy(x, values.data(), COUNT * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(y, ones.data(), COUNT * sizeof(float), cudaMemcpyHostToDevice));
    puts("filled");
    fflush(stdout);
    getchar();
    axpy<<<COUNT / 256, 256>>>(COUNT, 2, x, y);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result.data(), y, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) {
        if (result[i] != 2 * values[i] + 1) {
            printf("value %d is %f\n", i, result[i]);
            return 1;
        }
    }
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    puts("as expected");
    return 0;
}
