/* Ground 9: do kernels run as fast on mapped pieces as on cuMemAlloc's memory?
 *
 * Why: under Tidegate every allocation lies in pieces. If small pieces cost address translation, the
 * piece must be larger, or a job alone pays for nothing (I9; the goal is a step as fast as without). */
#include "ground.h"

#define PART "kernel speed"

static size_t bytes;

/* Best of five: GB/s of a kernel that reads and writes the whole range. */
static bool speed(double *best, CUdeviceptr at)
{
    const char *asked = "a kernel sweeps over memory";
    void *sweep, *from, *to;
    uint64_t count = bytes / 4;
    uint32_t rounds = 4;
    void *arguments[] = {&at, &count, &rounds};
    TRY(PART, asked, kernel(&sweep, "sweep"));
    TRY(PART, asked, cu.event_create(&from, 0));
    TRY(PART, asked, cu.event_create(&to, 0));
    TRY(PART, asked, cu.memset8(at, 0, bytes));
    *best = 0;
    for (int try = 0; try < (quick() ? 2 : 5); try++) {
        float milliseconds = 0;
        TRY(PART, asked, cu.event_record(from, NULL));
        TRY(PART, asked, launch(sweep, 1056, NULL, arguments));
        TRY(PART, asked, cu.event_record(to, NULL));
        TRY(PART, asked, cu.event_synchronize(to));
        TRY(PART, asked, cu.event_elapsed(&milliseconds, from, to));
        double reached = 2.0 * rounds * (double)bytes / ((double)milliseconds * 1e6);
        *best = reached > *best ? reached : *best;
    }
    return true;
}

int main(void)
{
    static const size_t sizes[] = {2 * MIB, 8 * MIB, 32 * MIB, 512 * MIB};
    CUdeviceptr at;
    double plain, mapped;
    begin("9");
    NEED(start());
    bytes = at_most(2 * GIB, 4, 2 * MIB);
    bytes = bytes >= 512 * MIB ? bytes / (512 * MIB) * (512 * MIB) : bytes;
    NEED(cu.alloc(&at, bytes));
    if (!speed(&plain, at))
        return 0;
    say_figure(PART, "on cuMemAlloc's memory", plain, "GB/s", "%zu bytes", bytes);
    NEED(cu.free(at));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char asked[96];
        if (bytes % sizes[i] != 0 || sizes[i] % granule() != 0)
            continue;
        NEED(map_pieces(&at, bytes, sizes[i]));
        if (!speed(&mapped, at))
            return 0;
        snprintf(asked, sizeof asked, "on pieces of %zu MiB, of the speed on cuMemAlloc's memory",
                 (size_t)(sizes[i] / MIB));
        say_figure(PART, asked, mapped / plain, "ratio", "%.1f GB/s", mapped);
        NEED(unmap_range(at, bytes));
    }
    return 0;
}
