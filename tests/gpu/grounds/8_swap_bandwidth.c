/* Ground 8: how fast do bytes go between pieces and pinned host memory, against plain device memory; what
 * do small copies, both directions at once and pinning cost; and what do copies from another process
 * cost a computing one?
 *
 * Why: the cost of a switch is mostly this (FACTS §4: 53 GB/s on an H200 for 4 MiB and more, 2.3 us a call,
 * both directions together 1.4 x one). The mover's lanes, merging and the slice length are built on it. */
#include "ground.h"

#define PART "swap"

static size_t bytes; /* of the large transfers */
static void *here, *there; /* two streams */

typedef int copying(void *host, CUdeviceptr device, size_t size, void *stream);

static int in(void *host, CUdeviceptr device, size_t size, void *stream)
{
    return cu.to_device_async(device, host, size, stream);
}

static int out(void *host, CUdeviceptr device, size_t size, void *stream)
{
    return cu.to_host_async(host, device, size, stream);
}

/* The best of three, in bytes a second, in copies of `chunk`. */
static bool rate(double *best, copying *copy, void *host, CUdeviceptr at, size_t size, size_t chunk)
{
    const char *asked = "bytes are copied";
    *best = 0;
    for (int try = 0; try < 3; try++) {
        double began = now();
        for (size_t done = 0; done < size; done += chunk)
            TRY(PART, asked, copy((char *)host + done, at + done, chunk, here));
        TRY(PART, asked, cu.stream_synchronize(here));
        double reached = (double)size / (now() - began);
        *best = reached > *best ? reached : *best;
    }
    return true;
}

static void ask_rates(const char *what, void *host, CUdeviceptr at)
{
    for (size_t chunk = bytes; chunk >= 64 << 10 && chunk > 0; chunk = chunk > 4 * MIB ? 4 * MIB : chunk / 64) {
        double to_device, to_host;
        char asked[128];
        size_t size = chunk < MIB ? bytes / 16 / chunk * chunk : bytes / chunk * chunk;
        if (size == 0 || !rate(&to_device, in, host, at, size, chunk) || !rate(&to_host, out, host, at, size, chunk))
            return;
        snprintf(asked, sizeof asked, "%s, copies of %zu KiB, to the host", what, chunk >> 10);
        say_figure(PART, asked, to_host / 1e9, "GB/s", "%zu bytes; to the device %.2f GB/s", size, to_device / 1e9);
    }
}

static bool ask_both(void *host, CUdeviceptr at)
{
    const char *asked = "both directions at once, pieces and pinned memory, together";
    size_t half = bytes / 2;
    double began = now();
    TRY(PART, asked, in(host, at, half, here));
    TRY(PART, asked, out((char *)host + half, at + half, half, there));
    TRY(PART, asked, cu.stream_synchronize(here));
    TRY(PART, asked, cu.stream_synchronize(there));
    say_figure(PART, asked, (double)bytes / (now() - began) / 1e9, "GB/s", "%zu bytes each way", half);
    return true;
}

/* What pinning costs, in one call, of memory touched before. */
static bool ask_pinning(void)
{
    const char *asked = "cuMemHostRegister of touched memory";
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return false;
    memset(own, 1, bytes);
    double began = now();
    TRY(PART, asked, cu.register_host(own, bytes, 0));
    say_figure(PART, asked, (now() - began) * (double)GIB / (double)bytes, "s/GiB", "%zu bytes", bytes);
    cu.unregister_host(own);
    munmap(own, bytes);
    return true;
}

/* Computes for so many milliseconds, and tells how often a second its kernel got done. */
static int computer(int socket)
{
    CUdeviceptr at;
    void *sweep;
    long long milliseconds;
    if (!receive_word(socket, &milliseconds, NULL))
        return 0;
    HELPER_NEED(start());
    size_t size = at_most(16 * MIB, 8, granule());
    uint64_t count = size / 4;
    uint32_t rounds = quick() ? 2 : 200;
    void *arguments[] = {&at, &count, &rounds};
    HELPER_NEED(cu.alloc(&at, size));
    HELPER_NEED(kernel(&sweep, "sweep"));
    do {
        long long times = 0;
        double began = now();
        send_word(socket, 0, -1);
        for (; now() - began < (double)milliseconds / 1e3; times++) {
            HELPER_NEED(launch(sweep, 528, NULL, arguments));
            HELPER_NEED(cu.synchronize());
        }
        send_word(socket, (long long)((double)times / (now() - began) * 1e3), -1);
    } while (receive_word(socket, &milliseconds, NULL));
    return 0;
}

static bool ask_beside(struct helper *computer, void *host, CUdeviceptr at)
{
    const char *asked = "pieces to the host while another process computes";
    long long word, alone, beside, milliseconds = quick() ? 100 : 1500;
    double copied = 0;
    send_word(computer->socket, milliseconds, -1);
    if (!receive_word(computer->socket, &word, NULL) || !receive_word(computer->socket, &alone, NULL)) {
        say_words(PART, asked, "error", "the other process ended early");
        return false;
    }
    send_word(computer->socket, milliseconds, -1);
    receive_word(computer->socket, &word, NULL);
    double began = now();
    while (now() - began < (double)milliseconds * 0.9 / 1e3) {
        TRY(PART, asked, out(host, at, bytes, here));
        TRY(PART, asked, cu.stream_synchronize(here));
        copied += (double)bytes;
    }
    say_figure(PART, asked, copied / (now() - began) / 1e9, "GB/s", "copies of %zu bytes", bytes);
    if (receive_word(computer->socket, &beside, NULL) && alone > 0)
        say_figure(PART, "pace of the computing process meanwhile, of its pace alone",
                   (double)beside / (double)alone, "ratio", "%.1f kernels a second alone, %.1f beside the copies",
                   (double)alone / 1e3, (double)beside / 1e3);
    return true;
}

int main(void)
{
    CUdeviceptr plain, pieces;
    void *host;
    begin("8");
    struct helper computing = start_helper(computer);
    NEED(start());
    size_t piece = quick() || granule() < 2 * MIB ? granule() : 32 * MIB;
    bytes = at_most(256 * MIB, 4, piece);
    NEED(cu.stream_create(&here, 1));
    NEED(cu.stream_create(&there, 1));
    double began = now();
    NEED(cu.alloc_host(&host, bytes, 0));
    say_figure(PART, "cuMemHostAlloc", (now() - began) * (double)GIB / (double)bytes, "s/GiB", "%zu bytes", bytes);
    NEED(cu.alloc(&plain, bytes));
    NEED(map_pieces(&pieces, bytes, piece));
    ask_rates("cuMemAlloc's memory and pinned memory", host, plain);
    ask_rates("pieces and pinned memory", host, pieces);
    ask_both(host, pieces);
    ask_pinning();
    ask_beside(&computing, host, pieces);
    end_helper(&computing);
    return 0;
}
