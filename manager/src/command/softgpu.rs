//! `tidegate softgpu`: what programs need that are to run on software GPUs.

use crate::torch;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Prepare a Python environment in which PyTorch runs on software GPUs: the wheel as it is, with
    /// stand-ins for NVIDIA's libraries. Needs Python with venv, and a C compiler.
    Venv(Venv),
}

#[derive(Debug, clap::Args)]
struct Venv {
    /// Where. What is there already is kept.
    directory: PathBuf,
    /// Which release of PyTorch.
    #[arg(long, value_name = "VERSION", default_value = "2.11.0")]
    torch: String,
    /// The Python that the environment is for.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: OsString,
}

pub(super) fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Command::Venv(venv) = arguments.command;
    torch::prepare(&venv.directory, &venv.torch, &venv.python, |step| eprintln!("tidegate: {step}"))?;
    let python = venv.directory.join("bin/python");
    println!("Ready. Beside a manager of software GPUs (tidegate manager --software-gpu 1x1GiB):");
    println!("    tidegate run -- {} train.py", python.display());
    Ok(ExitCode::SUCCESS)
}
