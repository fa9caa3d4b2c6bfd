//! The will: a file beside the socket that tells the next manager whom to wait for.
//!
//! It is there as long as a manager has movers, and removed when that ends in order. Nothing in it
//! is a secret or a right: whom it names is asked, and answers as itself.

#![forbid(unsafe_code)]

use crate::process::{ProcessName, dies_within};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::units::GpuUuid;
use tracing::warn;

/// Who has what a manager leaves behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WillFile {
    /// The manager itself.
    pub(crate) manager: Option<ProcessName>,
    /// Its movers.
    pub(crate) movers: Vec<(GpuUuid, ProcessName)>,
    /// The directory of its software GPUs.
    pub(crate) node: Option<PathBuf>,
    /// In which life of the machine: processes of another are dead.
    boot: String,
}

impl WillFile {
    pub(crate) fn new(movers: Vec<(GpuUuid, ProcessName)>, node: Option<PathBuf>) -> Self {
        Self { manager: ProcessName::own(), movers, node, boot: boot() }
    }

    /// Where the will of the manager on `socket` lies.
    pub(crate) fn path(socket: &Path) -> PathBuf {
        socket.with_extension("will")
    }

    /// Writes it, whole or not at all, for this user alone.
    pub(crate) fn write(&self, socket: &Path) -> anyhow::Result<()> {
        let path = Self::path(socket);
        let directory = path.parent().context("the socket's path has no directory")?;
        // Such files are made for this user alone.
        let mut file = os::open(|| tempfile::NamedTempFile::new_in(directory))
            .with_context(|| format!("making a file in {}", directory.display()))?;
        os::write(&mut file, &serde_json::to_vec(self)?)?;
        file.persist(&path).with_context(|| format!("writing {}", path.display()))?;
        Ok(())
    }

    /// The will beside `socket`, if there is one.
    pub(crate) fn load(socket: &Path) -> Option<Self> {
        let text = std::fs::read(Self::path(socket)).ok()?;
        let will: Self =
            serde_json::from_slice(&text).inspect_err(|error| warn!(%error, "a will cannot be read")).ok()?;
        (will.boot == boot()).then_some(will)
    }

    /// Waits for the death of the manager on `socket`, so long: whether it is dead.
    pub(crate) fn has_died(socket: &Path, patience: Duration) -> bool {
        let manager = Self::load(socket).and_then(|will| will.manager?.open());
        manager.is_none_or(|manager| dies_within(&manager, patience))
    }

    /// The movers that live of the manager that was on `socket`: one of them starts the next, or they
    /// wait for who does.
    pub(crate) fn heirs(socket: &Path) -> Vec<OwnedFd> {
        let movers = Self::load(socket).map_or_else(Vec::new, |will| will.movers);
        movers.into_iter().filter_map(|(_, name)| name.open()).collect()
    }

    /// There is nothing to inherit any more.
    pub(crate) fn remove(socket: &Path) {
        if let Err(error) = std::fs::remove_file(Self::path(socket))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(%error, "a will cannot be removed");
        }
    }
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GPU: GpuUuid = GpuUuid([3; 16]);

    #[test]
    fn a_will_is_read_as_it_was_written_in_this_life_of_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        assert_eq!(WillFile::load(&socket), None);
        let own = ProcessName::own().unwrap();
        let will = WillFile::new(vec![(GPU, own)], Some("/node".into()));
        will.write(&socket).unwrap();
        assert_eq!(WillFile::load(&socket), Some(will.clone()));
        let mode = std::fs::metadata(WillFile::path(&socket)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        WillFile { boot: "another".into(), ..will }.write(&socket).unwrap();
        assert_eq!(WillFile::load(&socket), None);
        WillFile::remove(&socket);
        assert!(!WillFile::path(&socket).exists());
        WillFile::remove(&socket);
    }
}
