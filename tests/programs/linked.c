/* Has the driver from the linker. Arguments: the call (driver.h). */
#include "driver.h"

#define DECLARE(name, symbol, parameters) int symbol parameters;
DRIVER_FUNCTIONS(DECLARE)

#define ADDRESS(name, symbol, parameters) .name = symbol,
static const struct driver driver = { DRIVER_FUNCTIONS(ADDRESS) };

#ifndef PLUGIN
int main(int argc, char **argv)
{
    return argc >= 2 ? use_memory(&driver, argv + 1) : 2;
}
#else
/* The same as a library: plugged.c opens it. */
int use(char **call)
{
    return use_memory(&driver, call);
}
#endif
