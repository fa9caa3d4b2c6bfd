/* Allocates memory and launches a kernel that never ends. Argument: the image with the kernel. */
#include "current.h"

int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
int cuModuleLoad(void **module, const char *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);

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
