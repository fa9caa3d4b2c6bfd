/* Asks about the memory of two GPUs, before and after it has allocated BYTES on its own. Arguments: how it gets
 * the functions (linked, opened LIBRARY, or nowhere: from whatever is loaded). */
#define _GNU_SOURCE
#include "current.h"
#include <dlfcn.h>

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

typedef int ask_t(void *device, struct memory *memory);
typedef int ask_v2_t(void *device, struct memory_v2 *memory);

#ifdef LINKED
ask_t nvmlDeviceGetMemoryInfo;
ask_v2_t nvmlDeviceGetMemoryInfo_v2;
#endif

static ask_t *ask;
static ask_v2_t *ask_v2;

static int tell(const char *when)
{
    for (size_t gpu = 1; gpu <= 2; gpu++) {
        struct memory memory;
        struct memory_v2 more;
        CHECK(ask((void *)gpu, &memory));
        CHECK(ask_v2((void *)gpu, &more));
        printf("%s %zu: %llu %llu %llu", when, gpu, memory.total >> 20, memory.free >> 20, memory.used >> 20);
        printf(" and %llu %llu %llu\n", more.total >> 20, more.free >> 20, more.used >> 20);
    }
    return 0;
}

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
    CUdeviceptr address;

#ifdef LINKED
    ask = nvmlDeviceGetMemoryInfo, ask_v2 = nvmlDeviceGetMemoryInfo_v2;
#else
    ask = (ask_t *)dlsym(library, "nvmlDeviceGetMemoryInfo");
    ask_v2 = (ask_v2_t *)dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
#endif
    if (ask == NULL || ask_v2 == NULL) {
        puts("there is none");
        return 0;
    }
    (void)library;
    if (tell("before") != 0)
        return 1;
    CHECK(make_current());
    CHECK(cuMemAlloc_v2(&address, BYTES));
    return tell("after");
}
