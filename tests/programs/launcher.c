/* Launches an empty kernel as often as it is told, after launches that do not count: the gate is metered at first. */
#include "current.h"

int cuCtxSynchronize(void);
int cuModuleLoadData(void **module, const void *image);

#define BEFORE 20001

static const char EMPTY_KERNEL[] = ".version 7.0\n"
                                   ".target sm_70\n"
                                   ".address_size 64\n"
                                   ".visible .entry empty() { ret; }\n";

static int launch(void *function)
{
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* The test's profiler starts to count where this function is entered. */
__attribute__((noinline)) int launch_counted(void *function, int times)
{
    for (int i = 0; i < times; i++)
        CHECK(launch(function));
    return 0;
}

int main(int argc, char **argv)
{
    void *module, *function;

    if (argc != 2)
        return 2;
    CHECK(make_current());
    CHECK(cuModuleLoadData(&module, EMPTY_KERNEL));
    CHECK(cuModuleGetFunction(&function, module, "empty"));
    for (int i = 0; i < BEFORE; i++)
        CHECK(launch(function));
    CHECK(launch_counted(function, atoi(argv[1])));
    CHECK(cuCtxSynchronize());
    say_and_wait("launched");
    return 0;
}
