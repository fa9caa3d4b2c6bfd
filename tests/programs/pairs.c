/* Two threads, each with a stream. The work of one waits for words that the work of the other writes, and the other
 * way round. Arguments: how (value, batch, graph, copy, host, step: as host, in step; kernel; process: as value, with a process of its own for
 * each of the threads; busy, busy_host: as value and host, with a third thread that submits without end, and lets the
 * second one go when that has submitted its wait), and the image of pairs_kernel.c.
 *
 * Says "begun", goes on until the end of standard input, and says "as expected" if every byte is what it should be.
 */
#define _GNU_SOURCE
#include "waiting.h"

/* So many iterations the waiting thread may be ahead. */
#define AHEAD 4
/* CUstreamBatchMemOpType, and the flags of waits. */
enum { WAIT = 1, WRITE = 2 };

union memory_operation {
    struct {
        int kind;
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
        CUdeviceptr alias;
    } of;
    uint64_t words[6];
};

struct batch_node {
    void *context;
    unsigned count;
    union memory_operation *list;
    unsigned flags;
};

int cuCtxSynchronize(void);
int cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, void *stream);
int cuStreamBatchMemOp_v2(void *stream, unsigned count, union memory_operation *list, unsigned flags);
int cuGraphCreate(void **graph, unsigned flags);
int cuGraphAddBatchMemOpNode(void **node, void *graph, void **dependencies, size_t count, struct batch_node *batch);
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
int cuGraphLaunch(void *executable, void *stream);

static void *context, *count_up_kernel, *spin_kernel, *graph;
static CUdeviceptr memory, words;
/* What both processes see. */
static struct {
    /* So many iterations are certain to be done; no more are, once they have ended. */
    atomic_uint announced, stop, ended;
} *both;
/* What host functions wait for. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uintptr_t asked, let_go, done;
/* By the second thread, for word 2. */
static atomic_uint waits_submitted;

static CUdeviceptr word(int which)
{
    return words + 64 * which;
}

