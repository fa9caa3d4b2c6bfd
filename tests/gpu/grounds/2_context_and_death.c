/* Ground 2: do the calls that make and map pieces need a context, and do mappings survive the death of
 * the process that made the piece?
 *
 * Why: the mover makes its context only when a second tenant comes, and a tenant may lease before its
 * first context (DESIGN §2). The mover's death must lose nothing (I7). */
#include "ground.h"

#define BYTE 0x77

/* One call in a process without a context: an answer of its own. Refused ones end the row. */
#define ASK(call, what)                                                              \
    do {                                                                             \
        int code_ = (call);                                                          \
        say("no context", what " works without a context", code_ == 0, "%s", name_of(code_)); \
        if (code_ != 0)                                                              \
            return 0;                                                                \
    } while (0)

static int without_context(int socket)
{
    CUhandle handle, imported;
    CUdeviceptr at;
    int fd = -1;
    long long word;
    if (!receive_word(socket, &word, NULL))
        return 0;
    HELPER_NEED(cu.init(0));
    ASK(create(&handle, granule()), "cuMemCreate");
    ASK(export_to(&fd, handle), "cuMemExportToShareableHandle");
    ASK(import_from(&imported, fd), "cuMemImportFromShareableHandle");
    ASK(cu.reserve(&at, granule(), 0, 0, 0), "cuMemAddressReserve");
    ASK(cu.map(at, granule(), 0, handle, 0), "cuMemMap");
    ASK(open_access(at, granule()), "cuMemSetAccess");
    ASK(cu.memset8(at, 1, 16), "a memset");
    return 0;
}

/* Makes a piece, fills it, sends its descriptor, is killed. */
static int maker(int socket)
{
    CUhandle handle;
    CUdeviceptr at;
    int fd = -1;
    long long bytes;
    if (!receive_word(socket, &bytes, NULL))
        return 0;
    HELPER_NEED(start());
    HELPER_NEED(create(&handle, (size_t)bytes));
    HELPER_NEED(map_anywhere(&at, (size_t)bytes, handle));
    HELPER_NEED(cu.memset8(at, BYTE, (size_t)bytes));
    HELPER_NEED(cu.synchronize());
    HELPER_NEED(export_to(&fd, handle));
    send_word(socket, 0, fd);
    for (;;)
        pause();
}

static size_t right_bytes(CUdeviceptr at, size_t bytes, unsigned char expected)
{
    unsigned char *host = calloc(1, bytes);
    size_t right = 0;
    if (cu.to_host(host, at, bytes) == 0)
        while (right < bytes && host[right] == expected)
            right++;
    free(host);
    return right;
}

static bool survive(struct helper *making, size_t bytes)
{
    const char *asked = "a mapping survives the death of the piece's maker";
    CUhandle handle;
    CUdeviceptr at;
    long long word;
    int fd = -1;
    send_word(making->socket, (long long)bytes, -1);
    if (!receive_word(making->socket, &word, &fd)) {
        say_words("death", asked, "error", "the maker ended early");
        return false;
    }
    TRY("death", asked, import_from(&handle, fd));
    TRY("death", asked, map_anywhere(&at, bytes, handle));
    TRY("death", asked, cu.release(handle));
    close(fd);
    end_helper(making);
    pause_ms(quick() ? 1 : 500);
    size_t right = right_bytes(at, bytes, BYTE);
    say("death", asked, right == bytes, "%zu of %zu bytes right", right, bytes);
    TRY("death", asked, cu.memset8(at, 1, bytes));
    say("death", "it can be written then", right_bytes(at, bytes, 1) == bytes, "by a memset");
    size_t before = free_memory();
    TRY("death", "the last mapping gives the memory back", unmap_range(at, bytes));
    say("death", "the last mapping gives the memory back", free_memory() >= before + bytes,
        "%.1f MiB more are free", ((double)free_memory() - (double)before) / (double)MIB);
    return true;
}

int main(void)
{
    begin("2");
    struct helper bare = start_helper(without_context), making = start_helper(maker);
    int status = 0;
    send_word(bare.socket, 0, -1);
    waitpid(bare.pid, &status, 0);
    if (status != 0)
        say_words("no context", "what works without a context", "error", "the process ended with status %d",
                  status);
    NEED(start());
    survive(&making, at_most(64 * MIB, 4, granule()));
    return 0;
}
