//! The node: the directory `TIDEGATE_SOFTGPU` and the GPUs its `gpus.toml` lists.
//!
//! Read once, at `cuInit`. A forked child of a process that initialised finds it uninitialised for
//! good, as with the real driver: the worker threads stayed behind.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use serde::Deserialize;

use crate::abi::Answer;
use crate::model::Link;
use crate::store::{Store, StoreError};

/// The most GPUs of a node: access rights are one bit per GPU and one for the host.
pub const MOST_GPUS: usize = 63;

/// The GPUs this process sees.
pub struct Node {
    /// In the order of their ordinals.
    pub gpus: Vec<Gpu>,
}

/// One software GPU.
pub struct Gpu {
    /// What `gpus.toml` says.
    pub config: GpuConfig,
    /// The UUID's bytes.
    pub uuid: [u8; 16],
    /// Its memory.
    pub store: Store,
    /// Host to device.
    pub inward: Link,
    /// Device to host.
    pub outward: Link,
}

/// One `[[gpu]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuConfig {
    #[serde(default = "default_name")]
    pub name: String,
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes; what `cuMemCreate` deals in.
    #[serde(default = "default_granularity")]
    pub granularity: u64,
    /// Bytes per second between host and device, each direction.
    link: Option<f64>,
    #[serde(default)]
    call_cost_ns: u64,
    #[serde(default)]
    copy_cost_ns: u64,
    /// Bytes a context takes.
    #[serde(default)]
    pub context_bytes: u64,
    /// Bytes a loaded module takes.
    #[serde(default)]
    pub module_bytes: u64,
    /// Whether host and device use managed memory at the same time. It is only told: they do.
    #[serde(default = "yes")]
    pub concurrent_managed_access: bool,
    /// Shortest duration of a kernel, ns, by name.
    #[serde(default)]
    kernels: HashMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    gpu: Vec<GpuConfig>,
}

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("set TIDEGATE_SOFTGPU to the directory that holds gpus.toml")]
    NotSet,
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    #[error("{0}: {1}")]
    Malformed(PathBuf, String),
    #[error("{0}: {1}")]
    Store(PathBuf, StoreError),
}

static NODE: OnceLock<Result<Node, CUresult>> = OnceLock::new();
static READY: AtomicBool = AtomicBool::new(false);

