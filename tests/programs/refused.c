/* Asks for memory of several GPUs at once, twice. */
#include "driver.h"

int cuInit(unsigned flags);
int cuMulticastCreate(CUdeviceptr *handle, const void *properties);

int main(void)
{
    CUdeviceptr handle;
    CHECK(cuInit(0));
    for (int i = 0; i < 2; i++)
        printf("cuMulticastCreate is %d\n", cuMulticastCreate(&handle, NULL));
    return 0;
}
