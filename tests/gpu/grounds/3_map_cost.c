/* Ground 3: what do making, mapping, setting access and unmapping cost, for 10 GiB in pieces of 2 to
 * 512 MiB, on an idle GPU and beside running kernels?
 *
 * Why: a switch unmaps and maps all temporary pieces, and a lease makes them (FACTS §3: create 193 us,
 * map 1.5, access 36, unmap 26 per 2 MiB on an A100). The default piece of 32 MiB stands on this. A call
 * that waits for running kernels would make every switch wait. */
#include "ground.h"

#define PART "map cost"
#define LIMIT 55.0 /* s, of the whole ground */

static const size_t sizes[] = {2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB};
static volatile bool computing, ended;
static void *nap_kernel, *lane;

/* Keeps a stream busy with kernels of 2 ms while `computing`. */
static void *compute(void *context)
{
    uint64_t milliseconds = 2;
    void *arguments[] = {&milliseconds};
    if (cu.set_context(context) != 0)
        return NULL;
    while (!ended) {
        if (!computing)
            pause_ms(1);
        else if (launch(nap_kernel, 1, lane, arguments) != 0 || cu.stream_synchronize(lane) != 0)
            break;
    }
    return NULL;
}

struct costs {
    double create, map, access, unmap, release;
};

#define TIMED(cost, ...)                   \
    do {                                   \
        double began_ = now();             \
        __VA_ARGS__                        \
        (cost) += now() - began_;          \
    } while (0)

static bool measure(struct costs *costs, CUdeviceptr at, CUhandle *handles, size_t pieces, size_t piece)
{
    const char *asked = "pieces are made and mapped";
    TIMED(costs->create,
          for (size_t i = 0; i < pieces; i++) TRY(PART, asked, create(&handles[i], piece)););
    TIMED(costs->map,
          for (size_t i = 0; i < pieces; i++) TRY(PART, asked, cu.map(at + i * piece, piece, 0, handles[i], 0)););
    TIMED(costs->access,
          for (size_t i = 0; i < pieces; i++) TRY(PART, asked, open_access(at + i * piece, piece)););
    TIMED(costs->unmap,
          for (size_t i = 0; i < pieces; i++) TRY(PART, asked, cu.unmap(at + i * piece, piece)););
    TIMED(costs->release,
          for (size_t i = 0; i < pieces; i++) TRY(PART, asked, cu.release(handles[i])););
    return true;
}

static void tell(const struct costs *costs, size_t pieces, size_t piece, const char *beside)
{
    char asked[128];
    double per = 1e6 / (double)pieces, gib = (double)(pieces * piece) / (double)GIB;
    snprintf(asked, sizeof asked, "map, set access, unmap in pieces of %llu KiB, %s",
             (unsigned long long)piece >> 10, beside);
    say_figure(PART, asked, (costs->map + costs->access + costs->unmap) * 1e3 / gib, "ms/GiB",
               "%.2f GiB in %zu pieces; us per piece: create %.1f, map %.1f, access %.1f, unmap %.1f, release %.1f",
               gib, pieces, costs->create * per, costs->map * per, costs->access * per, costs->unmap * per,
               costs->release * per);
}

/* One access and one unmapping for a range of many pieces, against one for each. */
static bool at_once(CUdeviceptr at, CUhandle *handles, size_t pieces, size_t piece)
{
    const char *asked = "one cuMemSetAccess and one cuMemUnmap for all pieces of 32 MiB";
    double access = 0, unmap = 0;
    for (size_t i = 0; i < pieces; i++) {
        TRY(PART, asked, create(&handles[i], piece));
        TRY(PART, asked, cu.map(at + i * piece, piece, 0, handles[i], 0));
    }
    TIMED(access, TRY(PART, asked, open_access(at, pieces * piece)););
    TIMED(unmap, TRY(PART, asked, cu.unmap(at, pieces * piece)););
    for (size_t i = 0; i < pieces; i++)
        TRY(PART, asked, cu.release(handles[i]));
    say_figure(PART, asked, (access + unmap) * 1e3, "ms", "access %.3f ms, unmap %.3f ms, %zu pieces",
               access * 1e3, unmap * 1e3, pieces);
    return true;
}

int main(void)
{
    void *context = NULL;
    double began = now();
    pthread_t thread;
    CUdeviceptr at;
    begin("3");
    NEED(start());
    NEED(cu.retain_context(&context, 0));
    NEED(kernel(&nap_kernel, "nap"));
    NEED(cu.stream_create(&lane, 1));
    size_t total = at_most(10 * GIB, 2, granule());
    CUhandle *handles = calloc(total / granule(), sizeof *handles);
    NEED(cu.reserve(&at, total, 0, 0, 0));
    if (pthread_create(&thread, NULL, compute, context) != 0)
        return 1;
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        size_t pieces = total / sizes[size];
        for (int busy = 0; busy < 2 && pieces > 0 && sizes[size] % granule() == 0; busy++) {
            struct costs costs = {0};
            if (now() - began > LIMIT) {
                say_words(PART, "", "not asked", "pieces of %zu bytes: the time was up", sizes[size]);
                continue;
            }
            computing = busy;
            pause_ms(busy ? 5 : 0);
            if (measure(&costs, at, handles, pieces, sizes[size]))
                tell(&costs, pieces, sizes[size], busy ? "beside kernels of 2 ms" : "idle");
            computing = false;
            cu.stream_synchronize(lane);
        }
    }
    if (total >= 32 * MIB)
        at_once(at, handles, total / (32 * MIB), 32 * MIB);
    ended = true;
    pthread_join(thread, NULL);
    return 0;
}
