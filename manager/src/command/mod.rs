//! The command `tidegate`: one file per subcommand.

mod connect;
mod demo;
mod evict;
mod manager;
mod mover;
mod run;
mod status;
mod stop;
mod watch;

use bytesize::ByteSize;
use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Several training jobs share one GPU, each as if it had it alone.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
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
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    match cli.command.execute() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn execute(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Run(arguments) => run::execute(arguments),
            Command::Manager(arguments) => manager::execute(*arguments),
            Command::Demo(arguments) => demo::execute(&arguments),
            Command::Status(arguments) => status::execute(&arguments),
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
