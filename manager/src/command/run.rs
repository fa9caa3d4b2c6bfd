//! `tidegate run -- CMD`: becomes CMD, with the shim in front of the driver.
//!
//! The process announces the job, starts a watcher that tells the user where the job stands, and
//! then *is* CMD (`execve`): signals, Ctrl-C, Ctrl-Z, the terminal and the exit status are CMD's
//! own, with nothing in between.

use super::connect::{ask, find_or_start_manager};
use crate::artifacts;
use anyhow::{Context, bail};
use bytesize::ByteSize;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use tidegate_ffi::launch;
use tidegate_ffi::wire::message::{FromCommand, JobSpec, Need, ToCommand};
use tidegate_ffi::wire::{
    Connection, JOB_VARIABLE, KERNELS_VARIABLE, ReceiveError, SOCKET_VARIABLE, SendError, TRUST_VARIABLE,
    trusted_uids,
};

/// So many managers in a row may die before one has answered.
const MANAGERS: u32 = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The manager's Unix socket. Default: $TIDEGATE_SOCKET if that is set, else
    /// /run/tidegate/socket or $XDG_RUNTIME_DIR/tidegate/socket; if nobody answers, a manager is
    /// started, which ends 10s after its last job.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The job's name; how much memory it needed is remembered under it for its next run. Default:
    /// the command line.
    #[arg(long)]
    name: Option<String>,
    /// Strict priority: while a job of higher priority can run, those below wait.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Share of the GPU time among jobs of one priority: 2 gets twice as much as 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    weight: u32,
    /// Never preempt the job once it runs (serving).
    #[arg(long)]
    resident: bool,
    /// Quota: the most memory that each process of the job may hold on a GPU; it sees no more.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    memory: Option<ByteSize>,
    /// How much memory the job will need on each GPU: persistent (weights, optimizer state), and
    /// temporary at most (activations), as in 3GiB,8GiB. Default: what it needed last time.
    #[arg(long, value_name = "SIZE,SIZE")]
    need: Option<NeedArgument>,
    /// Give the job host memory for what it needs beyond its GPU's, when it asks again after CUDA_ERROR_OUT_OF_MEMORY, as
    /// frameworks do that have given back what they cached. The GPU reaches it over its link: the job goes on, more slowly. It
    /// sees a total larger than its GPU's.
    #[arg(long)]
    oversubscribe: bool,
    /// A kernel, by its mangled name, that touches only the allocations which its parameters point into: it may
    /// run as soon as these are there, when the job's memory comes back. Can be given several times. If it touches
    /// more, it faults; it must not wait on the GPU for kernels that are not listed. Each launch of the program, not
    /// of graphs, is looked at, which takes calls of the driver.
    #[arg(long = "described-kernel", value_name = "NAME", value_delimiter = ',')]
    described_kernels: Vec<String>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy)]
struct NeedArgument(Need);

impl FromStr for NeedArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (persistent, temporary) = text.split_once(',').ok_or("two sizes are wanted, as in 3GiB,8GiB")?;
        let bytes = |text| super::size(text).map(|size| size.as_u64());
        Ok(Self(Need { persistent: bytes(persistent)?, temporary: bytes(temporary)? }))
    }
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let shim = artifacts::shim()?;
    let (program, rest) = arguments.command.split_first().context("no program to run")?;
    let name = arguments.name.clone().unwrap_or_else(|| default_name(program, rest));
    let spec = JobSpec {
        name,
        priority: arguments.priority,
        weight: arguments.weight,
        resident: arguments.resident,
        memory: arguments.memory.map(|size| size.as_u64()),
        need: arguments.need.map(|need| need.0),
        oversubscribe: arguments.oversubscribe,
        launch: launch::identity(),
    };
    let (connection, socket, answer) = announce(arguments.socket.as_deref(), &spec)?;
    let ToCommand::Registered { token, software_gpu, joined, .. } = answer else {
        bail!("the manager answered something else than a registration");
    };
    if let Some(job) = &joined {
        say_what_differs(&arguments, job);
    }
    start_watcher(connection)?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", prepended(shim.as_os_str(), "LD_PRELOAD"));
    // The program may go to another directory before it uses CUDA.
    let socket =
        std::path::absolute(&socket).with_context(|| format!("{} has no place", socket.display()))?;
    command.env(SOCKET_VARIABLE, socket).env(JOB_VARIABLE, token.to_string());
    if let [first, rest @ ..] = trusted_uids() {
        let uids = rest.iter().fold(first.to_string(), |uids, uid| format!("{uids},{uid}"));
        command.env(TRUST_VARIABLE, uids);
    }
    if !arguments.described_kernels.is_empty() {
        command.env(KERNELS_VARIABLE, arguments.described_kernels.join(","));
    }
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

