/* Threads whose work waits for long chains of other calls. Arguments: how, and the image of pairs_kernel.c.
 *
 * chain: a kernel ends when another thread has launched CHAIN others after it;
 * deep:  the same, and its own thread submits more behind it than a stream takes;
 * feed:  a kernel ends when its own thread has copied CHAIN words to it;
 * lock:  THREADS threads launch kernels and host functions under one lock, which the host functions take;
 * locked: as lock, but long kernels come before each host function, and each thread waits for its stream each time;
 * asked:  the same, but each thread asks again and again whether the kernels have ended, and never waits for its stream;
 * graphed: as lock, but graphs call the host functions, and a launch under the lock comes after its graph;
 * synced: the same as chain, and the other thread waits for each of its CHAIN launches;
 * graphs: the same as chain, and the other thread captures each of its launches in a graph;
 * ring:  THREADS threads, each of whose work waits in a host function for that of the one before it;
 * spins: the same in kernels;
 * meets: THREADS threads, each of whose work waits for that of all;
 * starts: host functions wait for a thread that they start, which launches CHAIN kernels;
 * full:  a host function waits until its thread has launched FULL kernels after it: the stream has no room for many more;
 * held:   the same, and it says so when it is held before all are launched, with no other job there;
 * paced:  the same, but it pauses at its first launches: as many marks are behind them as there may be when it says so;
 * ahead:  a thread launches kernels and host functions that wait for those of another thread, which pauses between them;
 *         it says so when the first is as far ahead as it comes;
 * beneath: while a stream captures, and a thread waits for each of its kernels, a kernel of another thread ends when that has launched
 *         BEHIND others after it; it says so when it has ended, and so has the capture, with no other job there;
 * values: VALUES value waits are submitted to a stream before the values that end them are to another;
 * sleeps: THREADS threads, each with one host function after the other that only takes long: they begin at different times;
 * works:  the same, each behind BEFORE_ASLEEP short kernels;
 * lasts:  one thread with kernels and such functions by turns, that never waits for its GPU;
 * long:  a thread submits as much work as its stream takes, and waits for nothing;
 * locks: as lock, but of PROCESSES processes with one thread each;
 * serve: PROCESSES processes: the work of the first waits for that of each other one, and theirs for its;
 * pipe:  PROCESSES processes: the kernels of each wait for those of the one before, the first waits on the host for the last, which waits for
 *        its stream each time; those between them never wait, and come to be up to QUEUED iterations ahead;
 * pipes: the same of threads.
 *
 * Says "begun", goes on until the end of standard input, and says "as expected" if every byte is what it should be.
 */
#define _GNU_SOURCE
#include <semaphore.h>
#include "waiting.h"
#include "captured.h"

#define CHAIN 100
/* More than a stream has room for. */
#define DEEP 1500
/* Nearly as much as one has room for. */
#define FULL 1000
/* So many launches that are waited for, so that calls are not counted any more; and then those between two of so many pauses, each
 * longer than marks are apart. The last one is so long that the other job comes in it. */
#define SHORT_ONES 5000
#define PACED 40
#define PAUSES 12
#define PAUSE 60000
#define LAST_PAUSE 5000000
/* So many calls are far ahead, if they come to be within so many that they wait for; between two of these there are so many
 * microseconds. */
#define FAR 50
#define MANY 300
#define APART 3000
/* More than may be under way in a stream while another one captures; and how long the kernels of the thread beside it take. */
#define BEHIND 6
#define BESIDE 3000
/* A wait and a launch each. */
#define VALUES 470
#define THREADS 4
/* So many microseconds kernels under a lock take. */
#define LONG 2000
/* So long it is until a thread asks again whether its work has ended. */
#define BETWEEN 100
/* So long a host function sleeps, in microseconds, and behind so many kernels, if they are known to be short. */
#define ASLEEP 300000
#define BEFORE_ASLEEP 8
/* So long one sleeps of a thread that never waits, which is so many of them ahead at most. */
#define ASLEEP_LONG 1000000
#define MOST_ASLEEP 20
#define PROCESSES 3
/* So many iterations may be made before those of the first. */
#define QUEUED 256
/* So many iterations a thread makes before it waits for its stream. */
#define AHEAD 4

