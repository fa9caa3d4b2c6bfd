/* Stands in for a library that tells of GPUs: three functions, and two GPUs, of which the second is nobody's.
 * Each has 100 MiB, of which half are used. */
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20 };

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    const char *first = getenv("NVML_FIRST_GPU");

    snprintf(uuid, length, "%s", device == (void *)1 && first ? first : "GPU-99999999-0000-0000-0000-000000000000");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    (void)device;
    *memory = (struct memory) { 100 * MIB, 50 * MIB, 50 * MIB };
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    (void)device;
    memory->total = 100 * MIB, memory->reserved = 10 * MIB;
    memory->free = 40 * MIB, memory->used = 50 * MIB;
    return 0;
}
