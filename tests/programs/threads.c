/* Threads that end, and signals that come, in the middle of things. Argument: which. */
#include "life.h"
#include <sys/syscall.h>
#include <sys/time.h>

int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
/* How C++ destroys what is local to a thread. */
int __cxa_thread_atexit_impl(void (*destroy)(void *), void *object, void *library);
extern void *__dso_handle;

/* Runs a thread to its end. */
static void *run(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    void *result;

    pthread_create(&thread, NULL, body, argument);
    pthread_join(thread, &result);
    return result;
}

static void *exit_in_the_middle(void *argument)
{
    (void)argument;
    if (cuCtxSetCurrent(context) == 0 && use(1, 64 << 10) == 0)
        pthread_exit((void *)5);
    return NULL;
}

static int pthread_exit_after(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    for (int i = 0; i < 20; i++)
        if (run(exit_in_the_middle, NULL) != (void *)5)
            return 3;
    ask("pause");
    return end_with_memory();
}

/* The main thread ends, the process goes on. */
static void *outlive_main(void *main_thread)
{
    pthread_join(*(pthread_t *)main_thread, NULL);
    if (cuCtxSetCurrent(context))
        exit(1);
    ask("pause");
    exit(end_with_memory());
}

static int main_thread_ends(char **arguments)
{
    static pthread_t main_thread;
    pthread_t thread;

    (void)arguments;
    main_thread = pthread_self();
    if (begin_with_memory() || pthread_create(&thread, NULL, outlive_main, &main_thread))
        return 1;
    pthread_exit(NULL);
}

static void use_at_end(void *answers)
{
    CUdeviceptr address = 0;
    int *answer = answers;

    answer[0] = cuMemAlloc_v2(&address, 4096);
    answer[1] = cuMemsetD8_v2(address, 1, 4096);
    answer[2] = cuMemFree_v2(address);
}

static void *end_like_cpp(void *answers)
{
    cuCtxSetCurrent(context);
    if (use(1, 4096))
        return NULL;
    __cxa_thread_atexit_impl(use_at_end, answers, &__dso_handle);
    return NULL;
}

static pthread_key_t key;

static void *end_like_c(void *answers)
{
    cuCtxSetCurrent(context);
    pthread_setspecific(key, answers);
    use(1, 4096);
    return NULL;
}

/* What is local to a thread uses CUDA when the thread ends. */
static int destructors(char **arguments)
{
    int answers[3] = { -1, -1, -1 };

    (void)arguments;
    if (begin_with_memory())
        return 1;
    for (int i = 0; i < 20; i++)
        run(end_like_cpp, answers);
    say("as in C++: %d %d %d", answers[0], answers[1], answers[2]);
    pthread_key_create(&key, use_at_end);
    for (int i = 0; i < 20; i++)
        run(end_like_c, answers);
    /* What the driver itself keeps for a thread may be gone by then. */
    say("as in C: %d %d", answers[0], answers[1]);
    ask("pause");
    return end_with_memory();
}

/* In what state a thread is, as the kernel says: S is asleep. */
static char state_of(pid_t thread)
{
    char path[64], text[256];

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : '?';
}

static void wait_until_asleep(pid_t thread)
{
    while (state_of(thread) != 'S')
        sched_yield();
}

static int handled[2];

static void handle(int signal)
{
    char byte = (char)signal;
    int before = errno;

    if (write(handled[1], &byte, 1) < 0)
        _exit(97);
    errno = before;
}

static struct {
    pthread_t thread;
    pid_t number;
} sleeper;

/* The thread that waits is interrupted again and again; each time its handler runs at once. */
static void *interrupt(void *signals)
{
    char byte;

    for (int i = 0; i < 20; i++) {
        int signal = ((int *)signals)[i % 2];
        wait_until_asleep(sleeper.number);
        pthread_kill(sleeper.thread, signal);
        if (read(handled[0], &byte, 1) != 1 || byte != signal)
            _exit(96);
    }
    say("handled");
    say("release");
    return NULL;
}

static void *cancel(void *unused)
{
    (void)unused;
    wait_until_asleep(sleeper.number);
    /* Said first: who is cancelled may end the program at once. */
    say("cancelled");
    pthread_cancel(sleeper.thread);
    say("release");
    return NULL;
}

static int prepare(int flags)
{
    struct sigaction action = { .sa_handler = handle, .sa_flags = flags };

    sleeper.thread = pthread_self();
    sleeper.number = (pid_t)syscall(SYS_gettid);
    return pipe(handled) || sigaction(SIGUSR1, &action, NULL) || sigaction(SIGALRM, &action, NULL);
}

static int signals[] = { SIGUSR1, SIGALRM };

