/* Processes that make processes. Argument: which. */
#include "life.h"
#include <spawn.h>

extern char **environ;

/* A program of its own. */
static int alone(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    ask("pause");
    return end_with_memory();
}

/* Both have CUDA, and memory at the same time. */
static int fork_before(char **arguments)
{
    int to_child[2], to_parent[2];
    char word;

    (void)arguments;
    if (pipe(to_child) || pipe(to_parent))
        return 2;
    pid_t child = fork();
    if (child == 0) {
        if (begin_with_memory())
            _exit(1);
        if (write(to_parent[1], "f", 1) != 1 || read(to_child[0], &word, 1) != 1)
            _exit(2);
        _exit(end_with_memory());
    }
    if (read(to_parent[0], &word, 1) != 1 || begin_with_memory())
        return 1;
    ask("pause");
    if (write(to_child[1], "g", 1) != 1)
        return 2;
    say("the child ends with %d", status_of(child));
    return end_with_memory();
}

/* What CUDA answers in a child of a process that has it. */
static void say_answers(void)
{
    CUdeviceptr address = 0;
    char byte;

    say("in the child: init %d, alloc %d, free %d, set %d, copy %d, wait %d, context %d", cuInit(0),
        cuMemAlloc_v2(&address, 64), cuMemFree_v2(memory), cuMemsetD8_v2(memory, 9, 64),
        cuMemcpyDtoH_v2(&byte, memory, 1), cuCtxSynchronize(), cuCtxSetCurrent(context));
}

static int with_child(void (*child_lives)(char **), char **arguments)
{
    if (begin_with_memory())
        return 1;
    pid_t child = fork();
    if (child == 0) {
        child_lives(arguments);
        _exit(98);
    }
    say("the child ends with %d", status_of(child));
    ask("pause");
    return end_with_memory();
}

static void answer_and_end(char **arguments)
{
    (void)arguments;
    say_answers();
    _exit(3);
}

static void answer_and_exit(char **arguments)
{
    (void)arguments;
    say_answers();
    exit(4);
}

static void become_alone(char **arguments)
{
    char *words[] = { arguments[0], "brief", NULL };
    execv("/proc/self/exe", words);
}

static void fork_again(char **arguments)
{
    (void)arguments;
    pid_t child = fork();
    if (child == 0) {
        say_answers();
        _exit(5);
    }
    _exit(status_of(child));
}

static int fork_after(char **arguments) { return with_child(answer_and_end, arguments); }
static int fork_after_and_exit(char **arguments) { return with_child(answer_and_exit, arguments); }
static int fork_and_exec(char **arguments) { return with_child(become_alone, arguments); }
static int fork_twice(char **arguments) { return with_child(fork_again, arguments); }

/* A program that is started by another, which waits for it. */
static int brief(char **arguments)
{
    (void)arguments;
    if (begin() || use(3, PART))
        return 1;
    say("brief");
    return 6;
}

/* The same process, another image. */
static int exec_after(char **arguments)
{
    if (begin_with_memory())
        return 1;
    ask("pause");
    char *words[] = { arguments[0], "alone", NULL };
    execv("/proc/self/exe", words);
    return 98;
}

/* Again and again. */
static int exec_often(char **arguments)
{
    int left = arguments[2] ? atoi(arguments[2]) : 5;
    char count[12];

    if (begin_with_memory())
        return 1;
    if (left == 0)
        return end_with_memory();
    snprintf(count, sizeof count, "%d", left - 1);
    char *words[] = { arguments[0], "exec-often", count, NULL };
    execv("/proc/self/exe", words);
    return 98;
}

static int vfork_after(char **arguments)
{
    char *words[] = { arguments[0], "brief", NULL };

    if (begin_with_memory())
        return 1;
    pid_t child = vfork();
    if (child == 0) {
        execv("/proc/self/exe", words);
        _exit(98);
    }
    say("the child ends with %d", status_of(child));
    ask("pause");
    return end_with_memory();
}

static int spawn_after(char **arguments)
{
    char *words[] = { arguments[0], "brief", NULL };
    pid_t child;

    if (begin_with_memory() || posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ))
        return 1;
    say("the child ends with %d", status_of(child));
    ask("pause");
    return end_with_memory();
}

/* The first process is gone before the last one begins. */
static int daemonise(char **arguments)
{
    int gone[2];
    char byte;

    (void)arguments;
    if (pipe(gone))
        return 2;
    pid_t child = fork();
    if (child != 0) {
        say("the first ends");
        return status_of(child);
    }
    setsid();
    /* Closed by the end of the first process, and of this one, but not of the daemon. */
    if (fork() != 0)
        _exit(0);
    close(gone[1]);
    if (read(gone[0], &byte, 1) != 0)
        _exit(2);
    ask("gone");
    if (begin_with_memory())
        _exit(1);
    say("the daemon has begun");
    ask("pause");
    _exit(end_with_memory());
}

/* Threads use CUDA while their process makes children. */
static atomic_int ended;

static void *work(void *failed)
{
    if (cuCtxSetCurrent(context))
        *(int *)failed = 1;
    while (!atomic_load(&ended) && !*(int *)failed)
        *(int *)failed = use(5, 64 << 10);
    return NULL;
}

static int fork_busy(char **arguments)
{
    pthread_t workers[4];
    int failed[4] = { 0 }, unlike = 0;

    (void)arguments;
    if (begin_with_memory())
        return 1;
    for (int i = 0; i < 4; i++)
        pthread_create(&workers[i], NULL, work, &failed[i]);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(cuCtxSynchronize() == 3 && cuMemFree_v2(memory) == 3 ? 0 : 1);
        unlike += status_of(child) != 0;
    }
    ask("pause");
    atomic_store(&ended, 1);
    for (int i = 0; i < 4; i++) {
        pthread_join(workers[i], NULL);
        unlike += failed[i];
    }
    say("%d went otherwise", unlike);
    return end_with_memory();
}

int main(int argc, char **argv)
{
    static const struct life lives[] = {
        { "alone", alone },
        { "brief", brief },
        { "fork-before", fork_before },
        { "fork-after", fork_after },
        { "fork-after-and-exit", fork_after_and_exit },
        { "fork-and-exec", fork_and_exec },
        { "fork-twice", fork_twice },
        { "fork-busy", fork_busy },
        { "exec", exec_after },
        { "exec-often", exec_often },
        { "vfork", vfork_after },
        { "spawn", spawn_after },
        { "daemon", daemonise },
        { NULL, NULL },
    };
    return live(lives, argc, argv);
}
