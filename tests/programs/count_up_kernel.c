/* A kernel that makes every byte one more, by the ABI of softgpu/README.md. */
#include <stdint.h>

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

const struct {
    uint32_t count, sizes[2];
} count_up_params = { 2, { 8, 8 } };

void count_up(const struct launch *launch, const void *const *arguments)
{
    unsigned char *bytes = *(unsigned char *const *)arguments[0];
    uint64_t count = *(const uint64_t *)arguments[1];

    (void)launch;
    for (uint64_t i = 0; i < count; i++)
        bytes[i]++;
}
