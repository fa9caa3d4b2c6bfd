/* Ground 7: what does the driver say about addresses in mapped pieces: their range, their attributes,
 * whether they can be shared by the older ways?
 *
 * Why: libraries ask (UCX, NCCL, libfabric), and for memory made of pieces the driver's answer is one
 * piece or the whole reservation, not the allocation; these calls are hooked and answered for the
 * logical allocation (FACTS §3). Which ones need it is seen here, beside the answers for cuMemAlloc. */
#include "ground.h"

#define PART "attributes"

static size_t unit;
static CUdeviceptr plain, range; /* cuMemAlloc of 2 units; 2 pieces in a reservation of 4 units */

struct attribute {
    int number;
    const char *name;
};
static const struct attribute attributes[] = {
    {1, "CONTEXT"}, {2, "MEMORY_TYPE"}, {3, "DEVICE_POINTER"}, {7, "BUFFER_ID"}, {8, "IS_MANAGED"},
    {9, "DEVICE_ORDINAL"}, {10, "IS_LEGACY_CUDA_IPC_CAPABLE"}, {11, "RANGE_START_ADDR"},
    {12, "RANGE_SIZE"}, {13, "MAPPED"}, {14, "ALLOWED_HANDLE_TYPES"},
    {15, "IS_GPU_DIRECT_RDMA_CAPABLE"}, {17, "MEMPOOL_HANDLE"}, {18, "MAPPING_SIZE"},
    {19, "MAPPING_BASE_ADDR"}, {20, "MEMORY_BLOCK_ID"},
};

/* A value in words that a reader understands without knowing our addresses. */
static void put_value(char *words, size_t room, uint64_t value, CUdeviceptr base)
{
    if (value >= base && value < base + 4 * unit)
        snprintf(words, room, "start + %llu KiB", (unsigned long long)(value - base) >> 10);
    else if (value >= unit && value <= 4 * unit && value % unit == 0)
        snprintf(words, room, "%llu units", (unsigned long long)(value / unit));
    else
        snprintf(words, room, "%llu", (unsigned long long)value);
}

static void describe(char *words, size_t room, int attribute, CUdeviceptr base)
{
    uint64_t value = 0;
    int code = cu.pointer_attribute(&value, attribute, base + unit + 4096);
    code == 0 ? put_value(words, room, value, base) : (void)snprintf(words, room, "%s", name_of(code));
}

static void ask_attributes(void)
{
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        char asked[128], pieces[96], other[96];
        describe(pieces, sizeof pieces, attributes[i].number, range);
        describe(other, sizeof other, attributes[i].number, plain);
        snprintf(asked, sizeof asked, "%s in the second of two pieces", attributes[i].name);
        say_words(PART, asked, pieces, "cuMemAlloc's memory at the same offset: %s", other);
    }
}

static void ask_range(void)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    char start[96];
    int code = cu.address_range(&base, &bytes, range + unit + 4096);
    put_value(start, sizeof start, base, range);
    const char *what = code != 0                             ? name_of(code)
                       : base == range + unit && bytes == unit ? "one piece"
                       : base == range && bytes == 4 * unit    ? "the whole reservation"
                       : base == range && bytes == 2 * unit    ? "all mapped pieces"
                                                               : "something else";
    say_words(PART, "cuMemGetAddressRange in the second of two pieces", what, "%s, %zu bytes, a unit is %zu",
              start, bytes, unit);
    code = cu.address_range(&base, &bytes, range + 3 * unit);
    say(PART, "cuMemGetAddressRange knows an unmapped part of a reservation", code == 0, "%s", name_of(code));
}

static void ask_sharing(void)
{
    char handle[64];
    CUhandle piece;
    int fd = -1, rdma = -1, dma_buf = -1;
    int code = cu.ipc_handle(handle, range);
    say(PART, "cuIpcGetMemHandle takes memory made of pieces", code == 0, "%s", name_of(code));
    code = cu.ipc_handle(handle, plain);
    say(PART, "cuIpcGetMemHandle takes cuMemAlloc's memory", code == 0, "%s", name_of(code));
    code = cu.retain_handle(&piece, (void *)(uintptr_t)(range + unit + 4096));
    say(PART, "cuMemRetainAllocationHandle finds the piece of an address", code == 0, "%s", name_of(code));
    code = cu.retain_handle(&piece, (void *)(uintptr_t)plain);
    say(PART, "cuMemRetainAllocationHandle finds one for cuMemAlloc's memory", code == 0, "%s", name_of(code));
    code = cu.range_handle(&fd, range, 2 * unit, 1, 0);
    say(PART, "a dma-buf can span two pieces", code == 0, "%s", name_of(code));
    cu.device_attribute(&rdma, 110, 0);
    cu.device_attribute(&dma_buf, 124, 0);
    say_words(PART, "the device has GPUDirect RDMA with pieces, and dma-buf",
              rdma == 1 && dma_buf == 1 ? "both" : rdma == 1 ? "RDMA" : dma_buf == 1 ? "dma-buf" : "neither",
              "attributes 110 and 124: %d and %d", rdma, dma_buf);
}

int main(void)
{
    CUhandle pieces[2];
    begin("7");
    NEED(start());
    unit = granule();
    NEED(cu.alloc(&plain, 2 * unit));
    NEED(cu.reserve(&range, 4 * unit, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        NEED(create(&pieces[i], unit));
        NEED(map(range + i * unit, unit, pieces[i]));
    }
    ask_range();
    ask_attributes();
    ask_sharing();
    return 0;
}
