//! `tidegate watch`: tells the user of `tidegate run` where the job stands, as long as it lives.

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::ToCommand;

/// Standard input is the connection that announced the job.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The process to watch.
    #[arg(long)]
    program: i32,
    /// Go on in a process of its own, nobody's child.
    #[arg(long)]
    detach: bool,
}

pub(super) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("standard input is no socket")?;
    if arguments.detach {
        detach(arguments.program, socket)?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = Pid::from_raw(arguments.program).context("no process")?;
    // Who is gone before it could be watched needs no watching.
    if let Ok(program) = pidfd_open(program, PidfdFlags::empty()) {
        watch(&Connection::from(socket), &program);
    }
    Ok(ExitCode::SUCCESS)
}

fn detach(program: i32, socket: OwnedFd) -> anyhow::Result<()> {
    Command::new(std::env::current_exe()?)
        .args(["watch", "--program", &program.to_string()])
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(())
}

fn watch(connection: &Connection, program: &OwnedFd) {
    let mut said = Said::default();
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(program, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match connection.receive::<ToCommand>() {
            Ok((ToCommand::Queue { place, of, behind, quota }, _)) => said.tell(place, of, behind, quota),
            Ok(_) => {}
            // The manager is gone; the shim says what that means for the program.
            Err(_) => return,
        }
    }
}

/// What the user knows already.
#[derive(Default)]
struct Said {
    waits: bool,
    behind: Option<String>,
    quota: Option<String>,
}

impl Said {
    /// Says that the job begins to wait for its first turn, for whom in vain, and for whose quota; turns that come
    /// and go are not news.
    fn tell(&mut self, place: u32, of: u32, behind: Option<String>, quota: Option<String>) {
        if place > 0 && !std::mem::replace(&mut self.waits, true) {
            eprintln!("tidegate: waiting for GPU memory, place {place} of {of}");
        }
        if let Some(name) = &behind
            && self.behind != behind
        {
            eprintln!(
                "tidegate: waiting for {name:?}, which cannot be preempted: its work does not end, it does not answer, or it has memory that cannot be moved"
            );
            self.behind = behind;
        }
        if let Some(why) = &quota
            && self.quota != quota
        {
            eprintln!("tidegate: waiting: {why}");
            self.quota = quota;
        }
    }
}
