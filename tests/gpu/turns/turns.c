/* A program whose turn on the GPU is watched: turns KIND MILLISECONDS MIB. Fills so much memory, says "begun", and until
 * the time is over:
 *
 *   busy        a kernel of 5 ms, waited for, again and again: a step
 *   gap10 gap20 gap50   a kernel of 20 ms, waited for, and so many milliseconds on the host: a step
 *   one         a thread launches kernels of 20 ms and waits for none
 *   threads     three threads do that, each in a stream of its own
 *   streams     a thread does that in 64 streams in turn
 *   host        a thread submits host functions of 20 ms
 *   graphs      a thread launches a graph of two kernels of 20 ms
 *   slow        a thread launches a graph of two kernels of 2.5 s
 *   mixed       a thread launches 200 kernels of 1 ms, then 20 of 100 ms, and so on
 *   long        a thread launches kernels of 900 ms
 *   processes   two processes, of half of the memory each, do as `one` does
 *   tiny        a thread launches kernels that do nothing, and waits after each 1,000: a step
 *   managed     as `busy`; the memory that is filled is managed (cuMemAllocManaged), and it has as much that is not
 *   reset       frees nothing, resets its context (cuDevicePrimaryCtxReset), and does nothing more
 *   capture     does nothing more, a capture being open
 *
 * Then says, as a line of JSON, how many steps it made, the longest time without one, and whether its memory was as it
 * should be. What waits for nothing is not asked for steps: it is ended from outside. */
#include "../grounds/ground.h"

#define STREAMS 64

static int (*host_function)(void *stream, void (*function)(void *), void *user);
static int (*begin_capture)(void *stream, int mode);
static int (*end_capture)(void *stream, void **graph);
static int (*instantiate)(void **executable, void *graph, unsigned long long flags);
static int (*launch_graph)(void *executable, void *stream);
static int (*alloc_managed)(CUdeviceptr *at, size_t bytes, unsigned flags);
static int (*reset_context)(int device);

static const char *kind;
static void *context, *nap_kernel;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void need(int code, const char *call)
{
    if (code != 0) {
        fprintf(stderr, "%s: %s (%d)\n", call, name_of(code), code);
        exit(1);
    }
}
#define MUST(call) need((call), #call)

static void nap(void *stream, uint64_t milliseconds)
{
    void *arguments[] = {&milliseconds};
    MUST(cu.launch(nap_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void take_time(void *nothing)
{
    (void)nothing;
    pause_ms(20);
}

static void *two_naps(void *stream, uint64_t milliseconds)
{
    void *graph, *executable;
    MUST(begin_capture(stream, 1));
    nap(stream, milliseconds);
    nap(stream, milliseconds);
    MUST(end_capture(stream, &graph));
    MUST(instantiate(&executable, graph, 0));
    return executable;
}

static _Noreturn void *never_wait(void *nothing)
{
    void *streams[STREAMS], *graph = NULL;
    (void)nothing;
    MUST(cu.set_context(context));
    for (int i = 0; i < STREAMS; i++)
        MUST(cu.stream_create(&streams[i], 1));
    if (is("graphs") || is("slow"))
        graph = two_naps(streams[0], is("slow") ? 2500 : 20);
    for (unsigned i = 0;; i++) {
        if (is("host"))
            MUST(host_function(streams[0], take_time, NULL));
        else if (graph)
            MUST(launch_graph(graph, streams[0]));
        else if (is("mixed"))
            nap(streams[0], i % 220 < 200 ? 1 : 100);
        else if (is("long"))
            nap(streams[0], 900);
        else
            nap(streams[is("streams") ? i % STREAMS : 0], 20);
    }
}

static void step(void)
{
    if (is("tiny"))
        for (int i = 0; i < 1000; i++)
            nap(NULL, 0);
    else
        nap(NULL, is("busy") || is("managed") ? 5 : 20);
    MUST(cu.synchronize());
    if (strncmp(kind, "gap", 3) == 0)
        pause_ms((unsigned)atoi(kind + 3));
}

/* Makes steps until the time is over, and tells of them; its memory must be as it was filled. */
static void make_steps(double seconds, CUdeviceptr at, uint64_t count)
{
    uint32_t value = 7, wrong = 0;
    CUdeviceptr found = at + count * 4;
    void *check, *arguments[] = {&at, &count, &value, &found};
    double began = now(), last = began, longest = 0;
    long steps = 0;
    MUST(kernel(&check, "check"));
    for (; last - began < seconds; steps++) {
        step();
        double end = now();
        longest = end - last > longest ? end - last : longest;
        last = end;
    }
    MUST(cu.memset8(found, 0, 4));
    MUST(launch(check, 528, NULL, arguments));
    MUST(cu.synchronize());
    MUST(cu.to_host(&wrong, found, 4));
    printf("{\"steps\": %ld, \"seconds\": %.3f, \"longest\": %.3f, \"wrong\": %u}\n", steps, last - began, longest, wrong);
    exit(wrong != 0);
}

static _Noreturn void do_nothing(void)
{
    void *stream;
    if (is("reset")) {
        MUST(reset_context(0));
    } else {
        MUST(cu.stream_create(&stream, 1));
        MUST(begin_capture(stream, 0));
    }
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    kind = argv[1];
    double seconds = atof(argv[2]) / 1e3;
    size_t bytes = (size_t)atoi(argv[3]) * MIB;
    bool forked = is("processes") && fork() == 0;
    uint64_t count = (is("processes") ? bytes / 2 : bytes) / 4 - 1;
    uint32_t value = 7;
    CUdeviceptr at;
    void *fill, *arguments[] = {&at, &count, &value};

    if (forked)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    begin("12");
#define FIND_TOO(name, symbol) *(void **)&name = dlsym(RTLD_DEFAULT, symbol)
    FIND_TOO(host_function, "cuLaunchHostFunc");
    FIND_TOO(begin_capture, "cuStreamBeginCapture_v2");
    FIND_TOO(end_capture, "cuStreamEndCapture");
    FIND_TOO(instantiate, "cuGraphInstantiateWithFlags");
    FIND_TOO(launch_graph, "cuGraphLaunch");
    FIND_TOO(alloc_managed, "cuMemAllocManaged");
    FIND_TOO(reset_context, "cuDevicePrimaryCtxReset_v2");
    MUST(cu.init(0));
    MUST(cu.retain_context(&context, 0));
    MUST(cu.set_context(context));
    MUST(kernel(&nap_kernel, "nap"));
    MUST(kernel(&fill, "fill"));
    MUST(cu.alloc(&at, count * 4 + 4));
    if (is("managed"))
        MUST(alloc_managed(&at, count * 4 + 4, 1));
    MUST(launch(fill, 528, NULL, arguments));
    MUST(cu.synchronize());
    if (!forked) {
        puts("begun");
        fflush(stdout);
    }
    if (is("busy") || is("managed") || is("tiny") || strncmp(kind, "gap", 3) == 0)
        make_steps(seconds, at, count);
    if (is("reset") || is("capture"))
        do_nothing();
    pthread_t threads[2];
    for (int i = 0; is("threads") && i < 2; i++)
        pthread_create(&threads[i], NULL, never_wait, NULL);
    never_wait(NULL);
}
