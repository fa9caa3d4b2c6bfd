/* Ground 0: does what another process does on the GPU (scrubs, gathers, copies) steal a computing
 * process's time, and how much?
 *
 * Why: the mover scrubs, packs and saves one tenant's memory while another tenant computes (DESIGN §8).
 * Copies may go on beside kernels; kernels and memsets of another process may take turns with them,
 * a time slice each. The last part, a computing process, is the measure of that. */
#include "ground.h"

#define PART "stolen time"

enum work { SCRUB, GATHER, COPY, COMPUTE, KINDS };
static const char *const names[KINDS] = {
    "memsets of 32 MiB (scrub)",
    "a kernel that moves 32 MiB (gather)",
    "copies of 32 MiB to pinned host memory (save)",
    "a computing kernel (for comparison)",
};
static enum work kind;

/* Does its work for so long, and tells how often it did it. */
static void busy(int socket, double seconds, CUdeviceptr at, size_t bytes, void *host, void *sweep)
{
    uint64_t count = (kind == COMPUTE ? 64 * 1024 : bytes) / 4;
    uint32_t rounds = kind == COMPUTE && !quick() ? 1000 : 1;
    void *arguments[] = {&at, &count, &rounds};
    long long times = 0;
    send_word(socket, 0, -1);
    for (double began = now(); now() - began < seconds; times++) {
        if (kind == SCRUB)
            HELPER_NEED(cu.memset8_async(at, 0, bytes, NULL));
        else if (kind == COPY)
            HELPER_NEED(cu.to_host_async(host, at, bytes, NULL));
        else
            HELPER_NEED(launch(sweep, 528, NULL, arguments));
        HELPER_NEED(cu.synchronize());
    }
    send_word(socket, times, -1);
}

static int helper(int socket)
{
    CUdeviceptr at;
    void *host, *sweep;
    long long milliseconds;
    if (!receive_word(socket, &milliseconds, NULL))
        return 0;
    HELPER_NEED(start());
    size_t bytes = at_most(32 * MIB, 8, granule());
    HELPER_NEED(kernel(&sweep, "sweep"));
    HELPER_NEED(cu.alloc(&at, bytes));
    HELPER_NEED(cu.alloc_host(&host, bytes, 0));
    busy(socket, (double)milliseconds / 1e3, at, bytes, host, sweep);
    return 0;
}

/* How often a second a kernel of some milliseconds gets done. */
static double pace(void *sweep, CUdeviceptr at, size_t bytes, double seconds)
{
    uint64_t count = bytes / 4;
    uint32_t rounds = quick() ? 2 : 200;
    void *arguments[] = {&at, &count, &rounds};
    long times = 0;
    double began = now();
    while (now() - began < seconds) {
        if (launch(sweep, 528, NULL, arguments) != 0 || cu.synchronize() != 0)
            return 0;
        times++;
    }
    return (double)times / (now() - began);
}

static void ask(struct helper *other, enum work what, void *sweep, CUdeviceptr at, size_t bytes)
{
    char asked[128];
    double seconds = quick() ? 0.1 : 1.5;
    long long word, times = 0;
    double alone = pace(sweep, at, bytes, seconds / 2);
    send_word(other->socket, (long long)(seconds * 2e3), -1);
    snprintf(asked, sizeof asked, "pace of a kernel beside %s, of its pace alone", names[what]);
    if (!receive_word(other->socket, &word, NULL)) {
        say_words(PART, asked, "error", "the other process ended early");
        return;
    }
    double beside = pace(sweep, at, bytes, seconds);
    receive_word(other->socket, &times, NULL);
    say_figure(PART, asked, alone > 0 ? beside / alone : 0, "ratio",
               "alone %.1f a second, beside %.1f; the other did its work %.0f times a second", alone, beside,
               (double)times / (2 * seconds));
}

int main(void)
{
    struct helper others[KINDS];
    CUdeviceptr at;
    void *sweep;
    begin("0");
    for (kind = 0; kind < KINDS; kind++)
        others[kind] = start_helper(helper);
    NEED(start());
    NEED(kernel(&sweep, "sweep"));
    size_t bytes = at_most(16 * MIB, 8, granule());
    NEED(cu.alloc(&at, bytes));
    for (int what = 0; what < KINDS; what++) {
        ask(&others[what], (enum work)what, sweep, at, bytes);
        end_helper(&others[what]);
    }
    return 0;
}
