//! `tidegate manager`: the process that owns the GPUs' memory.

use super::connect::personal_socket;
use super::{config, log, stop};
use crate::hardware::Machine;
use crate::numa::cxl::CxlPlace;
use crate::numa::{Node, STAY_ADVICE, Zone};
use crate::planner::shares::PerTier;
use crate::scheduler::{Config, UserQuotas, whole_grains};
use crate::server::{self, CommandLine, ConfigFile, Gathered, GpuPlan, Heritage, Permissions, Setup};
use crate::software_gpu::{NodeSpec, SoftwareNode};
use crate::{hardware, mover, ownership, software_gpu};
use anyhow::{Context, bail};
use bytesize::ByteSize;
use clap::ArgMatches;
use clap::parser::ValueSource;
use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Duration;
use tidegate_ffi::os::faults;
use tidegate_ffi::units::{GpuUuid, Tier};
use tidegate_ffi::wire::message::Will;
use tidegate_ffi::wire::system_socket;

/// The line on standard output that says that clients can connect.
pub(crate) const READY: &str = "ready";

/// What a manager says instead whose place is another's.
pub(super) const TAKEN: &str = "taken";

/// Why a manager does not start: whoever wanted it may wait for the other.
#[derive(Debug, thiserror::Error)]
#[error("another manager listens on {}: use it, or another --socket", .0.display())]
pub(super) struct Taken(PathBuf);

/// A switch takes about as long: with shorter slices the manager does nothing but switch.
const SHORTEST_SLICE: Duration = Duration::from_millis(1);
/// How long a manager that dies may take to let its socket go.
const DYING: Duration = Duration::from_secs(1);
/// The options of the manager that is there for all.
const SYSTEM_CONFIG: &str = "/etc/tidegate/manager.toml";
/// 1 MiB, for the defaults.
const MIB: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Read options from this file too: TOML, the names as here without dashes. Options given here
    /// win. Default: for root without --socket /etc/tidegate/manager.toml, if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// End the manager that runs, in order.
    Stop(stop::Arguments),
}

// Documentation here would become the command's.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The Unix socket to listen on. Default: as root /run/tidegate/socket, else
    /// $XDG_RUNTIME_DIR/tidegate/socket (/tmp/tidegate-UID/socket where that is not set).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let the members of this group connect too, by its name in /etc/group or its number; without
    /// it, only this user and root.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Append the log to this file. Default: standard error, which systemd takes to its journal.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Share software GPUs instead of the machine's: how many, of how much memory; perhaps the
    /// bandwidth to the host, the time that each call takes, and each copy of a batch, and the memory
    /// that a context and a module take; and managed=exclusive, where host and GPU do not use managed
    /// memory at the same time. As in 2x256MiB or
    /// 1x1GiB,link=10GB/s,call=2us,copy=1500ns,context=512KiB,module=64KiB.
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
    /// The shortest time slice. A job whose switches are expensive gets longer ones (--switch-overhead), up to
    /// --slice-max.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    slice: Duration,
    /// What part of a job's time its switches should take at most: its slices are as long as that needs.
    #[arg(long, value_name = "PERCENT", default_value = "4%", value_parser = percent)]
    switch_overhead: u32,
    /// The longest time slice. Where more than three jobs wait it is so much shorter that they all get their turn in
    /// three of this; where switches would take more than a tenth of it, it is longer. Default: 10s, or --slice if that
    /// is longer.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    slice_max: Option<Duration>,
    /// How long a job whose slice is over may go on to its next iteration boundary, where few bytes
    /// are live; then it is preempted where it is. Default: ten slices, at least 1s.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    boundary_deadline: Option<Duration>,
    /// How long a preempted job's kernels and copies may take to finish; one that takes longer keeps
    /// the GPU for another slice, and after three times for some of these limits. It must be longer than the longest
    /// kernel: jobs that always take longer cannot be switched, and of those that wait for each other's memory one is
    /// told that it is out of memory.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    drain_limit: Duration,
    /// How long a process may take to answer, beyond what its work takes. Then it is expelled if it
    /// should give memory back; others go on beside it if it is stopped, or should only stop. A mover that makes no
    /// progress for so long is replaced, and jobs look so long for another manager when theirs has died.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    answer_limit: Duration,
    /// What happens to a process that was expelled: with `kill` it is ended, so that the memory
    /// which it keeps is free at once; and so is one that is stopped and keeps others waiting.
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
    /// The most memory of each GPU that all jobs of one user may have together, resident or saved. With
    /// USER=SIZE, of this user, by name in /etc/passwd or number; with SIZE alone, of everybody who is not
    /// named. What one of the user's jobs has freed another may take. May be given several times. Default: no limit.
    #[arg(long, value_name = "[USER=]SIZE", value_parser = user_quota)]
    user_memory: Vec<OfUser<u64>>,
    /// The most that all jobs of one user may have saved at once in --dram, --cxl and --disk together, of all GPUs:
    /// a job that would need more waits, and says so. Memory on a GPU does not count: --user-memory limits that.
    /// USER and SIZE as there. Default: no limit.
    #[arg(long, value_name = "[USER=]SIZE", value_parser = user_quota)]
    quota: Vec<OfUser<u64>>,
    /// The highest priority that a user's jobs may have. USER=N for one user, by name in /etc/passwd or number; N alone for each
    /// user that is not named. Root and the manager's user have no limit. May be given several times. Default: 0.
    #[arg(long, value_name = "[USER=]N", allow_hyphen_values = true, value_parser = user_priority)]
    max_priority: Vec<OfUser<i32>>,
    /// The largest weight that a user's jobs may have (`tidegate run --weight`), as above. Default: 1.
    #[arg(long, value_name = "[USER=]N", value_parser = user_weight)]
    max_weight: Vec<OfUser<u32>>,
    /// Let this user's jobs be resident (`tidegate run --resident`), by name in /etc/passwd or number; `all` is every user. Root
    /// and the manager's user may always. May be given several times. Default: no other user.
    #[arg(long, value_name = "USER")]
    allow_resident: Vec<String>,
    /// Host memory for saved bytes. The GPUs share it: evenly, until one needs more than others do.
    /// Default: half of what is available.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    dram: Option<ByteSize>,
    /// CXL memory for saved bytes that find no room in --dram: a NUMA node as in node:1=64GiB, or a dax device as in
    /// /dev/dax0.0=64GiB. The GPUs share a node as they share --dram, a device evenly. `tidegate doctor` says which
    /// there is. Default: none.
    #[arg(long, value_name = "node:N=SIZE | PATH=SIZE")]
    cxl: Option<CxlSpace>,
    /// Disk space for saved bytes that find no room in memory: a directory, in which files without names are
    /// made, and how much. The GPUs share it as they share --dram. Default: none.
    #[arg(long, value_name = "DIR=SIZE")]
    disk: Option<DiskSpace>,
    /// Give every job host memory for what it needs beyond its GPU's, of the GPU's share of --dram, as if each had been
    /// started with `tidegate run --oversubscribe`. Else it gets CUDA_ERROR_OUT_OF_MEMORY, as it would alone.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    oversubscribe: Option<bool>,
    /// A test: fill memory with 0xFF before a job's live bytes are restored into it. Slower; no
    /// result may change.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    poison: Option<bool>,
    /// End when nobody has been connected for so long. Default: never.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    idle_exit: Option<Duration>,
}