int cuCtxSynchronize(void);
int cuGraphGetNodes(void *graph, void **nodes, size_t *count);
int cuGraphHostNodeGetParams(void *node, void *parameters);
int cuMemcpyHtoDAsync_v2(CUdeviceptr address, const void *host, size_t bytes, void *stream);
int cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, void *stream);

static void *context, *count_up_kernel, *spin_kernel, *last_kernel;
static CUdeviceptr memory, words;
static size_t bytes = BYTES;
static atomic_uint launches[THREADS];
/* What the other job is to find has come about. */
static atomic_int is_held;
static sem_t posts;
/* What all processes see. */
static struct {
    /* Of the thread that others follow: so many iterations are certain to be made, and no more. */
    atomic_uint stop, announced, ended;
    /* Host functions take it. */
    pthread_mutex_t lock;
    unsigned called;
    /* So many iterations have come out of the pipe. */
    atomic_uint came_out;
} *all;
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
/* How often the work of each thread of the ring was let go on. */
static unsigned tokens[THREADS];

static int is_chain(void)
{
    return is("chain") || is("deep") || is("synced") || is("graphs");
}

static int threads_of_one_process(void)
{
    int is_alone = is("feed") || is("starts") || is("full") || is("held") || is("paced") || is("values") || is("long")
                   || is("lasts");

    return is_chain() || is("ahead") || is("beneath") ? 2 : is_alone ? 1 : is("pipes") ? PROCESSES : THREADS;
}

