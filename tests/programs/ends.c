/* The end of a process, and of what it has opened. Argument: which. */
#include "life.h"
#include <dlfcn.h>

/* What CUDA answers to a process that is ending; whatever it is, it is the driver's answer. */
static void use_at_exit(void)
{
    say("at exit: set %d, use %d", cuMemsetD8_v2(memory, 9, 4096), use(4, 64 << 10));
    say("free %d", cuMemFree_v2(memory));
}

static int atexit_before(char **arguments)
{
    (void)arguments;
    atexit(use_at_exit);
    if (begin_with_memory())
        return 1;
    ask("pause");
    return 0;
}

static int atexit_after(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    atexit(use_at_exit);
    ask("pause");
    exit(7);
}

/* Only where a life asks for it. */
static int has_destructor;

__attribute__((destructor)) static void destroy(void)
{
    if (has_destructor)
        use_at_exit();
}

static int destructor(char **arguments)
{
    (void)arguments;
    has_destructor = 1;
    if (begin_with_memory())
        return 1;
    ask("pause");
    return 8;
}

static int quick(char **arguments)
{
    (void)arguments;
    at_quick_exit(use_at_exit);
    if (begin_with_memory())
        return 1;
    ask("pause");
    quick_exit(9);
}

static atomic_int busy;

static void *work(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(context);
    for (;;) {
        if (cuMemsetD8_v2(memory, 1, PART))
            return NULL;
        atomic_store(&busy, 1);
    }
}

/* The process ends while its threads are in the middle of calls, or wait. */
static int exit_busy(char **arguments)
{
    pthread_t thread;

    (void)arguments;
    if (begin_with_memory())
        return 1;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, NULL, work, NULL);
    while (!atomic_load(&busy))
        sched_yield();
    ask("press");
    exit(10);
}

#define MEMBER_OF(library, name) ((typeof(&name))dlsym(library, #name))

/* A library that is closed, and opened again. */
static int reopen(char **arguments)
{
    void *before = dlopen("libcuda.so.1", RTLD_NOW);
    int code = MEMBER_OF(before, cuInit)(0);

    (void)arguments;
    say("init %d, close %d", code, dlclose(before));
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || begin_with_memory())
        return 1;
    say("close %d", dlclose(library));
    ask("pause");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    say("set %d, close %d", MEMBER_OF(library, cuMemsetD8_v2)(memory, 7, PART), dlclose(library));
    return is_filled(memory, 7, PART) || use(1, PART);
}

int main(int argc, char **argv)
{
    static const struct life lives[] = {
        { "atexit-before", atexit_before },
        { "atexit-after", atexit_after },
        { "destructor", destructor },
        { "quick-exit", quick },
        { "exit-busy", exit_busy },
        { "reopen", reopen },
        { NULL, NULL },
    };
    return live(lives, argc, argv);
}
