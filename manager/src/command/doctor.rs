//! `tidegate doctor`: whether jobs can run here, and what could be better.

use super::connect::{ask_status, candidates};
use super::manager::configured_disk;
use crate::doctor::socket::{self, Silence, Tried};
use crate::doctor::{Machine, Report, bandwidth, driver, environment, libraries, limits, memory};
use crate::software_gpu::{NODE_VARIABLE, NodeSpec, SoftwareNode};
use anyhow::Context;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::ffi::{CStr, CString, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::When;

/// The granularity of software GPUs that are made to be looked at.
const UNIT: u64 = 2 << 20;
/// How long a manager may take to tell its status.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The manager's Unix socket. Default: $TIDEGATE_SOCKET if that is set, else
    /// /run/tidegate/socket or $XDG_RUNTIME_DIR/tidegate/socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON (docs/doctor.md explains each name).
    #[arg(long)]
    json: bool,
    /// Look at software GPUs in place of the machine's, as in 1x1GiB.
    #[arg(long, value_name = "SPEC")]
    software_gpu: Option<NodeSpec>,
    /// (internal) Ask this driver, and nothing else.
    #[arg(long, hide = true)]
    ask_driver: Option<OsString>,
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(library) = arguments.ask_driver {
        println!("{}", serde_json::to_string(&driver::ask(&CString::new(library.into_vec())?))?);
        return Ok(ExitCode::SUCCESS);
    }
    let report = examine(&Machine::at("/"), &arguments)?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? } else { report.to_string() };
    writeln!(std::io::stdout(), "{text}").context("writing the report to standard output")?;
    Ok(if report.jobs_can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(machine: &Machine, arguments: &Arguments) -> anyhow::Result<Report> {
    let node = arguments.software_gpu.as_ref().map(|spec| SoftwareNode::create(spec, UNIT)).transpose()?;
    let asked = driver::ask_by(asker(node.as_ref())?, driver::LIMIT);
    let gpu_bytes = asked.iter().flat_map(|asked| &asked.gpus).map(|gpu| gpu.bytes).sum();
    let mut findings = driver::look(machine, &asked);
    findings.extend(libraries::look(running_glibc()));
    findings.push(socket::look(&try_sockets(arguments.socket.as_deref())));
    findings.extend(limits::look(machine));
    findings.extend(memory::look(machine, gpu_bytes));
    findings.extend(bandwidth::look(configured_disk().as_deref()));
    findings.extend(environment::look(&variables()));
    Ok(Report::of(findings))
}

/// This command, to ask the driver that jobs will have.
fn asker(node: Option<&SoftwareNode>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let library = match node {
        Some(node) => node.driver(),
        None => named_software_driver().unwrap_or_else(|| "libcuda.so.1".into()),
    };
    command.arg("doctor").arg("--ask-driver").arg(library).env_remove("LD_PRELOAD");
    if let Some(node) = node {
        command.env(NODE_VARIABLE, node.path());
    }
    Ok(command)
}

/// The driver of the software GPUs that the environment names.
fn named_software_driver() -> Option<PathBuf> {
    let node = std::env::var_os(NODE_VARIABLE)?;
    Some(Path::new(&node).join("lib/libcuda.so.1")).filter(|driver| driver.exists())
}

fn running_glibc() -> Option<u32> {
    // SAFETY: no arguments.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: a C string that lives as long as the process.
    libraries::minor_version(unsafe { CStr::from_ptr(version) }.to_str().ok()?)
}

fn variables() -> environment::Variables {
    let text = |value: OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

fn try_sockets(given: Option<&Path>) -> Vec<Tried> {
    let paths = given.map_or_else(candidates, |path| vec![path.to_owned()]);
    paths.into_iter().map(|path| Tried { answer: try_socket(&path), path }).collect()
}

/// How many jobs the manager at a socket has.
fn try_socket(path: &Path) -> Result<usize, Silence> {
    let connection = Connection::connect(path).map_err(Silence::Unconnected)?;
    let mute = |error: anyhow::Error| Silence::Mute(format!("{error:#}"));
    let limited = set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE)).context("limiting a wait");
    let status = limited.and_then(|()| ask_status(&connection, When::Now)).map_err(mute)?;
    Ok(status.jobs.len() + status.others.jobs as usize)
}

#[cfg(test)]
mod tests {
    use super::super::connect::tests::manager_for_one;
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_manager_that_answers_is_found_and_one_that_does_not_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        assert!(matches!(try_socket(&socket), Err(Silence::Unconnected(_))));
        let manager = manager_for_one(&socket);
        assert!(matches!(try_socket(&socket), Ok(0)));
        manager.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let gone = std::thread::spawn(move || drop(listener.accept()));
        assert!(matches!(try_socket(&socket), Err(Silence::Mute(_))));
        gone.join().unwrap();
    }
}