static int count_up_part(int which, void *stream)
{
    CUdeviceptr address = memory + which * PART;
    uint64_t part = PART;
    void *parameters[] = { &address, &part };

    launches[which]++;
    return cuLaunchKernel(count_up_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUdeviceptr word(int which)
{
    return words + 64 * which;
}

static int spin(int which, uint32_t until, void *stream)
{
    CUdeviceptr address = word(which);
    void *parameters[] = { &address, &until };

    return cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static int write_word(int which, const uint32_t *value, void *stream)
{
    return cuMemcpyHtoDAsync_v2(word(which), value, sizeof *value, stream);
}

static int is_pipe(void)
{
    return is("pipe") || is("pipes");
}

/* Whether there is an iteration i, said by the first thread to the others. */
static int goes_on(int thread, uint32_t i)
{
    if (thread == 0) {
        if (!all->stop)
            all->announced = i + (is_pipe() ? QUEUED : AHEAD);
        else
            all->ended = 1;
    }
    while (i > all->announced && !all->ended)
        sched_yield();
    return i <= all->announced;
}

static int capture_and_launch(int which, void *stream)
{
    CHECK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    CHECK(count_up_part(which, stream));
    return launch_captured(stream);
}

/* The kernel of one thread ends when the other has launched a chain, and in one way has waited for each of it. */
static int chain(int thread, uint32_t i, void *stream)
{
    if (thread == 1)
        CHECK(spin(0, i, stream));
    /* The other one takes longer: it does not have all the iterations before it at the end. */
    while (is("deep") && thread == 0 && launches[1] + AHEAD * DEEP < i * DEEP)
        sched_yield();
    for (int n = 0; n < (thread == 0 ? CHAIN : is("deep") ? DEEP : 1); n++)
        if ((is("graphs") && thread == 0 ? capture_and_launch(thread, stream) : count_up_part(thread, stream))
            || (is("synced") && thread == 0 && cuStreamSynchronize(stream)))
            return 1;
    if (thread == 1)
        return 0;
    CHECK(write_word(0, &i, stream));
    return cuStreamSynchronize(stream);
}

/* A thread feeds its own kernel. */
static int feed(uint32_t i, void *stream, void *other)
{
    CHECK(spin(0, i * CHAIN, stream));
    CHECK(count_up_part(0, stream));
    for (uint32_t n = 1; n <= CHAIN; n++) {
        uint32_t fed = (i - 1) * CHAIN + n;
        CHECK(write_word(0, &fed, other));
        if (n % 10 == 0)
            CHECK(cuStreamSynchronize(other));
    }
    return cuStreamSynchronize(stream);
}

static void count_call(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&all->lock);
    all->called++;
    pthread_mutex_unlock(&all->lock);
}

static int under_lock(int thread, void *stream)
{
    pthread_mutex_lock(&all->lock);
    int failed = count_up_part(thread, stream) || cuLaunchHostFunc(stream, count_call, NULL);
    pthread_mutex_unlock(&all->lock);
    return failed;
}

/* A captured function that takes the lock; and the program finds its own function in the graph. */
static int capture_call(void *stream, void **executable)
{
    struct {
        void (*function)(void *);
        void *data;
    } parameters;
    void *graph, *node;
    size_t count = 1;

    CHECK(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    CHECK(cuLaunchHostFunc(stream, count_call, NULL));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, &node, &count));
    CHECK(cuGraphHostNodeGetParams(node, &parameters));
    if (count != 1 || parameters.function != count_call || parameters.data != NULL)
        return 1;
    CHECK(cuGraphInstantiateWithFlags(executable, graph, 0));
    return cuGraphDestroy(graph);
}

static int lock_after_graph(int thread, void *stream)
{
    static _Thread_local void *executable;

    if (!executable)
        CHECK(capture_call(stream, &executable));
    CHECK(cuGraphLaunch(executable, stream));
    pthread_mutex_lock(&all->lock);
    int failed = count_up_part(thread, stream);
    pthread_mutex_unlock(&all->lock);
    return failed || cuStreamSynchronize(stream);
}

static void await_token(void *of)
{
    uintptr_t thread = (uintptr_t)of % THREADS, i = (uintptr_t)of / THREADS;

    pthread_mutex_lock(&ring_lock);
    while (tokens[thread] < i)
        pthread_cond_wait(&passed, &ring_lock);
    pthread_mutex_unlock(&ring_lock);
}

static void pass_token(void *of)
{
    uintptr_t thread = (uintptr_t)of % THREADS;

    pthread_mutex_lock(&ring_lock);
    tokens[(thread + 1) % THREADS]++;
    pthread_cond_broadcast(&passed);
    pthread_mutex_unlock(&ring_lock);
}

static int in_ring(int thread, uint32_t i, void *stream)
{
    void *of = (void *)(uintptr_t)(i * THREADS + thread);

    CHECK(cuLaunchHostFunc(stream, await_token, of));
    CHECK(count_up_part(thread, stream));
    return cuLaunchHostFunc(stream, pass_token, of);
}

/* Such a value stays where it is until it is copied. */
static const uint32_t *kept(int thread, uint32_t i)
{
    static uint32_t values[THREADS][2 * AHEAD];
    uint32_t *value = &values[thread][i % (2 * AHEAD)];

    *value = i;
    return value;
}

static int serve(int process, uint32_t i, void *stream)
{
    if (process > 0) {
        CHECK(write_word(process, kept(0, i), stream));
        CHECK(spin(0, i, stream));
        return count_up_part(0, stream);
    }
    for (int client = 1; client < PROCESSES; client++)
        CHECK(spin(client, i, stream));
    CHECK(count_up_part(0, stream));
    return write_word(0, kept(0, i), stream);
}

static int last(uint32_t microseconds, void *stream)
{
    void *parameters[] = { &microseconds };

    return cuLaunchKernel(last_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* What goes through the pipe is not kept until it is copied: those between are far ahead. */
static int go_through_pipe(int place, uint32_t i, void *stream)
{
    if (place > 0)
        CHECK(spin(place - 1, i, stream));
    CHECK(last(LONG, stream));
    CHECK(count_up_part(is("pipe") ? 0 : place, stream));
    if (place < PROCESSES - 1)
        CHECK(cuMemsetD32Async(word(place), i, 1, stream));
    if (place == PROCESSES - 1) {
        CHECK(cuStreamSynchronize(stream));
        all->came_out = i;
    }
    while (place == 0 && all->came_out < i)
        usleep(BETWEEN);
    return 0;
}

/* A ring of kernels: each waits for the thread before it. */
static int spin_in_ring(int thread, uint32_t i, void *stream)
{
    CHECK(spin(thread, thread == 0 ? i - 1 : i, stream));
    CHECK(count_up_part(thread, stream));
    return write_word((thread + 1) % THREADS, kept(thread, i), stream);
}

/* No thread goes on before all have come. */
static int meet(int thread, uint32_t i, void *stream)
{
    CHECK(write_word(thread, kept(thread, i), stream));
    for (int other = 0; other < THREADS; other++)
        CHECK(spin(other, i, stream));
    return count_up_part(thread, stream);
}

static void *launch_chain(void *stream)
{
    if (cuCtxSetCurrent(context))
        return stream;
    for (int n = 0; n < CHAIN; n++)
        if (count_up_part(0, stream))
            return stream;
    return NULL;
}

/* A host function may not call CUDA, but the thread that it waits for may. */
static void start_and_join(void *stream)
{
    pthread_t thread;
    void *failed;

    if (pthread_create(&thread, NULL, launch_chain, stream) || pthread_join(thread, &failed) || failed)
        abort();
}

/* The thread is let go on with its last launches. */
static void await_launches(void *count)
{
    unsigned before = launches[0] - 1;

    while ((int)(launches[0] - (unsigned)(uintptr_t)count) < 0) {
        is_held |= launches[0] == before;
        before = launches[0];
        usleep(is("held") ? 100000 : 50);
    }
}

static int fill_stream(void *stream)
{
    unsigned last = launches[0] + FULL;

    CHECK(cuLaunchHostFunc(stream, await_launches, (void *)(uintptr_t)last));
    while (launches[0] != last)
        CHECK(count_up_part(0, stream));
    return cuStreamSynchronize(stream);
}

static int fill_stream_slowly(void *stream)
{
    for (int n = 1; n <= SHORT_ONES; n++) {
        CHECK(count_up_part(0, stream));
        if (n % PACED == 0)
            CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuLaunchHostFunc(stream, await_launches, (void *)(uintptr_t)(launches[0] + FULL)));
    for (int n = 1; n <= FULL; n++) {
        CHECK(count_up_part(0, stream));
        if (n % PACED == 0 && n < PAUSES * PACED)
            usleep(PAUSE);
        if (n == PAUSES * PACED) {
            is_held = 1;
            usleep(LAST_PAUSE);
        }
    }
    return cuStreamSynchronize(stream);
}

static void await_post(void *unused)
{
    (void)unused;
    while (sem_wait(&posts))
        ;
}

/* What the first thread is ahead by at the end is let go on. */
static int run_ahead(int thread, void *stream)
{
    while (!all->stop || (thread == 1 && (!all->ended || launches[1] < launches[0]))) {
        if (thread == 0) {
            CHECK(cuLaunchHostFunc(stream, await_post, NULL));
            CHECK(count_up_part(0, stream));
            is_held |= launches[0] > launches[1] + FAR || launches[1] > MANY;
        } else {
            usleep(all->stop ? 0 : APART);
            CHECK(count_up_part(1, stream));
            sem_post(&posts);
        }
    }
    if (thread == 0)
        all->ended = 1;
    return 0;
}

static int lock_for_long(int thread, void *stream)
{
    pthread_mutex_lock(&all->lock);
    int failed = last(LONG, stream) || last(LONG, stream) || last(LONG, stream);
    failed = failed || cuLaunchHostFunc(stream, count_call, NULL) || count_up_part(thread, stream);
    pthread_mutex_unlock(&all->lock);
    return failed || cuStreamSynchronize(stream);
}

/* The host function has not ended when the thread goes on. */
static int lock_and_ask(int thread, void *stream)
{
    static _Thread_local void *event;
    int asked, failed = !event && cuEventCreate(&event, 0);

    pthread_mutex_lock(&all->lock);
    failed = failed || last(LONG, stream) || last(LONG, stream) || count_up_part(thread, stream);
    failed = failed || cuEventRecord(event, stream);
    pthread_mutex_unlock(&all->lock);
    failed = failed || cuLaunchHostFunc(stream, count_call, NULL);
    while (!failed && (asked = cuEventQuery(event)) != 0) {
        failed = asked != NOT_READY;
        usleep(BETWEEN);
    }
    return failed;
}

static int wait_beside_capture(void *stream, void *other)
{
    void *graph;

    CHECK(cuStreamBeginCapture_v2(other, RELAXED));
    sem_post(&posts);
    while (!is_held) {
        CHECK(last(BESIDE, stream));
        CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuStreamEndCapture(other, &graph));
    return cuGraphDestroy(graph);
}

static int run_beneath(int thread, void *stream, void *other)
{
    const uint32_t value = 1;

    if (thread == 0)
        CHECK(wait_beside_capture(stream, other));
    if (thread == 1) {
        await_post(NULL);
        CHECK(spin(1, value, stream));
        for (int n = 0; n < BEHIND; n++)
            CHECK(count_up_part(1, stream));
        CHECK(write_word(1, &value, other));
        CHECK(cuStreamSynchronize(stream));
        is_held = 1;
    }
    while (!all->stop) {
        CHECK(count_up_part(thread, stream));
        CHECK(cuStreamSynchronize(stream));
    }
    return 0;
}

static int wait_for_many(uint32_t i, void *stream, void *other)
{
    uint32_t first = i * VALUES;

    for (uint32_t n = 0; n < VALUES; n++) {
        CHECK(cuStreamWaitValue32_v2(other, word(0), first + n, GEQ));
        CHECK(count_up_part(0, other));
    }
    for (uint32_t n = 0; n < VALUES; n++) {
        CHECK(last(50, stream));
        CHECK(cuStreamWriteValue32_v2(stream, word(0), first + n, 0));
    }
    CHECK(cuStreamSynchronize(stream));
    return cuStreamSynchronize(other);
}

static atomic_uint have_slept;

static void sleep_long(void *nothing)
{
    (void)nothing;
    usleep(is("lasts") ? ASLEEP_LONG : ASLEEP);
    have_slept++;
}

/* It is far ahead, but comes to its end in the time that a test waits for that. */
static int sleep_ahead(uint32_t i, void *stream)
{
    while (i > have_slept + MOST_ASLEEP)
        usleep(1000);
    CHECK(count_up_part(0, stream));
    return cuLaunchHostFunc(stream, sleep_long, NULL);
}

/* Each thread begins its first one when a part of those of the others is over. */
static int sleep_apart(int thread, uint32_t i, void *stream)
{
    if (i == 1)
        usleep(thread * ASLEEP / THREADS);
    for (int n = is("works") ? BEFORE_ASLEEP : 1; n > 0; n--)
        CHECK(count_up_part(thread, stream));
    CHECK(cuLaunchHostFunc(stream, sleep_long, NULL));
    return cuStreamSynchronize(stream);
}

/* As much work is under way as the stream takes, and nobody waits for it. */
static int last_long(void *stream)
{
    for (int n = 0; n < CHAIN; n++)
        CHECK(last(500, stream));
    return count_up_part(0, stream);
}

static void *run(void *number)
{
    int thread = (int)(intptr_t)number;
    void *stream, *other;

    if (cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1) || cuStreamCreate(&other, 1))
        return context;
    int has_own_way = is("ahead") || is("beneath");
    if (has_own_way && (is("ahead") ? run_ahead(thread, stream) : run_beneath(thread, stream, other)))
        return context;
    for (uint32_t i = 1; !has_own_way && goes_on(thread, i); i++) {
        int failed = is_chain() ? chain(thread, i, stream)
            : is("feed")   ? feed(i, stream, other)
            : is("lock")   ? under_lock(thread, stream)
            : is("locks")  ? under_lock(0, stream)
            : is("locked") ? lock_for_long(thread, stream)
            : is("asked")  ? lock_and_ask(thread, stream)
            : is("graphed") ? lock_after_graph(thread, stream)
            : is("serve")  ? serve(thread, i, stream)
            : is("spins")  ? spin_in_ring(thread, i, stream)
            : is("meets")  ? meet(thread, i, stream)
            : is("starts") ? cuLaunchHostFunc(stream, start_and_join, other)
            : is_pipe()    ? go_through_pipe(thread, i, stream)
            : is("values") ? wait_for_many(i, stream, other)
            : is("paced") && i == 1 ? fill_stream_slowly(stream)
            : is("full") || is("held") || is("paced") ? fill_stream(stream)
            : is("sleeps") || is("works") ? sleep_apart(thread, i, stream)
            : is("lasts")  ? sleep_ahead(i, stream)
            : is("long")   ? last_long(stream)
                           : in_ring(thread, i, stream);
        if (failed || (i % AHEAD == 0 && !is("long") && !is("lasts") && !is("asked") && !is_pipe() && cuStreamSynchronize(stream)))
            return context;
    }
    return cuStreamSynchronize(stream) || cuStreamSynchronize(other) ? context : NULL;
}

static int begin(const char *image)
{
    void *module;

    CHECK(make_current());
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuMemAlloc_v2(&memory, bytes));
    CHECK(cuMemsetD8_v2(memory, 0, bytes));
    CHECK(cuCtxSynchronize()); /* a memset returns before it is done */
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&count_up_kernel, module, "count_up"));
    CHECK(cuModuleGetFunction(&last_kernel, module, "last"));
    return cuModuleGetFunction(&spin_kernel, module, "spin_until");
}