/// The ranks of a launch are one job, and its options are those of the first rank: says which of this one's are others.
fn say_what_differs(own: &Arguments, job: &JobSpec) {
    let ignored = ignored_options(own, job);
    if !ignored.is_empty() {
        eprintln!(
            "tidegate: this is a rank of job {:?}, which another rank has started with other options: {} not used",
            job.name,
            ignored.join(", ")
        );
    }
}

fn ignored_options(own: &Arguments, job: &JobSpec) -> Vec<&'static str> {
    let memory = own.memory.map(|size| size.as_u64());
    let differs = [
        ("--name", own.name.as_ref().is_some_and(|name| *name != job.name)),
        ("--priority", own.priority != job.priority),
        ("--weight", own.weight != job.weight),
        ("--resident", own.resident != job.resident),
        ("--memory", memory.is_some() && memory != job.memory),
        ("--need", own.need.is_some_and(|need| Some(need.0) != job.need)),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(option, _)| option).collect()
}

/// Announces the job to a manager; to the next one, if that dies before it has answered.
fn announce(socket: Option<&Path>, spec: &JobSpec) -> anyhow::Result<(Connection, PathBuf, ToCommand)> {
    let mut left = MANAGERS;
    loop {
        let (connection, socket) = find_or_start_manager(socket)?;
        left -= 1;
        match ask(&connection, FromCommand::Register(spec.clone())) {
            Err(error) if left > 0 && has_ended(&error) => {}
            answer => return Ok((connection, socket, answer?)),
        }
    }
}

/// Whether a connection ended before the answer came.
fn has_ended(error: &anyhow::Error) -> bool {
    let of_receiving = |error: &ReceiveError| {
        matches!(error, ReceiveError::Closed | ReceiveError::Truncated | ReceiveError::Socket(_))
    };
    error.downcast_ref().is_some_and(of_receiving)
        || error.downcast_ref().is_some_and(|error| matches!(error, SendError::Socket(_)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::net::UnixListener;
    use tidegate_ffi::units::JobId;
    use tidegate_ffi::wire::message::ToManager;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, String> {
        let words = std::iter::once("run").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn a_manager_that_dies_before_it_answers_is_not_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let managers = std::thread::spawn(move || {
            for answers in [false, false, true] {
                let connection = Connection::from(listener.accept().unwrap().0);
                let (asked, _) = connection.receive::<ToManager>().unwrap();
                assert!(matches!(asked, ToManager::Command(FromCommand::Register(_))), "{asked:?}");
                if answers {
                    let answer =
                        ToCommand::Registered { job: JobId(7), token: 9, software_gpu: None, joined: None };
                    connection.send(&answer, &[]).unwrap();
                }
            }
        });
        let (.., answer) = announce(Some(&socket), &JobSpec::default()).unwrap();
        assert!(matches!(answer, ToCommand::Registered { token: 9, .. }), "{answer:?}");
        managers.join().unwrap();
    }

    #[test]
    fn a_command_is_the_same_with_and_without_dashes_before_it() {
        for line in ["--name n -- train --name x -v -- y", "--name n train --name x -v -- y"] {
            let arguments = parse(line).unwrap();
            assert_eq!(arguments.name.as_deref(), Some("n"));
            assert_eq!(arguments.command, ["train", "--name", "x", "-v", "--", "y"]);
        }
    }

    #[test]
    fn options_of_a_rank_that_are_not_the_jobs_are_named() {
        let job = JobSpec { name: "n".into(), priority: 2, weight: 1, ..JobSpec::default() };
        let ignored = |line| ignored_options(&parse(line).unwrap(), &job);
        assert_eq!(ignored("--name n --priority 2 -- train"), [""; 0]);
        assert_eq!(ignored("--priority 2 -- train --local-rank 1"), [""; 0]);
        assert_eq!(
            ignored("--name m --weight 3 --memory 1GiB --need 1GiB,1GiB --resident -- train"),
            ["--name", "--priority", "--weight", "--resident", "--memory", "--need"]
        );
    }

    #[test]
    fn kernels_are_listed_one_by_one_or_with_commas() {
        let arguments = parse("--described-kernel _Z3addPf --described-kernel a,b -- train").unwrap();
        assert_eq!(arguments.described_kernels, ["_Z3addPf", "a", "b"]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_an_example() {
        for (line, words) in [
            ("--memory 12XB -- train", ["12XB", "512MiB"]),
            ("--need 3GiB -- train", ["3GiB", "3GiB,8GiB"]),
            ("--need 1,2parsecs -- train", ["2parsecs", "512MiB"]),
            ("--colour -- train", ["--colour", "Usage"]),
            ("", ["<CMD>", "Usage"]),
        ] {
            let error = parse(line).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
        }
    }
}
