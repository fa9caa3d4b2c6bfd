/* Allocates memory and launches a kernel that never ends. Argument: the image with the kernel. */
#include "current.h"

int main(int argc, char **argv)
{
    void *module, *function;
    CUdeviceptr address;

    if (argc != 2)
        return 2;
    CHECK(make_current());
    CHECK(cuMemAlloc_v2(&address, BYTES));
    CHECK(cuModuleLoad(&module, argv[1]));
    CHECK(cuModuleGetFunction(&function, module, "endless"));
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    say_and_wait("launched");
    return 0;
}
