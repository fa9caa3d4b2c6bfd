//! The driver's side of the contract: which functions there are, and a loaded driver.
//!
//! The types are those of `cudarc`'s bindings of `cuda.h`; its loader is not used.

mod driver;
pub mod functions;
mod number;

/// The types of `cuda.h`; where the table has numbers in place of the header's enums, these too.
pub mod sys {
    pub use super::number::{Code, DeviceAttribute, PointerAttribute};
    pub use cudarc::driver::sys::*;
}

pub use driver::{Driver, DriverError, LoadError};
