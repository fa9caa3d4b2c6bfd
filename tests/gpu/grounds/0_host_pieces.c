/* Ground 0: can pieces in host memory (HOST_NUMA) lie beside device ones in one reservation?
 *
 * Why: a tenant that needs more than the GPU has gets pieces in host DRAM at the same addresses
 * (R0.3, DESIGN §4). If they cannot be mixed, or kernels cannot use them, such a tenant gets
 * out-of-memory instead. */
#include "ground.h"

#define PART "host pieces"

static bool kernels_cross(CUdeviceptr at, size_t bytes)
{
    const char *asked = "one kernel writes over device, host and device pieces in a row";
    void *fill;
    uint64_t count = bytes / 4;
    uint32_t value = 7, *host = calloc(count, 4);
    void *arguments[] = {&at, &count, &value};
    TRY(PART, asked, kernel(&fill, "fill"));
    TRY(PART, asked, launch(fill, 64, NULL, arguments));
    TRY(PART, asked, cu.to_host(host, at, bytes));
    size_t wrong = 0;
    for (uint64_t i = 0; i < count; i++)
        wrong += host[i] != value + i;
    free(host);
    say(PART, asked, wrong == 0, "%zu of %llu words wrong", wrong, (unsigned long long)count);
    return true;
}

/* Bytes a second of a kernel that reads and writes them. */
static bool speed(const char *asked, CUdeviceptr at, size_t bytes)
{
    void *sweep;
    uint64_t count = bytes / 4;
    uint32_t rounds = 20;
    void *arguments[] = {&at, &count, &rounds};
    TRY(PART, asked, kernel(&sweep, "sweep"));
    TRY(PART, asked, cu.synchronize());
    double began = now();
    TRY(PART, asked, launch(sweep, 528, NULL, arguments));
    TRY(PART, asked, cu.synchronize());
    say_figure(PART, asked, 2.0 * rounds * (double)bytes / (now() - began) / 1e9, "GB/s",
               "reading and writing %zu bytes %u times (a cache may hold them)", bytes, rounds);
    return true;
}

static bool ask(size_t unit)
{
    const char *asked = "cuMemCreate makes a piece on host NUMA node 0";
    struct properties host = like(HOST_NUMA);
    CUhandle first, middle, last, imported;
    CUdeviceptr at, again;
    size_t before = free_memory();
    int fd = -1, code = cu.create(&middle, unit, &host, 0);
    say(PART, asked, code == 0, "%zu bytes: %s", unit, name_of(code));
    if (code != 0)
        return false;
    say_figure(PART, "device memory that a host piece takes", (double)before - (double)free_memory(), "B",
               "of a piece of %zu bytes", unit);
    asked = "host and device pieces lie in one reservation";
    TRY(PART, asked, create(&first, unit));
    TRY(PART, asked, create(&last, unit));
    TRY(PART, asked, cu.reserve(&at, 3 * unit, 0, 0, 0));
    code = map(at, unit, first);
    code = code ? code : map(at + unit, unit, middle);
    code = code ? code : map(at + 2 * unit, unit, last);
    say(PART, asked, code == 0, "device, host, device: %s", name_of(code));
    if (code != 0)
        return false;
    code = open_access(at, 3 * unit);
    say(PART, "one cuMemSetAccess covers both kinds", code == 0, "%s", name_of(code));
    code = cu.memset8(at, 3, 3 * unit);
    say(PART, "one memset goes over both kinds", code == 0, "%s", name_of(code));
    kernels_cross(at, 3 * unit);
    speed("speed of a kernel on a host piece", at + unit, unit);
    speed("speed of a kernel on a device piece", at, unit);
    asked = "a host piece can be exported, imported and mapped";
    code = export_to(&fd, middle);
    code = code ? code : import_from(&imported, fd);
    code = code ? code : map_anywhere(&again, unit, imported);
    say(PART, asked, code == 0, "%s", name_of(code));
    return true;
}

int main(void)
{
    begin("0");
    NEED(start());
    ask(granule() < 2 * MIB || quick() ? granule() : 16 * granule());
    return 0;
}
