/* Programs that take away from themselves what others need. Argument: which. */
#include "life.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* No descriptors but those that there are. */
static int few_descriptors(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    int next = dup(0);
    close(next);
    struct rlimit limit = { next, next };
    if (setrlimit(RLIMIT_NOFILE, &limit))
        return 2;
    ask("pause");
    if (is_filled(memory, 7, PART))
        return 1;
    say("as before");
    return 0;
}

static int close_all(void)
{
    return (int)syscall(SYS_close_range, 3, ~0u, 0);
}

static int close_before(char **arguments)
{
    (void)arguments;
    if (close_all() || begin_with_memory())
        return 1;
    ask("pause");
    return end_with_memory();
}

/* A daemon's way, after the first fork. */
static int close_after_fork(char **arguments)
{
    (void)arguments;
    if (begin_with_memory())
        return 1;
    pid_t child = fork();
    if (child == 0)
        _exit(close_all() ? 1 : 0);
    say("the child ends with %d", status_of(child));
    ask("pause");
    return end_with_memory();
}

/* Everybody's descriptors, and files of one's own at their numbers, which nobody else may touch. */
static int close_after(char **arguments)
{
    char name[] = "/tmp/own-XXXXXX";
    int files[64], touched = 0;

    (void)arguments;
    if (begin_with_memory() || close_all())
        return 1;
    for (int i = 0; i < 64; i++)
        files[i] = i == 0 ? mkstemp(name) : dup(files[0]);
    unlink(name);
    ask("pause");
    int held = is_filled(memory, 7, PART);
    struct stat file;
    for (int i = 0; i < 64; i++)
        touched += fstat(files[i], &file) != 0 || file.st_size != 0;
    say("%d of its files were touched", touched);
    say(held ? "not as before" : "as before");
    return 0;
}

/* From now on the system call fails so, in all threads. */
static int forbid_barriers(int error)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof rules / sizeof *rules, rules };

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static int barriers_unknown(char **arguments)
{
    (void)arguments;
    if (forbid_barriers(ENOSYS) || begin_with_memory())
        return 1;
    ask("pause");
    return end_with_memory();
}

static int barriers_forbidden(char **arguments)
{
    (void)arguments;
    if (forbid_barriers(EPERM) || begin_with_memory())
        return 1;
    ask("pause");
    return end_with_memory();
}

static int barriers_forbidden_later(char **arguments)
{
    (void)arguments;
    if (begin_with_memory() || forbid_barriers(EPERM))
        return 1;
    ask("pause");
    return end_with_memory();
}

int main(int argc, char **argv)
{
    static const struct life lives[] = {
        { "few-descriptors", few_descriptors },
        { "close-before", close_before },
        { "close-after-fork", close_after_fork },
        { "close-after", close_after },
        { "no-membarrier", barriers_unknown },
        { "membarrier-forbidden", barriers_forbidden },
        { "membarrier-forbidden-later", barriers_forbidden_later },
        { NULL, NULL },
    };
    return live(lives, argc, argv);
}
