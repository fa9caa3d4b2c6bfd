/* Ground 0: does cuMemMap take an offset into the piece?
 *
 * Why: the manual says it must be 0, so a piece is one handle, the whole of it mapped (FACTS §3). If a
 * part could be mapped, pieces could be large (cheap to make) and be handed out in units. */
#include "ground.h"

#define PART "offset"

static bool ask(size_t unit)
{
    const char *asked = "cuMemMap maps the second half of a piece";
    CUhandle handle;
    CUdeviceptr whole, half;
    unsigned char found = 0;
    TRY(PART, asked, create(&handle, 2 * unit));
    TRY(PART, asked, map_anywhere(&whole, 2 * unit, handle));
    TRY(PART, asked, cu.memset8(whole, 1, unit));
    TRY(PART, asked, cu.memset8(whole + unit, 2, unit));
    TRY(PART, asked, cu.reserve(&half, unit, 0, 0, 0));
    int code = cu.map(half, unit, unit, handle, 0);
    say(PART, asked, code == 0, "%s", name_of(code));
    if (code == 0) {
        TRY(PART, asked, open_access(half, unit));
        TRY(PART, asked, cu.to_host(&found, half, 1));
        say(PART, "the bytes there are those of the second half", found == 2, "byte %d", found);
        TRY(PART, asked, cu.unmap(half, unit));
    }
    code = cu.map(half, unit, 0, handle, 0);
    say(PART, "cuMemMap maps the first half of a piece", code == 0, "%s", name_of(code));
    return true;
}

int main(void)
{
    begin("0");
    NEED(start());
    ask(granule());
    return 0;
}