static int make_words(void)
{
    CHECK(cuMemAlloc_v2(&words, 256));
    CHECK(cuMemsetD8_v2(words, 0, 256));
    return cuCtxSynchronize();
}

/* Every byte is what the launches make of it. */
static int check(int threads)
{
    unsigned char *host = malloc(bytes);

    CHECK(cuMemcpyDtoH_v2(host, memory, bytes));
    for (size_t i = 0; i < bytes; i++) {
        unsigned char expected = i / PART < (size_t)threads ? launches[i / PART] : 0;
        if (host[i] != expected) {
            printf("byte %zu is %d, not %d\n", i, host[i], expected);
            return 1;
        }
    }
    return 0;
}

static int run_threads(const char *image, int count)
{
    pthread_t threads[THREADS];
    void *failed;

    if (begin(image) || make_words())
        return 1;
    /* The first of the ring waits for nothing in its first iteration. */
    tokens[0] = 1;
    CHECK(sem_init(&posts, 0, 0));
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i));
    while ((is("held") || is("paced") || is("ahead") || is("beneath")) && !is_held)
        usleep(1000);
    say_and_wait("begun");
    all->stop = 1;
    for (int i = 0; i < count; i++) {
        CHECK(pthread_join(threads[i], &failed));
        if (failed)
            return 1;
    }
    return check(count);
}

