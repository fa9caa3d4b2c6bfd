/* Eight threads that capture graphs and launch them, each one after the other: nearly always some stream captures. What they submit
 * besides, to the default streams of several contexts, nothing can be known of.
 * Argument: the image of count_up_kernel.c.
 *
 * Says "begun", goes on until the end of standard input, and says "as expected" if every byte is what it should be.
 */
#define _GNU_SOURCE
#include "current.h"
#include "captured.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define THREADS 8
#define PART (BYTES / THREADS)
/* What a program does on the host in a capture: longer in each thread, so that they do not end together. */
#define ON_HOST_NS 20000000
#define MORE_NS 7000000

int cuCtxSynchronize(void);
int cuCtxGetCurrent(void **context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuMemcpyPeer(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t bytes);

static void *context, *count_up_kernel;
static CUdeviceptr memory, other;
static atomic_int stop;
static unsigned graphs[THREADS];

static int capture_and_launch(void *stream, int which)
{
    const struct timespec on_host = { 0, ON_HOST_NS + which * MORE_NS };
    CUdeviceptr address = memory + which * PART;
    uint64_t bytes = PART;
    void *parameters[] = { &address, &bytes };

    CHECK(cuStreamBeginCapture_v2(stream, RELAXED));
    CHECK(cuLaunchKernel(count_up_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    nanosleep(&on_host, NULL);
    CHECK(cuMemcpyPeer(other, context, other + 1, context, 1));
    CHECK(launch_captured(stream));
    CHECK(cuStreamSynchronize(stream));
    graphs[which]++;
    return 0;
}

static void *captures(void *number)
{
    int which = (int)(intptr_t)number;
    void *stream;

    if (cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1))
        return &stop;
    while (!stop)
        if (capture_and_launch(stream, which))
            return &stop;
    return NULL;
}

static int check(void)
{
    unsigned char *host = malloc(BYTES);

    CHECK(cuMemcpyDtoH_v2(host, memory, BYTES));
    for (size_t i = 0; i < BYTES; i++) {
        if (host[i] != (unsigned char)graphs[i / PART]) {
            printf("after %u graphs byte %zu is %d\n", graphs[i / PART], i, host[i]);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    void *module, *failed;
    int any_failed = 0;

    if (argc != 2)
        return 2;
    CHECK(make_current());
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuMemAlloc_v2(&memory, BYTES));
    CHECK(cuMemAlloc_v2(&other, 2));
    CHECK(cuMemsetD8_v2(memory, 0, BYTES));
    CHECK(cuCtxSynchronize()); /* a memset returns before it is done */
    CHECK(cuModuleLoad(&module, argv[1]));
    CHECK(cuModuleGetFunction(&count_up_kernel, module, "count_up"));
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, captures, (void *)i));
    say_and_wait("begun");
    stop = 1;
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], &failed));
        any_failed |= failed != NULL;
    }
    if (any_failed || check())
        return 1;
    puts("as expected");
    return 0;
}