/// What an option says of a user, or of every user that is not named.
#[derive(Debug, Clone)]
struct OfUser<T> {
    user: Option<String>,
    value: T,
}

/// Reads `[USER=]VALUE`.
fn of_user<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<OfUser<T>, String> {
    let (user, value) = text.split_once('=').map_or((None, text), |(user, value)| (Some(user), value));
    Ok(OfUser { user: user.map(String::from), value: read(value)? })
}

fn user_quota(text: &str) -> Result<OfUser<u64>, String> {
    of_user(text, |size| Ok(super::size(size)?.as_u64()))
}

fn user_priority(text: &str) -> Result<OfUser<i32>, String> {
    of_user(text, |most| most.parse().map_err(|_| format!("{most:?} is no whole number, as in 3 or ann=3")))
}

fn user_weight(text: &str) -> Result<OfUser<u32>, String> {
    of_user(text, |most| {
        let most = most.parse().ok().filter(|most| *most > 0);
        most.ok_or_else(|| format!("{text:?} is no whole number above 0, as in 3 or ann=3"))
    })
}

/// A place and how much of it may be used, written `PLACE=SIZE`; `wanted` is what to say where it is not.
fn sized<'a>(text: &'a str, wanted: &str) -> Result<(&'a str, u64), String> {
    let (place, size) = text.rsplit_once('=').ok_or(wanted)?;
    Ok((place, super::size(size)?.as_u64()))
}

/// CXL memory and how much of it may be used.
#[derive(Debug, Clone)]
struct CxlSpace {
    place: CxlPlace,
    bytes: u64,
}

impl FromStr for CxlSpace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, bytes) = sized(text, "node:N=SIZE or PATH=SIZE is wanted, as in node:1=64GiB")?;
        Ok(Self { place: place.parse()?, bytes })
    }
}

