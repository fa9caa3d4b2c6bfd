//! Software GPUs: a directory that describes them, and a place for their driver (DESIGN §11).
//!
//! ```text
//! node/gpus.toml              what GPUs there are
//! node/lib/libcuda.so.1 …     the driver and the runtime under the names that programs look for
//! node/GPU-…/                 one directory per GPU, its memory
//! node/GPU-….lock             locked by the manager that shares this GPU
//! ```

use crate::{artifacts, ownership};
use anyhow::{Context, bail};
use bytesize::ByteSize;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tidegate_ffi::units::GpuUuid;

/// The environment variable that names the node to the software driver.
pub const NODE_VARIABLE: &str = "TIDEGATE_SOFTGPU";

/// How the directories are called, in front of some letters.
const PREFIX: &str = "tidegate-softgpu-";
/// The file by which the software driver's processes take turns (`softgpu/cuda/src/store.rs`).
const STORE_LOCK: &str = "lock";
/// How the files are called that memory is, in front of some numbers.
const PIECE: &str = "piece-";

/// Software GPUs as the user asks for them: `2x256MiB`, then any of `,link=10GB/s`, `,call=2us`,
/// `,copy=1500ns`, `,context=512KiB`, `,module=64KiB` and `,managed=exclusive`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSpec {
    /// How many.
    pub count: usize,
    /// Memory of each, in bytes.
    pub memory: u64,
    /// Bandwidth between host and GPU in bytes per second; none: as fast as it goes.
    pub link: Option<f64>,
    /// What each submitted call costs.
    pub call_cost: Option<Duration>,
    /// What each copy of a batch, which is one call, costs beside.
    pub copy_cost: Option<Duration>,
    /// Memory that a context takes, in bytes.
    pub context: u64,
    /// Memory that a loaded module takes, in bytes.
    pub module: u64,
    /// Host and GPU do not use managed memory at the same time (`CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS` is 0).
    pub managed_is_exclusive: bool,
}

impl FromStr for NodeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let size = parts.next().unwrap_or_default();
        let (count, memory) = size.split_once('x').ok_or("a number and a size are wanted, as in 2x256MiB")?;
        let count =
            count.parse().ok().filter(|count| (1..=64).contains(count)).ok_or("1 to 64 GPUs are possible")?;
        let mut spec = Self { count, memory: bytes(memory)?, ..Self::default() };
        for part in parts {
            spec.set(part)?;
        }
        Ok(spec)
    }
}

impl NodeSpec {
    fn set(&mut self, part: &str) -> Result<(), String> {
        match part.split_once('=') {
            Some(("link", rate)) => {
                let rate =
                    rate.strip_suffix("/s").ok_or("a link's bandwidth ends in /s, as in link=10GB/s")?;
                self.link = Some(bytes(rate)? as f64);
            }
            Some(("call", cost)) => self.call_cost = Some(duration(cost)?),
            Some(("copy", cost)) => self.copy_cost = Some(duration(cost)?),
            Some(("context", size)) => self.context = bytes(size)?,
            Some(("module", size)) => self.module = bytes(size)?,
            Some(("managed", "exclusive")) => self.managed_is_exclusive = true,
            _ => {
                let known =
                    "link=RATE/s, call=TIME, copy=TIME, context=SIZE, module=SIZE and managed=exclusive are";
                return Err(format!("{part:?} is not known; {known}"));
            }
        }
        Ok(())
    }
}

fn bytes(size: &str) -> Result<u64, String> {
    Ok(size.parse::<ByteSize>()?.as_u64())
}

fn duration(time: &str) -> Result<Duration, String> {
    humantime::parse_duration(time).map_err(|error| error.to_string())
}

#[derive(Serialize)]
struct GpusFile {
    gpu: Vec<GpuEntry>,
}

#[derive(Serialize)]
struct GpuEntry {
    uuid: String,
    memory: u64,
    granularity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_cost_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_cost_ns: Option<u64>,
    context_bytes: u64,
    module_bytes: u64,
    concurrent_managed_access: bool,
}

