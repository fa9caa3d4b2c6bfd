//! What both sides of Tidegate must agree on, bit for bit; no policy.
//!
//! - [`cuda`]: the one table of driver functions, and the loaded driver;
//! - [`hazard`]: orders operations by what they read and write;
//! - [`launch`]: which processes a launcher has started together;
//! - [`os`]: the system calls that can fail for lack of something;
//! - [`splice`]: feeds records of any size to a GPU, in few large pieces;
//! - [`tensor`]: where tensors lie, and whether two share memory;
//! - [`wire`]: what shim, manager, mover and command say to each other.

pub mod cuda;
pub mod hazard;
pub mod launch;
pub mod os;
#[cfg(test)]
mod random;
pub mod splice;
pub mod tensor;
pub mod units;
pub mod wire;
