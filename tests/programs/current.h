/* The first GPU's context, for programs that are linked with the driver. */
#include "driver.h"

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);

/* Makes it the calling thread's. */
static int make_current(void)
{
    int device;
    void *context;

    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return 0;
}
