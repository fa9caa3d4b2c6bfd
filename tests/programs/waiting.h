/* What pairs.c, chains.c and greedy.c share: programs of several threads, whose work may wait for other work. */
#include "current.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the kernels count up, of each thread. */
#define PART (64u << 10)

/* CUresult: what the driver says of work that has not ended. */
#define NOT_READY 600

/* CUipcMemHandle */
struct shared_memory {
    char name[64];
};

int cuIpcGetMemHandle(struct shared_memory *shared, CUdeviceptr address);
int cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct shared_memory shared, unsigned flags);
int cuCtxGetCurrent(void **context);
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cuEventCreate(void **event, unsigned flags);
int cuEventRecord(void *event, void *stream);
int cuEventQuery(void *event);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
/* In which of its ways the program works. */
static const char *how;

static int is(const char *word)
{
    return strcmp(how, word) == 0;
}

/* How a wait compares a word with its value. */
enum { GEQ = 0, EQ = 1 };
int cuStreamWaitValue32_v2(void *stream, CUdeviceptr address, uint32_t value, unsigned flags);
int cuStreamWriteValue32_v2(void *stream, CUdeviceptr address, uint32_t value, unsigned flags);
