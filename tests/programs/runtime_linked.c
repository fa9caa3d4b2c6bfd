/* Has the runtime from the linker. Argument: memset, copy, async or launch. */
#include "runtime.h"

#define DECLARE(name, parameters) int name parameters;
RUNTIME_FUNCTIONS(DECLARE)
void **__cudaRegisterFatBinary(void *record);

#define ADDRESS(name, parameters) .name = name,
static const struct runtime runtime = {
    RUNTIME_FUNCTIONS(ADDRESS).__cudaRegisterFatBinary = __cudaRegisterFatBinary,
};

int main(int argc, char **argv)
{
    return argc == 2 ? use_memory(&runtime, argv[1]) : 2;
}
