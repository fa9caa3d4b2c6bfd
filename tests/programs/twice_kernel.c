/* Doubles values, by the ABI of softgpu/README.md. */
#include <stdint.h>

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

const struct {
    uint32_t count, sizes[2];
} twice_params = { 2, { 4, 8 } };

void twice(const struct launch *launch, const void *const *arguments)
{
    uint32_t count = *(const uint32_t *)arguments[0];
    float *values = *(float *const *)arguments[1];
    (void)launch;
    for (uint32_t i = 0; i < count; i++)
        values[i] *= 2;
}
