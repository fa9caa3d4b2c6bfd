//! `tidegate manager`: the process that owns the GPUs' memory.

use super::connect::personal_socket;
use super::stop;
use crate::scheduler::Config;
use crate::server::{self, GpuPlan, Setup};
use crate::software_gpu::{NodeSpec, SoftwareNode};
use crate::{hardware, software_gpu};
use anyhow::{Context, bail};
use bytesize::ByteSize;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::Permissions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::system_socket;

/// The line on standard output that says that clients can connect.
pub(super) const READY: &str = "ready";

/// 1 MiB, for the defaults.
const MIB: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// End the manager that runs, in order.
    Stop(stop::Arguments),
}

/// How to share.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The Unix socket to listen on. Default: as root /run/tidegate/socket, else
    /// $XDG_RUNTIME_DIR/tidegate/socket (/tmp/tidegate-UID/socket where that is not set).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let the members of this group connect too; without it, only this user and root.
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Share software GPUs instead of the machine's: how many, of how much memory; perhaps the
    /// bandwidth to the host, the time that each call takes, and the memory that a context and a
    /// module take. As in 2x256MiB or 1x1GiB,link=10GB/s,call=2us,context=512KiB,module=64KiB.
    #[arg(long, value_name = "SPEC")]
    software_gpu: Option<NodeSpec>,
    /// Share only these GPUs, by UUID, separated by commas. Default: all of the machine.
    #[arg(long, value_name = "UUID", value_delimiter = ',', conflicts_with = "software_gpu")]
    gpu: Vec<GpuUuid>,
    /// Use at most so much of each GPU's memory.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    gpu_memory: Option<ByteSize>,
    /// The allocation granularity: all GPU memory is handed out in multiples of it. A power of two.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = super::size)]
    unit: ByteSize,
    /// The largest physical allocation: what is made, mapped and moved at once. Default: 32MiB, or
    /// a 64th of the smallest GPU's memory if that is less.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    piece: Option<ByteSize>,
    /// The shortest time slice. A job whose switches are expensive gets longer ones, so that
    /// switching takes 5 % of its time at most.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    slice: Duration,
    /// How long a job whose slice is over may go on to its next iteration boundary, where few bytes
    /// are live; then it is preempted where it is. Default: ten slices, at least 1s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    boundary_deadline: Option<Duration>,
    /// How long a preempted job's kernels and copies may take to finish; one that takes longer keeps
    /// the GPU for another slice.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    drain_limit: Duration,
    /// How long a process may take to give memory back, or to answer at all, beyond what its work
    /// takes; then it is expelled.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    answer_limit: Duration,
    /// What happens to a process that was expelled: with `kill` it is ended, so that the memory
    /// which it keeps is free at once.
    #[arg(long, value_name = "HOW")]
    evict: Option<Evict>,
    /// Room to grow that is left behind each job's persistent memory. Default: 100MiB, or a 64th of
    /// the smallest GPU's memory if that is less.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    offset: Option<ByteSize>,
    /// Memory of each GPU that is never handed out: contexts and modules need it. Default: 1GiB;
    /// none on software GPUs, whose contexts take none unless they are told to.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    headroom: Option<ByteSize>,
    /// Host memory for saved bytes, divided evenly among the GPUs. Default: half of what is
    /// available.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    dram: Option<ByteSize>,
    /// A test: fill memory with 0xFF before a job's live bytes are restored into it. Slower; no
    /// result may change.
    #[arg(long)]
    poison: bool,
    /// End when nobody has been connected for so long. Default: never.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    idle_exit: Option<Duration>,
}

/// How an expelled process is dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Evict {
    /// By SIGKILL.
    Kill,
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.action {
        Some(Action::Stop(arguments)) => stop::execute(&arguments),
        None => serve(arguments.options),
    }
}

