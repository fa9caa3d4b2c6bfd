//! What a driver promises, asked of the software GPU as a program would: through `cudarc`.
//!
//! Every test runs in a process of its own on a node of its own (see [`support`]), or, to learn where
//! another driver differs, on that driver: `TIDEGATE_CONFORMANCE_DRIVER` is then the folder with its
//! `libcuda.so` and `libcuda.so.1`, and `SOFTGPU_KERNELS_IMAGE` the kernels for it.
//! `software_only.txt` lists what it is not asked, `one_at_a_time.txt` what it is asked beside nothing else.
//! What is left open to it, a promise notes in its error output ([`support::note`]).
//!
//! To ask the same of a job under a manager, `TIDEGATE_CONFORMANCE_LAUNCHER` names a program that is
//! started as `LAUNCHER NODE PROGRAM ARGUMENTS…` for each promise: it starts a manager on the node
//! directory, runs the program under it, and passes its exit status on. Processes that a promise
//! starts itself inherit the environment. `under_a_manager.txt` lists what is not asked there.

#[macro_use]
mod support;

mod arrays;
mod attributes;
mod contexts;
mod graphs;
mod green;
mod ipc;
mod kernels;
mod managed;
mod memory;
mod models;
mod overhead;
mod peers;
mod pools;
mod processes;
mod streams;
mod symbols;
mod values;
mod vmm;
