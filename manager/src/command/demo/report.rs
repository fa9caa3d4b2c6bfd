//! The demo's figures: a table for people, JSON for scripts.

use super::job::{Plan, Training};
use super::leg::Leg;
use crate::server::status::EndedJob;
use anyhow::Context;
use bytesize::ByteSize;
use serde::Serialize;
use std::time::Duration;

/// All that the demo found out.
pub(super) struct Report {
    pub(super) legs: Vec<Leg>,
    serial: Duration,
    figures: Figures,
}

/// The names that scripts can rely on.
#[derive(Clone, Serialize)]
pub(super) struct Figures {
    pub(super) gpu: String,
    software_gpu: bool,
    pub(super) gpu_memory_bytes: u64,
    footprint_sum_bytes: u64,
    serial_seconds: f64,
    legs: Vec<LegFigures>,
}

#[derive(Clone, Serialize)]
struct LegFigures {
    at_boundary: bool,
    switches: u64,
    seconds: f64,
    shared_per_serial: f64,
    jobs: Vec<JobFigures>,
}

#[derive(Clone, Serialize)]
struct JobFigures {
    name: String,
    steps: u32,
    accuracy: f64,
    slices: u64,
    switches: u64,
    switches_at_boundary: u64,
    footprint_bytes: u64,
    peak_temporary_bytes: u64,
    live_temporary_bytes: u64,
    saved_bytes: u64,
    saved_pieces: u64,
    restored_bytes: u64,
    weights_equal_solo: bool,
    losses_equal_solo: bool,
}

impl JobFigures {
    /// Did the job end with exactly the result it has alone.
    fn equal_solo(&self) -> bool {
        self.weights_equal_solo && self.losses_equal_solo
    }
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        solo: &[Training],
        serial: Duration,
        legs: Vec<Leg>,
    ) -> anyhow::Result<Self> {
        let first = legs.first().context("no leg was run")?;
        let footprint_sum_bytes = first.jobs.iter().map(|(_, figures)| figures.footprint_bytes).sum();
        let figures = Figures {
            gpu: first.gpu.clone(),
            software_gpu: plan.software,
            gpu_memory_bytes: first.gpu_memory_bytes,
            footprint_sum_bytes,
            serial_seconds: serial.as_secs_f64(),
            legs: legs.iter().map(|leg| leg_figures(leg, solo, serial)).collect(),
        };
        Ok(Self { legs, serial, figures })
    }

    pub(super) fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Did every job end with exactly the result it has alone.
    pub(super) fn all_equal(&self) -> bool {
        let mut jobs = self.figures.legs.iter().flat_map(|leg| &leg.jobs);
        jobs.all(JobFigures::equal_solo)
    }

    pub(super) fn print(&self) {
        let (sum, gpu) = (self.figures.footprint_sum_bytes, self.figures.gpu_memory_bytes);
        println!(
            "\n{}: the jobs' footprints add up to {}, {:.2} x the GPU's {}.",
            self.figures.gpu,
            size(sum),
            sum as f64 / gpu as f64,
            size(gpu)
        );
        for (leg, figures) in self.legs.iter().zip(&self.figures.legs) {
            print_leg(leg, figures, self.serial);
        }
        let verdict = if self.all_equal() {
            "Every loss and every weight is the same as without Tidegate, bit for bit."
        } else {
            "SOME RESULTS DIFFER from those without Tidegate."
        };
        println!("\n{verdict}");
    }
}

fn leg_figures(leg: &Leg, solo: &[Training], serial: Duration) -> LegFigures {
    LegFigures {
        at_boundary: leg.at_boundary,
        switches: leg.jobs.iter().map(|(_, figures)| figures.switches).sum(),
        seconds: leg.took.as_secs_f64(),
        shared_per_serial: leg.took.as_secs_f64() / serial.as_secs_f64(),
        jobs: leg
            .jobs
            .iter()
            .zip(solo)
            .map(|((training, figures), solo)| job_figures(training, figures, solo))
            .collect(),
    }
}

fn job_figures(training: &Training, figures: &EndedJob, solo: &Training) -> JobFigures {
    JobFigures {
        name: figures.name.clone(),
        steps: training.summary.steps,
        accuracy: training.summary.accuracy,
        slices: figures.slices,
        switches: figures.switches,
        switches_at_boundary: figures.at_boundary,
        footprint_bytes: figures.footprint_bytes,
        peak_temporary_bytes: figures.peak_temporary_bytes,
        live_temporary_bytes: figures.live_temporary_bytes,
        saved_bytes: figures.saved_bytes,
        saved_pieces: figures.saved_pieces,
        restored_bytes: figures.restored_bytes,
        weights_equal_solo: training.summary.weights_digest == solo.summary.weights_digest,
        losses_equal_solo: training.summary.losses_bits == solo.summary.losses_bits,
    }
}

/// A row of the table: its name, and what stands there for a job.
type Row = (&'static str, fn(&EndedJob, &JobFigures) -> String);

const ROWS: [Row; 16] = [
    ("accuracy", |_, job| format!("{:.1} %", job.accuracy * 100.0)),
    ("time slices", |_, job| job.slices.to_string()),
    ("switched away", |_, job| job.switches.to_string()),
    ("  at a boundary", |_, job| job.switches_at_boundary.to_string()),
    ("mean time of a switch, ms", |_, _| String::new()),
    ("  drain", |ended, job| milliseconds(ended.switch_micros.drain, job)),
    ("  unmap", |ended, job| milliseconds(ended.switch_micros.unmap, job)),
    ("  save", |ended, job| milliseconds(ended.switch_micros.save, job)),
    ("  restore", |ended, job| milliseconds(ended.switch_micros.restore, job)),
    ("  map", |ended, job| milliseconds(ended.switch_micros.map, job)),
    ("mean bytes of a switch", |_, _| String::new()),
    ("  live", |_, job| mean_size(job.live_temporary_bytes, job)),
    ("  saved", |_, job| mean_size(job.saved_bytes, job)),
    ("  restored", |_, job| mean_size(job.restored_bytes, job)),
    ("footprint (most bytes live)", |_, job| size(job.footprint_bytes)),
    ("losses and weights", |_, job| if job.equal_solo() { "equal" } else { "DIFFERENT" }.into()),
];

fn print_leg(leg: &Leg, figures: &LegFigures, serial: Duration) {
    println!(
        "\nSwitching {}: {:.1} s with {} switches; alone, one after another: {:.1} s ({:.2} x).",
        leg.how(),
        leg.took.as_secs_f64(),
        figures.switches,
        serial.as_secs_f64(),
        figures.shared_per_serial
    );
    print_row("", figures.jobs.iter().map(|job| job.name.clone()));
    for (name, value) in ROWS {
        print_row(name, leg.jobs.iter().zip(&figures.jobs).map(|((_, ended), job)| value(ended, job)));
    }
}

fn print_row(name: &str, values: impl Iterator<Item = String>) {
    let line = values.fold(format!("  {name:<28}"), |line, value| format!("{line} {value:>12}"));
    println!("{}", line.trim_end());
}

/// A part of a switch's mean cost; a dash for a job that was never switched away.
fn milliseconds(micros: u64, job: &JobFigures) -> String {
    if job.switches == 0 { "-".into() } else { format!("{:.2}", micros as f64 / 1000.0) }
}

fn mean_size(bytes: u64, job: &JobFigures) -> String {
    bytes.checked_div(job.switches).map_or("-".into(), size)
}

pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}