/* A call that waits, where another job has the GPU, while signals come. */
static int interrupted(int flags, int (*call)(void))
{
    pthread_t other;

    if (prepare(flags))
        return 2;
    ask("press");
    pthread_create(&other, NULL, interrupt, signals);
    int failed = call();
    pthread_join(other, NULL);
    return failed || end_with_memory();
}

static int call_set(void)
{
    return cuMemsetD8_v2(memory, 7, PART);
}

static int call_copy(void)
{
    return is_filled(memory, 7, PART);
}

static int call_use(void)
{
    return use(4, PART);
}

static int signals_at_the_gate(char **arguments)
{
    (void)arguments;
    return begin_with_memory() || interrupted(0, call_set);
}

static int signals_that_restart(char **arguments)
{
    (void)arguments;
    return begin_with_memory() || interrupted(SA_RESTART, call_copy);
}

static int signals_at_an_allocation(char **arguments)
{
    (void)arguments;
    return begin_with_memory() || interrupted(0, call_use);
}

static int signals_at_the_first_context(char **arguments)
{
    (void)arguments;
    return interrupted(0, begin_with_memory);
}

static void be_interrupted(int signal)
{
    (void)signal;
}

/* A timer goes on and on, from before CUDA begins. */
static int timer(char **arguments)
{
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    struct sigaction action = { .sa_handler = be_interrupted };

    (void)arguments;
    if (sigaction(SIGALRM, &action, NULL))
        return 2;
    setitimer(ITIMER_REAL, &often, NULL);
    if (begin_with_memory())
        return 1;
    for (int i = 0; i < 50; i++)
        if (use(i, 256 << 10))
            return 1;
    setitimer(ITIMER_REAL, &never, NULL);
    ask("pause");
    return end_with_memory();
}

static void *wait_and_end(void *unused)
{
    (void)unused;
    sleeper.thread = pthread_self();
    sleeper.number = (pid_t)syscall(SYS_gettid);
    pthread_t other;
    pthread_create(&other, NULL, cancel, NULL);
    /* A cancellation is noticed after the call: it is none of the places where one can be. */
    int failed = cuCtxSetCurrent(context) || call_set();
    pthread_join(other, NULL);
    pthread_testcancel();
    return (void *)(long)failed;
}

static int cancelled(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    ask("press");
    say("the thread %s", run(wait_and_end, NULL) == PTHREAD_CANCELED ? "was cancelled" : "ended");
    return end_with_memory();
}

/* A signal that ends the process, while it waits. The argument is its number. */
static void *be_killed(void *signal)
{
    wait_until_asleep(sleeper.number);
    kill(getpid(), *(int *)signal);
    return NULL;
}

static int killed(char **arguments)
{
    static int signal;
    pthread_t other;

    signal = arguments[2] ? atoi(arguments[2]) : SIGTERM;
    /* Who started the tests may ignore it, as a shell does for what it starts in the background. */
    struct sigaction action = { .sa_handler = SIG_DFL };
    if (sigaction(signal, &action, NULL) || begin_with_memory() || prepare(0))
        return 1;
    ask("press");
    say("waits");
    pthread_create(&other, NULL, be_killed, &signal);
    call_set();
    pthread_join(other, NULL);
    return 0;
}

static void *function;

static void *live_briefly(void *failed)
{
    CUdeviceptr address;
    int *code = failed;

    *code = cuCtxSetCurrent(context);
    for (int i = 0; i < 3 && *code == 0; i++) {
        *code = cuMemAlloc_v2(&address, 512);
        *code = *code ? *code : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        *code = *code ? *code : cuMemsetD8_v2(address, i, 512);
        *code = *code ? *code : cuMemFree_v2(address);
    }
    return NULL;
}

#define THREADS 1000

static int thousand(char **arguments)
{
    static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";
    static pthread_t threads[THREADS];
    static int failed[THREADS];
    pthread_attr_t small;
    void *module;
    int count = 0;

    (void)arguments;
    if (begin_with_memory())
        return 1;
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "empty"));
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &small, live_briefly, &failed[i]))
            return 2;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        count += failed[i] != 0;
    }
    say("%d failed", count);
    ask("pause");
    return end_with_memory();
}

int main(int argc, char **argv)
{
    static const struct life lives[] = {
        { "pthread-exit", pthread_exit_after },
        { "main-ends", main_thread_ends },
        { "destructors", destructors },
        { "cancelled", cancelled },
        { "gate", signals_at_the_gate },
        { "restart", signals_that_restart },
        { "allocation", signals_at_an_allocation },
        { "first-context", signals_at_the_first_context },
        { "timer", timer },
        { "killed", killed },
        { "thousand", thousand },
        { NULL, NULL },
    };
    return live(lives, argc, argv);
}
