//! Deaths at chosen moments, for tests: the mover kills itself at a named point when it is told to.
//!
//! The file that `TIDEGATE_MOVER_DIES_AT` names holds the name of a point. The mover that reaches
//! it removes the file first, so each order to die is carried out once, by one mover. Optimised
//! builds without debug assertions have none of this.

#![forbid(unsafe_code)]

use rustix::process::{Signal, getpid, kill_process};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Names the file that holds the name of the point to die at.
pub const VARIABLE: &str = "TIDEGATE_MOVER_DIES_AT";

/// Dies here, if this is where.
pub fn point(name: &str) {
    if is_due(name) {
        die();
    }
}

/// Whether this is where; only once.
pub fn is_due(name: &str) -> bool {
    static ORDERS: OnceLock<Option<PathBuf>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return false;
    }
    let Some(path) = ORDERS.get_or_init(|| std::env::var_os(VARIABLE).map(PathBuf::from)) else {
        return false;
    };
    let here = std::fs::read_to_string(path).is_ok_and(|wanted| wanted == name);
    here && std::fs::remove_file(path).is_ok()
}

/// Ends the process as nothing can prevent.
pub fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
