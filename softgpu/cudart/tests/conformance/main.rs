//! What the runtime promises, asked as a program would: through `cudarc`'s binding, and with the calls
//! that compilers write into programs. Every test runs in a process of its own on a node of its own
//! ([`support`]).

#[macro_use]
mod support;

mod devices;
mod errors;
mod graphs;
mod kernels;
mod memory;
mod names;
mod pools;
mod streams;
