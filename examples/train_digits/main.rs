//! Trains a small network to read handwritten digits: an ordinary CUDA program to try Tidegate on.
//!
//! It knows nothing of Tidegate but the hints in `tidegate.rs`, which it can leave out
//! (`--boundaries no --scopes no`). See `README.md`.

mod data;
mod device;
#[path = "../support/kernels.rs"]
mod kernels;
mod model;
mod ops;
mod random;
mod report;
mod tidegate;
mod training;

#[cfg(test)]
mod host;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgAction, Parser, builder::BoolishValueParser, value_parser};

use device::Cuda;
use report::{Progress, Summary};
use training::Options;

/// Trains a network with two hidden layers to read the UCI handwritten digits.
#[derive(Parser)]
#[command(name = "train_digits")]
struct Args {
    /// Iterations
    #[arg(long, value_name = "N", default_value_t = 150)]
    steps: u32,
    /// Width of the two hidden layers
    #[arg(long, value_name = "W", default_value_t = 512)]
    #[arg(value_parser = value_parser!(u32).range(1..=16384))]
    hidden: u32,
    /// Images in a batch
    #[arg(long, value_name = "B", default_value_t = 480)]
    #[arg(value_parser = value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Decides the first weights and the order of the images
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Tell Tidegate the end of each iteration
    #[arg(long, value_name = "yes|no", default_value = "yes", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    boundaries: bool,
    /// Tell Tidegate which memory is persistent
    #[arg(long, value_name = "yes|no", default_value = "yes", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    scopes: bool,
    /// Tell Tidegate which memory each kernel uses
    #[arg(long, value_name = "yes|no", default_value = "no", action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    describe: bool,
    /// The kernels for the software GPU [default: the library built with this program]
    #[arg(long, value_name = "FILE")]
    kernels: Option<PathBuf>,
    /// Write the summary as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print a JSON object per step, and at last the summary
    #[arg(long)]
    json_lines: bool,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            steps: self.steps,
            hidden: self.hidden,
            batch: self.batch,
            seed: self.seed,
            boundaries: self.boundaries,
            scopes: self.scopes,
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let options = args.options();
    let progress = Progress { json_lines: args.json_lines, steps: args.steps };

    let cuda = Cuda::open(args.kernels.as_deref(), args.describe)?;
    let outcome = training::train(&cuda, &options, |step, loss| progress.step(step, loss))?;
    let summary = Summary::new(cuda.name()?, &options, &outcome);
    if let Some(path) = &args.report {
        write_json(path, &summary)?;
    }
    progress.end(&summary)
}

fn write_json(path: &Path, summary: &Summary) -> Result<()> {
    let text = serde_json::to_string_pretty(summary)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
