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
 * use that memory meanwhile, and a job that needs it waits: hold little. Waits here when it is
 * another job's turn. Unknown addresses are ignored. */
void tidegate_hold(uint64_t device_address);

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
