//! PyTorch without NVIDIA's libraries: an environment in which the wheel from the package index trains on
//! software GPUs.
//!
//! The wheel links NVIDIA's libraries for linear algebra, communication and the like, which need a real GPU.
//! Each of them is replaced by a small library of its name that has just the functions the wheel asks for:
//!
//! ```text
//! torch/lib/*.so ─► demand: which functions, of which library, in which version
//!                     │
//!                     ▼
//! stand_in: libcublas.so.13 … ─ functions that do something ─► libsoftgpu_libraries.so (softgpu/libraries)
//!           └ all others return 0, which is success, and do nothing, as kernels of the software GPU do
//! ```

mod demand;
mod elf;
mod stand_in;
mod venv;

pub use venv::prepare;
