/* What every ground needs: the driver by dlopen and dlsym (our own declarations, so that no CUDA
 * header is needed), answers as JSON lines, helper processes, pieces of memory.
 *
 * A ground is one program. It asks the driver a few things and prints one JSON object per line:
 *
 *   {"ground":"0","part":"…","asked":"…","answer":true|false|number|"words","unit":"ms"|null,"detail":"…"}
 *
 * A "no" is an answer, so the program ends with 0 all the same; a call that fails where nobody asked
 * whether it would is the answer "error", with the call and its code. What goes wrong otherwise ends the
 * program with 1, and a fault of the driver or a hang ends it by a signal: whoever runs it notes that.
 *
 * GROUND_KERNELS   the image with the kernels: kernels.ptx
 * GROUND_GATHER    the image with the mover's kernel: gather.ptx
 * GROUND_QUICK     less memory and time: only to see that the ground itself works
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function"

typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */

struct location {
    int type, id; /* type 1: device; 3: host NUMA node */
};
struct properties { /* CUmemAllocationProp */
    int type;       /* 1: pinned */
    int handle_types;
    struct location location;
    void *metadata;
    unsigned char compression, gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct access { /* CUmemAccessDesc */
    struct location location;
    int flags; /* 3: read and write */
};

enum { DEVICE = 1, HOST_NUMA = 3, BY_DESCRIPTOR = 1, NOT_SUPPORTED = 801 };

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* X(member, exported name, parameters) */
#define DRIVER_FUNCTIONS(X)                                                                                \
    X(init, cuInit, (unsigned flags))                                                                      \
    X(driver_version, cuDriverGetVersion, (int *version))                                                  \
    X(error_name, cuGetErrorName, (int code, const char **name))                                           \
    X(device_name, cuDeviceGetName, (char *name, int length, int device))                                  \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                     \
    X(retain_context, cuDevicePrimaryCtxRetain, (void **context, int device))                              \
    X(set_context, cuCtxSetCurrent, (void *context))                                                       \
    X(synchronize, cuCtxSynchronize, (void))                                                               \
    X(memory_info, cuMemGetInfo_v2, (size_t * free, size_t *total))                                        \
    X(alloc, cuMemAlloc_v2, (CUdeviceptr * at, size_t bytes))                                              \
    X(free, cuMemFree_v2, (CUdeviceptr at))                                                                \
    X(alloc_host, cuMemHostAlloc, (void **at, size_t bytes, unsigned flags))                               \
    X(free_host, cuMemFreeHost, (void *at))                                                                \
    X(register_host, cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags))                       \
    X(unregister_host, cuMemHostUnregister, (void *at))                                                    \
    X(memset8, cuMemsetD8_v2, (CUdeviceptr at, unsigned char value, size_t count))                         \
    X(memset8_async, cuMemsetD8Async, (CUdeviceptr at, unsigned char value, size_t count, void *stream))   \
    X(to_device, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                        \
    X(to_host, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                \
    X(to_device_async, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, void *stream)) \
    X(to_host_async, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, void *stream))       \
    X(copy_batch, cuMemcpyBatchAsync_v2,                                                                   \
      (CUdeviceptr * to, CUdeviceptr * from, size_t *bytes, size_t count, void *attributes, size_t *indices, \
       size_t attribute_count, void *stream))                                                              \
    X(granularity, cuMemGetAllocationGranularity, (size_t * bytes, const struct properties *like, int option)) \
    X(create, cuMemCreate, (CUhandle * handle, size_t bytes, const struct properties *like, unsigned long long flags)) \
    X(release, cuMemRelease, (CUhandle handle))                                                            \
    X(reserve, cuMemAddressReserve,                                                                        \
      (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr wished, unsigned long long flags))    \
    X(free_range, cuMemAddressFree, (CUdeviceptr at, size_t bytes))                                        \
    X(map, cuMemMap, (CUdeviceptr at, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)) \
    X(unmap, cuMemUnmap, (CUdeviceptr at, size_t bytes))                                                   \
    X(set_access, cuMemSetAccess, (CUdeviceptr at, size_t bytes, const struct access *rights, size_t count)) \
    X(export_piece, cuMemExportToShareableHandle, (void *fd, CUhandle handle, int type, unsigned long long flags)) \
    X(import_piece, cuMemImportFromShareableHandle, (CUhandle * handle, void *fd, int type))               \
    X(retain_handle, cuMemRetainAllocationHandle, (CUhandle * handle, void *at))                           \
    X(address_range, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *bytes, CUdeviceptr at))         \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr at))              \
    X(range_handle, cuMemGetHandleForAddressRange,                                                         \
      (void *fd, CUdeviceptr at, size_t bytes, int type, unsigned long long flags))                        \
    X(ipc_handle, cuIpcGetMemHandle, (void *handle, CUdeviceptr at))                                       \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                                      \
    X(stream_synchronize, cuStreamSynchronize, (void *stream))                                             \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                         \
    X(event_record, cuEventRecord, (void *event, void *stream))                                            \
    X(event_synchronize, cuEventSynchronize, (void *event))                                                \
    X(event_elapsed, cuEventElapsedTime, (float *milliseconds, void *begin, void *end))                    \
    X(load_module, cuModuleLoadData, (void **module, const void *image))                                   \
    X(function, cuModuleGetFunction, (void **function, void *module, const char *name))                    \
    X(launch, cuLaunchKernel,                                                                              \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                \
       unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra))

