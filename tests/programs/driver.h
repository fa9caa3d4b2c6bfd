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
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *host, CUdeviceptr address, size_t bytes)) \
    X(cuModuleLoad, cuModuleLoad, (void **module, const char *path))               \
    X(cuModuleGetFunction, cuModuleGetFunction, (void **function, void *module, const char *name)) \
    X(cuLaunchKernel, cuLaunchKernel,                                              \
        (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
            unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra))

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

/* Launches the kernel of count_up_kernel.c: every byte becomes one more. */
static int count_up(const struct driver *driver, const char *image, CUdeviceptr address)
{
    void *module, *function;
    unsigned long long bytes = BYTES;
    void *parameters[] = { &address, &bytes };

    CHECK(driver->cuModuleLoad(&module, image));
    CHECK(driver->cuModuleGetFunction(&function, module, "count_up"));
    CHECK(driver->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    return 0;
}

/* Allocates and fills memory, waits, and then uses it first by a call: "memset", "copy", or "launch" with the
 * image of count_up_kernel.c. */
static int use_memory(const struct driver *driver, char **call)
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
    if (strcmp(call[0], "memset") == 0)
        CHECK(driver->cuMemsetD8(address, ++expected, BYTES));
    if (strcmp(call[0], "launch") == 0 && (++expected, count_up(driver, call[1], address) != 0))
        return 1;
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
