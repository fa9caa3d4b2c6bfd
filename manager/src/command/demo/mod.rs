//! `tidegate demo`: three trainings on a GPU that is too small for them.
//!
//! First each job runs alone and without the shim; then all share one GPU, once telling their
//! boundaries and once closed by the deadline only. Every loss and every weight must be the
//! same. What it cost is shown in a table and a picture of who ran when.

mod job;
mod leg;
mod picture;
mod report;

use crate::hardware;
use crate::software_gpu::{NodeSpec, SoftwareNode};
use anyhow::{Context, bail};
use bytesize::ByteSize;
use job::{Plan, Training};
use leg::Leg;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The jobs that share the GPU.
const JOBS: u64 = 3;

/// Sizes at which no two jobs' temporary memory fits at once.
struct Scale {
    hidden: u32,
    batch: u32,
    gpu_memory: ByteSize,
    unit: ByteSize,
    offset: ByteSize,
}

const SOFTWARE: Scale = Scale {
    hidden: 512,
    batch: 480,
    gpu_memory: ByteSize(19 << 20),
    unit: ByteSize(256 << 10),
    offset: ByteSize(512 << 10),
};

/// The same proportions with pieces of 2 MiB, a GPU's own granule. Not yet run on one.
const HARDWARE: Scale = Scale {
    hidden: 4096,
    batch: 3840,
    gpu_memory: ByteSize(1088 << 20),
    unit: ByteSize(2 << 20),
    offset: ByteSize(16 << 20),
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// How much GPU memory the jobs share. Default: so much that any of them fits, but no two at
    /// once.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    gpu_memory: Option<ByteSize>,
    /// Training steps of each job.
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Width of the jobs' hidden layers. Default: 512; 4096 on a real GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    hidden: Option<u32>,
    /// Images per batch. Default: 480; 3840 on a real GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// The allocation granularity, as for `tidegate manager`. Default: 256KiB; 2MiB on a real GPU.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    unit: Option<ByteSize>,
    /// Room to grow behind each job's persistent memory. Default: 512KiB; 16MiB on a real GPU.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    offset: Option<ByteSize>,
    /// The shortest time slice.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    slice: Duration,
    /// Use a software GPU even where there is a real one.
    #[arg(long)]
    software: bool,
    /// A test: fill memory with 0xFF before a job's live bytes are restored into it.
    #[arg(long)]
    poison: bool,
    /// Write the figures as JSON too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to write the picture of who ran when (SVG).
    #[arg(long, value_name = "FILE", default_value = "tidegate-demo.svg")]
    picture: PathBuf,
}

pub(super) fn execute(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if std::env::var_os("CARGO").is_some() {
        eprintln!("cargo builds what the demo needs (the first time, this takes a minute)");
    }
    let plan = plan(arguments)?;
    println!("{}\n", plan.introduction());
    let (solo, serial) = solo_runs(&plan)?;
    let mut legs = Vec::new();
    for at_boundary in [true, false] {
        legs.push(Leg::run(&plan, at_boundary)?);
    }
    let report = Report::new(&plan, &solo, serial, legs)?;
    report.print();
    picture::draw(&report, &arguments.picture)?;
    println!("\nWho ran when: see {}", arguments.picture.display());
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report.figures())?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
        println!("All figures:  see {}", path.display());
    }
    Ok(if report.all_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let (software, gpu) = match arguments.software {
        true => (true, "a software GPU"),
        false if hardware::gpus()?.is_empty() => (true, "a software GPU, as this machine has no NVIDIA GPU"),
        false => (false, "the GPU"),
    };
    let scale = if software { SOFTWARE } else { HARDWARE };
    let plan = Plan {
        software,
        gpu,
        jobs: JOBS,
        steps: arguments.steps,
        hidden: arguments.hidden.unwrap_or(scale.hidden),
        batch: arguments.batch.unwrap_or(scale.batch),
        gpu_memory: arguments.gpu_memory.unwrap_or(scale.gpu_memory).as_u64(),
        unit: arguments.unit.unwrap_or(scale.unit).as_u64(),
        offset: arguments.offset.unwrap_or(scale.offset).as_u64(),
        slice: arguments.slice,
        poison: arguments.poison,
        program: crate::artifacts::example("train_digits")?,
    };
    if plan.gpu_memory < 2 * plan.unit {
        bail!(
            "--gpu-memory {}: that is less than two units (--unit {})",
            ByteSize(plan.gpu_memory).display().iec(),
            ByteSize(plan.unit).display().iec()
        );
    }
    Ok(plan)
}

/// Each job alone, without shim and manager: what the shared runs are compared with.
fn solo_runs(plan: &Plan) -> anyhow::Result<(Vec<Training>, Duration)> {
    println!("Alone, one after another, without Tidegate:");
    let node = plan
        .software
        .then(|| {
            let spec = NodeSpec { count: 1, memory: plan.gpu_memory, ..NodeSpec::default() };
            SoftwareNode::create(&spec, plan.unit)
        })
        .transpose()?;
    let began = Instant::now();
    let lines = job::Lines::new(plan);
    let trainings = (1..=plan.jobs)
        .map(|seed| plan.solo(seed, node.as_ref()).and_then(|command| lines.follow(seed, command)?.end()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok((trainings, began.elapsed()))
}
