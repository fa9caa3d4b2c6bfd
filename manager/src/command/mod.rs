//! The command `tidegate`: one file per subcommand.

mod config;
mod connect;
mod demo;
mod doctor;
mod evict;
mod log;
mod manager;
mod mover;
mod run;
mod softgpu;
mod status;
mod stop;
mod watch;

pub(crate) use manager::READY;

use crate::privileges;
use anyhow::Context;
use bytesize::ByteSize;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;
use tidegate_ffi::wire::trust;

/// Several training jobs share one GPU, each as if it had it alone.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Use a manager of this user too, not only root's or one's own. Can be given several times; $TIDEGATE_TRUST_UID does the
    /// same, with commas.
    #[arg(long, global = true, value_name = "UID", value_delimiter = ',')]
    trust_uid: Vec<u32>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program under Tidegate.
    Run(run::Arguments),
    /// Run a manager in the foreground: it owns the GPUs' memory and schedules the jobs.
    Manager(Box<manager::Arguments>),
    /// Show what Tidegate does: three trainings on a GPU that is too small for them.
    Demo(demo::Arguments),
    /// Show the GPUs, what memory is in use, and the jobs.
    Status(status::Arguments),
    /// Say whether jobs can run here, and what could be better.
    Doctor(doctor::Arguments),
    /// Prepare programs for software GPUs.
    Softgpu(softgpu::Arguments),
    /// End a job: one's own, or as root anybody's.
    Evict(evict::Arguments),
    /// (internal) Make GPU memory and move bytes for a manager.
    #[command(hide = true)]
    Mover(mover::Arguments),
    /// (internal) Tell the user of a running program where it stands.
    #[command(hide = true)]
    Watch(watch::Arguments),
}

/// Runs the command line. Errors are one sentence on stderr; the chain follows it.
pub fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if !cli.trust_uid.is_empty() {
        trust(cli.trust_uid);
    }
    // Before the log, which may start a thread.
    let is_service = matches!(cli.command, Command::Manager(_) | Command::Mover(_));
    let dropped = if is_service { privileges::drop_unneeded() } else { Ok(()) };
    match cli.command {
        Command::Manager(_) => {}
        Command::Mover(_) => log::to_stderr_by_queue(),
        _ => log::to_stderr(),
    }
    if matches!(cli.command, Command::Status(_) | Command::Doctor(_)) {
        end_when_unread();
    }
    if is_service {
        outlive_file_limits();
    }
    if let Err(error) = dropped {
        let error = format!("{error:#}");
        tracing::warn!(error, "this process keeps privileges that it does not need");
    }
    let outcome = cli.command.execute(&matches);
    log::end();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "tidegate: {error:#}");
            if error.is::<manager::Taken>() {
                manager::say_taken();
            }
            ExitCode::FAILURE
        }
    }
}

/// From here on a print into a pipe that its reader has closed ends this process without a message: Rust's runtime ignores
/// SIGPIPE, and `println!` panics then.
fn end_when_unread() {
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// From here on a write beyond a limit on file sizes (`ulimit -f`, which may be set later) is an error, and no signal that
/// ends this process.
fn outlive_file_limits() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

impl Command {
    /// `matches` is the whole command line as it was read.
    fn execute(self, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
        match self {
            Command::Run(arguments) => run::execute(arguments),
            Command::Manager(arguments) => {
                let given = matches.subcommand_matches("manager").context("no words of the manager")?;
                manager::execute(*arguments, given)
            }
            Command::Demo(arguments) => demo::execute(&arguments),
            Command::Status(arguments) => status::execute(&arguments),
            Command::Doctor(arguments) => doctor::execute(arguments),
            Command::Softgpu(arguments) => softgpu::execute(arguments),
            Command::Evict(arguments) => evict::execute(&arguments),
            Command::Mover(arguments) => mover::execute(arguments),
            Command::Watch(arguments) => watch::execute(&arguments),
        }
    }
}

/// A size on the command line.
fn size(text: &str) -> Result<ByteSize, String> {
    text.trim()
        .parse()
        .map_err(|_| "a size is a number of bytes, or a number and a unit as in 512MiB or 1.5GB".into())
}