impl CxlSpace {
    /// Whether there is so much, and whether saved bytes stay there.
    fn check(&self) -> anyhow::Result<()> {
        let place = &self.place;
        let there =
            place.bytes().with_context(|| format!("--cxl {place}: no memory for saved bytes there"))?;
        if there < self.bytes {
            let (wanted, there) = (ByteSize(self.bytes), ByteSize(there));
            bail!("--cxl {place}: {wanted} are wanted, it has {there}");
        }
        let CxlPlace::Node(number) = *place else { return Ok(()) };
        let node = Node::of(&Machine::at("/"), number);
        if node.as_ref().is_some_and(|node| node.has_processors) {
            tracing::warn!(
                "--cxl {place}: this node has processors: it is no CXL memory, and used as if it were"
            );
        }
        mover::check_node(number).with_context(|| format!("--cxl {place}: no memory for saved bytes"))?;
        if node.is_some_and(|node| node.zone == Zone::Movable) {
            tracing::warn!(
                "--cxl {place}: its memory is in the movable zone, where none stays that a GPU needs: {STAY_ADVICE}"
            );
        }
        Ok(())
    }

    /// What each of so many GPUs gets of `bytes` bytes.
    fn part(&self, bytes: u64, gpus: usize) -> anyhow::Result<u64> {
        let align = self.place.align().with_context(|| format!("--cxl {}", self.place))?;
        let even = bytes / gpus.max(1) as u64;
        let part = even - even % align;
        if part == 0 {
            let (bytes, align) = (ByteSize(bytes), ByteSize(align));
            bail!("--cxl {}: {bytes} for {gpus} GPUs are less than {align} for each", self.place);
        }
        Ok(part)
    }

    /// A device has a part for each GPU; a node's memory goes from one to another.
    fn is_in_parts(&self) -> bool {
        matches!(self.place, CxlPlace::Device(_))
    }

    /// A device or a file is one manager's; released by death.
    fn lock(&self) -> anyhow::Result<Option<File>> {
        let CxlPlace::Device(path) = &self.place else { return Ok(None) };
        let path = path.display();
        let file = File::options().read(true).write(true).open(path.to_string());
        let file = file.with_context(|| format!("--cxl {path}: no memory for saved bytes there"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("--cxl {path}: another manager uses it"))?;
        Ok(Some(file))
    }
}

/// A directory and how much may be written there.
#[derive(Debug, Clone)]
struct DiskSpace {
    directory: PathBuf,
    bytes: u64,
}

impl FromStr for DiskSpace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (directory, bytes) = sized(text, "DIR=SIZE is wanted, as in /scratch=100GiB")?;
        Ok(Self { directory: directory.into(), bytes })
    }
}

impl DiskSpace {
    /// Whether files can be made there, and how large.
    fn check(&self) -> anyhow::Result<()> {
        let directory = self.directory.display();
        mover::check_disk(&self.directory)
            .with_context(|| format!("--disk {directory}: no file for saved bytes can be made there"))?;
        let room = statvfs(&self.directory)
            .with_context(|| format!("--disk {directory}: how much room is there?"))?;
        let available = room.f_bavail.saturating_mul(room.f_frsize);
        if available < self.bytes {
            let (wanted, available) = (ByteSize(self.bytes), ByteSize(available));
            bail!("--disk {directory}: {wanted} are wanted, {available} are free there");
        }
        Ok(())
    }
}

/// How an expelled process is dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Evict {
    /// By SIGKILL.
    Kill,
}

/// `given` is what of the arguments was on the command line.
pub(super) fn execute(arguments: Arguments, given: &ArgMatches) -> anyhow::Result<ExitCode> {
    if let Some(Action::Stop(arguments)) = arguments.action {
        log::to_stderr();
        return stop::execute(&arguments);
    }
    let mut options = arguments.options;
    let path = arguments.config.or_else(|| system_config(&options));
    let read = path.map(|path| config_file(&options, &path)).transpose()?;
    let (file, has_changed) = read.map_or((None, false), |(file, has_changed)| (Some(file), has_changed));
    if let Some(file) = &file {
        config::complete(&mut options, given, file)?;
    }
    // Its movers look for the next manager there, and so do processes that are elsewhere.
    let socket = std::path::absolute(socket_path(options.socket.clone())?)?;
    let log = begin_log(options.log.as_deref(), &socket)?;
    if let Some(file) = &file
        && has_changed
    {
        tracing::warn!(
            "{} has changed: its old options hold until the manager has been stopped",
            file.path.display()
        );
    }
    let command = command_for_the_next(given, &socket, file.as_ref());
    serve(options, Start { socket, log, command, file })
        .inspect_err(|error| tracing::error!("the manager cannot go on: {error:#}"))
}

/// How a manager was started, beside its options.
struct Start {
    /// An absolute path.
    socket: PathBuf,
    /// The file that it and its movers log to; `None`: standard error.
    log: Option<File>,
    /// How the next one is started; `None`: a supervisor does it.
    command: Option<CommandLine>,
    /// The file of options that it read, if any.
    file: Option<ConfigFile>,
}