/// `cuInit`
pub fn init(flags: u32) -> Answer {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let node = NODE.get_or_init(|| open_node().inspect(|_| enter_service()));
    let node = node.as_ref().map_err(|code| *code)?;
    match (node.gpus.is_empty(), READY.load(Ordering::Acquire)) {
        (true, _) => Err(CUresult::CUDA_ERROR_NO_DEVICE),
        (false, true) => Ok(()),
        (false, false) => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// Whether `cuInit` succeeded in this process (not in one it was forked from).
pub fn ready() -> bool {
    READY.load(Ordering::Acquire)
}

/// The node, once initialised.
pub fn node() -> Answer<&'static Node> {
    match NODE.get() {
        Some(Ok(node)) => Ok(node),
        _ => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// The GPU of a `CUdevice`.
pub fn gpu(device: i32) -> Answer<&'static Gpu> {
    let ordinal = usize::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    node()?.gpus.get(ordinal).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

/// One line on stderr; never a panic when there is none.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "softgpu: {line}");
}

impl GpuConfig {
    /// What each submitted call costs on its stream.
    pub fn call_cost(&self) -> Duration {
        Duration::from_nanos(self.call_cost_ns)
    }

    /// What the copy engine needs for each copy of a batch, beside its bytes.
    pub fn copy_cost(&self) -> Duration {
        Duration::from_nanos(self.copy_cost_ns)
    }

    /// The least time a kernel takes.
    pub fn kernel_time(&self, name: &str) -> Duration {
        Duration::from_nanos(self.kernels.get(name).copied().unwrap_or(0))
    }
}

fn default_name() -> String {
    "Software GPU".to_owned()
}

fn default_granularity() -> u64 {
    2 << 20
}

fn yes() -> bool {
    true
}

fn open_node() -> Result<Node, CUresult> {
    let said = |problem: NodeError| {
        say(&problem.to_string());
        match problem {
            NodeError::NotSet => CUresult::CUDA_ERROR_NO_DEVICE,
            _ => CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        }
    };
    read_node().map_err(said)
}

fn read_node() -> Result<Node, NodeError> {
    let dir = std::env::var_os("TIDEGATE_SOFTGPU").map(PathBuf::from).ok_or(NodeError::NotSet)?;
    let path = dir.join("gpus.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| NodeError::Unreadable(path.clone(), e))?;
    let configs = parse(&text).map_err(|problem| NodeError::Malformed(path, problem))?;
    let visible = visible(configs, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    let gpus = visible.into_iter().map(|config| open_gpu(&dir, config));
    Ok(Node { gpus: gpus.collect::<Result<_, _>>()? })
}

/// The tables of a `gpus.toml`, or what is wrong with it.
fn parse(text: &str) -> Result<Vec<GpuConfig>, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string().replace('\n', " "))?;
    if file.gpu.len() > MOST_GPUS {
        return Err(format!("{} GPUs, at most {MOST_GPUS} are possible", file.gpu.len()));
    }
    file.gpu.iter().try_for_each(check)?;
    Ok(file.gpu)
}

fn check(config: &GpuConfig) -> Result<(), String> {
    let uuid = &config.uuid;
    if parse_uuid(uuid).is_none() {
        return Err(format!("uuid `{uuid}` is not GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"));
    }
    if !config.granularity.is_power_of_two() || config.granularity < 4096 {
        return Err(format!("{uuid}: granularity must be a power of two of at least 4096"));
    }
    if config.memory == 0 || usize::try_from(config.memory).is_err() {
        return Err(format!("{uuid}: memory must be a positive number of bytes"));
    }
    if config.link.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return Err(format!("{uuid}: link must be positive (bytes per second)"));
    }
    Ok(())
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order, up to its first unknown item.
fn visible(configs: Vec<GpuConfig>, filter: Option<&str>) -> Vec<GpuConfig> {
    let Some(filter) = filter else { return configs };
    let mut left: Vec<Option<GpuConfig>> = configs.into_iter().map(Some).collect();
    let items = filter.split(',').map(str::trim);
    let choose = |item| {
        let at = position(&left, item)?;
        left.get_mut(at)?.take()
    };
    items.map_while(choose).collect()
}

fn position(gpus: &[Option<GpuConfig>], item: &str) -> Option<usize> {
    let named = |gpu: &Option<GpuConfig>| gpu.as_ref().is_some_and(|g| g.uuid.starts_with(item));
    match item.parse() {
        Ok(ordinal) => Some(ordinal),
        Err(_) if item.starts_with("GPU-") => gpus.iter().position(named),
        Err(_) => None,
    }
}

fn open_gpu(dir: &Path, config: GpuConfig) -> Result<Gpu, NodeError> {
    let uuid = parse_uuid(&config.uuid).unwrap_or_default();
    let home = dir.join(&config.uuid);
    let store = Store::open(&home, config.memory).map_err(|e| NodeError::Store(home, e))?;
    let (inward, outward) = (Link::new(config.link), Link::new(config.link));
    Ok(Gpu { config, uuid, store, inward, outward })
}

/// The bytes of `GPU-…`.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_prefix("GPU-")?;
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    if groups != [8, 4, 4, 4, 12] || !text.is_ascii() {
        return None;
    }
    u128::from_str_radix(&text.replace('-', ""), 16).ok().map(u128::to_be_bytes)
}

/// From now on calls are answered; not in children made by `fork`.
fn enter_service() {
    // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(leave_service)) };
    READY.store(true, Ordering::Release);
}

extern "C" fn leave_service() {
    READY.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        [[gpu]]
        uuid = "GPU-00000000-0000-0000-0000-000000000001"
        memory = 1048576
        [gpu.kernels]
        matmul = 100000
        [[gpu]]
        uuid = "GPU-00000000-0000-0000-0000-000000000002"
        memory = 1048576
        link = 10e9
    "#;

    #[test]
    fn visible_devices_are_chosen_by_number_or_uuid_up_to_the_first_unknown() {
        let seen = |filter| -> Vec<String> {
            let gpus = visible(parse(TWO).unwrap(), filter);
            gpus.into_iter().map(|gpu| gpu.uuid[38..].to_owned()).collect()
        };
        assert_eq!(seen(None), ["01", "02"]);
        assert_eq!(seen(Some("1,0")), ["02", "01"]);
        assert_eq!(seen(Some("GPU-00000000-0000-0000-0000-000000000002,7,0")), ["02"]);
        assert!(seen(Some("")).is_empty());
    }

    #[test]
    fn a_bad_table_is_refused_in_words() {
        let problem = |text: &str| parse(text).err().unwrap();
        assert!(problem("[[gpu]]\nuuid = 'GPU-1'\nmemory = 1").contains("uuid `GPU-1`"));
        assert!(problem(&TWO.replace("link", "lnk")).contains("lnk"));
    }
}
