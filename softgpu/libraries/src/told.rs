//! What is only told: handles, versions, words.

use crate::{Status, tell};
use std::ffi::{CStr, c_char};

/// What words there are for a status here.
const WORDS: &CStr = c"the stand-in on a software GPU says no more";

/// Handles that stand for nothing: nobody may take them for null.
macro_rules! handles {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(place: *mut usize) -> Status {
            // SAFETY: the caller's place for a handle.
            unsafe { tell(place, 1) }
        }
    )* };
}

handles! {
    standin_cublasLtMatmulPreferenceCreate standin_cudnnCreate standin_cudnnCreateActivationDescriptor
    standin_cudnnCreateCTCLossDescriptor standin_cudnnCreateConvolutionDescriptor
    standin_cudnnCreateDropoutDescriptor standin_cudnnCreateFilterDescriptor
    standin_cudnnCreatePoolingDescriptor standin_cudnnCreateRNNDataDescriptor
    standin_cudnnCreateSpatialTransformerDescriptor standin_cusolverDnCreate
    standin_cusolverDnCreateGesvdjInfo standin_cusolverDnCreateParams standin_cusolverDnCreateSyevjInfo
    standin_cusparseCreate
}

/// Functions that return words.
macro_rules! words {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_: i32) -> *const c_char {
            WORDS.as_ptr()
        }
    )* };
}

words! {
    standin_cudnnGetErrorString standin_nvrtcGetErrorString
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_nvrtcVersion(major: *mut i32, minor: *mut i32) -> Status {
    // SAFETY: the caller's place. So for the other.
    unsafe { tell(major, 13) };
    // SAFETY: as above.
    unsafe { tell(minor, 0) }
}
