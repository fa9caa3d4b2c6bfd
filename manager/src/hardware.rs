//! What the kernel says of the machine's GPUs and memory. No CUDA here: the manager never loads it.

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tidegate_ffi::units::GpuUuid;

/// Where the NVIDIA kernel driver describes its GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// The machine's NVIDIA GPUs, in the order of their device numbers; none without a driver.
pub fn gpus() -> anyhow::Result<Vec<GpuUuid>> {
    let mut found = described()?;
    found.sort_unstable_by_key(|(_, minor)| *minor);
    Ok(found.into_iter().map(|(gpu, _)| gpu).collect())
}

fn described() -> anyhow::Result<Vec<(GpuUuid, u32)>> {
    let entries = match std::fs::read_dir(GPUS) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("reading {GPUS}"))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path: PathBuf = entry?.path().join("information");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        found.push(describe(&text).with_context(|| format!("{} is not as expected", path.display()))?);
    }
    Ok(found)
}

fn describe(text: &str) -> anyhow::Result<(GpuUuid, u32)> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        value.map(str::trim).with_context(|| format!("no {name:?}"))
    };
    Ok((field("GPU UUID")?.parse()?, field("Device Minor")?.parse()?))
}

/// Takes a GPU for this manager: at most one has it, and death gives it back.
pub fn lock(gpu: GpuUuid) -> anyhow::Result<OwnedFd> {
    let Some((_, minor)) = described()?.into_iter().find(|(found, _)| *found == gpu) else {
        bail!("this machine has no {gpu}");
    };
    let path = format!("/dev/nvidia{minor}");
    let node: OwnedFd = File::open(&path).with_context(|| format!("opening {path}"))?.into();
    flock(&node, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another manager shares {gpu} already"))?;
    Ok(node)
}

/// How much memory the host has, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemorySizes {
    /// Can be had now, without taking it from other processes.
    pub available: u64,
    /// All of it.
    pub total: u64,
}

/// Host memory that is available now, in bytes.
pub fn available_memory() -> anyhow::Result<u64> {
    Ok(memory_sizes()?.available)
}

/// How much memory the host has now.
pub fn memory_sizes() -> anyhow::Result<MemorySizes> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let bytes = |name: &str| -> anyhow::Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kib.with_context(|| format!("/proc/meminfo has no {name}"))?.parse::<u64>()? * 1024)
    };
    Ok(MemorySizes { available: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

/// The files in which the kernel describes the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// With the directories of the root at `root`: `/`, but in tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where a path of the machine, as `proc/meminfo`, lies.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// What a file says, without the last line's end; `None` where it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// The names in a directory, sorted; none where it cannot be read.
    pub fn list(&self, path: &str) -> Vec<String> {
        names_in(&self.path(path))
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine of these files alone.
    pub(crate) fn made_up(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let machine = Machine::at(root.path());
        (root, machine)
    }

    #[test]
    fn a_gpu_is_known_by_what_the_kernel_says_of_it() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 91\nGPU UUID: \t GPU-30313233-3435-3637-3839-616263646566\nDevice Minor: \t 3\n";
        let (gpu, minor) = describe(text).unwrap();
        assert_eq!((gpu.to_string().as_str(), minor), ("GPU-30313233-3435-3637-3839-616263646566", 3));
        assert!(describe("Model: x").is_err());
    }
}
