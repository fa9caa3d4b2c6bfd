/* Ground 1: one process makes a piece, two others map it and write and check it in turn, 10,000 times,
 * by kernels, memsets and copies. A fourth, which never calls CUDA, passes the descriptor.
 *
 * Why: this is how memory travels in Tidegate: the mover makes it, the manager passes it, tenants map it
 * one after the other. The manual promises that others see writes "after the kernel or copy ends"; a stale
 * cache line or page-table entry would be wrong bytes in a job (FACTS §3, I1, I2). */
#include "ground.h"

#define PART "shared piece"
#define ROUNDS 10000

/* Makes the piece and keeps it. */
static int maker(int socket)
{
    CUhandle handle;
    int fd = -1;
    long long word;
    HELPER_NEED(start());
    HELPER_NEED(create(&handle, granule()));
    HELPER_NEED(export_to(&fd, handle));
    send_word(socket, 0, fd);
    receive_word(socket, &word, NULL);
    return 0;
}

struct view {
    CUdeviceptr at, wrong;
    size_t bytes;
    uint32_t *host;
    void *fill, *check;
};

/* Writes a round's words: by a kernel or, every 8th time, by a copy. */
static void put(struct view *view, uint32_t value)
{
    uint64_t count = view->bytes / 4;
    void *arguments[] = {&view->at, &count, &value};
    if (value % 8 != 0) {
        HELPER_NEED(launch(view->fill, 64, NULL, arguments));
    } else {
        for (uint64_t i = 0; i < count; i++)
            view->host[i] = value + (uint32_t)i;
        HELPER_NEED(cu.to_device(view->at, view->host, view->bytes));
    }
    HELPER_NEED(cu.synchronize());
}

/* Wrong words of a round: counted by a kernel or, every 8th time, in a copy. */
static uint32_t wrong(struct view *view, uint32_t value)
{
    uint64_t count = view->bytes / 4;
    uint32_t found = 0;
    void *arguments[] = {&view->at, &count, &value, &view->wrong};
    if (value % 8 != 4) {
        HELPER_NEED(cu.memset8(view->wrong, 0, 4));
        HELPER_NEED(launch(view->check, 64, NULL, arguments));
        HELPER_NEED(cu.to_host(&found, view->wrong, 4));
        return found;
    }
    HELPER_NEED(cu.to_host(view->host, view->at, view->bytes));
    for (uint64_t i = 0; i < count; i++)
        found += view->host[i] != value + (uint32_t)i;
    return found;
}

/* Gets the piece, then for each number: checks the words of the round before, writes its own. */
static int user(int socket)
{
    struct view view = {0};
    CUhandle handle;
    long long round;
    int fd;
    if (!receive_word(socket, &round, &fd))
        return 0;
    HELPER_NEED(start());
    view.bytes = granule();
    view.host = malloc(view.bytes);
    HELPER_NEED(import_from(&handle, fd));
    HELPER_NEED(map_anywhere(&view.at, view.bytes, handle));
    HELPER_NEED(cu.alloc(&view.wrong, 4));
    HELPER_NEED(kernel(&view.fill, "fill"));
    HELPER_NEED(kernel(&view.check, "check"));
    send_word(socket, 0, -1);
    while (receive_word(socket, &round, NULL)) {
        long long bad = round > 0 ? wrong(&view, (uint32_t)round - 1) : 0;
        put(&view, (uint32_t)round);
        send_word(socket, bad, -1);
    }
    return 0;
}

static void ask(struct helper users[2])
{
    const char *asked = "two processes that write and check one piece in turn always find the other's words";
    double began = now(), patience = quick() ? 0.5 : 40;
    long long bad = 0, bad_rounds = 0, found;
    int round = 0;
    for (; round < ROUNDS && now() - began < patience; round++) {
        struct helper *turn = &users[round % 2];
        if (!send_word(turn->socket, round, -1) || !receive_word(turn->socket, &found, NULL)) {
            say_words(PART, asked, "error", "a process ended in round %d", round);
            return;
        }
        bad += found;
        bad_rounds += found != 0;
    }
    say(PART, asked, bad == 0, "%lld words wrong in %lld of %d rounds; %.0f rounds a second", bad, bad_rounds,
        round, round / (now() - began));
    say_figure(PART, "rounds done", round, "rounds", "of %d", ROUNDS);
}

int main(void)
{
    begin("1");
    struct helper making = start_helper(maker), users[2] = {start_helper(user), start_helper(user)};
    long long word;
    int fd;
    bool ready = receive_word(making.socket, &word, &fd);
    for (int i = 0; i < 2; i++)
        ready = ready && send_word(users[i].socket, 0, fd) && receive_word(users[i].socket, &word, NULL);
    say(PART, "a piece of one process is mapped by two others", ready, "descriptor passed by a fourth");
    if (ready)
        ask(users);
    end_helper(&making);
    end_helper(&users[0]);
    end_helper(&users[1]);
    return 0;
}
