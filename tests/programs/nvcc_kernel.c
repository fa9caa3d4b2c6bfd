/* What the kernel of nvcc_axpy.cu does, under its mangled name, by the ABI of softgpu/README.md. */
#include <stdint.h>

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

const struct {
    uint32_t count, sizes[4];
} _Z4axpyifPKfPf_params = { 4, { 4, 4, 8, 8 } };

void _Z4axpyifPKfPf(const struct launch *launch, const void *const *arguments)
{
    int32_t count = *(const int32_t *)arguments[0];
    float factor = *(const float *)arguments[1];
    const float *x = *(const float *const *)arguments[2];
    float *y = *(float *const *)arguments[3];
    (void)launch;
    for (int32_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}