fn serve(arguments: Options) -> anyhow::Result<ExitCode> {
    let unit = arguments.unit.as_u64();
    if !unit.is_power_of_two() || unit < 4096 {
        bail!("--unit {unit}: a power of two of at least 4KiB is wanted, as in 2MiB");
    }
    let node = arguments.software_gpu.as_ref().map(|spec| SoftwareNode::create(spec, unit)).transpose()?;
    let gpus = match &node {
        Some(node) => node.gpus().to_vec(),
        None => hardware_gpus(&arguments.gpu)?,
    };
    let dram = dram_share(arguments.dram, gpus.len())?;
    let plans = gpus.iter().map(|gpu| plan(*gpu, node.as_ref(), dram)).collect::<anyhow::Result<Vec<_>>>()?;
    let (listener, _lock) = listen(&socket_path(arguments.socket.clone())?, arguments.group)?;
    let headroom =
        arguments.headroom.map_or(if node.is_some() { 0 } else { 1024 * MIB }, |size| size.as_u64());
    server::run(Setup {
        listener,
        gpus: plans,
        gpu_memory: arguments.gpu_memory.map(|size| size.as_u64()),
        software_gpu: node.as_ref().map(|node| node.path().to_owned()),
        idle_exit: arguments.idle_exit,
        kill_expelled: arguments.evict == Some(Evict::Kill),
        config: Box::new(move |gpu_bytes| config(&arguments, gpu_bytes, headroom, dram)),
        ready: Box::new(say_ready),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn say_ready() {
    let mut output = std::io::stdout();
    // Nobody may be listening: that is their affair.
    let _ = writeln!(output, "{READY}").and_then(|()| output.flush());
}

/// Sizes that are not given follow the GPU's.
fn config(arguments: &Options, gpu_bytes: u64, headroom: u64, dram_bytes: u64) -> Config {
    let unit_bytes = arguments.unit.as_u64();
    let units = |bytes: u64| u32::try_from(bytes.div_ceil(unit_bytes)).unwrap_or(u32::MAX / 8);
    let or =
        |given: Option<ByteSize>, most: u64| given.map_or(most.min(gpu_bytes / 64), |size| size.as_u64());
    Config {
        unit_bytes,
        piece_units: units(or(arguments.piece, 32 * MIB)).max(1),
        offset_units: units(or(arguments.offset, 100 * MIB)),
        headroom_units: units(headroom),
        slice: arguments.slice,
        boundary_deadline: arguments
            .boundary_deadline
            .unwrap_or_else(|| (arguments.slice * 10).max(Duration::from_secs(1))),
        drain_limit: arguments.drain_limit,
        answer_limit: arguments.answer_limit,
        poison: arguments.poison,
        dram_bytes,
    }
}

fn hardware_gpus(wanted: &[GpuUuid]) -> anyhow::Result<Vec<GpuUuid>> {
    let found = hardware::gpus()?;
    if found.is_empty() {
        bail!(
            "this machine has no NVIDIA GPU; software GPUs can be shared: `tidegate manager --software-gpu 1x1GiB`"
        );
    }
    if let Some(missing) = wanted.iter().find(|gpu| !found.contains(gpu)) {
        bail!("this machine has no {missing}");
    }
    Ok(if wanted.is_empty() { found } else { wanted.to_vec() })
}

/// One GPU's share of the host memory for saved bytes (R0.5: what is left, divided by the GPUs).
fn dram_share(given: Option<ByteSize>, gpus: usize) -> anyhow::Result<u64> {
    let total = match given {
        Some(size) => size.as_u64(),
        None => hardware::available_memory()? / 2,
    };
    Ok(total / gpus.max(1) as u64)
}

fn plan(gpu: GpuUuid, node: Option<&SoftwareNode>, dram: u64) -> anyhow::Result<GpuPlan> {
    let lock = match node {
        Some(node) => node.lock(gpu)?,
        None => hardware::lock(gpu)?,
    };
    let driver = node.map_or_else(|| PathBuf::from("libcuda.so.1"), SoftwareNode::driver);
    let node = node.map(|node| node.path().to_owned());
    let program = std::env::current_exe()?;
    let mover = move || {
        let mut command = Command::new(&program);
        command.arg("mover").arg("--gpu").arg(gpu.to_string());
        command.arg("--dram-bytes").arg(dram.to_string()).arg("--driver").arg(&driver);
        command.env_remove("LD_PRELOAD").env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(node) = &node {
            command.env(software_gpu::NODE_VARIABLE, node);
        }
        command
    };
    Ok(GpuPlan { uuid: gpu, mover: Box::new(mover), lock: Some(lock) })
}

fn socket_path(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => Ok(path),
        None if rustix::process::geteuid().is_root() => Ok(system_socket()),
        None => personal_socket(),
    }
}

/// Listens on `path`: for the user alone, or for a group too. A lock beside the socket says
/// whether a socket that is there already is somebody's; it is released by death.
fn listen(path: &Path, group: Option<u32>) -> anyhow::Result<(UnixListener, OwnedFd)> {
    let directory = path.parent().context("the socket's path has no directory")?;
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let lock: OwnedFd = std::fs::File::create(path.with_extension("lock"))
        .with_context(|| format!("making a lock in {}", directory.display()))?
        .into();
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            bail!("another manager listens on {}: use it, or another --socket", path.display())
        }
        locked => locked.with_context(|| format!("locking {}", path.display()))?,
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing the old {}", path.display()));
        }
        _ => {}
    }
    // Nobody else may connect between bind and chmod.
    let old = rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(old);
    let listener = listener.with_context(|| format!("listening on {}", path.display()))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group)).context("giving the socket to its group")?;
        std::fs::set_permissions(path, Permissions::from_mode(0o660))?;
    }
    Ok((listener, lock))
}
