/* Ground 8: how fast do ranges of 4 KiB go between the GPU and pinned host memory, each a copy of a batch, and
 * gathered by the mover's kernel into one copy (scattered by it from one)?
 *
 * Why: a copy engine is believed to need some microseconds for each copy of a batch, which the kernel saves. The
 * mover tries both itself (manager/src/mover/copy/trial.rs) and logs what it finds; here with more bytes. */
#include "ground.h"

#define PART "tiny ranges"

enum { RANGE = 4096, GAP = 512, COUNT = 1024, GATHERED = COUNT * RANGE };

struct entry {
    CUdeviceptr to, from;
    uint64_t bytes;
};

static CUdeviceptr pieces, staging;
static char *host;
static struct entry *list;
static void *copy_ranges, *here;

static CUdeviceptr place(int range)
{
    return pieces + (size_t)range * (RANGE + GAP);
}

static int in_batch(bool out)
{
    static CUdeviceptr to[COUNT], from[COUNT];
    static size_t sizes[COUNT];
    int attributes[6] = {1}; /* sources are read in stream order */
    size_t index = 0;
    for (int i = 0; i < COUNT; i++) {
        CUdeviceptr there = (CUdeviceptr)(uintptr_t)(host + (size_t)i * RANGE);
        to[i] = out ? there : place(i);
        from[i] = out ? place(i) : there;
        sizes[i] = RANGE;
    }
    return cu.copy_batch(to, from, sizes, COUNT, attributes, &index, 1, here);
}

static int gathered(bool out)
{
    unsigned count = COUNT;
    void *arguments[] = {&list, &count};
    for (int i = 0; i < COUNT; i++) {
        CUdeviceptr staged = staging + (size_t)i * RANGE;
        list[i] = (struct entry){out ? staged : place(i), out ? place(i) : staged, RANGE};
    }
    if (out) {
        int code = launch(copy_ranges, 64, here, arguments);
        return code ? code : cu.to_host_async(host, staging, GATHERED, here);
    }
    int code = cu.to_device_async(staging, host, GATHERED, here);
    return code ? code : launch(copy_ranges, 64, here, arguments);
}

static int as_one(bool out)
{
    return out ? cu.to_host_async(host, staging, GATHERED, here) : cu.to_device_async(staging, host, GATHERED, here);
}

/* The best of ten. */
static bool ask(const char *asked, int (*copy)(bool out), bool out)
{
    double best = 0;
    for (int try = 0; try < 10; try++) {
        double began = now();
        TRY(PART, asked, copy(out));
        TRY(PART, asked, cu.stream_synchronize(here));
        double reached = GATHERED / (now() - began);
        best = reached > best ? reached : best;
    }
    say_figure(PART, asked, best / 1e9, "GB/s", "%d ranges of %d bytes", COUNT, RANGE);
    return true;
}

/* Scatters a pattern that batches then fetch, so that one is compared with the other. */
static bool ask_whether_right(void)
{
    const char *asked = "scattered bytes are where a batch finds them";
    bool right = true;
    for (int i = 0; i < GATHERED; i++)
        host[i] = (char)(i * 31 + i / 251);
    TRY(PART, asked, gathered(false));
    TRY(PART, asked, cu.stream_synchronize(here));
    memset(host, 0, GATHERED);
    TRY(PART, asked, in_batch(true));
    TRY(PART, asked, cu.stream_synchronize(here));
    for (int i = 0; i < GATHERED; i++)
        right &= host[i] == (char)(i * 31 + i / 251);
    say(PART, asked, right, "%d bytes", GATHERED);
    return true;
}

int main(void)
{
    void *at;
    begin("8");
    setenv("GROUND_KERNELS", getenv("GROUND_GATHER") ? getenv("GROUND_GATHER") : "", 1);
    NEED(start());
    NEED(cu.stream_create(&here, 1));
    NEED(cu.alloc_host(&at, GATHERED, 0));
    host = at;
    NEED(cu.alloc_host(&at, COUNT * sizeof *list, 0));
    list = at;
    NEED(cu.alloc(&staging, GATHERED));
    NEED(cu.alloc(&pieces, (size_t)COUNT * (RANGE + GAP)));
    NEED(kernel(&copy_ranges, "tidegate_copy_ranges"));
    ask("gathered, to the host", gathered, true);
    ask("in a batch, to the host", in_batch, true);
    ask("as one range, to the host", as_one, true);
    ask("scattered, to the device", gathered, false);
    ask("in a batch, to the device", in_batch, false);
    ask("as one range, to the device", as_one, false);
    ask_whether_right();
    return 0;
}
