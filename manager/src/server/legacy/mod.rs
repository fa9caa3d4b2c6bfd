//! What a manager leaves behind: its state, written down before anybody hears of it (I7).
//!
//! After each input the core lets the scheduler decide, writes everything down, and only then
//! sends what follows from it. So whoever has heard something from a manager finds its successor
//! knowing of it; and what a manager had not written down, nobody has heard, and it is said again.
//!
//! - `file`: how it is written;
//! - `state`: what is written.

mod file;
mod state;
mod will;

pub(super) use file::{Record, StateFile};
pub(super) use state::State;
pub(super) use will::WillFile;
