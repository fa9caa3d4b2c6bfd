/* Has the driver from the linker. Arguments: memset or copy. */
#include "driver.h"

#define DECLARE(name, symbol, parameters) int symbol parameters;
DRIVER_FUNCTIONS(DECLARE)

#define ADDRESS(name, symbol, parameters) .name = symbol,
static const struct driver driver = { DRIVER_FUNCTIONS(ADDRESS) };

int main(int argc, char **argv)
{
    return argc == 2 ? use_memory(&driver, argv[1]) : 2;
}
