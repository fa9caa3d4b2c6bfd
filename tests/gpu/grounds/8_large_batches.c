/* Ground 8: do batches of very many copies end, again and again, with the right bytes, and how fast are they?
 *
 * Why: others report hangs and crashes of cuMemcpyBatchAsync at some 50,000 copies, and when large batches are
 * repeated. The mover puts the ranges of a save into batches, however many they are. Each size has a child of its
 * own: one that hangs or crashes is an answer too. */
#include "ground.h"
#include <poll.h>

#define PART "large batches"

enum { RANGE = 4096, GAP = 512, MOST = 65536, TIMES = 5, PATIENCE_MS = 6000, NO_ROOM = -1 };

static CUdeviceptr pieces;
static unsigned char *host;
static void *here;
static CUdeviceptr *to, *from;
static size_t *sizes;

static int batch(int count, bool out)
{
    int attributes[6] = {1}; /* sources are read in stream order */
    size_t index = 0;
    for (int i = 0; i < count; i++) {
        CUdeviceptr there = (CUdeviceptr)(uintptr_t)(host + (size_t)i * RANGE);
        CUdeviceptr place = pieces + (size_t)i * (RANGE + GAP);
        to[i] = out ? there : place;
        from[i] = out ? place : there;
        sizes[i] = RANGE;
    }
    return cu.copy_batch(to, from, sizes, (size_t)count, attributes, &index, 1, here);
}

static unsigned char pattern(size_t at, int round)
{
    return (unsigned char)(at * 31 + at / 4093 + (size_t)round * 7);
}

static bool bring(int count, int round, const char *asked, double *seconds)
{
    size_t bytes = (size_t)count * RANGE;
    for (size_t i = 0; i < bytes; i++)
        host[i] = pattern(i, round);
    double began = now();
    TRY(PART, asked, batch(count, false));
    TRY(PART, asked, cu.stream_synchronize(here));
    *seconds += now() - began;
    memset(host, 0, bytes);
    began = now();
    TRY(PART, asked, batch(count, true));
    TRY(PART, asked, cu.stream_synchronize(here));
    *seconds += now() - began;
    for (size_t i = 0; i < bytes; i++) {
        if (host[i] != pattern(i, round)) {
            say(PART, asked, false, "byte %zu is wrong in round %d", i, round);
            return false;
        }
    }
    return true;
}

static int child(int socket)
{
    long long count = 0;
    int none = -1;
    void *at;
    char asked[64];
    double seconds = 0;
    if (!receive_word(socket, &count, &none))
        return 1;
    snprintf(asked, sizeof asked, "batches of %lld copies have the right bytes", count);
    HELPER_NEED(start());
    HELPER_NEED(cu.stream_create(&here, 1));
    HELPER_NEED(cu.alloc_host(&at, (size_t)count * RANGE, 0));
    host = at;
    to = calloc((size_t)count, sizeof *to);
    from = calloc((size_t)count, sizeof *from);
    sizes = calloc((size_t)count, sizeof *sizes);
    if (cu.alloc(&pieces, (size_t)count * (RANGE + GAP)) != 0) {
        send_word(socket, NO_ROOM, -1);
        return 0;
    }
    for (int round = 0; round < TIMES; round++)
        if (!bring((int)count, round, asked, &seconds))
            return 1;
    say(PART, asked, true, "%d rounds there and back; %.2f GB/s", TIMES,
        2.0 * TIMES * (double)count * RANGE / seconds / 1e9);
    fflush(stdout);
    send_word(socket, count, -1);
    return 0;
}

int main(void)
{
    begin("8");
    for (int count = 1024; count <= (quick() ? 1024 : MOST); count *= 8) {
        struct helper helper = start_helper(child);
        struct pollfd answer = {.fd = helper.socket, .events = POLLIN};
        long long word = 0;
        int none = -1;
        char asked[64];
        snprintf(asked, sizeof asked, "batches of %d copies end", count);
        send_word(helper.socket, count, -1);
        bool ends = poll(&answer, 1, PATIENCE_MS) > 0 && receive_word(helper.socket, &word, &none) && word == count;
        if (word == NO_ROOM)
            say_words(PART, asked, "not asked", "the GPU has no room for so many ranges");
        else
            say(PART, asked, ends, "%d rounds there and back, within %d ms", TIMES, PATIENCE_MS);
        end_helper(&helper);
    }
    return 0;
}
