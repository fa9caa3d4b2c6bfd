//! PyTorch, unmodified: what it tells us, by being itself.

mod reports;

pub use reports::Reports;
