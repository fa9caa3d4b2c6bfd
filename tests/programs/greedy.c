/* Programs that never wait for their GPU, and would have it for themselves. Arguments: how, and the image of stir_kernel.c.
 *
 * threads:   three threads, each with a stream of its own, launch kernels;
 * streams:   a thread launches kernels in STREAMS streams in turn;
 * host:      a thread submits host functions, and nothing else;
 * graphs:    a thread launches a graph of two kernels;
 * filled:    the same of two of 0.3 s, half a second later, right after it has waited for a short kernel;
 * mixed:     a thread launches 200 short kernels and then 20 long ones, again and again;
 * grows:     a thread launches kernels of 0.05 to 50 ms, each a little longer than the one before, again and again;
 * becomes:   a thread launches ALONE short kernels, and longer ones from then on: when the first of these has ended, few others
 *            were launched;
 * beneath:   the same while a stream of that thread captures;
 * most:      the same, and the longer ones take 0.15 s;
 * over:      a thread launches kernels of 1.7 s, half a second later;
 * seconds:   a thread launches kernels of 3 s, and has more under way than it had at first when it says so;
 * value:     a thread launches kernels while a stream waits for a value that comes 200 ms later, again and again;
 * captures:  the same while another thread captures for 200 ms at a time;
 * held:      the same while another thread captures, and only ends that at the end; a third one launches them in the default stream, and
 *            in streams that it destroys at once;
 * beside:    a thread launches kernels of 100 ms, while another one launches STEP short ones and waits for them, again and again;
 * processes: two processes launch kernels, a thread each;
 * apart:     the same, of 0.25 to 0.6 s, and each waits for each of its own.
 *
 * A kernel and a host function take 20 ms, where nothing else is said. Says "begun", goes on until the end of standard
 * input, and says "as expected" if every kernel has run once.
 */
#define _GNU_SOURCE
#include "waiting.h"
#include "captured.h"

#define STREAMS 64
#define THREADS 3
#define WORDS 256
#define USUAL 20000
#define SHORT 1000
#define LONG 50000
#define MOST 150000
#define SECONDS 3000000
#define HALF 300000
#define OVER 1700000
#define MORE 5
#define SHORTEST 50
#define APART_LEAST 250000
#define APART_RANGE 350000
#define BESIDE 100000
#define STEP 20
#define ALONE 5000
#define TINY 10
#define FEW 200

int cuCtxSynchronize(void);
int cuStreamDestroy_v2(void *stream);

static void *context, *stir_kernel;
static CUdeviceptr memory, word;
/* Behind the first of the longer kernels, once that was launched. */
static void *event;
static atomic_int is_recorded;
static size_t bytes = BYTES;
static atomic_uint launches[THREADS + 1];
/* All processes see it. */
static atomic_uint *stop;

