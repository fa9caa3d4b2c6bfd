/* Opens the driver itself. Arguments: the library; local or global (then it searches all that is loaded); the
 * call (driver.h). */
#include "driver.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int global = strcmp(argv[2], "global") == 0;
    void *library = dlopen(argv[1], RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (library == NULL) {
        puts(dlerror());
        return 1;
    }
    void *where = global ? RTLD_DEFAULT : library;
#define FIND(name, symbol, parameters) .name = (int(*) parameters)dlsym(where, #symbol),
    struct driver driver = { DRIVER_FUNCTIONS(FIND) };
    return use_memory(&driver, argv + 3);
}
