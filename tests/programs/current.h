/* The first GPU's context, for programs that are linked with the driver. */
#include "driver.h"

#define DECLARATION(name, symbol, parameters) int symbol parameters;
DRIVER_FUNCTIONS(DECLARATION)

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