#define MEMBER(name, symbol, parameters) int(*name) parameters;
static struct {
    DRIVER_FUNCTIONS(MEMBER)
} cu;

static const char *ground;

/* ---- Answers ---- */

/* A JSON string; what JSON does not allow in one becomes a space or an apostrophe. */
static void put_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        putchar((unsigned char)*text < ' ' || *text == '\\' ? ' ' : *text == '"' ? '\'' : *text);
    putchar('"');
}

/* One line, at once: whatever happens to the program next, it has been said. `answer` is JSON. */
static void put_answer(const char *part, const char *asked, const char *answer, const char *unit,
                       const char *detail, va_list values)
{
    char words[512];
    vsnprintf(words, sizeof words, detail, values);
    printf("{\"ground\":\"%s\",\"part\":", ground);
    put_string(part);
    printf(",\"asked\":");
    put_string(asked);
    printf(",\"answer\":%s,\"unit\":", answer);
    unit ? put_string(unit) : (void)printf("null");
    printf(",\"detail\":");
    put_string(words);
    puts("}");
    fflush(stdout);
}

__attribute__((format(printf, 4, 5))) static void say(const char *part, const char *asked, bool answer,
                                                      const char *detail, ...)
{
    va_list values;
    va_start(values, detail);
    put_answer(part, asked, answer ? "true" : "false", NULL, detail, values);
    va_end(values);
}

__attribute__((format(printf, 4, 5))) static void say_words(const char *part, const char *asked,
                                                            const char *answer, const char *detail, ...)
{
    char quoted[128];
    va_list values;
    va_start(values, detail);
    snprintf(quoted, sizeof quoted, "\"%s\"", answer);
    put_answer(part, asked, quoted, NULL, detail, values);
    va_end(values);
}

__attribute__((format(printf, 5, 6))) static void say_figure(const char *part, const char *asked,
                                                             double figure, const char *unit,
                                                             const char *detail, ...)
{
    char number[64];
    va_list values;
    va_start(values, detail);
    snprintf(number, sizeof number, "%.6g", figure);
    bool finite = figure - figure == 0;
    put_answer(part, asked, finite ? number : "null", unit, detail, values);
    va_end(values);
}

static const char *name_of(int code)
{
    const char *name = NULL;
    if (code == 0)
        return "CUDA_SUCCESS";
    if (code == NOT_SUPPORTED)
        return "CUDA_ERROR_NOT_SUPPORTED";
    return cu.error_name && cu.error_name(code, &name) == 0 && name ? name : "an unknown error";
}

/* A call that failed where its failure is no answer to what was asked. */
static void say_failed(const char *part, const char *asked, const char *call, int code)
{
    say_words(part, asked, code == NOT_SUPPORTED ? "not supported" : "error", "%s: %s (%d)", call,
              name_of(code), code);
}

