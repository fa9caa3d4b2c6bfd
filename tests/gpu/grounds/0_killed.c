/* Ground 0: what does a killed job leave behind on the GPU, and for how long: alone, with a kernel still
 * running, with a forked child that lives on?
 *
 * Why: a killed job's units are handed out again when the driver has given the memory back; till then
 * they are counted used (DESIGN §8, retired pieces). A data loader's forked worker outlives its parent. */
#include "ground.h"

#define PATIENCE (quick() ? 0.5 : 5.0)

static size_t taken; /* what the victim takes, half in pieces, half by cuMemAlloc; before it starts */

struct plan {
    bool forks, computes;
};
static struct plan plan;

/* Takes memory, perhaps starts a long kernel, perhaps forks; then waits for its death. */
static int victim(int socket)
{
    CUdeviceptr at, pieces;
    long long word, child = 0;
    if (!receive_word(socket, &word, NULL))
        return 0;
    size_t half = (size_t)word / 2;
    HELPER_NEED(start());
    HELPER_NEED(cu.alloc(&at, half));
    HELPER_NEED(map_pieces(&pieces, half, granule()));
    HELPER_NEED(cu.memset8(pieces, 1, half));
    HELPER_NEED(cu.synchronize());
    if (plan.computes) {
        void *nap;
        uint64_t milliseconds = quick() ? 300 : 3000;
        void *arguments[] = {&milliseconds};
        HELPER_NEED(kernel(&nap, "nap"));
        HELPER_NEED(launch(nap, 1, NULL, arguments));
        pause_ms(20);
    }
    if (plan.forks && (child = fork()) == 0) {
        alarm(60); /* should nobody end it */
        for (;;)
            pause();
    }
    send_word(socket, child, -1);
    for (;;)
        pause();
}

/* Milliseconds until so much is free; negative if it did not come to that. */
static double until_free(size_t wanted)
{
    double began = now();
    while (now() - began < PATIENCE) {
        if (free_memory() >= wanted)
            return (now() - began) * 1e3;
        pause_ms(1);
    }
    return -1;
}

static void say_return(const char *asked, size_t before, size_t during)
{
    /* All but what the driver keeps for itself may be missing. */
    double took = until_free(before - (before - during) / 50);
    size_t missing = before > free_memory() ? before - free_memory() : 0;
    if (took >= 0)
        say_figure("killed", asked, took, "ms", "%zu bytes had been taken", before - during);
    else
        say("killed", asked, false, "%zu of %zu bytes were still missing after %.0f s", missing,
            before - during, PATIENCE);
}

static void ask(struct helper *victim, const char *asked, const char *and_then)
{
    long long child = 0;
    size_t before = free_memory();
    send_word(victim->socket, (long long)taken, -1);
    if (!receive_word(victim->socket, &child, NULL)) {
        say_words("killed", asked, "error", "the victim ended early");
        end_helper(victim);
        return;
    }
    size_t during = free_memory();
    end_helper(victim);
    say_return(asked, before, during);
    if (child > 0) {
        kill((pid_t)child, SIGKILL);
        say_return(and_then, before, during);
    }
}

int main(void)
{
    begin("0");
    struct helper alone = start_helper(victim);
    plan.computes = true;
    struct helper computing = start_helper(victim);
    plan = (struct plan){.forks = true};
    struct helper forking = start_helper(victim);
    NEED(start());
    taken = at_most(GIB, 4, 2 * granule());
    ask(&alone, "time until a killed process's memory is free again", NULL);
    ask(&computing, "the same, with a kernel of 3 s running", NULL);
    ask(&forking, "the same, while its forked child lives on", "the same, after that child's death");
    return 0;
}
