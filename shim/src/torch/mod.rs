//! PyTorch, unmodified: what it tells us, by being itself.

//!
//! What is alive it says itself ([`reports`]); where its loop may stop, and what outlives iterations, a script
//! of ours tells ([`script`]), of whose moments one is chosen ([`candidates`]).

mod candidates;
mod reports;
mod script;

pub use candidates::{Candidates, Name};
pub use reports::Reports;
pub use script::{describe, look};
