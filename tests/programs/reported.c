/* Deals out and takes back blocks as PyTorch's allocator does, and reports each as often as it is told, after
   some that do not count. As a library it is the one that PyTorch's allocator reports to. */
#include <stdint.h>
#include <stdlib.h>

/* As C++ passes a c10::Device. */
struct device {
    int8_t kind, index;
};

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *address, int64_t change, size_t allocated,
    size_t reserved, struct device device);

#ifndef LINKED
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *address, int64_t change, size_t allocated,
    size_t reserved, struct device device)
{
    (void)address, (void)change, (void)allocated, (void)reserved, (void)device;
}
#else
#include "current.h"

enum { SEGMENT = 2 << 20, BLOCK = 512, BLOCKS = 200 };

static size_t allocated;

static void report(uint64_t address, int64_t change)
{
    static const struct device cuda = { 1, 0 };
    allocated += change;
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)address, change, allocated, SEGMENT, cuda);
}

/* The test's profiler starts to count where this function is entered. */
__attribute__((noinline)) void blocks_counted(uint64_t segment, int times)
{
    for (int i = 0; i < times; i++) {
        uint64_t block = segment + (uint64_t)(i * 7 % BLOCKS) * BLOCK;
        report(block, -BLOCK);
        report(block, BLOCK);
    }
}

int main(int argc, char **argv)
{
    CUdeviceptr segment;

    if (argc != 2)
        return 2;
    CHECK(make_current());
    CHECK(cuMemAlloc_v2(&segment, SEGMENT));
    for (uint64_t i = 0; i < BLOCKS; i++)
        report(segment + i * BLOCK, BLOCK);
    blocks_counted(segment, BLOCKS);
    blocks_counted(segment, atoi(argv[1]));
    say_and_wait("reported");
    return 0;
}
#endif
