//! Deaths at chosen moments, for tests: a mover, or the manager, kills itself at a named point when
//! it is told to, or the manager kills another there.
//!
//! The file that `TIDEGATE_DIES_AT` names holds the name of a point, and whose death it is if it is
//! another's. Who reaches it removes the file first, so each order to die is carried out once, by
//! one process. Optimised builds without debug assertions have none of this.

#![forbid(unsafe_code)]

use rustix::process::{Signal, getpid, kill_process};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Names the file that holds the name of the point to die at.
pub const VARIABLE: &str = "TIDEGATE_DIES_AT";

/// Dies here, if this is where.
pub fn point(name: &str) {
    if is_due(name) {
        die();
    }
}

/// Whether this process may be told to die.
pub fn is_possible() -> bool {
    cfg!(debug_assertions) && orders().is_some()
}

fn orders() -> Option<&'static PathBuf> {
    static ORDERS: OnceLock<Option<PathBuf>> = OnceLock::new();
    ORDERS.get_or_init(|| std::env::var_os(VARIABLE).map(PathBuf::from)).as_ref()
}

/// Whether this is where; only once.
pub fn is_due(name: &str) -> bool {
    let Some(path) = orders().filter(|_| is_possible()) else { return false };
    let here = std::fs::read_to_string(path).is_ok_and(|wanted| wanted == name);
    here && std::fs::remove_file(path).is_ok()
}

/// Ends the process as nothing can prevent.
pub fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}
