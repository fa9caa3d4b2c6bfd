/* Asks for managed memory, twice. */
#include "driver.h"

int cuInit(unsigned flags);
int cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags);

int main(void)
{
    CUdeviceptr address;
    CHECK(cuInit(0));
    for (int i = 0; i < 2; i++)
        printf("cuMemAllocManaged is %d\n", cuMemAllocManaged(&address, BYTES, 1));
    return 0;
}
