//! The CUDA driver and its GPUs.
//!
//! ```text
//! doctor ── starts ──► doctor --ask-driver LIBRARY: loads it, asks, says so in JSON, ends
//!   ◄──── JSON, or nothing within the limit ────────┘
//! ```
//! Invariant: what the driver does (it may hang, or crash) happens to the second process only.

use super::{Finding, Machine, elf, size};
use crate::process::dies_within;
use anyhow::Context;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char, c_int};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_ffi::cuda::sys::{CUdevice, CUdevice_attribute as Attribute, CUresult, CUuuid_st};
use tidegate_ffi::cuda::{Driver, DriverError, LoadError, functions};
use tidegate_ffi::os;
use tidegate_ffi::units::GpuUuid;

const DRIVER: &str = "driver";
const GPU: &str = "GPU";
const FUNCTIONS: &str = "functions";

/// How long a driver may take. The first use of a GPU after the machine's start takes seconds.
pub const LIMIT: Duration = Duration::from_secs(30);
/// The most unknown functions that are named to a reader.
const NAMED: usize = 6;

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Its file, where that can be told.
    pub library: Option<PathBuf>,
    /// The CUDA version: 1000 × the major + 10 × the minor one.
    pub version: i32,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
}

/// What it says of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// As everywhere in Tidegate.
    pub uuid: String,
    /// Its memory.
    pub bytes: u64,
    /// It can map memory where it is told to.
    pub virtual_memory: bool,
    /// It can share memory as file descriptors.
    pub descriptors: bool,
    /// As `CUcomputemode`.
    pub compute_mode: i32,
}

/// Why a driver said nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Trouble {
    /// It cannot be loaded; why.
    Absent(String),
    /// It finds no GPU.
    NoGpu,
    /// One of its functions failed.
    Failed(String),
    /// It did not answer in time.
    Hangs,
    /// The process that asked it came to a bad end.
    Crashed(String),
}

impl From<DriverError> for Trouble {
    fn from(error: DriverError) -> Self {
        match error.code {
            CUresult::CUDA_ERROR_NO_DEVICE => Self::NoGpu,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Asks a driver, in this very process.
pub fn ask(library: &CStr) -> Result<Asked, Trouble> {
    let driver = Driver::open(library).map_err(|LoadError::Open { reason, .. }| Trouble::Absent(reason))?;
    // SAFETY: no pointers.
    unsafe { driver.cuInit(0) }?;
    let mut version = 0;
    // SAFETY: the result goes to our own variable.
    unsafe { driver.cuDriverGetVersion(&mut version) }?;
    let mut count = 0;
    // SAFETY: as above.
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    let gpus = (0..count).map(|ordinal| ask_gpu(&driver, ordinal)).collect::<Result<_, _>>()?;
    Ok(Asked { library: library_of(&driver), version, gpus })
}

fn ask_gpu(driver: &Driver, ordinal: c_int) -> Result<Gpu, DriverError> {
    let mut device = 0;
    // SAFETY: the result goes to our own variable.
    unsafe { driver.cuDeviceGet(&mut device, ordinal) }?;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most as many characters as there are, and a zero behind them.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) }?;
    let mut uuid = CUuuid_st { bytes: [0; 16] };
    // SAFETY: the result goes to our own variable.
    unsafe { driver.cuDeviceGetUuid_v2(&mut uuid, device) }?;
    let mut bytes = 0;
    // SAFETY: as above.
    unsafe { driver.cuDeviceTotalMem_v2(&mut bytes, device) }?;
    let name: Vec<u8> = name.iter().take_while(|letter| **letter != 0).map(|letter| *letter as u8).collect();
    let attribute = |attribute| ask_attribute(driver, device, attribute);
    Ok(Gpu {
        name: String::from_utf8_lossy(&name).into_owned(),
        uuid: GpuUuid(uuid.bytes.map(|byte| byte as u8)).to_string(),
        bytes: bytes as u64,
        virtual_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1,
        descriptors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
            == 1,
        compute_mode: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
    })
}

/// 0 for one that the driver does not know.
fn ask_attribute(driver: &Driver, device: CUdevice, attribute: Attribute) -> c_int {
    let mut value = 0;
    // SAFETY: the result goes to our own variable.
    let known = unsafe { driver.cuDeviceGetAttribute(&mut value, attribute.into(), device) };
    known.map_or(0, |()| value)
}

/// The file in which a loaded driver's functions lie.
fn library_of(driver: &Driver) -> Option<PathBuf> {
    let function = driver.cuInit? as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| file_at(line, function))
}