/// Begins to log to `path`. A manager that takes over goes on without that file if it cannot be opened any more.
fn begin_log(path: Option<&Path>, socket: &Path) -> anyhow::Result<Option<File>> {
    let Some(path) = path else {
        log::to_stderr_by_queue();
        return Ok(None);
    };
    log::to_file(path).map(Some).or_else(|error| {
        if server::heirs(socket).is_empty() {
            return Err(error);
        }
        log::to_stderr_by_queue();
        tracing::warn!("this log goes to standard error: {error:#}");
        Ok(None)
    })
}

/// A file of options. Where this manager takes over from one that read the same file, it is what the file said then: the
/// GPUs and the tiers are shared by it, and jobs must not be lost because the file is gone or has changed. Whether it has.
fn config_file(options: &Options, path: &Path) -> anyhow::Result<(ConfigFile, bool)> {
    let read = ConfigFile::read(path);
    let named_there = read.as_ref().ok().and_then(|file| option_in(&file.text, "socket"));
    let socket = socket_path(options.socket.clone().or_else(|| named_there.map(PathBuf::from)))?;
    let path = std::path::absolute(path)?;
    match server::config_to_take_over(&socket).filter(|last| last.path == path) {
        Some(last) => {
            let has_changed = read.ok().as_ref() != Some(&last);
            Ok((last, has_changed))
        }
        None => Ok((read?, false)),
    }
}

/// The file of the manager that is there for all.
fn system_config(options: &Options) -> Option<PathBuf> {
    let is_system = rustix::process::geteuid().is_root() && options.socket.is_none();
    let file = Path::new(SYSTEM_CONFIG);
    (is_system && file.exists()).then(|| file.to_owned())
}

/// Where that manager's disk tier is, if it has one.
pub(super) fn configured_disk() -> Option<PathBuf> {
    disk_of(&std::fs::read_to_string(SYSTEM_CONFIG).ok()?)
}

fn disk_of(config: &str) -> Option<PathBuf> {
    Some(option_in(config, "disk")?.parse::<DiskSpace>().ok()?.directory)
}

/// What a file of options says of one that is a text.
fn option_in(config: &str, name: &str) -> Option<String> {
    let options: toml::Table = toml::from_str(config).ok()?;
    Some(options.get(name)?.as_str()?.to_owned())
}

/// The longest slice, which is no shorter than the shortest one.
fn longest_slice(slice: Duration, longest: Option<Duration>) -> anyhow::Result<Duration> {
    let longest = longest.unwrap_or(Duration::from_secs(10).max(slice));
    if slice > longest {
        let [slice, longest] = [slice, longest].map(humantime::format_duration);
        bail!("--slice {slice}: that is longer than --slice-max {longest}");
    }
    Ok(longest)
}

