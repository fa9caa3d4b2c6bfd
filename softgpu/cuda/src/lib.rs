//! A software GPU behind the CUDA driver's C ABI.
//!
//! It is a real driver in all but speed: device memory is shared file pages, so mapping, exporting
//! and importing behave between processes as on hardware; streams are threads with in-order
//! asynchronous queues; kernels are functions of ELF images. `softgpu/README.md` tells how to use it.
//!
//! The life of a call: [`functions`] names every exported function once, with the types of
//! [`abi`] that turn its C arguments into checked Rust values, and the safe function of the module
//! (one per driver noun) that does the work:
//!
//! ```text
//! cuMemcpyHtoDAsync_v2 ─ abi::Entry::enter ─ copy::to_device_async ─ stream::Stream::submit
//!                        (init, faults, panics)  (what, from where)        │ queue
//!                                                          worker thread ──┘ work::Op::run
//! ```
//!
//! Memory: [`store`] keeps the capacity over all processes, [`space`] says what lies at which
//! address of this process; [`memory`], [`pool`], [`vmm`], [`managed`], [`array`] and [`graph`] are
//! the ways to get some.
//! Invariant: no lock is held while a kernel, a copy or a host function runs.

mod abi;
mod array;
mod batch;
mod context;
mod copy;
mod crash;
mod device;
mod error;
mod event;
mod fault;
mod functions;
mod graph;
mod green;
mod host;
mod image;
mod ipc;
mod kernels;
mod launch;
mod link;
mod managed;
mod mark;
mod memory;
mod memset;
mod model;
mod module;
mod monitor;
mod node;
mod pointer;
mod pool;
mod proc_address;
mod registry;
mod space;
mod store;
mod stream;
mod value;
mod vmm;
mod work;
