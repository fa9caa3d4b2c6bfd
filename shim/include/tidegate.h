/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * tidegate.h - tell Tidegate what your program knows about its GPU memory.
 *
 * All of this is optional: but for tidegate_hold it makes switches cheaper, never more correct.
 * Look the functions up
 * with dlsym(RTLD_DEFAULT, "tidegate_boundary") and call what you find; a program that runs
 * without Tidegate finds nothing. With the library loaded but no manager running, every function
 * returns at once and does nothing.
 *
 *     int (*boundary)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "tidegate_boundary");
 *     for (step = 0; step < steps; step++) {
 *         train(step);
 *         if (boundary) boundary();
 *     }
 */
#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Survives iterations: weights, optimizer state. */
#define TIDEGATE_PERSISTENT 1
/* Needed inside one iteration: activations, workspaces. */
#define TIDEGATE_TEMPORARY 2

/* Memory that the calling thread allocates from now on is of class `cls`, until the matching
 * tidegate_scope_pop. Scopes nest; the innermost decides; without one, memory is temporary.
 * Another value of `cls` repeats the class around it. */
void tidegate_scope_push(int cls);
void tidegate_scope_pop(void);

/* Re-classes the allocation that `device_address` belongs to. Its address does not change.
 * Unknown addresses and classes are ignored. */
void tidegate_tag(uint64_t device_address, int cls);

/* Says that an iteration ends here: few bytes are alive, a good moment to let another job run.
 * Waits here when it is another job's turn; call it without holding locks that other threads
 * need to finish the iteration's work. Returns 0. */
int tidegate_boundary(void);

/* The allocation that `device_address` belongs to stays where it is until it is freed: resident,
 * in the same physical memory, mapped by this process alone, also while other jobs run. For what
 * somebody outside the program relies on (a network card's registered memory). Nobody else can
 * use that memory meanwhile: hold little. Waits here when it is another job's turn. Unknown addresses
 * are ignored. Returns 0, or an error of the CUDA driver, and then it does not stay: 2 (out of
 * memory) where another job would have no room any more for what it had. */
int tidegate_hold(uint64_t device_address);

/* A tensor in the GPU's memory: an element of `element` bytes at address + sum(position[i] * strides[i]) for every
 * position with 0 <= position[i] < sizes[i]. `address` is that of the element at position 0; `rank` is 0 (one
 * element) to 8. Sizes are in elements, strides in bytes: they may be 0 or negative. */
typedef struct tidegate_tensor {
    uint64_t address, element, rank;
    int64_t sizes[8], strides[8];
} tidegate_tensor;

/* Work that the calling thread submits (launches, copies, memsets, graphs) between these two touches no memory of
 * the GPU but these operands, and what the driver owns: code, constants, local memory. So it may go as soon as they
 * are there, when the job's memory comes back piece by piece; all other work waits until all is there. That order
 * follows the one in which operands were first described in the slices before. Descriptions nest; the innermost
 * decides alone. A wrong one makes the work fault (CUDA_ERROR_ILLEGAL_ADDRESS); it never reads old bytes, or
 * somebody else's. Memory that is not Tidegate's need not be listed and is always there: the host's, managed memory,
 * what another process shares over cudaIpc. It must not wait, on the GPU, for work that is not described: that may
 * be let go later.
 *
 * Returns 0; or nonzero for a description that cannot be (addresses that are not in 64 bits, a negative size, an
 * element of 0 bytes, a rank of more than 8), for one inside 64 others, and where a thread describes more than
 * 65536 operands at a time: then the work counts as undescribed. The matching pop is due in every case. */
int tidegate_operands_push(const tidegate_tensor *operands, size_t count);
void tidegate_operands_pop(void);

/* Writes what is known of this process into `text`, as JSON that ends with a zero byte, if `size` bytes
 * are enough; returns how many are. 0: there is no manager. The names: "boundaries", "switches" (counts);
 * "gpus": a list of "device" (as the program numbers it) and, in bytes, "allocated_bytes", "live_bytes",
 * "persistent_bytes" (of the live ones), "mapped_bytes" (resident). `text` may be null if `size` is 0. */
size_t tidegate_status(char *text, size_t size);

/* Says that the job's last iteration has ended: what it still does is not worth waiting for a
 * boundary. */
void tidegate_job_done(void);

#ifdef __cplusplus
}
#endif

#endif