fn serve(arguments: Options, start: Start) -> anyhow::Result<ExitCode> {
    faults::begin("manager");
    let unit = arguments.unit.as_u64();
    if !unit.is_power_of_two() || unit < 4096 {
        bail!("--unit {unit}: a power of two of at least 4KiB is wanted, as in 2MiB");
    }
    let slice_max = longest_slice(arguments.slice, arguments.slice_max)?;
    let group = group(arguments.group.as_deref())?;
    let user_quotas = quotas(&arguments.user_memory, "--user-memory")?;
    let saved_quotas = quotas(&arguments.quota, "--quota")?;
    let permissions = permissions(&arguments)?;
    let stop = server::stop_signals()?;
    let Start { socket, log, command, file: config_file } = start;
    anyhow::ensure!(arguments.slice >= SHORTEST_SLICE, "--slice must be {SHORTEST_SLICE:?} at least");
    let _lock = lock(&socket)?;
    let listener = listen(&socket, group)?;
    let gathered = server::gather(&socket, &listener, &stop, arguments.answer_limit)?;
    let Gathered { heritage, early, abandoned } = gathered;
    let mut abandoned: Vec<SoftwareNode> = abandoned
        .into_iter()
        .filter_map(SoftwareNode::abandoned)
        .filter_map(SoftwareNode::unless_unused)
        .collect();
    let (mut node, gpus, sizes) = match &heritage {
        Some(heritage) => inherited(heritage),
        None => found(&arguments, group)?,
    };
    let _device = arguments.cxl.as_ref().map(CxlSpace::lock).transpose()?;
    let shares = TierShares {
        even: even_shares(&arguments, sizes, gpus.len())?,
        cxl: arguments.cxl.as_ref().map(|cxl| (cxl.place.clone(), 0)),
        disk: arguments.disk.as_ref().map(|disk| disk.directory.clone()),
    };
    let plans = gpus
        .iter()
        .map(|gpu| plan(*gpu, node.as_ref(), shares.of(*gpu, &gpus), log.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let headroom =
        arguments.headroom.map_or(if node.is_some() { 0 } else { 1024 * MIB }, |size| size.as_u64());
    server::run(Setup {
        listener,
        early,
        heritage,
        stop,
        will: Will {
            socket: socket.as_os_str().as_bytes().to_vec(),
            start: command.as_ref().map(|command| command.words.clone()),
        },
        command,
        config_file,
        abandoned: abandoned.iter().map(|node| node.path().to_owned()).collect(),
        socket,
        gpus: plans,
        gpu_memory: arguments.gpu_memory.map(|size| size.as_u64()),
        software_gpu: node.as_ref().map(|node| node.path().to_owned()),
        idle_exit: arguments.idle_exit,
        kill_expelled: arguments.evict == Some(Evict::Kill),
        permissions,
        config: Box::new(move |gpu_bytes| Config {
            user_quotas: user_quotas.clone(),
            saved_quotas: saved_quotas.clone(),
            ..sharing(&arguments, gpu_bytes, headroom, sizes, slice_max)
        }),
        ready: Box::new(say_ready),
    })?;
    // In order: nobody else will need them.
    node.iter_mut().chain(&mut abandoned).for_each(SoftwareNode::take_over);
    Ok(ExitCode::SUCCESS)
}

/// With what a GPU's mover begins.
#[derive(Clone)]
struct TierShares {
    /// In bytes; they change with the GPUs' needs.
    even: PerTier,
    /// Where CXL memory is, and where this GPU's part of a device begins.
    cxl: Option<(CxlPlace, u64)>,
    disk: Option<PathBuf>,
}

impl TierShares {
    /// Those of one of the GPUs: the parts of one device do not overlap, whatever the GPUs' order is.
    fn of(&self, gpu: GpuUuid, gpus: &[GpuUuid]) -> Self {
        let before = gpus.iter().filter(|other| **other < gpu).count() as u64;
        let start = self.even[Tier::Cxl.index()].saturating_mul(before);
        Self { cxl: self.cxl.clone().map(|(place, _)| (place, start)), ..self.clone() }
    }
}

/// An even part of each tier for each of so many GPUs, in bytes.
fn even_shares(arguments: &Options, sizes: PerTier, gpus: usize) -> anyhow::Result<PerTier> {
    let mut even = sizes.map(|bytes| whole_grains(bytes / gpus.max(1) as u64));
    let (cxl, disk) = (Tier::Cxl.index(), Tier::Disk.index());
    if let Some(space) = &arguments.cxl {
        even[cxl] = space.part(sizes[cxl], gpus)?;
    }
    if arguments.disk.is_some() && mover::whole_blocks(even[disk]) == 0 {
        bail!("--disk: {} for {gpus} GPUs are less than a block of 256KiB for each", ByteSize(sizes[disk]));
    }
    Ok(even)
}

/// The GPUs of a new manager, and the tiers that they share, in bytes.
fn found(
    arguments: &Options,
    group: Option<u32>,
) -> anyhow::Result<(Option<SoftwareNode>, Vec<GpuUuid>, PerTier)> {
    let unit = arguments.unit.as_u64();
    let node = arguments.software_gpu.as_ref().map(|spec| SoftwareNode::create(spec, unit)).transpose()?;
    if let (Some(node), Some(group)) = (&node, group) {
        node.share_with(group)?;
    }
    let gpus = match &node {
        Some(node) => node.gpus().to_vec(),
        None => hardware_gpus(&arguments.gpu)?,
    };
    let dram = match arguments.dram {
        Some(size) => size.as_u64(),
        None => hardware::available_memory()? / 2,
    };
    arguments.cxl.as_ref().map_or(Ok(()), CxlSpace::check)?;
    arguments.disk.as_ref().map_or(Ok(()), DiskSpace::check)?;
    let cxl = arguments.cxl.as_ref().map_or(0, |cxl| cxl.bytes);
    let disk = arguments.disk.as_ref().map_or(0, |disk| disk.bytes);
    Ok((node, gpus, [dram, cxl, disk]))
}

/// Those of the manager before, as they were.
fn inherited(heritage: &Heritage) -> (Option<SoftwareNode>, Vec<GpuUuid>, PerTier) {
    let gpus = heritage.gpus();
    let node = heritage.node().map(|node| SoftwareNode::of_another(node.to_owned(), gpus.clone()));
    (node, gpus, heritage.config().tier_bytes)
}

/// With what a mover, or `tidegate run`, starts the next manager: as this one was, with its socket and its file of options
/// named, so that they can be found without that file and in another environment. Where systemd has started this one, it
/// starts the next one too.
fn command_for_the_next(given: &ArgMatches, socket: &Path, file: Option<&ConfigFile>) -> Option<CommandLine> {
    let own = std::process::id().to_string();
    if std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == own) {
        return None;
    }
    let is_given = |name: &str| given.value_source(name) == Some(ValueSource::CommandLine);
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !is_given("socket") {
        words.extend(["--socket".into(), socket.to_owned().into()]);
    }
    if let Some(file) = file.filter(|_| !is_given("config")) {
        words.extend(["--config".into(), file.path.clone().into()]);
    }
    let words = words.into_iter().map(OsStringExt::into_vec).collect();
    // Where it is gone, only absolute paths lead anywhere.
    let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
    Some(CommandLine { words, directory })
}

/// A group's number, as `--group` names it.
fn group(named: Option<&str>) -> anyhow::Result<Option<u32>> {
    let Some(name) = named else { return Ok(None) };
    number_of(name, "/etc/group").map(Some).context("--group")
}

/// What an option says of users: of those that are not named, if anything, and of those that are, by uid.
fn by_user<T: Copy>(
    given: &[OfUser<T>],
    option: &'static str,
) -> anyhow::Result<(Option<T>, BTreeMap<u32, T>)> {
    let (mut others, mut named) = (None, BTreeMap::new());
    for OfUser { user, value } in given {
        match user {
            None => others = Some(*value),
            Some(user) => _ = named.insert(number_of(user, "/etc/passwd").context(option)?, *value),
        }
    }
    Ok((others, named))
}

/// Users' quotas, as an option names them.
fn quotas(given: &[OfUser<u64>], option: &'static str) -> anyhow::Result<UserQuotas> {
    let (others, named) = by_user(given, option)?;
    Ok(UserQuotas { others, named })
}

/// What users may ask for, as the options say.
fn permissions(options: &Options) -> anyhow::Result<Permissions> {
    let (others, max_priority) = by_user(&options.max_priority, "--max-priority")?;
    let max_priority_of_others = others.unwrap_or_default();
    let (max_weight_of_others, max_weight) = by_user(&options.max_weight, "--max-weight")?;
    let mut permissions = Permissions {
        max_priority,
        max_priority_of_others,
        max_weight,
        max_weight_of_others,
        ..Permissions::default()
    };
    for user in &options.allow_resident {
        match user.as_str() {
            "all" => permissions.all_resident = true,
            user => {
                let number = number_of(user, "/etc/passwd").context("--allow-resident")?;
                permissions.resident.insert(number);
            }
        }
    }
    Ok(permissions)
}

/// The number of a user or a group: itself, or that of the name in the machine's list.
fn number_of(name: &str, list: &str) -> anyhow::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let entries = std::fs::read_to_string(list).with_context(|| format!("reading {list}"))?;
    number_in(&entries, name).with_context(|| format!("no {name:?} in {list}; a number would do as well"))
}

