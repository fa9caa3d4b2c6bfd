//! The loaded driver: one function pointer for each row of the table.

#![expect(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and signatures")]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use super::functions::signature;
use super::sys::*;
use crate::driver_functions;

/// An error of a driver function, with the name of the call that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {code:?}")]
pub struct DriverError {
    /// The driver function.
    pub call: &'static str,
    /// What it returned.
    pub code: CUresult,
}

impl DriverError {
    /// Whether it says that its context has come to an end: none of the context's work runs any more, and every later call on it
    /// answers the same. (The manual: "the process must be terminated and relaunched".)
    ///
    /// So does one of a context that is no more: the program has reset it (`cuDevicePrimaryCtxReset`).
    pub fn ends_context(&self) -> bool {
        use CUresult::*;
        matches!(
            self.code,
            CUDA_ERROR_INVALID_CONTEXT
                | CUDA_ERROR_CONTEXT_IS_DESTROYED
                | CUDA_ERROR_ECC_UNCORRECTABLE
                | CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_LAUNCH_TIMEOUT
                | CUDA_ERROR_ASSERT
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUDA_ERROR_INVALID_PC
                | CUDA_ERROR_LAUNCH_FAILED
        )
    }
}

/// Why a driver library could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `dlopen` failed.
    #[error(
        "cannot load the CUDA driver {path}: {reason}; is an NVIDIA driver installed, or is the manager to run on software GPUs?"
    )]
    Open {
        /// The file that was asked for.
        path: String,
        /// The dynamic linker's words.
        reason: String,
    },
}

macro_rules! driver {
    ($( $kind:ident $([$tag:ident])? $name:ident $parameters:tt $(and $twin:ident)?; )*) => {
        /// A driver library's functions. A function that this driver lacks answers
        /// `CUDA_ERROR_NOT_FOUND`.
        #[expect(missing_docs, reason = "the driver's own names")]
        #[derive(Clone, Copy)]
        pub struct Driver {
            $(
                pub $name: Option<signature::$name>,
                $( pub $twin: Option<signature::$twin>, )?
            )*
        }

        impl Driver {
            /// Looks every function up with `resolve`, which returns null for an unknown name.
            ///
            /// # Safety
            /// 1. What `resolve` returns for a name is null or the address of the driver's
            ///    function of that name.
            /// 2. The library stays loaded for as long as the result is used.
            pub unsafe fn with(resolve: impl Fn(&CStr) -> *mut c_void) -> Self {
                Self {
                    $(
                        $name: look_up!(resolve $name),
                        $( $twin: look_up!(resolve $twin), )?
                    )*
                }
            }

            $( call!($name $parameters); $( call!($twin $parameters); )? )*
        }
    };
}

macro_rules! look_up {
    ($resolve:ident $name:ident) => {{
        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a C name"),
        };
        let address = $resolve(NAME);
        // SAFETY: by `with`'s 1 the address is null (None: the niche of Option<fn>) or a function of
        // exactly this type.
        unsafe { std::mem::transmute::<*mut c_void, Option<signature::$name>>(address) }
    }};
}

macro_rules! call {
    ($name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        /// The driver's function of this name (NVIDIA CUDA Driver API).
        ///
        /// # Safety
        /// What the driver's manual asks of the arguments.
        pub unsafe fn $name(&self, $($arg: $type),*) -> Result<(), DriverError> {
            let code = match self.$name {
                // SAFETY: the caller's promise.
                Some(function) => unsafe { function($($arg),*) },
                None => CUresult::CUDA_ERROR_NOT_FOUND.into(),
            };
            checked(stringify!($name), code)
        }
    };
}

driver_functions!(driver);

fn checked(call: &'static str, code: Code) -> Result<(), DriverError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(DriverError { call, code: code.known() }) }
}

impl Driver {
    /// Opens a driver library by name or path (`libcuda.so.1`) for a process that is not
    /// preloaded. The library is never closed.
    pub fn open(path: &CStr) -> Result<Self, LoadError> {
        // SAFETY: the path is a C string; the driver's initialisers are what any CUDA program runs.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(LoadError::Open {
                path: path.to_string_lossy().into_owned(),
                reason: linker_error(),
            });
        }
        let resolve = |name: &CStr| {
            // SAFETY: the handle is open and never closed, and the name is a C string.
            unsafe { libc::dlsym(library, name.as_ptr()) }
        };
        // SAFETY: dlsym yields null or the library's function of that name (1); the library is
        // never closed (2).
        Ok(unsafe { Self::with(resolve) })
    }
}

fn linker_error() -> String {
    // SAFETY: dlerror has no preconditions; its result is read before any other dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: not null, and a C string of the linker that lives until the next dl call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn cu_init_of_a_newer_driver(_: c_uint) -> u32 {
        4711
    }

    #[test]
    fn an_error_that_only_the_driver_knows_is_an_error_and_stays_what_it_is() {
        let resolve = |name: &CStr| match name.to_bytes() {
            b"cuInit" => cu_init_of_a_newer_driver as *mut c_void,
            _ => std::ptr::null_mut(),
        };
        // SAFETY: null, or a function of the type of `cuInit`, whose result is a number.
        let driver = unsafe { Driver::with(resolve) };
        // SAFETY: no pointers.
        let error = unsafe { driver.cuInit(0) }.unwrap_err();
        assert_eq!(error.code, CUresult::CUDA_ERROR_UNKNOWN);
        // SAFETY: as above.
        assert_eq!(unsafe { driver.cuInit.unwrap()(0) }, Code(4711));
    }
}
