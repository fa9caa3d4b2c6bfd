/* Opens the runtime itself. Arguments: the library; local or global (then it searches all that is
 * loaded); memset, copy, async or launch. */
#include "runtime.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int global = strcmp(argv[2], "global") == 0;
    void *library = dlopen(argv[1], RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (library == NULL) {
        puts(dlerror());
        return 1;
    }
    void *where = global ? RTLD_DEFAULT : library;
#define FIND(name, parameters) .name = (int(*) parameters)dlsym(where, #name),
    struct runtime runtime = {
        RUNTIME_FUNCTIONS(FIND).__cudaRegisterFatBinary =
            (void **(*)(void *))dlsym(where, "__cudaRegisterFatBinary"),
    };
    return use_memory(&runtime, argv[3]);
}
