//! `tidegate run -- CMD`: becomes CMD, with the shim in front of the driver.
//!
//! The process announces the job, starts a watcher that tells the user where the job stands, and
//! then *is* CMD (`execve`): signals, Ctrl-C, Ctrl-Z, the terminal and the exit status are CMD's
//! own, with nothing in between.

use super::connect::{ask, connect, manager_at, start_manager};
use crate::artifacts;
use anyhow::{Context, bail};
use bytesize::ByteSize;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use tidegate_ffi::wire::message::{FromCommand, JobSpec, Need, ToCommand};
use tidegate_ffi::wire::{Connection, JOB_VARIABLE, SOCKET_VARIABLE, own_socket};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The manager's socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The job's name; what it needs is remembered under it. Default: CMD and its arguments.
    #[arg(long)]
    name: Option<String>,
    /// The strict priority class: higher runs first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// The share of GPU time among jobs of one priority.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    weight: u32,
    /// Never take turns (serving).
    #[arg(long)]
    resident: bool,
    /// The most GPU memory the job may hold on one GPU.
    #[arg(long, value_name = "QUOTA")]
    memory: Option<ByteSize>,
    /// Memory the job will need on each GPU: persistent and temporary, as in 3GiB,8GiB.
    #[arg(long, value_name = "P,T")]
    need: Option<NeedArgument>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy)]
struct NeedArgument(Need);

impl FromStr for NeedArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (persistent, temporary) = text.split_once(',').ok_or("two sizes are wanted, as in 3GiB,8GiB")?;
        let size = |text: &str| text.trim().parse::<ByteSize>().map(|size| size.as_u64());
        Ok(Self(Need { persistent: size(persistent)?, temporary: size(temporary)? }))
    }
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let shim = artifacts::shim()?;
    let (connection, socket) = find_or_start_manager(arguments.socket.as_deref())?;
    let (program, rest) = arguments.command.split_first().context("no program to run")?;
    let name = arguments.name.clone().unwrap_or_else(|| default_name(program, rest));
    let spec = JobSpec {
        name,
        priority: arguments.priority,
        weight: arguments.weight,
        resident: arguments.resident,
        memory: arguments.memory.map(|size| size.as_u64()),
        need: arguments.need.map(|need| need.0),
    };
    let ToCommand::Registered { token, software_gpu, .. } = ask(&connection, FromCommand::Register(spec))?
    else {
        bail!("the manager answered something else than a registration");
    };
    start_watcher(connection)?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", prepended(shim.as_os_str(), "LD_PRELOAD"));
    command.env(SOCKET_VARIABLE, &socket).env(JOB_VARIABLE, token.to_string());
    if let Some(node) = software_gpu {
        let libraries = Path::new(&node).join("lib");
        command.env("TIDEGATE_SOFTGPU", &node);
        command.env("LD_LIBRARY_PATH", prepended(libraries.as_os_str(), "LD_LIBRARY_PATH"));
    }
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    eprintln!("tidegate: cannot run {}: {error}", program.display());
    Ok(ExitCode::from(code))
}

/// The command line: two trainings by one interpreter need different memory.
fn default_name(program: &OsString, arguments: &[OsString]) -> String {
    let program = Path::new(program).file_name().unwrap_or(program);
    let words = std::iter::once(program).chain(arguments.iter().map(OsString::as_os_str));
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn prepended(first: &OsStr, variable: &str) -> OsString {
    let mut value = first.to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

fn find_or_start_manager(socket: Option<&Path>) -> anyhow::Result<(Connection, PathBuf)> {
    if let Ok(found) = connect(socket) {
        return Ok(found);
    }
    let named = socket.map(Path::to_owned).or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from));
    let socket = named.or_else(own_socket).unwrap_or_else(fallback_socket);
    // It ends when nobody needs it.
    let mut manager = manager_at(&socket)?;
    manager.args(["--idle-exit", "10s"]);
    start_manager(manager).context("no manager answered")?;
    connect(Some(&socket))
}

fn fallback_socket() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-{}/socket", rustix::process::getuid().as_raw()))
}

/// Starts the watcher as nobody's child: CMD must not find a child that it did not start.
fn start_watcher(connection: Connection) -> anyhow::Result<()> {
    let mut watcher = Command::new(std::env::current_exe()?);
    watcher.args(["watch", "--program", &std::process::id().to_string(), "--detach"]);
    let socket: OwnedFd = connection.into();
    let status = watcher.stdin(Stdio::from(socket)).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("the watcher could not be started");
    }
    Ok(())
}
