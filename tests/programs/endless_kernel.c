/* A kernel that never ends, by the ABI of softgpu/README.md. */
#include <stdint.h>
#include <unistd.h>

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

const struct {
    uint32_t count;
} endless_params = { 0 };

void endless(const struct launch *launch, const void *const *arguments)
{
    (void)launch, (void)arguments;
    for (;;)
        pause();
}
