//! How a manager begins: with new movers, or with what another one left.

use super::gpus::{self, GpuPlan, MoverLink};
use super::legacy::{CommandLine, ConfigFile, Heritage, StateFile, WillFile};
use super::rights::Permissions;
use super::{Input, Server, client};
use crate::scheduler::{Config, Event, Scheduler};
use crossbeam_channel::{Receiver, Sender, unbounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::Duration;
use tidegate_ffi::os;
use tidegate_ffi::wire::message::Will;

/// How a server is set up.
pub struct Setup {
    /// Its socket, already listening.
    pub listener: UnixListener,
    /// The socket's path.
    pub socket: PathBuf,
    /// Readable when the process is asked to end: see [`stop_signals`].
    pub stop: UnixStream,
    /// Who has connected already.
    pub early: Vec<UnixStream>,
    /// What another manager has left.
    pub heritage: Option<Heritage>,
    /// What movers do when this manager dies.
    pub will: Will,
    /// The GPUs and their movers' commands.
    pub gpus: Vec<GpuPlan>,
    /// How to share; made from the smallest GPU's size in bytes, once the GPUs are known.
    pub config: Box<dyn Fn(u64) -> Config>,
    /// The most memory of each GPU that the ledger may use.
    pub gpu_memory: Option<u64>,
    /// The directory of the software GPUs, if it is those.
    pub software_gpu: Option<PathBuf>,
    /// Directories of software GPUs of managers that died, which processes still use.
    pub abandoned: Vec<PathBuf>,
    /// How this manager was started; `None`: a supervisor starts the next one.
    pub command: Option<CommandLine>,
    /// The file of options that it read, if any.
    pub config_file: Option<ConfigFile>,
    /// End when nobody has been connected for so long.
    pub idle_exit: Option<Duration>,
    /// What users may ask for at the cost of other users.
    pub permissions: Permissions,
    /// Whoever is expelled is killed.
    pub kill_expelled: bool,
    /// Called once clients can connect.
    pub ready: Box<dyn FnOnce()>,
}

/// Runs a manager until it is asked to stop or, if so set up, has nothing to do any more.
pub fn run(mut setup: Setup) -> anyhow::Result<()> {
    let (sender, inputs) = unbounded();
    stop_on_signals(os::duplicate(&setup.stop)?.into(), sender.clone())?;
    let mut held_back = VecDeque::new();
    let is_heir = setup.heritage.is_some();
    let mut server = match setup.heritage.take() {
        Some(heritage) => Server::inherit(&mut setup, heritage, &sender)?,
        None => Server::begin(&mut setup, &sender, &inputs, &mut held_back)?,
    };
    let _dies = DiesOfPanic;
    server.leave_will();
    server.settle();
    client::accept(setup.listener, setup.early, server.last_client + 1, server.shares, sender)?;
    if is_heir {
        held_back = server.await_return(&inputs);
        server.part_from_the_absent();
        server.settle();
    }
    (setup.ready)();
    server.serve(&inputs, held_back)?;
    Ok(())
}

/// A core that panics ends nothing in order: what it leaves behind is for the next one.
struct DiesOfPanic;

impl Drop for DiesOfPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Whether the manager on `socket` is dead, or dies within `patience`.
pub fn has_died(socket: &Path, patience: Duration) -> bool {
    WillFile::has_died(socket, patience)
}

/// The movers that live of the manager that was on `socket`: one of them starts the next.
pub fn heirs(socket: &Path) -> Vec<OwnedFd> {
    WillFile::heirs(socket)
}

/// How the manager on `socket` was started that has died there, where this user may start it again so.
pub fn last_command(socket: &Path) -> Option<CommandLine> {
    WillFile::last_command(socket)
}

/// The file of options of the manager that has died on `socket`, where the next one takes over from it.
pub fn config_to_take_over(socket: &Path) -> Option<ConfigFile> {
    WillFile::config_to_take_over(socket)
}

/// Where the file lies that says so.
pub fn will_path(socket: &Path) -> PathBuf {
    WillFile::path(socket)
}

/// As if a manager on `socket` had died that had this mover.
#[cfg(test)]
pub(crate) fn leave_mover(socket: &Path, pid: u32) {
    let mover = crate::process::ProcessName::of(pid as i32).unwrap();
    WillFile::new(vec![(super::stage::GPU, mover)], None).write(socket).unwrap();
}

/// From now on SIGINT and SIGTERM end nothing by themselves: there is something to read here.
pub fn stop_signals() -> std::io::Result<UnixStream> {
    let (asked, signals) = os::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, signals.try_clone()?)?;
    }
    Ok(asked)
}

/// Ends the server in order when it is asked to.
fn stop_on_signals(mut stop: UnixStream, inputs: Sender<Input>) -> anyhow::Result<()> {
    os::start_thread(Builder::new().name("signals".into()), move || {
        if stop.read_exact(&mut [0]).is_ok() {
            // The core has ended already if nobody listens.
            let _ = inputs.send(Input::Stop);
        }
    })?;
    Ok(())
}

impl Server {
    /// Begins with new movers.
    fn begin(
        setup: &mut Setup,
        sender: &Sender<Input>,
        inputs: &Receiver<Input>,
        held_back: &mut VecDeque<Input>,
    ) -> anyhow::Result<Self> {
        let mut movers = BTreeMap::new();
        for plan in std::mem::take(&mut setup.gpus) {
            movers.insert(plan.uuid, MoverLink::start(plan, sender.clone())?);
        }
        gpus::wait_until_ready(&mut movers, inputs, held_back)?;
        let usable = |mover: &MoverLink| mover.usable(setup.gpu_memory);
        let config = (setup.config)(movers.values().map(usable).min().unwrap_or(0));
        let units = |bytes: u64| u32::try_from(bytes / config.unit_bytes).unwrap_or(u32::MAX / 8);
        let added = movers.iter().map(|(id, mover)| {
            let apart = mover.state().total_bytes - usable(mover);
            let shares = mover.state().shares;
            Event::GpuAdded { gpu: *id, units: units(usable(mover)), apart: units(apart), shares }
        });
        let added: Vec<Event> = added.collect();
        let file = StateFile::create()?;
        let testament = setup.testament(&file)?;
        let mut server = Self::over(Scheduler::new(config), movers, file, setup);
        added.into_iter().for_each(|event| server.tell_scheduler(event));
        server.movers.values_mut().for_each(|mover| mover.entrust(testament.clone()));
        Ok(server)
    }

    pub(super) fn over(
        scheduler: Scheduler,
        movers: BTreeMap<tidegate_ffi::units::GpuUuid, MoverLink>,
        file: StateFile,
        setup: &Setup,
    ) -> Self {
        let mut server = Self::new(scheduler, movers, file);
        (server.idle_exit, server.kill_expelled) = (setup.idle_exit, setup.kill_expelled);
        server.socket = Some(setup.socket.clone());
        server.software_gpu.clone_from(&setup.software_gpu);
        (server.abandoned, server.command) = (setup.abandoned.clone(), setup.command.clone());
        server.config_file.clone_from(&setup.config_file);
        server.permissions = setup.permissions.clone();
        server
    }
}
