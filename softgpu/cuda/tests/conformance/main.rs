//! What a driver promises, asked of the software GPU as a program would: through `cudarc`.
//!
//! Every test runs in a process of its own on a node of its own (see [`support`]).

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
