//! The built library, preloaded into a real process on the software GPU, with a manager whose
//! every word the test chooses.
//!
//! ```text
//! test ──► stage: a process of its own, plays the manager on a node of its own
//!            └──► guest: a process with libtidegate.so preloaded, does as it is told
//! ```

#[macro_use]
mod stage;
mod guest;
mod manager;

mod ajar;
mod alone;
mod calls;
mod memory;
mod others;
mod refused;
mod reunion;
mod room;
mod routes;
mod storm;
mod switches;
