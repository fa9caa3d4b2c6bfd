/* The grounds' kernels of ../kernels.ptx for the software GPU (softgpu/README.md, Kernels): a kernel
 * is called once for the whole launch. They let the kit be tried without a GPU, and measure nothing. */
#include <stdint.h>
#include <time.h>

struct parameters {
    uint32_t count, sizes[4];
};

const struct parameters nap_params = {1, {8}};
const struct parameters fill_params = {3, {8, 8, 4}};
const struct parameters check_params = {4, {8, 8, 4, 8}};
const struct parameters sweep_params = {3, {8, 8, 4}};

void nap(const void *launch, const void *const *arguments)
{
    uint64_t milliseconds = *(const uint64_t *)arguments[0];
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    (void)launch;
    nanosleep(&length, 0);
}

void fill(const void *launch, const void *const *arguments)
{
    uint32_t *data = *(uint32_t *const *)arguments[0], value = *(const uint32_t *)arguments[2];
    uint64_t count = *(const uint64_t *)arguments[1];
    (void)launch;
    for (uint64_t i = 0; i < count; i++)
        data[i] = value + (uint32_t)i;
}

void check(const void *launch, const void *const *arguments)
{
    const uint32_t *data = *(const uint32_t *const *)arguments[0];
    uint32_t value = *(const uint32_t *)arguments[2], *wrong = *(uint32_t *const *)arguments[3];
    uint64_t count = *(const uint64_t *)arguments[1];
    (void)launch;
    for (uint64_t i = 0; i < count; i++)
        *wrong += data[i] != value + (uint32_t)i;
}

void sweep(const void *launch, const void *const *arguments)
{
    float *data = *(float *const *)arguments[0];
    uint64_t count = *(const uint64_t *)arguments[1];
    (void)launch;
    for (uint32_t left = *(const uint32_t *)arguments[2]; left > 0; left--)
        for (uint64_t i = 0; i < count; i++)
            data[i] = 0.5f * data[i] + 1.0f;
}
