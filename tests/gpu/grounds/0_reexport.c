/* Ground 0: can a piece be exported again by a process that only imported it, and does a process that
 * never calls CUDA pass it on?
 *
 * Why: the manager keeps a duplicate of every piece's descriptor and never loads CUDA (DESIGN §2); if it
 * and the mover die, a successor may get the pieces only from jobs, which imported them (I7). */
#include "ground.h"

#define BYTE 0x5A

/* Makes a piece, fills it, sends its descriptor, stays. */
static int maker(int socket)
{
    CUhandle handle;
    CUdeviceptr at;
    int fd = -1;
    long long word;
    HELPER_NEED(start());
    HELPER_NEED(create(&handle, granule()));
    HELPER_NEED(map_anywhere(&at, granule(), handle));
    HELPER_NEED(cu.memset8(at, BYTE, granule()));
    HELPER_NEED(cu.synchronize());
    HELPER_NEED(export_to(&fd, handle));
    send_word(socket, 0, fd);
    receive_word(socket, &word, NULL);
    return 0;
}

/* Whether the piece behind the descriptor can be mapped, with the right bytes. */
static bool has_right_bytes(int fd)
{
    CUhandle handle;
    CUdeviceptr at;
    size_t bytes = granule(), right = 0;
    unsigned char *host = calloc(1, bytes);
    int code = import_from(&handle, fd);
    code = code ? code : map_anywhere(&at, bytes, handle);
    code = code ? code : cu.to_host(host, at, bytes);
    while (code == 0 && right < bytes && host[right] == BYTE)
        right++;
    free(host);
    return code == 0 && right == bytes;
}

/* Receives a descriptor and says whether it is good. */
static int reader(int socket)
{
    long long word;
    int fd;
    HELPER_NEED(start());
    while (receive_word(socket, &word, &fd))
        send_word(socket, has_right_bytes(fd), -1);
    return 0;
}

static bool ask_reader(struct helper *reader, int fd)
{
    long long right = 0;
    send_word(reader->socket, 0, fd);
    return receive_word(reader->socket, &right, NULL) && right;
}

static bool reexport(int fd, struct helper *reader)
{
    const char *asked = "an imported handle can be exported again";
    CUhandle handle;
    int again = -1;
    TRY("re-export", asked, import_from(&handle, fd));
    int code = export_to(&again, handle);
    say("re-export", asked, code == 0, "%s", name_of(code));
    if (code == 0)
        say("re-export", "a third process maps what was exported again and finds the bytes",
            ask_reader(reader, again), "one granule of %zu bytes", granule());
    return true;
}

int main(void)
{
    begin("0");
    struct helper making = start_helper(maker), reading = start_helper(reader);
    long long word;
    int fd;
    if (!receive_word(making.socket, &word, &fd)) {
        say_words("preparation", "", "error", "the maker of the piece ended early");
        return 0;
    }
    say("re-export", "a process without CUDA passes a descriptor on, and the next one maps it",
        ask_reader(&reading, fd), "through two Unix sockets");
    NEED(start());
    reexport(fd, &reading);
    end_helper(&making);
    say("re-export", "the descriptor can still be imported after the death of the piece's maker",
        ask_reader(&reading, fd), "by a process that had imported it before");
    end_helper(&reading);
    return 0;
}
