/* What these small programs need of the runtime API, in place of cuda_runtime_api.h, and what they do
 * with it.
 *
 * X(name, parameters)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (4u << 20)
#define COUNT (BYTES / sizeof(float))

enum { TO_DEVICE = 1, TO_HOST = 2 };

struct dim3 {
    unsigned x, y, z;
};

#define RUNTIME_FUNCTIONS(X)                                                                   \
    X(cudaMalloc, (void **address, size_t bytes))                                              \
    X(cudaFree, (void *address))                                                               \
    X(cudaMemset, (void *address, int byte, size_t bytes))                                     \
    X(cudaMemcpy, (void *to, const void *from, size_t bytes, int kind))                        \
    X(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *stream))     \
    X(cudaStreamCreate, (void **stream))                                                       \
    X(cudaStreamSynchronize, (void *stream))                                                   \
    X(cudaLaunchKernel, (const void *function, struct dim3 grid, struct dim3 block, void **arguments, \
                         size_t shared_bytes, void *stream))                                   \
    X(__cudaRegisterFunction, (void **image, const char *function, char *device_function, const char *name, \
                               int thread_limit, void *thread, void *block, void *block_size,  \
                               void *grid_size, int *warp_size))

#define MEMBER(name, parameters) int(*name) parameters;
struct runtime {
    RUNTIME_FUNCTIONS(MEMBER)
    void **(*__cudaRegisterFatBinary)(void *record);
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

/* A kernel that has its code from TIDEGATE_SOFTGPU_KERNELS (twice_kernel.c): a compiler would write this
 * for `__global__ void twice(unsigned count, float *values)`. */
static const char IMAGE[] = ".version 7.0\n"
                            ".target sm_70\n"
                            ".address_size 64\n"
                            ".visible .entry twice(.param .u32 count, .param .u64 values) { ret; }\n";
static struct {
    unsigned magic, version;
    const void *image, *more;
} record = { 0x466243b1, 1, IMAGE, NULL };
static char twice;

static void register_kernel(const struct runtime *runtime)
{
    void **image = runtime->__cudaRegisterFatBinary(&record);
    runtime->__cudaRegisterFunction(image, &twice, NULL, "twice", -1, NULL, NULL, NULL, NULL, NULL);
}

static int launch(const struct runtime *runtime, void *address)
{
    unsigned count = COUNT;
    void *arguments[] = { &count, &address };
    struct dim3 grid = { COUNT / 256, 1, 1 }, block = { 256, 1, 1 };
    CHECK(runtime->cudaLaunchKernel(&twice, grid, block, arguments, 0, NULL));
    return 0;
}

/* Says a word, and waits for a line or the end of standard input. */
static void say_and_wait(const char *word)
{
    puts(word);
    fflush(stdout);
    getchar();
}

/* Allocates and fills memory, waits, and then uses it first by `call`: "memset", "copy", "async" or
 * "launch". */
static int use_memory(const struct runtime *runtime, const char *call)
{
    void *stream = NULL, *address;
    float *host = malloc(BYTES), expected = 1;

    register_kernel(runtime);
    CHECK(runtime->cudaStreamCreate(&stream));
    CHECK(runtime->cudaMalloc(&address, BYTES));
    for (size_t i = 0; i < COUNT; i++)
        host[i] = expected;
    CHECK(runtime->cudaMemcpy(address, host, BYTES, TO_DEVICE));
    memset(host, 0xff, BYTES);
    say_and_wait("filled");
    if (strcmp(call, "memset") == 0) {
        CHECK(runtime->cudaMemset(address, 0, BYTES));
        expected = 0;
    } else if (strcmp(call, "launch") == 0) {
        CHECK(launch(runtime, address));
        expected = 2;
    }
    CHECK(runtime->cudaMemcpyAsync(host, address, BYTES, TO_HOST, strcmp(call, "async") == 0 ? stream : NULL));
    CHECK(runtime->cudaStreamSynchronize(stream));
    CHECK(runtime->cudaStreamSynchronize(NULL));
    for (size_t i = 0; i < COUNT; i++) {
        if (host[i] != expected) {
            printf("value %zu is %f, not %f\n", i, host[i], expected);
            return 1;
        }
    }
    CHECK(runtime->cudaFree(address));
    puts("as expected");
    return 0;
}
