//! The CUDA runtime's C ABI on top of the driver's.
//!
//! It makes programs of the runtime API run wherever there is a `libcuda.so.1`, which it finds as
//! NVIDIA's runtime does: `dlopen`, `dlsym` of `cuGetProcAddress_v2`, and all else through that. So
//! whoever stands in front of a driver sees of such a program what it would see on a GPU.
//!
//! The life of a call: [`functions`] names every exported function once, with the types of
//! [`abi`] that turn its C arguments into checked Rust values, and what does the work: a function of
//! the module of its noun, or the driver's function of the same meaning.
//!
//! ```text
//! cudaMemcpyAsync ─ abi::enter ─ copy::linear_async ─ Driver::cuMemcpyHtoDAsync
//!                   (driver, context,      (which way)     (driver: what
//!                    last error, panics)                    cuGetProcAddress gave)
//! ```
//!
//! Every function exists once or twice: `…_ptsz` and `…_ptds` are the same on a [`driver::Driver`] whose
//! default streams are the threads' own. Invariant: no lock is held while the driver is called, except
//! where what is made may be made only once (a primary context, a library).

mod abi;
mod copy;
mod current;
mod device;
mod driver;
mod entry_point;
mod error;
mod event;
mod function;
mod functions;
mod graph;
mod launch;
mod memory;
mod memset;
mod pointer;
mod properties;
mod register;
mod stream;
mod symbol;