/// NAME:PASSWORD:NUMBER:...
fn number_in(entries: &str, name: &str) -> Option<u32> {
    let entry = entries.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    entry.split(':').nth(1)?.parse().ok()
}

fn say_ready() {
    say(READY);
}

/// See [`TAKEN`].
pub(super) fn say_taken() {
    say(TAKEN);
}

fn say(word: &str) {
    let mut output = std::io::stdout();
    // Nobody may be listening: that is their affair.
    let _ = writeln!(output, "{word}").and_then(|()| output.flush());
}

/// A part of something, as in `5%`.
fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    number
        .filter(|percent| (1..=50).contains(percent))
        .ok_or_else(|| "from 1% to 50% is wanted, as in 5%".into())
}

/// Sizes that are not given follow the GPU's.
fn sharing(
    arguments: &Options,
    gpu_bytes: u64,
    headroom: u64,
    tier_bytes: PerTier,
    slice_max: Duration,
) -> Config {
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
        slice_max,
        switch_percent: arguments.switch_overhead,
        boundary_deadline: arguments
            .boundary_deadline
            .unwrap_or_else(|| (arguments.slice * 10).max(Duration::from_secs(1))),
        drain_limit: arguments.drain_limit,
        answer_limit: arguments.answer_limit,
        oversubscribe: arguments.oversubscribe.unwrap_or(false),
        expel_silent: arguments.evict == Some(Evict::Kill),
        poison: arguments.poison.unwrap_or(false),
        own_uid: rustix::process::geteuid().as_raw(),
        user_quotas: UserQuotas::default(),
        saved_quotas: UserQuotas::default(),
        tier_bytes,
        cxl_is_in_parts: arguments.cxl.as_ref().is_some_and(CxlSpace::is_in_parts),
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

fn plan(
    gpu: GpuUuid,
    node: Option<&SoftwareNode>,
    shares: TierShares,
    log: Option<&File>,
) -> anyhow::Result<GpuPlan> {
    let locks = match node {
        Some(node) => vec![node.lock(gpu)?],
        None => hardware::lock(gpu, &gpu_locks()?)?,
    };
    let driver = node.map_or_else(|| PathBuf::from("libcuda.so.1"), SoftwareNode::driver);
    let node = node.map(|node| node.path().to_owned());
    let program = std::env::current_exe()?;
    let log = log.map(File::try_clone).transpose().context("opening the log for a mover")?;
    let even = shares.even;
    let mover = move |[dram, cxl, disk]: PerTier| {
        let mut command = Command::new(&program);
        command.arg("mover").arg("--gpu").arg(gpu.to_string());
        command.arg("--dram-bytes").arg(dram.to_string()).arg("--driver").arg(&driver);
        if let Some((place, start)) = &shares.cxl {
            command.arg("--cxl").arg(place.to_string()).arg("--cxl-start").arg(start.to_string());
            command.arg("--cxl-bytes").arg(cxl.to_string());
        }
        if let Some(directory) = &shares.disk {
            command.arg("--disk").arg(directory).arg("--disk-bytes").arg(disk.to_string());
        }
        command.env_remove("LD_PRELOAD").env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(node) = &node {
            command.env(software_gpu::NODE_VARIABLE, node);
        }
        if let Some(log) = &log {
            match log.try_clone() {
                Ok(log) => drop(command.stderr(log)),
                Err(error) => tracing::warn!(%error, "a mover's log goes to standard error"),
            }
        }
        command
    };
    Ok(GpuPlan { uuid: gpu, mover: Box::new(mover), shares: even, locks })
}

/// The directory of this user's locks on GPUs, whatever sockets their managers have.
fn gpu_locks() -> anyhow::Result<PathBuf> {
    let socket = if rustix::process::geteuid().is_root() { system_socket() } else { personal_socket()? };
    let directory = socket.parent().context("the socket's path has no directory")?;
    ownership::make_directory(directory)?;
    Ok(directory.to_owned())
}

fn socket_path(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => Ok(path),
        None if rustix::process::geteuid().is_root() => Ok(system_socket()),
        None => personal_socket(),
    }
}

