/* What numba's kernel `axpy` (numba_axpy.py) does, under the name that numba gives it, by the ABI of
 * softgpu/README.md. An array comes as seven values: two owners, its number of items, the size of one,
 * its address, its length and its stride. */
#include <stdint.h>

#define AXPY(suffix)                                                                                  \
    "_ZN8__main__4axpyB2v1B104cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3Cw6igA9duC0hkwnNGiHEkYkrqQBFBTDEwCyQe21" \
    "eqwcFW3UoDGjzpQEsgzrtUEAA_3d_3dEif5ArrayIfLi1E1C7mutable7alignedE5ArrayIfLi1E1C7mutable7alignedE" suffix

struct launch {
    uint32_t grid[3], block[3], shared_bytes;
};

enum { COUNT, FACTOR, X_ARRAY, Y_ARRAY = X_ARRAY + 7, PARAMETERS = Y_ARRAY + 7, ADDRESS = 4 };

extern const struct {
    uint32_t count, sizes[PARAMETERS];
} axpy_params __asm__(AXPY("_params"));

const __typeof__(axpy_params) axpy_params = { PARAMETERS, { 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8 } };

void axpy(const struct launch *launch, const void *const *arguments) __asm__(AXPY(""));

void axpy(const struct launch *launch, const void *const *arguments)
{
    int32_t count = *(const int32_t *)arguments[COUNT];
    float factor = *(const float *)arguments[FACTOR];
    const float *x = *(const float *const *)arguments[X_ARRAY + ADDRESS];
    float *y = *(float *const *)arguments[Y_ARRAY + ADDRESS];
    (void)launch;
    for (int32_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}
