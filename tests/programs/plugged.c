/* Opens a library that has the driver from the linker (linked.c). Arguments: the library; local or global;
 * the call (driver.h). */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int scope = strcmp(argv[2], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
    void *library = dlopen(argv[1], RTLD_NOW | scope);
    if (library == NULL) {
        puts(dlerror());
        return 1;
    }
    int (*use)(char **call) = (int (*)(char **))dlsym(library, "use");
    return use(argv + 3);
}
