//! `tidegate evict`: ends a job, and answers when it is over.

use super::connect::{ask, connect, hear};
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_ffi::units::JobId;
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{Ending, FromCommand, ToCommand};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The job: its number, or its name where no other job has the same.
    #[arg(value_name = "JOB")]
    job: String,
    /// Kill the job's processes at once (SIGKILL). Default: ask them to end (SIGTERM), and wait.
    #[arg(long)]
    kill: bool,
    /// Kill the processes that have not ended after so long.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "kill")]
    after: Option<Duration>,
    /// The manager's Unix socket. Default: $TIDEGATE_SOCKET if that is set, else
    /// /run/tidegate/socket or $XDG_RUNTIME_DIR/tidegate/socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(super) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (connection, _) = connect(arguments.socket.as_deref())?;
    let how = if arguments.kill { Ending::Kill } else { Ending::Ask };
    let (job, processes) = evict(&connection, arguments.job.clone(), how)?;
    let done = if arguments.kill { "killed" } else { "asked to end" };
    eprintln!("tidegate: {job}: {processes} process(es) {done}");
    if let Some(limit) = arguments.after
        && !is_answered_within(&connection, limit)?
    {
        return kill(&connection, job);
    }
    wait_for_end(&connection)
}

fn evict(connection: &Connection, job: String, how: Ending) -> anyhow::Result<(JobId, u32)> {
    match ask(connection, FromCommand::Evict { job, how })? {
        ToCommand::Evicting { job, processes } => Ok((job, processes)),
        _ => bail!("the manager answered something else than whether it ends the job"),
    }
}

/// Kills what was asked to end and has not; it may end by itself just now.
fn kill(connection: &Connection, job: JobId) -> anyhow::Result<ExitCode> {
    eprintln!("tidegate: {job} has not ended in time: it is killed");
    match ask(connection, FromCommand::Evict { job: job.0.to_string(), how: Ending::Kill })? {
        ToCommand::Evicted { job } => Ok(say_ended(job)),
        _ => wait_for_end(connection),
    }
}

fn wait_for_end(connection: &Connection) -> anyhow::Result<ExitCode> {
    loop {
        if let ToCommand::Evicted { job } = hear(connection).context("waiting for the job's end")? {
            return Ok(say_ended(job));
        }
    }
}

fn say_ended(job: JobId) -> ExitCode {
    println!("{job} has ended");
    ExitCode::SUCCESS
}

/// Whether the manager says something before `limit` has passed.
fn is_answered_within(connection: &Connection, limit: Duration) -> anyhow::Result<bool> {
    let began = Instant::now();
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let left = Timespec::try_from(left).context("--after: that is too long")?;
        match poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the job's end"),
        }
    }
}
