//! The functions of one kind, as the table has them, and a call of each.

use std::ffi::*;
use tidegate_ffi::cuda::functions::{Kind, all};
use tidegate_ffi::cuda::sys::*;
use tidegate_ffi::cuda::{Driver, DriverError};
use tidegate_ffi::driver_functions;

/// The names of the functions of a kind.
pub fn of_kind(kind: Kind) -> impl Iterator<Item = &'static str> {
    all().filter(move |function| function.kind == kind).map(|function| function.name)
}

fn zero<T>() -> T {
    // SAFETY: zero is a value of the driver's types that are passed here, or this panics.
    unsafe { std::mem::zeroed() }
}

macro_rules! call {
    ($driver:ident $name:ident ($($arg:ident : $type:ty),* $(,)?)) => {
        // SAFETY: with null pointers the function has nothing to do but to refuse them.
        unsafe { $driver.$name($(zero::<$type>()),*) }
    };
}

macro_rules! calls {
    ($( $kind:ident $([$tag:ident])? $name:ident $parameters:tt $(and $twin:ident)?; )*) => {
        /// Asked of a guest: calls a function with every argument zero.
        pub fn with_zeroes(driver: &Driver, name: &str) -> Result<(), DriverError> {
            match name {
                $(
                    stringify!($name) => call!(driver $name $parameters),
                    $( stringify!($twin) => call!(driver $twin $parameters), )?
                )*
                other => panic!("{other} is not in the table"),
            }
        }
    };
}

driver_functions!(calls);
