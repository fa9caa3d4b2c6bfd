/* What the programs of `the_life_of_a_process_is_its_own.rs` share: CUDA from the linker, and a piece of memory
 * that is filled once and looked at later.
 *
 * Lines on standard output are what the test compares, but for these words to it:
 *   pause    waits for a line: meanwhile another job may have the memory
 *   gone     waits for a line: nothing of the program that was started is left, but this process
 *   press    waits for a line: from now on another job has the GPU
 *   release  the other job ends
 */
#define _GNU_SOURCE
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define DECLARE(name, symbol, parameters) int symbol parameters;
DRIVER_FUNCTIONS(DECLARE)
int cuCtxSynchronize(void);

/* What one process uses: two of them fit on the test's GPU, one of them and the other job do not. */
#define PART (2u << 20)

static void *context;

/* One `write` for each line, so that several processes can speak, and nothing is said twice after a fork. */
static void say(const char *format, ...)
{
    char line[256];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    if (write(STDOUT_FILENO, line, length + 1) < 0)
        _exit(99);
}

/* A word to the test, and its answer. */
static void ask(const char *word)
{
    char answer;

    say("%s", word);
    while (read(STDIN_FILENO, &answer, 1) == 1 && answer != '\n') {
    }
}

static int begin(void)
{
    int device;

    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return 0;
}

/* Memory with a byte in it everywhere. */
static int fill(CUdeviceptr *address, unsigned char byte, size_t bytes)
{
    CHECK(cuMemAlloc_v2(address, bytes));
    CHECK(cuMemsetD8_v2(*address, byte, bytes));
    return 0;
}

/* Whether the byte is everywhere still. */
static int is_filled(CUdeviceptr address, unsigned char byte, size_t bytes)
{
    unsigned char *host = calloc(1, bytes);

    CHECK(cuMemcpyDtoH_v2(host, address, bytes));
    for (size_t i = 0; i < bytes; i++) {
        if (host[i] != byte) {
            say("byte %zu is %d, not %d", i, host[i], byte);
            return 1;
        }
    }
    free(host);
    return 0;
}

/* A whole small life with CUDA; whether something failed. */
static int use(unsigned char byte, size_t bytes)
{
    CUdeviceptr address;

    if (fill(&address, byte, bytes) || is_filled(address, byte, bytes))
        return 1;
    CHECK(cuMemFree_v2(address));
    return 0;
}

/* What a process has from the beginning, and finds as before whatever happens meanwhile. */
static CUdeviceptr memory;

static int begin_with_memory(void)
{
    return begin() || fill(&memory, 7, PART);
}

static int end_with_memory(void)
{
    if (is_filled(memory, 7, PART) || use(8, PART / 4))
        return 1;
    say("as before");
    return 0;
}

/* The child's end, as the shell would say it. */
static int status_of(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct life {
    const char *name;
    int (*live)(char **arguments);
};

/* Lives the life that the first argument names. */
static int live(const struct life *lives, int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    for (; argc > 1 && lives->name; lives++)
        if (strcmp(lives->name, argv[1]) == 0)
            return lives->live(argv);
    say("no such life");
    return 2;
}