static int stir_at(CUdeviceptr address, void *stream, unsigned micros)
{
    uint64_t count = WORDS;
    unsigned add = 1;
    void *parameters[] = { &address, &count, &add, &micros };

    return cuLaunchKernel(stir_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static int stir(int thread, void *stream, unsigned micros)
{
    launches[thread]++;
    return stir_at(memory + thread * PART, stream, micros);
}

static void take_time(void *nothing)
{
    (void)nothing;
    usleep(USUAL);
}

static int launch_in_streams(int thread)
{
    void *streams[STREAMS];

    for (int i = 0; i < STREAMS; i++)
        CHECK(cuStreamCreate(&streams[i], 1));
    /* No two kernels of one thread add to the same words at once. */
    for (int i = 0; !*stop; i = (i + 1) % STREAMS) {
        launches[thread] += i == 0;
        CHECK(stir_at(memory + i * 4 * WORDS, streams[i], USUAL));
    }
    return 0;
}

static int launch_graphs(int thread, void *stream)
{
    void *graph, *executable;
    unsigned micros = is("filled") ? HALF : USUAL;

    CHECK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    CHECK(stir(thread, stream, micros));
    CHECK(stir(thread, stream, micros));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    launches[thread] = 0;
    if (is("filled")) {
        usleep(500000);
        CHECK(stir(thread, stream, SHORTEST));
        CHECK(cuStreamSynchronize(stream));
    }
    while (!*stop) {
        CHECK(cuGraphLaunch(executable, stream));
        launches[thread] += 2;
    }
    return 0;
}

static int wait_for_values(void *stream)
{
    void *other;

    CHECK(cuStreamCreate(&other, 1));
    for (uint32_t value = 1; !*stop; value++) {
        CHECK(cuStreamWaitValue32_v2(stream, word, value, GEQ));
        usleep(200000);
        CHECK(cuStreamWriteValue32_v2(other, word, value, 0));
    }
    return 0;
}

static int capture(int thread, void *stream)
{
    void *graph;

    while (!*stop) {
        CHECK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
        CHECK(stir(thread, stream, USUAL));
        launches[thread]--;
        usleep(200000);
        CHECK(cuStreamEndCapture(stream, &graph));
        CHECK(cuGraphDestroy(graph));
    }
    return 0;
}

static int hold_capture(int thread, void *stream)
{
    CHECK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    CHECK(stir(thread, stream, USUAL));
    while (!*stop)
        usleep(1000);
    return launch_captured(stream);
}

static int launch_in_dying_streams(int thread)
{
    /* No two kernels in them add to the same words at once. */
    for (int i = 0; !*stop; i = (i + 1) % STREAMS) {
        void *dying;

        CHECK(stir(thread, NULL, USUAL));
        CHECK(cuStreamCreate(&dying, 1));
        launches[thread + 1] += i == 0;
        CHECK(stir_at(memory + (thread + 1) * PART + i * 4 * WORDS, dying, USUAL));
        CHECK(cuStreamDestroy_v2(dying));
    }
    return 0;
}

static int launch_and_wait(int thread, void *stream)
{
    while (!*stop) {
        for (int i = 0; i < STEP; i++)
            CHECK(stir(thread, stream, SHORTEST));
        CHECK(cuStreamSynchronize(stream));
    }
    return 0;
}

/* No two processes are in step. */
static int launch_apart(int thread, void *stream)
{
    unsigned random = (unsigned)getpid();

    while (!*stop) {
        random = random * 1664525 + 1013904223;
        CHECK(stir(thread, stream, APART_LEAST + (random >> 8) % APART_RANGE));
        CHECK(cuStreamSynchronize(stream));
    }
    return 0;
}

static int becomes_long(void)
{
    return is("becomes") || is("beneath") || is("most");
}

static unsigned length(unsigned number, unsigned grown)
{
    if (is("mixed"))
        return number % 220 < 200 ? SHORT : LONG;
    if (is("most"))
        return MOST;
    return is("grows") ? grown : becomes_long() ? LONG : is("seconds") ? SECONDS : is("beside") ? BESIDE : is("over") ? OVER : USUAL;
}

/* The thread goes on beside it. */
static int begin_capture(int thread, void **stream)
{
    CHECK(cuStreamCreate(stream, 1));
    CHECK(cuStreamBeginCapture_v2(*stream, RELAXED));
    CHECK(stir(thread, *stream, TINY));
    launches[thread]--;
    return 0;
}

static int run_thread(int thread)
{
    void *stream, *captured = NULL, *graph;

    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    if (is("streams"))
        return launch_in_streams(thread);
    if (is("graphs") || is("filled"))
        return launch_graphs(thread, stream);
    if (is("value") && thread == 1)
        return wait_for_values(stream);
    if (is("captures") && thread == 1)
        return capture(thread, stream);
    if (is("held") && thread == 1)
        return hold_capture(thread, stream);
    if (is("held") && thread == 2)
        return launch_in_dying_streams(thread);
    if (is("beside") && thread == 1)
        return launch_and_wait(thread, stream);
    if (is("apart"))
        return launch_apart(thread, stream);
    if (becomes_long()) {
        if (is("beneath"))
            CHECK(begin_capture(thread, &captured));
        for (int i = 0; i < ALONE; i++)
            CHECK(stir(thread, stream, TINY));
        CHECK(stir(thread, stream, length(ALONE, 0)));
        CHECK(cuEventRecord(event, stream));
        is_recorded = 1;
    }
    if (is("over"))
        usleep(500000);
    unsigned micros = SHORTEST;
    for (unsigned i = 0; !*stop; i++) {
        micros = micros < LONG ? micros + micros / 500 + 1 : SHORTEST;
        if (is("host"))
            CHECK(cuLaunchHostFunc(stream, take_time, NULL));
        else
            CHECK(stir(thread, stream, length(i, micros)));
    }
    if (captured)
        CHECK(cuStreamEndCapture(captured, &graph));
    return 0;
}

static void *run(void *number)
{
    return (void *)(intptr_t)run_thread((int)(intptr_t)number);
}

static int begin(const char *image)
{
    void *module;

    CHECK(make_current());
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&stir_kernel, module, "stir"));
    CHECK(cuMemAlloc_v2(&memory, bytes));
    CHECK(cuMemsetD8_v2(memory, 0, bytes));
    CHECK(cuEventCreate(&event, 0));
    word = memory + bytes - 4;
    return cuCtxSynchronize();
}

static int check(int threads)
{
    uint32_t *host = malloc(bytes);

    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(host, memory, bytes));
    for (int thread = 0; thread < threads; thread++)
        for (int i = 0; i < WORDS; i++)
            if (host[thread * PART / 4 + i] != launches[thread]) {
                printf("word %d of thread %d is %u, not %u\n", i, thread, host[thread * PART / 4 + i], launches[thread]);
                return 1;
            }
    return 0;
}

static int run_threads(const char *image, int count)
{
    pthread_t threads[THREADS];
    void *failed;

    if (begin(image))
        return 1;
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i));
    while ((is("seconds") && launches[0] < MORE) || (becomes_long() && !is_recorded))
        usleep(1000);
    if (becomes_long()) {
        /* No thread of it waits for the GPU. */
        while (cuEventQuery(event) == NOT_READY)
            usleep(1000);
        unsigned launched = launches[0];
        if (launched > ALONE + FEW) {
            printf("%u kernels were launched before the first of the longer ones had ended\n", launched - ALONE);
            return 1;
        }
    }
    say_and_wait("begun");
    *stop = 1;
    for (int i = 0; i < count; i++) {
        CHECK(pthread_join(threads[i], &failed));
        if (failed)
            return 1;
    }
    return check(is("held") ? count + 1 : count);
}

/* The child ends when all are to. */
static int run_processes(const char *image)
{
    int status = 1;

    bytes = BYTES / 2;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(begin(image) || run_thread(0) || check(1));
    }
    if (run_threads(image, 1))
        return 1;
    waitpid(child, &status, 0);
    return status != 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    how = argv[1];
    stop = mmap(NULL, sizeof *stop, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stop == MAP_FAILED)
        return 1;
    int threads = is("threads") || is("held") ? THREADS : is("value") || is("captures") || is("beside") ? 2 : 1;
    if (is("processes") || is("apart") ? run_processes(argv[2]) : run_threads(argv[2], threads))
        return 1;
    puts("as expected");
    return 0;
}
