//! What a manager leaves behind, and how the next one comes by it (I7).
//!
//! After each input the core lets the scheduler decide, writes everything down, and only then
//! sends what follows from it. So whoever has heard something from a manager finds its successor
//! knowing of it; and what a manager had not written down, nobody has heard, and it is said again.
//!
//! ```text
//! decision ─► state file ─► messages          (every mover has the file too)
//!
//! death ─► will ─► whom to wait for ─► movers: state, pieces, slabs, index ─► the new manager
//!                                      processes: Resume ─────────────────────►  goes on
//! ```
//! - `file`: how the state is written, `state`: what is written;
//! - `will`: the file that names the movers, beside the socket;
//! - `gathering`: how a new manager comes by what the movers have;
//! - `heir`: how it goes on from there.

mod file;
mod gathering;
mod heir;
mod state;
mod will;

pub(super) use file::{Record, StateFile};
pub use gathering::{Gathered, Heritage, gather};
pub(super) use state::{ClientState, State};
pub(super) use will::WillFile;
pub use will::{CommandLine, ConfigFile};
