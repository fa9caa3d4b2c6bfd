//! What stands in for NVIDIA's libraries (cuBLAS, cuDNN, NCCL and the like) where PyTorch runs on software
//! GPUs.
//!
//! For each library that the wheel links, `tidegate softgpu venv` makes a small one of that name, whose
//! functions return 0 (success) and do nothing; those that are here, as `standin_NAME`, are called instead.
//! They are of two kinds: they *tell* something that the caller goes on with (handles, versions, sizes:
//! [`told`]), or they *compute*: matrix products ([`blas`], [`lt`]), and what passes between ranks ([`nccl`]).
//!
//! ```text
//! cublasSgemm_v2 ─ libcublas.so.13 ─► standin_cublasSgemm_v2 ─ Gemm ─► driver::launch ─► softgpu_gemm
//! (PyTorch)        (made by venv)     (blas)                           cuLaunchKernel    (gemm, a kernel)
//! ```
//!
//! And it has some of PyTorch's own kernels ([`torch`]), which the software driver finds here by itself.
//!
//! What is computed is a kernel of the software GPU, launched through whatever `libcuda.so.1` the process
//! has: it runs in its stream's order, and whoever stands in front of the driver sees a launch.

mod blas;
mod cudnn;
mod driver;
mod gemm;
mod kernel;
mod lt;
mod nccl;
mod solver;
mod told;
mod torch;

/// A status: 0 is success in all of these libraries.
type Status = i32;

const SUCCESS: Status = 0;
/// `CUBLAS_STATUS_EXECUTION_FAILED`.
const EXECUTION_FAILED: Status = 13;

/// Tells the caller something.
///
/// # Safety
/// `place` is null or the caller's, for a `T`.
unsafe fn tell<T>(place: *mut T, value: T) -> Status {
    if !place.is_null() {
        // SAFETY: the caller's place for a T.
        unsafe { place.write_unaligned(value) };
    }
    SUCCESS
}
