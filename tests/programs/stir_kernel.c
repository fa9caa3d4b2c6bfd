/* A kernel that takes a while and adds to every word, by the ABI of softgpu/README.md. */
#include <stdint.h>
#include <unistd.h>

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

const struct {
    uint32_t count, sizes[4];
} stir_params = { 4, { 8, 8, 4, 4 } };

__attribute__((optimize("O3"))) void stir(const struct launch *launch, const void *const *arguments)
{
    uint32_t *words = *(uint32_t *const *)arguments[0];
    uint64_t count = *(const uint64_t *)arguments[1];
    uint32_t add = *(const uint32_t *)arguments[2];
    uint32_t micros = *(const uint32_t *)arguments[3];

    (void)launch;
    usleep(micros);
    for (uint64_t i = 0; i < count; i++)
        words[i] += add;
}