/// Takes the socket's place: a lock beside it says whether a socket that is there already is
/// somebody's. It is released by death.
fn lock(path: &Path) -> anyhow::Result<OwnedFd> {
    let directory = path.parent().context("the socket's path has no directory")?;
    ownership::make_directory(directory)?;
    let lock = ownership::open_lock_file(&path.with_added_extension("lock"))?;
    let try_lock = || flock(&lock, FlockOperation::NonBlockingLockExclusive);
    let locked = match try_lock() {
        // It may be dying.
        Err(Errno::WOULDBLOCK) if server::has_died(path, DYING) => try_lock(),
        locked => locked,
    };
    match locked {
        Err(Errno::WOULDBLOCK) => return Err(Taken(path.to_owned()).into()),
        locked => locked.with_context(|| format!("locking {}", path.display()))?,
    }
    Ok(lock)
}

/// Listens on `path`: for the user alone, or for a group too. The socket appears there when it is
/// ready to be connected to: whoever waits for it sees one event.
fn listen(path: &Path, group: Option<u32>) -> anyhow::Result<UnixListener> {
    let new = path.with_added_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing the old {}", new.display()));
        }
        _ => {}
    }
    // Nobody else may connect between bind and chmod.
    let old = rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(&new);
    rustix::process::umask(old);
    let listener = listener.with_context(|| format!("listening on {}", new.display()))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(&new, None, Some(group)).context("giving the socket to its group")?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660))?;
    }
    std::fs::rename(&new, path).with_context(|| format!("listening on {}", path.display()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command as Subcommand};
    use super::*;
    use clap::{CommandFactory, FromArgMatches, Parser};

    /// The options of a command line, completed by a file.
    fn read(line: &str, file: &str) -> Result<Options, String> {
        let words = ["tidegate", "manager"].into_iter().chain(line.split_whitespace());
        let matches = Cli::command().try_get_matches_from(words).unwrap();
        let Subcommand::Manager(arguments) = Cli::from_arg_matches(&matches).unwrap().command else {
            panic!("{line} starts no manager")
        };
        let mut options = arguments.options;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager.toml");
        std::fs::write(&path, file).unwrap();
        let given = matches.subcommand_matches("manager").unwrap();
        let file = ConfigFile::read(&path).unwrap();
        config::complete(&mut options, given, &file).map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn the_directory_of_the_disk_tier_is_found_in_a_file() {
        assert_eq!(disk_of("dram = 4096\ndisk = '/scratch=1GiB'"), Some("/scratch".into()));
        assert_eq!(disk_of("dram = 4096").or(disk_of("disk = 7")).or(disk_of("disk = '/scratch'")), None);
    }

    #[test]
    fn a_file_says_what_the_command_line_leaves_open() {
        let file = "unit = '64KiB'\ndram = 4096\npoison = true\nslice = \"1s\"\n";
        let options = read("--slice 5ms --piece 1MiB", file).unwrap();
        assert_eq!((options.unit, options.dram), (ByteSize::kib(64), Some(ByteSize(4096))));
        assert_eq!((options.slice, options.piece), (Duration::from_millis(5), Some(ByteSize::mib(1))));
        assert_eq!((options.poison, options.drain_limit), (Some(true), Duration::from_secs(10)));
        assert_eq!(read("--poison=false", file).unwrap().poison, Some(false));
        assert_eq!(read("--poison", "unit = 4096").unwrap().poison, Some(true));
        assert_eq!(read("--slice 200ms", file).unwrap().slice, Duration::from_millis(200));
    }

    #[test]
    fn what_excludes_each_other_is_decided_by_the_command_line() {
        let uuid = "GPU-30313233-3435-3637-3839-616263646566";
        let file = format!("gpu = ['{uuid}', '{uuid}']");
        assert_eq!(read("", &file).unwrap().gpu.len(), 2);
        let options = read("--software-gpu 1x1MiB", &file).unwrap();
        assert!(options.gpu.is_empty() && options.software_gpu.is_some());
        let options = read(&format!("--gpu {uuid}"), "software-gpu = '1x1MiB'").unwrap();
        assert!(options.gpu.len() == 1 && options.software_gpu.is_none());
        let error = read("", &format!("{file}\nsoftware-gpu = '1x1MiB'")).unwrap_err();
        assert!(error.contains("manager.toml") && error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn what_a_file_gets_wrong_is_named_with_its_line() {
        for (file, words) in [
            ("unit = 4096\n\nunits = 1\n", ["manager.toml:3:", "units"]),
            ("config = 'x'", ["manager.toml:1:", "config"]),
            ("help = true", ["manager.toml:1:", "help"]),
            ("\nslice = '2parsecs'", ["manager.toml:2:", "2parsecs"]),
            ("slice = '1s'\nslice = '2s'", ["manager.toml:2:", "duplicate key"]),
            ("unit = 'x", ["manager.toml:1:", "string"]),
            ("[unit]\nx = 1", ["manager.toml:1:", "table"]),
            ("slice = ['1s', '2s']", ["manager.toml:1:", "multiple times"]),
        ] {
            let error = read("", file).unwrap_err();
            assert!(
                words.iter().all(|word| error.contains(word)) && error.lines().count() == 1,
                "{file}: {error}"
            );
        }
    }

    #[test]
    fn the_example_file_names_every_option_and_can_be_read() {
        let example = include_str!("../../../packaging/manager.toml");
        let used: String = example
            .lines()
            .map(|line| line.strip_prefix("#").filter(|rest| rest.contains(" = ")).unwrap_or(line))
            .filter(|line| !line.starts_with("gpu = "))
            .map(|line| format!("{line}\n"))
            .collect();
        let options = read("", &used).unwrap_or_else(|error| panic!("{error}: {used}"));
        assert!(options.software_gpu.is_some());
        for arg in <Options as clap::Args>::augment_args(clap::Command::new("options")).get_arguments() {
            let name = arg.get_long().unwrap();
            assert!(
                example.lines().any(|line| line.trim_start_matches('#').starts_with(&format!("{name} = "))),
                "{name}"
            );
        }
    }

    /// Each command line of the systemd unit that starts us.
    #[test]
    fn the_unit_starts_a_manager() {
        let unit = include_str!("../../../packaging/systemd/tidegate.service");
        let mut starts = unit.lines().filter_map(|line| line.strip_prefix("ExecStart="));
        let words: Vec<&str> = starts.next().unwrap().split_whitespace().collect();
        assert_eq!((starts.next(), words[0]), (None, "/usr/bin/tidegate"));
        let Subcommand::Manager(arguments) = Cli::try_parse_from(words).unwrap().command else {
            panic!("the unit starts no manager")
        };
        assert_eq!(arguments.options.group.as_deref(), Some("tidegate"));
        let directory =
            format!("/run/{}", unit.lines().find_map(|l| l.strip_prefix("RuntimeDirectory=")).unwrap());
        assert_eq!(system_socket().parent(), Some(Path::new(&directory)));
    }

    #[test]
    fn the_longest_slice_is_no_shorter_than_the_shortest() {
        let [short, usual, long] = [1, 10, 100].map(Duration::from_secs);
        assert_eq!(longest_slice(short, None).unwrap(), usual);
        assert_eq!(longest_slice(long, None).unwrap(), long);
        assert_eq!(longest_slice(short, Some(long)).unwrap(), long);
        assert_eq!(longest_slice(long, Some(long)).unwrap(), long);
        let refused = longest_slice(long, Some(usual)).unwrap_err().to_string();
        assert_eq!(refused, "--slice 1m 40s: that is longer than --slice-max 10s");
    }

    #[test]
    fn a_group_is_known_by_its_name_or_number() {
        assert_eq!(number_in("root:x:0:\ntidegates:x:5:\ntidegate:x:17:ann,bob\n", "tidegate"), Some(17));
        assert_eq!(number_in("root:x:0:\n", "tidegate"), None);
        assert_eq!(group(Some("65534")).unwrap(), Some(65534));
        let refused = format!("{:#}", group(Some("no such group")).unwrap_err());
        assert!(refused.starts_with("--group: no \"no such group\" in /etc/group"), "{refused}");
    }
}