/* Makes a call of the driver; if it fails, says so and leaves the function with `false`. */
#define TRY(part, asked, call)                        \
    do {                                              \
        int code_ = (call);                           \
        if (code_ != 0) {                             \
            say_failed(part, asked, #call, code_);    \
            return false;                             \
        }                                             \
    } while (0)

/* Makes a call that belongs to the preparation of the ground as a whole. */
#define NEED(call)                                       \
    do {                                                 \
        int code_ = (call);                              \
        if (code_ != 0) {                                \
            say_failed("preparation", "", #call, code_); \
            exit(0);                                     \
        }                                                \
    } while (0)

/* The same in a helper, which has no voice: it ends, and its starter says that it is gone. */
#define HELPER_NEED(call)                                                               \
    do {                                                                                \
        int code_ = (call);                                                             \
        if (code_ != 0) {                                                               \
            fprintf(stderr, "helper: %s: %s (%d)\n", #call, name_of(code_), code_);     \
            _exit(3);                                                                   \
        }                                                                               \
    } while (0)

/* ---- Time ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void pause_ms(unsigned milliseconds)
{
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&length, NULL);
}

static bool quick(void)
{
    return getenv("GROUND_QUICK") != NULL;
}

/* ---- The driver ---- */

/* What stands in for a function that the driver lacks: any call of it is refused. */
static int lacking(void)
{
    return NOT_SUPPORTED;
}

/* Names the ground and finds the driver; makes no call of it, so that helpers can still be forked. */
static void begin(const char *number)
{
    ground = number;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "there is no CUDA driver: %s\n", dlerror());
        exit(1);
    }
#define FIND(name, symbol, parameters)                             \
    *(void **)&cu.name = dlsym(library, #symbol);                  \
    if (!cu.name)                                                  \
        *(void **)&cu.name = (void *)(uintptr_t)lacking;
    DRIVER_FUNCTIONS(FIND)
    signal(SIGPIPE, SIG_IGN);
}

/* Initialises the driver and makes the first device's primary context current. */
static int start(void)
{
    void *context;
    int code = cu.init(0);
    code = code ? code : cu.retain_context(&context, 0);
    return code ? code : cu.set_context(context);
}

static size_t free_memory(void)
{
    size_t free = 0, total = 0;
    return cu.memory_info(&free, &total) == 0 ? free : 0;
}

/* So much as was wished, but at most this part of what is free, in whole units. */
static size_t at_most(size_t wished, size_t part, size_t unit)
{
    size_t most = free_memory() / part;
    if (quick() && most > 8 * MIB)
        most = 8 * MIB;
    return (wished < most ? wished : most) / unit * unit;
}

/* ---- Pieces ---- */

static struct properties like(int place)
{
    struct properties like = {.type = 1, .handle_types = BY_DESCRIPTOR, .location = {place, 0}};
    return like;
}

static size_t granule(void)
{
    size_t bytes = 2 * MIB;
    struct properties of = like(DEVICE);
    cu.granularity(&bytes, &of, 0);
    return bytes;
}

static int create(CUhandle *handle, size_t bytes)
{
    struct properties of = like(DEVICE);
    return cu.create(handle, bytes, &of, 0);
}

static int open_access(CUdeviceptr at, size_t bytes)
{
    struct access rights = {{DEVICE, 0}, 3};
    return cu.set_access(at, bytes, &rights, 1);
}

static int map(CUdeviceptr at, size_t bytes, CUhandle handle)
{
    int code = cu.map(at, bytes, 0, handle, 0);
    return code ? code : open_access(at, bytes);
}

/* A piece at an address of its own. */
static int map_anywhere(CUdeviceptr *at, size_t bytes, CUhandle handle)
{
    int code = cu.reserve(at, bytes, 0, 0, 0);
    return code ? code : map(*at, bytes, handle);
}

/* Many pieces side by side, in a new range; the range keeps them, their handles are released. */
static int map_pieces(CUdeviceptr *at, size_t bytes, size_t piece)
{
    int code = cu.reserve(at, bytes, 0, 0, 0);
    for (size_t done = 0; code == 0 && done < bytes; done += piece) {
        CUhandle handle;
        code = create(&handle, piece);
        code = code ? code : cu.map(*at + done, piece, 0, handle, 0);
        code = code ? code : cu.release(handle);
    }
    return code ? code : open_access(*at, bytes);
}

static int unmap_range(CUdeviceptr at, size_t bytes)
{
    int code = cu.unmap(at, bytes);
    return code ? code : cu.free_range(at, bytes);
}

static int export_to(int *fd, CUhandle handle)
{
    return cu.export_piece(fd, handle, BY_DESCRIPTOR, 0);
}

static int import_from(CUhandle *handle, int fd)
{
    return cu.import_piece(handle, (void *)(uintptr_t)fd, BY_DESCRIPTOR);
}

/* ---- Kernels ---- */

/* A kernel of GROUND_KERNELS in the current context. */
static int kernel(void **function, const char *name)
{
    static void *module;
    const char *path = getenv("GROUND_KERNELS");
    if (!module) {
        static char image[1 << 20];
        FILE *file = path ? fopen(path, "r") : NULL;
        if (!file)
            return 301; /* CUDA_ERROR_FILE_NOT_FOUND */
        image[fread(image, 1, sizeof image - 1, file)] = 0;
        fclose(file);
        int code = cu.load_module(&module, image);
        if (code)
            return code;
    }
    return cu.function(function, module, name);
}

static int launch(void *function, unsigned blocks, void *stream, void **arguments)
{
    return cu.launch(function, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
}

/* ---- Helper processes ---- */

struct helper {
    pid_t pid;
    int socket;
};

/* Starts a process that runs `body`; before this one's first call of the driver, which a forked child
 * could not use. It dies with its starter. */
static struct helper start_helper(int (*body)(int socket))
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        exit(1);
    pid_t starter = getpid(), pid = fork();
    if (pid < 0)
        exit(1);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != starter)
            _exit(1);
        close(pair[0]);
        _exit(body(pair[1]));
    }
    close(pair[1]);
    return (struct helper){pid, pair[0]};
}

/* Sends a number, and a descriptor unless it is negative. */
static bool send_word(int socket, long long number, int fd)
{
    char room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&number, sizeof number};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof number;
}

/* The other side's next number, and descriptor if `fd` is asked for; false if it is gone. */
static bool receive_word(int socket, long long *number, int *fd)
{
    char room[CMSG_SPACE(sizeof *fd)];
    struct iovec part = {number, sizeof *number};
    struct msghdr message = {&(struct sockaddr){0}, 0, &part, 1, room, sizeof room, 0};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof *number)
        return false;
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    if (fd)
        *fd = -1;
    if (fd && control && control->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(control), sizeof *fd);
    return true;
}

/* Kills a helper and waits for its end. */
static void end_helper(struct helper *helper)
{
    kill(helper->pid, SIGKILL);
    waitpid(helper->pid, NULL, 0);
    close(helper->socket);
}
