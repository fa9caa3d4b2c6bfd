//! What the kernel says of the machine's GPUs and memory. No CUDA here: the manager never loads it.

use crate::ownership;
use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, flock, fstat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
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

/// Locks a GPU for this manager; the end of the process unlocks it.
///
/// At most one manager of a user has a GPU: its lock file in `directory` is closed to other users. The lock on the device
/// node tells other users' managers. Any user who may open the node can hold that one, so it excludes this manager only if a
/// process of root or of this user holds it.
pub fn lock(gpu: GpuUuid, directory: &Path) -> anyhow::Result<Vec<OwnedFd>> {
    let Some((_, minor)) = described()?.into_iter().find(|(found, _)| *found == gpu) else {
        bail!("this machine has no {gpu}");
    };
    let path = format!("/dev/nvidia{minor}");
    let node: OwnedFd = File::open(&path).with_context(|| format!("opening {path}"))?.into();
    lock_both(gpu, &directory.join(format!("{gpu}.lock")), node)
}

/// Locks the file at `path`, which is made if it is missing, and `node` unless another user's process has locked it.
fn lock_both(gpu: GpuUuid, path: &Path, node: OwnedFd) -> anyhow::Result<Vec<OwnedFd>> {
    let file = ownership::open_lock_file(path)?;
    let try_lock = |file: &OwnedFd| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    ensure!(try_lock(&file), "another manager shares {gpu} already");
    if try_lock(&node) {
        return Ok(vec![file, node]);
    }
    // A process that has ended meanwhile holds nothing.
    if let Some(Holder { pid, uid }) = lock_holder(&node)? {
        let is_trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        ensure!(!is_trusted, "another manager shares {gpu} already (process {pid})");
        tracing::warn!(%gpu, pid, uid, "a process of another user has locked this GPU, and is ignored");
    }
    Ok(vec![file])
}

/// A process that has locked a file.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    uid: u32,
}

/// Which process has a file locked with `flock(2)`, by `/proc/locks`.
fn lock_holder(file: &OwnedFd) -> anyhow::Result<Option<Holder>> {
    let found = fstat(file).context("looking at a lock")?;
    let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
    let place = format!("{major:02x}:{minor:02x}:{}", found.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").context("reading /proc/locks")?;
    Ok(holding_process(&locks, &place).and_then(|pid| {
        let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        Some(Holder { pid, uid })
    }))
}

/// The process behind the `FLOCK` entry of a file in the text of `/proc/locks`. Entries with `->` wait for a lock.
fn holding_process(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, of) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && of == place).then(|| pid.parse().ok())?
    })
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
    fn a_gpu_has_one_manager_of_a_user() {
        let gpu = GpuUuid([7; 16]);
        let directory = tempfile::tempdir().unwrap();
        let [path, device] = ["lock", "device"].map(|name| directory.path().join(name));
        std::fs::write(&device, "").unwrap();
        let node = || OwnedFd::from(File::open(&device).unwrap());
        let first = lock_both(gpu, &path, node()).unwrap();
        assert!(lock_both(gpu, &path, node()).is_err());
        // A manager of an earlier release has locked the node alone.
        let elsewhere = directory.path().join("elsewhere");
        let error = lock_both(gpu, &elsewhere, node()).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(first);
        lock_both(gpu, &path, node()).unwrap();
    }

    #[test]
    fn the_process_that_holds_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:02:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:02:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 08:02:77 0 EOF\n";
        assert_eq!(holding_process(locks, "08:02:77"), Some(14));
        assert_eq!(holding_process(locks, "08:02:79"), None);
    }

    #[test]
    fn a_gpu_is_known_by_what_the_kernel_says_of_it() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 91\nGPU UUID: \t GPU-30313233-3435-3637-3839-616263646566\nDevice Minor: \t 3\n";
        let (gpu, minor) = describe(text).unwrap();
        assert_eq!((gpu.to_string().as_str(), minor), ("GPU-30313233-3435-3637-3839-616263646566", 3));
        assert!(describe("Model: x").is_err());
    }
}
