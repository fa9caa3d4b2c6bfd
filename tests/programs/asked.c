/* Asks the driver for its functions, as the CUDA runtime does. Arguments: v1, v2, nested (the function to ask
 * with is itself asked for), or per-thread (for the functions of per-thread default streams); the call
 * (driver.h). */
#include "driver.h"
#include <dlfcn.h>

typedef int (*ask_v1)(const char *name, void **found, int version, unsigned long long flags);
typedef int (*ask_v2)(const char *name, void **found, int version, unsigned long long flags, int *status);

static ask_v1 first;
static ask_v2 second;
static unsigned long long flags;

static void *find(const char *name)
{
    void *found = NULL;
    int code = first ? first(name, &found, 11030, 0) : second(name, &found, 12000, flags, NULL);
    if (code != 0) {
        printf("%s is not found: %d\n", name, code);
        exit(1);
    }
    return found;
}

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc < 3 || library == NULL)
        return 2;
    if (strcmp(argv[1], "v1") == 0)
        first = (ask_v1)dlsym(library, "cuGetProcAddress");
    else
        second = (ask_v2)dlsym(library, "cuGetProcAddress_v2");
    if (strcmp(argv[1], "nested") == 0)
        second = (ask_v2)find("cuGetProcAddress");
    if (strcmp(argv[1], "per-thread") == 0)
        flags = 2; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
#define FIND(name, symbol, parameters) .name = (int(*) parameters)find(#name),
    struct driver driver = { DRIVER_FUNCTIONS(FIND) };
    return use_memory(&driver, argv + 2);
}