/// The file of a line of `/proc/self/maps`, if an address lies there.
fn file_at(line: &str, address: usize) -> Option<PathBuf> {
    let (start, rest) = line.split_once('-')?;
    let (end, rest) = rest.split_once(' ')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let is_there = hex(start)? <= address && address < hex(end)?;
    is_there.then(|| rest.find('/').map(|at| rest[at..].into()))?
}

/// Asks a driver by a `command` that does nothing but [`ask`] and say the answer in JSON.
pub fn ask_by(command: Command, limit: Duration) -> Result<Asked, Trouble> {
    ask_other(command, limit).unwrap_or_else(|error| Err(Trouble::Crashed(format!("{error:#}"))))
}

fn ask_other(mut command: Command, limit: Duration) -> anyhow::Result<Result<Asked, Trouble>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = os::start_process(&mut command).context("starting a process that asks the driver")?;
    let pid = Pid::from_raw(child.id() as i32).context("it has no number")?;
    if !dies_within(&os::process_handle(pid)?, limit) {
        // Not waited for: one that hangs in the kernel does not even die.
        let _ = child.kill();
        return Ok(Err(Trouble::Hangs));
    }
    let mut said = String::new();
    child.stdout.take().context("it has no output")?.read_to_string(&mut said)?;
    let status = child.wait()?;
    serde_json::from_str(&said).with_context(|| format!("asking the driver ended with {status}"))
}

/// The driver, its GPUs, its functions.
pub fn look(machine: &Machine, asked: &Result<Asked, Trouble>) -> Vec<Finding> {
    match asked {
        Err(trouble) => vec![explain(machine, trouble)],
        Ok(asked) => {
            let mut findings = vec![describe(machine, asked)];
            findings.extend(asked.gpus.iter().map(Gpu::finding));
            findings.extend(mig(machine));
            findings.extend(asked.library.as_deref().and_then(unknown_functions));
            findings
        }
    }
}

fn describe(machine: &Machine, asked: &Asked) -> Finding {
    let (major, minor) = (asked.version / 1000, asked.version % 1000 / 10);
    let kernel = kernel_driver(machine).map(|version| format!(", driver {version}")).unwrap_or_default();
    let library = asked.library.as_ref().map(|path| format!(", {}", path.display())).unwrap_or_default();
    Finding::good(DRIVER, format!("CUDA {major}.{minor}{kernel}{library}"))
}

/// The version of NVIDIA's kernel driver.
fn kernel_driver(machine: &Machine) -> Option<String> {
    let text = machine.read("proc/driver/nvidia/version")?;
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version).map(String::from)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn explain(machine: &Machine, trouble: &Trouble) -> Finding {
    match trouble {
        Trouble::Absent(reason) => {
            Finding::failure(DRIVER, format!("no CUDA driver: {reason}"), how_to_have_one(machine))
        }
        Trouble::NoGpu => Finding::failure(
            DRIVER,
            "there is a CUDA driver, and no GPU that it may use",
            "see what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES or the container hides it",
        ),
        Trouble::Failed(reason) => {
            Finding::failure(DRIVER, reason, "see whether nvidia-smi answers, and what dmesg says of NVRM")
        }
        Trouble::Hangs => Finding::failure(
            DRIVER,
            format!("it does not answer within {} s", LIMIT.as_secs()),
            "see whether nvidia-smi answers, and what dmesg says of NVRM; the machine may need a restart",
        ),
        Trouble::Crashed(reason) => Finding::failure(
            DRIVER,
            reason,
            "see whether other CUDA programs run, then install the driver anew",
        ),
    }
}

