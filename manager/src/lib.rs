//! The manager: the only one that decides who runs and who has what.
//!
//! - [`server`]: the process: connections, movers, the one queue;
//! - [`scheduler`]: who runs, and who has what: pure;
//! - [`ledger`]: one GPU's units: pure;
//! - [`planner`]: how much of each tier each GPU may use: pure;
//! - [`mover`]: the process that makes GPU memory and moves bytes;
//! - [`command`]: the command line;
//! - [`doctor`]: what of the machine it needs, and how well that is;
//! - [`torch`]: PyTorch for software GPUs;
//! - [`numa`]: the machine's memory by nodes, and which of it is CXL memory;
//! - [`process`]: processes by name;
//! - [`privileges`]: what a manager of root gives up;
//! - [`ownership`]: files that only the manager's user may change;
//! - [`death`]: deaths at chosen moments, for tests.

pub mod artifacts;
mod brief;
pub mod command;
pub mod death;
pub mod doctor;
pub mod hardware;
#[cfg(test)]
mod heap;
pub mod kept;
pub mod ledger;
pub mod mover;
pub mod numa;
pub mod ownership;
pub mod planner;
pub mod privileges;
pub mod process;
#[cfg(test)]
#[allow(dead_code, reason = "the simulation uses more of it")]
#[path = "../tests/simulation/random.rs"]
mod random;
pub mod scheduler;
pub mod server;
pub mod software_gpu;
pub mod torch;