/// A directory of software GPUs; dropping it removes them, where they are one's own.
#[derive(Debug)]
pub struct SoftwareNode {
    directory: PathBuf,
    gpus: Vec<GpuUuid>,
    is_own: bool,
}

impl Drop for SoftwareNode {
    fn drop(&mut self) {
        if self.is_own
            && let Err(error) = std::fs::remove_dir_all(&self.directory)
        {
            tracing::warn!(%error, "software GPUs cannot be removed");
        }
    }
}

impl SoftwareNode {
    /// Makes the GPUs that `spec` asks for, with pieces in multiples of `unit` bytes.
    pub fn create(spec: &NodeSpec, unit: u64) -> anyhow::Result<Self> {
        let libraries = Libraries::find()?;
        // Device memory belongs in memory, where the machine has a file system for that.
        let place = Some(Path::new("/dev/shm")).filter(|place| place.is_dir());
        let place = place.map_or_else(std::env::temp_dir, Path::to_owned);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let gpus: Vec<GpuUuid> = (0..spec.count).map(|_| new_uuid()).collect::<anyhow::Result<_>>()?;
        let entries = gpus.iter().map(|uuid| GpuEntry {
            uuid: uuid.to_string(),
            memory: spec.memory,
            granularity: unit,
            link: spec.link,
            call_cost_ns: spec.call_cost.map(|cost| cost.as_nanos() as u64),
            copy_cost_ns: spec.copy_cost.map(|cost| cost.as_nanos() as u64),
            context_bytes: spec.context,
            module_bytes: spec.module,
            concurrent_managed_access: !spec.managed_is_exclusive,
        });
        let text = toml::to_string(&GpusFile { gpu: entries.collect() })?;
        std::fs::write(directory.path().join("gpus.toml"), text)?;
        libraries.link(&directory.path().join("lib"))?;
        for gpu in &gpus {
            std::fs::create_dir(directory.path().join(gpu.to_string()))?;
        }
        Ok(Self { directory: directory.keep(), gpus, is_own: true })
    }

    /// Lets the members of a group use the GPUs. Each user's memory stays closed to the others: a file of it is passed on as a
    /// descriptor, or is opened by its owner.
    pub fn share_with(&self, group: u32) -> anyhow::Result<()> {
        // Whatever the umask, which a service manager may set.
        for (path, mode) in [("", 0o755), ("lib", 0o755), ("gpus.toml", 0o644)] {
            let path = self.directory.join(path);
            let opened = std::fs::set_permissions(&path, Permissions::from_mode(mode));
            opened.with_context(|| format!("opening {} to the group", path.display()))?;
        }
        for gpu in &self.gpus {
            let directory = self.directory.join(gpu.to_string());
            let lock = directory.join(STORE_LOCK);
            let sharing = || format!("sharing {} with group {group}", directory.display());
            File::create_new(&lock).with_context(sharing)?;
            for (path, mode) in [(&lock, 0o660), (&directory, 0o1770)] {
                chown(path, None, Some(group)).with_context(sharing)?;
                std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(sharing)?;
            }
        }
        Ok(())
    }

    /// The GPUs that another process has made.
    pub fn of_another(directory: PathBuf, gpus: Vec<GpuUuid>) -> Self {
        Self { directory, gpus, is_own: false }
    }

    /// The GPUs that a manager has left to nobody, if this is a directory of such.
    pub fn abandoned(directory: PathBuf) -> Option<Self> {
        let name = directory.file_name()?.to_str()?;
        let is_node = name.starts_with(PREFIX) && directory.join("gpus.toml").is_file();
        is_node.then(|| Self::of_another(directory, Vec::new()))
    }

    /// Removes the GPUs if no process has memory of theirs; else they are kept.
    pub fn unless_unused(mut self) -> Option<Self> {
        if self.is_in_use() {
            return Some(self);
        }
        tracing::info!(directory = %self.directory.display(), "software GPUs of a manager that died are removed");
        self.take_over();
        None
    }