fn how_to_have_one(machine: &Machine) -> &'static str {
    match kernel_driver(machine) {
        Some(_) => {
            "NVIDIA's kernel driver runs, its library cannot be had: start the container with --gpus all, or \
             install libcuda1"
        }
        None => {
            "install NVIDIA's driver; without a GPU, software ones can be shared: `tidegate manager \
             --software-gpu 1x1GiB`"
        }
    }
}

impl Gpu {
    fn finding(&self) -> Finding {
        let says = format!("{}  {}  {}", self.uuid, self.name, size(self.bytes));
        let failure = |what: &str, advice: &str| Finding::failure(GPU, format!("{says}: {what}"), advice);
        match self {
            Self { compute_mode: 3, .. } => {
                failure("exclusive-process mode lets one process have it", "nvidia-smi -c DEFAULT")
            }
            Self { compute_mode: 2, .. } => failure("compute is prohibited", "nvidia-smi -c DEFAULT"),
            Self { virtual_memory: false, .. } => failure(
                "it has no virtual memory management",
                "a GPU since Pascal is needed, and not as a vGPU",
            ),
            Self { descriptors: false, .. } => failure(
                "its memory cannot be shared by file descriptors",
                "Linux on the machine itself is needed: neither WSL nor a vGPU has that",
            ),
            _ => Finding::good(GPU, says),
        }
    }
}

/// GPUs that are cut into instances.
fn mig(machine: &Machine) -> Option<Finding> {
    const GPUS: &str = "proc/driver/nvidia/capabilities";
    let has_instances =
        |gpu: &String| machine.list(&format!("{GPUS}/{gpu}/mig")).iter().any(|name| name.starts_with("gi"));
    let cut: Vec<String> = machine.list(GPUS).into_iter().filter(has_instances).collect();
    (!cut.is_empty()).then(|| {
        Finding::failure(
            "MIG",
            format!("MIG instances are not shared yet: {}", cut.join(", ")),
            "nvidia-smi -mig 0, or name the other GPUs with `tidegate manager --gpu`",
        )
    })
}

/// Functions of the driver that no row of the table tells of: programs call them past Tidegate.
fn unknown_functions(library: &Path) -> Option<Finding> {
    let exported = elf::exported_functions(&std::fs::read(library).ok()?);
    let is_unknown = |name: &String| is_of_cuda(name) && functions::find(name).is_none();
    Some(say_unknown(exported.into_iter().filter(is_unknown).collect()))
}

