//! What both sides of Tidegate must agree on, bit for bit; no policy.
//!
//! - [`cuda`]: the one table of driver functions, and the loaded driver;
//! - [`wire`]: what shim, manager, mover and command say to each other.

pub mod cuda;
pub mod units;
pub mod wire;
