//! The shim, and the C library under it.

#![forbid(unsafe_code)]

use super::{Finding, elf};
use crate::artifacts;
use std::path::Path;

const SHIM: &str = "shim";
const GLIBC: &str = "C library";

/// Whether the shim is there, and whether a program can load it.
pub fn look(running_glibc: Option<u32>) -> Vec<Finding> {
    match artifacts::shim() {
        Ok(path) => vec![found(&path), glibc(&path, running_glibc)],
        Err(error) => vec![missing(&error)],
    }
}

fn found(path: &Path) -> Finding {
    Finding::good(SHIM, path.display().to_string())
}

fn missing(error: &anyhow::Error) -> Finding {
    Finding::failure(
        SHIM,
        format!("{error:#}"),
        "install Tidegate anew: command and libraries belong together",
    )
}

fn glibc(shim: &Path, running: Option<u32>) -> Finding {
    let needed = std::fs::read(shim).ok().and_then(|library| elf::needed_glibc(&library));
    compare(needed, running)
}

fn compare(needed: Option<u32>, running: Option<u32>) -> Finding {
    match (needed, running) {
        (Some(needed), Some(running)) if running < needed => Finding::failure(
            GLIBC,
            format!("glibc 2.{running}; the shim needs 2.{needed}"),
            "use a newer system or container, or build Tidegate on this one",
        ),
        (Some(needed), Some(running)) => {
            Finding::good(GLIBC, format!("glibc 2.{running}; the shim needs 2.{needed} or newer"))
        }
        (_, Some(running)) => Finding::good(GLIBC, format!("glibc 2.{running}")),
        (_, None) => Finding::warning(
            GLIBC,
            "it is not glibc",
            "programs that are linked with another C library need a shim that is built with it",
        ),
    }
}

/// The x of a version `2.x`.
pub fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("2.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;

    #[test]
    fn a_c_library_that_is_too_old_is_named_with_what_is_needed() {
        let found = compare(Some(34), Some(31));
        assert_eq!((found.mark, found.says.as_str()), (Mark::Failure, "glibc 2.31; the shim needs 2.34"));
        assert_eq!(compare(Some(34), Some(34)).mark, Mark::Good);
        assert_eq!(compare(Some(34), None).mark, Mark::Warning);
        assert_eq!(minor_version("2.36"), Some(36));
    }

    #[test]
    fn a_shim_that_is_missing_is_a_failure() {
        let found = missing(&anyhow::anyhow!("libtidegate.so is missing"));
        assert!(found.mark == Mark::Failure && found.says.contains("libtidegate.so"), "{found:?}");
    }
}
