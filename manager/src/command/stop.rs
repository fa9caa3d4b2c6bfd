//! `tidegate manager stop`: ends a manager, and answers when it has ended.

use super::connect::{ask, connect, hear};
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{FromCommand, StopWhen, ToCommand};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Admit no new jobs, let the present ones run to their ends, then end.
    #[arg(long, conflicts_with = "now")]
    drain: bool,
    /// End at once, though jobs run under it: those that wait for their turn fail, the others go on with what they have.
    /// Without this or --drain a manager that has jobs does not end.
    #[arg(long)]
    now: bool,
    /// The manager's Unix socket. Default: $TIDEGATE_SOCKET if that is set, else
    /// /run/tidegate/socket or $XDG_RUNTIME_DIR/tidegate/socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(super) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (connection, _) = connect(arguments.socket.as_deref())?;
    let manager = process_of(&connection);
    let when = match arguments {
        Arguments { drain: true, .. } => StopWhen::Drained,
        Arguments { now: true, .. } => StopWhen::Now,
        _ => StopWhen::Idle,
    };
    let ToCommand::Stopping { jobs } = ask(&connection, FromCommand::Stop(when))? else {
        bail!("the manager answered something else than whether it ends");
    };
    if arguments.drain && jobs > 0 {
        eprintln!("tidegate: no new jobs are admitted; the manager ends with the last of {jobs}");
    }
    while hear(&connection).context("the manager ended, but not in order")? != ToCommand::Stopped {}
    if let Some(manager) = manager {
        wait_for_death(&manager)?;
    }
    println!("the manager has ended");
    Ok(ExitCode::SUCCESS)
}

/// The manager's process, where it can be seen from here (not from inside a container).
fn process_of(connection: &Connection) -> Option<OwnedFd> {
    let peer = rustix::net::sockopt::socket_peercred(connection).ok()?;
    pidfd_open(peer.pid, PidfdFlags::empty()).ok()
}

fn wait_for_death(process: &OwnedFd) -> anyhow::Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the manager's end"),
        }
    }
}
