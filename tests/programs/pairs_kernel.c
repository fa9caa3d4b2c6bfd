/* The kernels of pairs.c, by the ABI of softgpu/README.md. */
#define _GNU_SOURCE
#include "count_up_kernel.c"
#include <sched.h>
#include <time.h>

const struct {
    uint32_t count, sizes[2];
} spin_until_params = { 2, { 8, 4 } };

/* Until the word is at least so much. */
void spin_until(const struct launch *launch, const void *const *arguments)
{
    volatile uint32_t *word = *(volatile uint32_t *const *)arguments[0];
    uint32_t value = *(const uint32_t *)arguments[1];

    (void)launch;
    while (*word < value)
        sched_yield();
}

const struct {
    uint32_t count, sizes[1];
} last_params = { 1, { 4 } };

/* So many microseconds. */
void last(const struct launch *launch, const void *const *arguments)
{
    struct timespec time = { 0, 1000L * *(const uint32_t *)arguments[0] };

    (void)launch;
    nanosleep(&time, NULL);
}