    /// Whether a process has memory of theirs: each has its pieces locked as long as it has them
    /// (`softgpu/cuda/src/store.rs`). What cannot be looked at counts as used.
    fn is_in_use(&self) -> bool {
        let Ok(gpus) = std::fs::read_dir(&self.directory) else { return true };
        let pieces = gpus.flatten().filter_map(|gpu| std::fs::read_dir(gpu.path()).ok()).flatten().flatten();
        let mut pieces = pieces.filter(|entry| entry.file_name().to_string_lossy().starts_with(PIECE));
        pieces.any(|piece| match File::open(piece.path()) {
            Ok(piece) => flock(&piece, FlockOperation::NonBlockingLockExclusive).is_err(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        })
    }

    /// They are one's own from now on.
    pub fn take_over(&mut self) {
        self.is_own = true;
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The GPUs, in the order of their device numbers.
    pub fn gpus(&self) -> &[GpuUuid] {
        &self.gpus
    }

    /// The driver's path.
    pub fn driver(&self) -> PathBuf {
        self.path().join("lib/libcuda.so.1")
    }

    /// Locks a GPU for this manager.
    pub fn lock(&self, gpu: GpuUuid) -> anyhow::Result<OwnedFd> {
        let file = ownership::open_lock_file(&self.path().join(format!("{gpu}.lock")))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another manager shares {gpu} already");
        }
        Ok(file)
    }
}

/// What programs find in a node.
struct Libraries {
    driver: PathBuf,
    runtime: PathBuf,
}

impl Libraries {
    fn find() -> anyhow::Result<Self> {
        Ok(Self { driver: artifacts::software_driver()?, runtime: artifacts::software_runtime()? })
    }

    /// Gives them the names that programs look for, in a directory made for that.
    fn link(&self, directory: &Path) -> anyhow::Result<()> {
        std::fs::create_dir(directory)?;
        let names = [
            ("libcuda.so.1", &self.driver),
            ("libcuda.so", &self.driver),
            ("libcudart.so.13", &self.runtime),
            ("libcudart.so", &self.runtime),
        ];
        for (name, library) in names {
            std::os::unix::fs::symlink(library, directory.join(name))?;
        }
        Ok(())
    }
}

fn new_uuid() -> anyhow::Result<GpuUuid> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(GpuUuid(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_a_dead_manager_go_when_no_process_has_memory_of_theirs() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join(format!("{PREFIX}x"));
        std::fs::create_dir_all(directory.join("GPU-1")).unwrap();
        std::fs::write(directory.join("gpus.toml"), "").unwrap();
        let piece = File::create(directory.join("GPU-1/piece-1-1")).unwrap();
        flock(&piece, FlockOperation::LockShared).unwrap();
        let node = SoftwareNode::abandoned(directory.clone()).unwrap();
        let node = node.unless_unused().expect("a process has memory of it");
        assert!(directory.exists());
        drop(piece);
        assert!(node.unless_unused().is_none() && !directory.exists());
        assert!(SoftwareNode::abandoned(place.path().to_owned()).is_none(), "it is no node");
    }

    #[test]
    fn software_gpus_are_described_in_a_few_words() {
        let spec: NodeSpec = "2x256MiB,link=10GB/s,call=2us".parse().unwrap();
        assert_eq!((spec.count, spec.memory), (2, 256 << 20));
        assert_eq!((spec.link, spec.call_cost), (Some(10e9), Some(Duration::from_micros(2))));
        assert!(!spec.managed_is_exclusive);
        assert!("1x1MiB,managed=exclusive".parse::<NodeSpec>().unwrap().managed_is_exclusive);
        let spec: NodeSpec = "1x19MiB,module=64KiB,copy=1500ns,context=512KiB".parse().unwrap();
        assert_eq!((spec.call_cost, spec.copy_cost), (None, Some(Duration::from_nanos(1500))));
        assert_eq!((spec.context, spec.module, spec.link), (512 << 10, 64 << 10, None));
        for wrong in
            ["256MiB", "0x1MiB", "1xlots", "1x1MiB,link=10GB", "1x1MiB,managed=no", "1x1MiB,context=big"]
        {
            assert!(wrong.parse::<NodeSpec>().is_err(), "{wrong}");
        }
    }
}
