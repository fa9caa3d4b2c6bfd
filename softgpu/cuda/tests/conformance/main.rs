//! What a driver promises, asked of the software GPU as a program would: through `cudarc`.
//!
//! Every test runs in a process of its own on a node of its own (see [`support`]), or, to learn where
//! another driver differs, on that driver: `TIDEGATE_CONFORMANCE_DRIVER` is then the folder with its
//! `libcuda.so` and `libcuda.so.1`, and `SOFTGPU_KERNELS_IMAGE` the kernels for it.

#[macro_use]
mod support;

mod contexts;
mod graphs;
mod kernels;
mod memory;
mod models;
mod overhead;
mod processes;
mod streams;
mod symbols;
mod vmm;
