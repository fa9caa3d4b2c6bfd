/* What these small programs need of the driver API, in place of cuda.h, and what they do with it.
 *
 * X(name in cuda.h, exported name, parameters)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;

#define BYTES (4u << 20)

#define DRIVER_FUNCTIONS(X)                                                        \
    X(cuInit, cuInit, (unsigned flags))                                            \
    X(cuDeviceGet, cuDeviceGet, (int *device, int ordinal))                        \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (void *context))                           \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))            \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                              \
    X(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr address, unsigned char byte, size_t bytes)) \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *host, CUdeviceptr address, size_t bytes))

#define MEMBER(name, symbol, parameters) int(*name) parameters;
struct driver {
    DRIVER_FUNCTIONS(MEMBER)
};

/* Says which call failed, and how. */
#define CHECK(call)                               \
    do {                                          \
        int code = (call);                        \
        if (code != 0) {                          \
            printf("%s is %d\n", #call, code);    \
            return 1;                             \
        }                                         \
    } while (0)

/* Says a word, and waits for a line or the end of standard input. */
static void say_and_wait(const char *word)
{
    puts(word);
    fflush(stdout);
    getchar();
}

/* Allocates and fills memory, waits, and then uses it first by `call`: "memset" or "copy". */
static int use_memory(const struct driver *driver, const char *call)
{
    int device;
    void *context;
    CUdeviceptr address;
    unsigned char expected = 1, *host = calloc(1, BYTES);

    CHECK(driver->cuInit(0));
    CHECK(driver->cuDeviceGet(&device, 0));
    CHECK(driver->cuDevicePrimaryCtxRetain(&context, device));
    CHECK(driver->cuCtxSetCurrent(context));
    CHECK(driver->cuMemAlloc(&address, BYTES));
    CHECK(driver->cuMemsetD8(address, expected, BYTES));
    say_and_wait("filled");
    if (strcmp(call, "memset") == 0)
        CHECK(driver->cuMemsetD8(address, ++expected, BYTES));
    CHECK(driver->cuMemcpyDtoH(host, address, BYTES));
    for (size_t i = 0; i < BYTES; i++) {
        if (host[i] != expected) {
            printf("byte %zu is %d, not %d\n", i, host[i], expected);
            return 1;
        }
    }
    CHECK(driver->cuMemFree(address));
    puts("as expected");
    return 0;
}