fn is_of_cuda(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

fn say_unknown(unknown: Vec<String>) -> Finding {
    if unknown.is_empty() {
        return Finding::good(FUNCTIONS, "Tidegate knows all that the driver has");
    }
    let first = unknown.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let rest = if unknown.len() > NAMED { ", ..." } else { "" };
    let says = format!("the driver has {} that Tidegate does not know: {first}{rest}", unknown.len());
    let advice = "programs call them past Tidegate, which may be harmless: look for a newer Tidegate";
    Finding { details: unknown, ..Finding::warning(FUNCTIONS, says, advice) }
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;
    use crate::hardware::tests::made_up;

    fn gpu() -> Gpu {
        Gpu {
            name: "NVIDIA H200".into(),
            uuid: "GPU-1".into(),
            bytes: 141 << 30,
            virtual_memory: true,
            descriptors: true,
            compute_mode: 0,
        }
    }

    #[test]
    fn a_gpu_that_cannot_be_shared_is_a_failure_with_a_way_out() {
        assert_eq!(gpu().finding(), Finding::good(GPU, "GPU-1  NVIDIA H200  141.0 GiB"));
        for (bad, words) in [
            (Gpu { compute_mode: 3, ..gpu() }, "exclusive-process"),
            (Gpu { compute_mode: 2, ..gpu() }, "prohibited"),
            (Gpu { virtual_memory: false, ..gpu() }, "virtual memory"),
            (Gpu { descriptors: false, ..gpu() }, "file descriptors"),
        ] {
            let found = bad.finding();
            assert!(found.mark == Mark::Failure && found.says.contains(words), "{found:?}");
            assert!(found.advice.is_some());
        }
    }

    #[test]
    fn a_gpu_that_is_cut_into_instances_is_a_failure() {
        let instance = ("proc/driver/nvidia/capabilities/gpu3/mig/gi7/access", "");
        let (_root, machine) = made_up(&[instance]);
        let found = mig(&machine).unwrap();
        assert!(found.mark == Mark::Failure && found.says.ends_with("gpu3"), "{found:?}");
        let (_root, machine) = made_up(&[("proc/driver/nvidia/capabilities/gpu3/mig/config", "")]);
        assert_eq!(mig(&machine), None);
    }

    #[test]
    fn the_driver_is_described_by_both_its_versions() {
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        let (_root, machine) = made_up(&[("proc/driver/nvidia/version", version)]);
        let asked =
            Asked { library: Some("/usr/lib/libcuda.so.1".into()), version: 13020, gpus: vec![gpu()] };
        let found = look(&machine, &Ok(asked));
        assert_eq!(found[0].says, "CUDA 13.2, driver 580.65.06, /usr/lib/libcuda.so.1");
        assert_eq!(found[1], gpu().finding());
    }

    #[test]
    fn a_machine_without_a_driver_is_told_how_to_have_one() {
        let absent = Err(Trouble::Absent("cannot load the CUDA driver".into()));
        let (_root, machine) = made_up(&[]);
        let found = look(&machine, &absent);
        assert!(found[0].advice.as_ref().unwrap().contains("--software-gpu"), "{found:?}");
        let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n";
        let (_root, machine) = made_up(&[("proc/driver/nvidia/version", version)]);
        let found = look(&machine, &absent);
        assert!(found[0].advice.as_ref().unwrap().contains("--gpus all"), "{found:?}");
    }

    #[test]
    fn functions_that_are_not_known_are_counted_and_the_first_named() {
        assert_eq!(say_unknown(Vec::new()).mark, Mark::Good);
        let found = say_unknown((0..9).map(|n| format!("cuNew{n}")).collect());
        assert_eq!(found.mark, Mark::Warning);
        assert!(found.says.contains("has 9 that") && found.says.ends_with("cuNew5, ..."), "{found:?}");
        assert_eq!(found.details.len(), 9);
        assert!(is_of_cuda("cuMemAlloc_v2") && !is_of_cuda("cudbgApiInit") && !is_of_cuda("curl"));
    }

    #[test]
    fn a_driver_that_hangs_or_crashes_is_waited_for_no_longer() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(ask_by(shell("exec sleep 600"), Duration::from_millis(20)), Err(Trouble::Hangs));
        let crashed = ask_by(shell("kill -SEGV $$"), LIMIT);
        assert!(matches!(&crashed, Err(Trouble::Crashed(why)) if why.contains("signal")), "{crashed:?}");
    }

    #[test]
    fn the_file_behind_an_address_is_found() {
        let line = "7f00-7f80 r-xp 00001000 fd:00 12    /usr/lib/libcuda.so.1";
        assert_eq!(file_at(line, 0x7f7f), Some("/usr/lib/libcuda.so.1".into()));
        assert_eq!(file_at(line, 0x7f80), None);
        assert_eq!(file_at("7f00-7f80 rw-p 00000000 00:00 0", 0x7f10), None);
    }
}
