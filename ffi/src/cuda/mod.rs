//! The driver's side of the contract: which functions there are, and a loaded driver.
//!
//! The types are those of `cudarc`'s bindings of `cuda.h`; its loader is not used.

mod driver;
pub mod functions;

pub use cudarc::driver::sys;
pub use driver::{Driver, DriverError, LoadError};
