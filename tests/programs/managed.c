/* Fills managed memory and memory of its GPU, the former from both sides, and finds both as they were. Argument:
 * the image with the kernel of count_up_kernel.c. */
#include "current.h"

int cuCtxSynchronize(void);
int cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags);
int cuMemRangeGetAttribute(void *value, size_t size, int attribute, CUdeviceptr address, size_t bytes);

enum { LAST_PREFETCH_LOCATION = 4 };

static int all_are(const unsigned char *bytes, unsigned char expected)
{
    for (size_t i = 0; i < BYTES; i++)
        if (bytes[i] != expected)
            return printf("byte %zu is %d, not %d\n", i, bytes[i], expected), 0;
    return 1;
}

int main(int argc, char **argv)
{
    CUdeviceptr own, managed;
    int location;
    unsigned char *host = malloc(BYTES);
    struct driver driver = { .cuModuleLoad = cuModuleLoad, .cuModuleGetFunction = cuModuleGetFunction,
        .cuLaunchKernel = cuLaunchKernel };

    if (argc != 2)
        return 2;
    CHECK(make_current());
    CHECK(cuMemAllocManaged(&managed, BYTES, 1));
    CHECK(cuMemAlloc_v2(&own, BYTES));
    memset((void *)managed, 5, BYTES);
    CHECK(cuMemsetD8_v2(own, 7, BYTES));
    say_and_wait("filled");
    CHECK(cuMemRangeGetAttribute(&location, sizeof location, LAST_PREFETCH_LOCATION, managed, BYTES));
    printf("prefetched to %d\n", location);
    for (int round = 0; round < 3; round++)
        if (count_up(&driver, argv[1], managed) != 0 || count_up(&driver, argv[1], own) != 0)
            return 1;
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(host, own, BYTES));
    if (!all_are((unsigned char *)managed, 8) || !all_are(host, 10))
        return 1;
    CHECK(cuMemFree_v2(managed));
    CHECK(cuMemFree_v2(own));
    puts("as expected");
    return 0;
}
