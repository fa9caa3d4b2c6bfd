//! `libtidegate.so`: makes an unmodified CUDA program share its GPU (R4).
//!
//! The library is preloaded. It owns addresses and a gate, and decides nothing: the manager says
//! what memory there is and who may submit work.
//!
//! # The life of a call
//! ```text
//!  program   cuInit ─────► init ──────► the driver, then the manager: Hello, Welcome   (process)
//!            cuCtxCreate ► context ───► Attach: waits until there is room              (process)
//!            cuMemAlloc ─► memory ────► classify, arena; perhaps Lease and map   (tenant, link)
//!            cuModuleLoad ► room ─────► the driver; out of memory: MakeRoom, again  (hooks)
//!            cuLaunch… ──► gate ──────► open: the driver. Closed: wait                   (gate)
//!                                       ajar: the driver, if all operands are there (operands)
//!            cuMemFree ──► memory ────► after the work before it                       (tenant)
//!
//!  manager   Close ──────► reader ────► gate thread: boundary, shut, drain, live map   (orders)
//!            Unmap, Map ─► reader ────► gate thread: pieces away, pieces back         (mapping)
//!            Ajar, Map ──► reader ────► gate thread: whoever has all it needs goes on    (gate)
//!            Open ───────► reader ────► gate thread: everybody goes on                   (gate)
//! ```
//! A manager that is gone is waited for by whoever needs it, and by nobody else; the next one goes
//! on with the conversation ([`outgoing`], [`reunion`]). Only its refusal ends the session: who is
//! open then goes on with what it has, who is stopped is never let go on ([`gate`]).
//!
//! How calls get here: by our exports (linked programs), by our `dlsym` ([`symbols`]) and by the
//! answers of `cuGetProcAddress` ([`proc_address`]). Which functions there are, and of which
//! kind, says the one table in `tidegate_ffi::cuda::functions`; [`hooks`] makes the exports of it.
//!
//! # Invariants
//! - The program never notices us but by waiting: no panic, exit or output of ours reaches it.
//! - Nothing happens before `cuInit`; without a manager, and in a forked child of a process that
//!   uses CUDA, every call goes straight to the driver.
//! - No lock is held across a call of the driver, or while waiting for the manager.
//! - An allocation's address never changes (I3); what is not resident is not mapped (I2).

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("Tidegate runs on 64-bit Linux");

mod ahead;
mod arena;
mod beside_captures;
mod blocks;
mod borrowed;
mod capi;
mod captures;
mod classify;
mod collectives;
mod contexts;
mod drain;
mod driver;
mod extents;
mod gate;
// Not inside `gate`: what is in there is compiled by `tests/interleavings` too.
#[cfg(test)]
#[path = "gate/tests.rs"]
mod gate_tests;
mod graphs;
mod greeting;
mod handles;
mod hooks;
mod host_functions;
mod kernels;
mod link;
mod liveness;
mod log;
mod loose;
mod managed;
mod mapping;
mod marks;
mod nvml;
mod operands;
mod ordered;
mod orders;
mod outgoing;
mod own;
mod pools;
mod proc_address;
mod process;
mod raw;
mod reunion;
mod settings;
mod spare;
mod status;
mod symbols;
mod sync;
mod tenant;
mod threads;
mod torch;
mod turnstile;
mod uses;
mod value_waits;
mod waits;
mod window;