static int count_up_part(int which, void *stream)
{
    CUdeviceptr address = memory + which * PART;
    uint64_t bytes = PART;
    void *parameters[] = { &address, &bytes };

    return cuLaunchKernel(count_up_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static union memory_operation operation(int kind, CUdeviceptr address, uint32_t value, unsigned flags)
{
    union memory_operation made = { .words = { 0 } };

    made.of.kind = kind;
    made.of.address = address;
    made.of.value = value;
    made.of.flags = flags;
    return made;
}

/* A host function, or a thread: until the number is reached. */
static void wait_on_host(const uintptr_t *number, uintptr_t iteration)
{
    pthread_mutex_lock(&lock);
    while (*number < iteration)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void tell_on_host(uintptr_t *number, uintptr_t iteration)
{
    pthread_mutex_lock(&lock);
    *number = iteration;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_to_be_let_go(void *iteration)
{
    wait_on_host(&let_go, (uintptr_t)iteration);
}

static void tell_done(void *iteration)
{
    tell_on_host(&done, (uintptr_t)iteration);
}

/* The stream waits for the other's word, counts up, and writes its own. */
static int wait_for_other(void *stream, uint32_t i)
{
    if (is("graph")) {
        CHECK(cuGraphLaunch(graph, stream));
        CHECK(count_up_part(0, stream));
        CHECK(cuStreamWriteValue32_v2(stream, word(1), i, 0));
    } else if (is("batch")) {
        union memory_operation list[] = { operation(WAIT, word(0), i, GEQ) };
        union memory_operation then[] = { operation(WRITE, word(2), i, 0), operation(WRITE, word(1), i, 0) };
        CHECK(cuStreamBatchMemOp_v2(stream, 1, list, 0));
        CHECK(count_up_part(0, stream));
        CHECK(cuStreamBatchMemOp_v2(stream, 2, then, 0));
    } else if (is("host") || is("step") || is("busy_host")) {
        CHECK(cuLaunchHostFunc(stream, wait_to_be_let_go, (void *)(uintptr_t)i));
        tell_on_host(&asked, i);
        CHECK(count_up_part(0, stream));
        CHECK(cuLaunchHostFunc(stream, tell_done, (void *)(uintptr_t)i));
    } else if (is("kernel")) {
        CUdeviceptr address = word(0);
        void *parameters[] = { &address, &i };
        CHECK(cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
        CHECK(count_up_part(0, stream));
        CHECK(cuLaunchHostFunc(stream, tell_done, (void *)(uintptr_t)i));
    } else {
        CHECK(cuStreamWaitValue32_v2(stream, word(0), i, GEQ));
        CHECK(count_up_part(0, stream));
        CHECK(cuStreamWriteValue32_v2(stream, word(1), i, 0));
    }
    return 0;
}

/* The stream counts up, writes the word, and waits for the other's. */
static int let_other_go(void *stream, uint32_t i)
{
    if (is("step"))
        wait_on_host(&asked, i);
    if (is("busy") || is("busy_host"))
        CHECK(cuStreamWaitValue32_v2(stream, word(2), i, GEQ));
    waits_submitted = i;
    CHECK(count_up_part(1, stream));
    if (is("graph")) {
        /* The graph sets it back. */
        CHECK(cuStreamWriteValue32_v2(stream, word(0), 1, 0));
        CHECK(cuStreamWaitValue32_v2(stream, word(1), i, GEQ));
    } else if (is("batch")) {
        union memory_operation list[] = { operation(WRITE, word(0), i, 0), operation(WAIT, word(1), i, GEQ) };
        CHECK(cuStreamBatchMemOp_v2(stream, 2, list, 0));
    } else if (is("host") || is("step") || is("busy_host")) {
        tell_on_host(&let_go, i);
        wait_on_host(&done, i - 1);
    } else if (is("copy")) {
        CHECK(cuMemsetD32Async(word(0), i, 1, stream));
        CHECK(cuStreamWaitValue32_v2(stream, word(1), i, GEQ));
    } else if (is("kernel")) {
        CHECK(cuMemsetD32Async(word(0), i, 1, stream));
        wait_on_host(&done, i - 1);
    } else {
        CHECK(cuStreamWriteValue32_v2(stream, word(0), i, 0));
        CHECK(cuStreamWaitValue32_v2(stream, word(1), i, GEQ));
    }
    return 0;
}

static void *waits(void *stream)
{
    if (cuCtxSetCurrent(context))
        return stream;
    for (uint32_t i = 1;; i++) {
        while (i > both->announced && !both->ended)
            sched_yield();
        if (i > both->announced)
            break;
        if (wait_for_other(stream, i))
            return stream;
        if (i % 8 == 0 && !is("step") && cuStreamSynchronize(stream))
            return stream;
    }
    return cuStreamSynchronize(stream) ? stream : NULL;
}

static void *lets_go(void *stream)
{
    uint32_t i = 1;

    if (cuCtxSetCurrent(context))
        return stream;
    for (;; i++) {
        if (!both->stop)
            both->announced = i + AHEAD;
        if (i > both->announced)
            break;
        if (let_other_go(stream, i))
            return stream;
        if (i % 4 == 0 && cuStreamSynchronize(stream))
            return stream;
    }
    both->ended = 1;
    return cuStreamSynchronize(stream) ? stream : NULL;
}

/* Never comes to an end of its own, and writes word 2. */
static void *submits_without_end(void *stream)
{
    if (cuCtxSetCurrent(context))
        return stream;
    for (uint32_t i = 1;; i++) {
        unsigned is_over = both->ended;
        if (cuStreamWriteValue32_v2(stream, word(2), waits_submitted, 0) || cuMemsetD32Async(word(3), i, 1, stream))
            return stream;
        if (i % 4 == 0 && cuStreamSynchronize(stream))
            return stream;
        if (is_over)
            return cuStreamSynchronize(stream) ? stream : NULL;
    }
}

/* Waits until the word is 1, and sets it back. */
static int make_graph(void)
{
    void *plan, *node;
    union memory_operation list[] = { operation(WAIT, word(0), 1, EQ), operation(WRITE, word(0), 0, 0) };
    struct batch_node batch = { context, 2, list, 0 };

    CHECK(cuGraphCreate(&plan, 0));
    CHECK(cuGraphAddBatchMemOpNode(&node, plan, NULL, 0, &batch));
    CHECK(cuGraphInstantiateWithFlags(&graph, plan, 0));
    return 0;
}

/* Memory, and the kernels. */
static int begin(const char *image, size_t bytes)
{
    void *module;

    CHECK(make_current());
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuMemAlloc_v2(&memory, bytes));
    CHECK(cuMemsetD8_v2(memory, 0, bytes));
    CHECK(cuCtxSynchronize()); /* a memset returns before it is done */
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&count_up_kernel, module, "count_up"));
    CHECK(cuModuleGetFunction(&spin_kernel, module, "spin_until"));
    return 0;
}

static int make_words(void)
{
    CHECK(cuMemAlloc_v2(&words, 256));
    CHECK(cuMemsetD8_v2(words, 0, 256));
    CHECK(cuCtxSynchronize()); /* a memset returns before it is done */
    return is("graph") ? make_graph() : 0;
}

/* Every byte is what the iterations make of it, in the parts from the first to the last. */
static int check(size_t first, size_t last, size_t bytes)
{
    unsigned char *host = malloc(bytes);

    CHECK(cuMemcpyDtoH_v2(host, memory, bytes));
    for (size_t i = 0; i < bytes; i++) {
        unsigned char expected = i / PART >= first && i / PART <= last ? both->announced : 0;
        if (host[i] != expected) {
            printf("after %u iterations byte %zu is %d\n", both->announced, i, host[i]);
            return 1;
        }
    }
    return 0;
}

static int run_threads(const char *image)
{
    void *(*const what[])(void *) = { waits, lets_go, submits_without_end };
    int count = is("busy") || is("busy_host") ? 3 : 2, any_failed = 0;
    void *streams[3], *failed;
    pthread_t threads[3];

    if (begin(image, BYTES) || make_words())
        return 1;
    for (int i = 0; i < count; i++)
        CHECK(cuStreamCreate(&streams[i], 1));
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, what[i], streams[i]));
    say_and_wait("begun");
    both->stop = 1;
    for (int i = 0; i < count; i++) {
        CHECK(pthread_join(threads[i], &failed));
        any_failed |= failed != NULL;
    }
    return any_failed || check(0, 1, BYTES);
}

