//! What the environment says. Read once, at the first need.
//!
//! Invariant: a value that cannot be read counts as absent and is named in one line; nothing in
//! the environment can make the program fail.

use crate::kernels::Listed;
use crate::log::{Level, warning};
use bytesize::ByteSize;
use once_cell::race::OnceBox;
use std::env::{var, var_os};
use tidegate_ffi::launch;
use tidegate_ffi::wire::message::{JobClaim, JobSpec, Need};
use tidegate_ffi::wire::{JOB_VARIABLE, KERNELS_VARIABLE};

/// `TIDEGATE_OFF=1`: the shim does nothing at all.
pub fn is_off() -> bool {
    early().off
}

/// `TIDEGATE_LOG`.
pub fn log_level() -> Level {
    early().level
}

/// `TIDEGATE_REQUIRED=1`: no manager, no CUDA.
pub fn is_required() -> bool {
    early().required
}

/// `TIDEGATE_MEMORY`, before a manager is asked. One that cannot be read is named when it is.
pub fn quota() -> Option<u64> {
    early().memory
}

/// What is needed before and without a manager.
struct Early {
    off: bool,
    required: bool,
    memory: Option<u64>,
    level: Level,
}

fn early() -> &'static Early {
    static EARLY: OnceBox<Early> = OnceBox::new();
    EARLY.get_or_init(|| {
        Box::new(Early {
            off: flag("TIDEGATE_OFF"),
            required: flag("TIDEGATE_REQUIRED"),
            memory: var("TIDEGATE_MEMORY").ok().and_then(|text| bytes(&text)),
            level: level(var("TIDEGATE_LOG").ok()),
        })
    })
}

fn level(word: Option<String>) -> Level {
    match word.as_deref() {
        Some("off") => Level::Off,
        Some("info") => Level::Info,
        Some("debug") => Level::Debug,
        _ => Level::Warn,
    }
}

/// Whether a variable is set to something else than nothing or 0.
fn flag(name: &str) -> bool {
    var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}

/// What the manager is told.
#[derive(Debug)]
pub struct Settings {
    /// How the process names its job.
    pub claim: JobClaim,
    /// `TIDEGATE_MEMORY`: the quota, in bytes.
    pub memory: Option<u64>,
    /// `TIDEGATE_DESCRIBED_KERNELS`: what they touch is known by their parameters.
    pub kernels: Listed,
}

impl Settings {
    /// Reads the environment.
    pub fn read() -> Self {
        let memory = read("TIDEGATE_MEMORY", bytes);
        let token = read(JOB_VARIABLE, |text| text.parse().ok());
        let claim = token.map_or_else(|| JobClaim::Own(own_job(memory)), JobClaim::Token);
        let kernels = read(KERNELS_VARIABLE, |names| Some(Listed::read(names))).unwrap_or_default();
        Self { claim, memory, kernels }
    }
}

/// The job of a process that was not started by `tidegate run`.
fn own_job(memory: Option<u64>) -> JobSpec {
    JobSpec {
        name: read("TIDEGATE_NAME", |text| Some(text.to_string())).unwrap_or_else(program_name),
        priority: read("TIDEGATE_PRIORITY", |text| text.parse().ok()).unwrap_or(0),
        weight: read("TIDEGATE_WEIGHT", |text| text.parse().ok()).unwrap_or(1),
        resident: flag("TIDEGATE_RESIDENT"),
        memory,
        need: read("TIDEGATE_NEED", need),
        oversubscribe: flag("TIDEGATE_OVERSUBSCRIBE"),
        launch: launch::identity(),
    }
}

fn program_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().chars().take(64).collect()
}

/// A variable's value by `parse`; one that cannot be read is named and counts as absent.
fn read<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let text = var_os(name)?;
    let value = text.to_str().map(str::trim).and_then(parse);
    if value.is_none() {
        warning!("{name}={} cannot be read and is ignored", text.to_string_lossy());
    }
    value
}

/// `P,T`: two sizes.
fn need(text: &str) -> Option<Need> {
    let (persistent, temporary) = text.split_once(',')?;
    Some(Need { persistent: bytes(persistent)?, temporary: bytes(temporary)? })
}

/// A size, read as the command line reads it: a number, with or without a fraction, and a unit
/// (`B`, `KiB`, `MB`, …).
fn bytes(text: &str) -> Option<u64> {
    Some(text.trim().parse::<ByteSize>().ok()?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let read = [("512", 512), ("7b", 7), ("64KiB", 65536), (" 1.5 GiB", 3 << 29), ("2GB", 2_000_000_000)];
        for (text, value) in read {
            assert_eq!(bytes(text), Some(value), "{text}");
        }
        for text in ["", "GiB", "1XB", "1 Gb it", "-1", "nan", "inf", "1é"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_need_is_two_sizes() {
        assert_eq!(need("1MiB,2MiB"), Some(Need { persistent: 1 << 20, temporary: 2 << 20 }));
        assert_eq!(need("1MiB"), None);
    }

    #[test]
    fn an_unknown_log_level_is_the_default() {
        assert_eq!(level(Some("chatty".into())), Level::Warn);
        assert_eq!(level(Some("off".into())), Level::Off);
    }
}