static int run_child(const char *image, int process, int from_parent)
{
    struct shared_memory shared;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(from_parent, &shared, sizeof shared) != sizeof shared || begin(image))
        return 1;
    CHECK(cuIpcOpenMemHandle_v2(&words, shared, 1));
    return run((void *)(intptr_t)process) != NULL || check(1);
}

static int run_processes(const char *image)
{
    struct shared_memory shared;
    pthread_t thread;
    int to_children[2], failed = 0;
    void *failed_here;

    CHECK(pipe(to_children));
    bytes = BYTES / 4;
    for (int process = 1; process < PROCESSES; process++)
        if (fork() == 0)
            _exit(run_child(image, process, to_children[0]));
    if (begin(image) || make_words())
        return 1;
    CHECK(cuIpcGetMemHandle(&shared, words));
    for (int process = 1; process < PROCESSES; process++)
        if (write(to_children[1], &shared, sizeof shared) != sizeof shared)
            return 1;
    CHECK(pthread_create(&thread, NULL, run, NULL));
    say_and_wait("begun");
    all->stop = 1;
    CHECK(pthread_join(thread, &failed_here));
    for (int process = 1, status; process < PROCESSES; process++) {
        wait(&status);
        failed |= status != 0;
    }
    return failed || failed_here || check(1);
}

int main(int argc, char **argv)
{
    pthread_mutexattr_t shared;

    if (argc != 3)
        return 2;
    how = argv[1];
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 2;
    all->announced = AHEAD;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&all->lock, &shared);
    int are_processes = is("locks") || is("serve") || is("pipe");
    if (are_processes ? run_processes(argv[2]) : run_threads(argv[2], threads_of_one_process()))
        return 1;
    puts("as expected");
    return 0;
}