static int run_child(const char *image, int from_parent)
{
    struct shared_memory shared;
    void *stream;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(from_parent, &shared, sizeof shared) != sizeof shared || begin(image, BYTES / 2))
        return 1;
    CHECK(cuIpcOpenMemHandle_v2(&words, shared, 1));
    CHECK(cuStreamCreate(&stream, 1));
    return lets_go(stream) || check(1, 1, BYTES / 2);
}

static int run_processes(const char *image)
{
    struct shared_memory shared;
    void *stream, *failed;
    pthread_t thread;
    int to_child[2], status = 1;

    CHECK(pipe(to_child));
    pid_t child = fork();
    if (child == 0)
        _exit(run_child(image, to_child[0]));
    if (begin(image, BYTES / 2) || make_words())
        return 1;
    CHECK(cuIpcGetMemHandle(&shared, words));
    if (write(to_child[1], &shared, sizeof shared) != sizeof shared)
        return 1;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(pthread_create(&thread, NULL, waits, stream));
    say_and_wait("begun");
    both->stop = 1;
    CHECK(pthread_join(thread, &failed));
    waitpid(child, &status, 0);
    return failed || status != 0 || check(0, 0, BYTES / 2);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    how = argv[1];
    both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        return 2;
    both->announced = AHEAD;
    if (is("process") ? run_processes(argv[2]) : run_threads(argv[2]))
        return 1;
    puts("as expected");
    return 0;
}
