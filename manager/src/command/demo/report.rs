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
    solo: Vec<Training>,
    serial: Duration,
    figures: Figures,
}

/// The names that scripts can rely on.
#[derive(Clone, Serialize)]
pub(super) struct Figures {
    gpu: String,
    software_gpu: bool,
    gpu_memory_bytes: u64,
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
        Ok(Self { legs, solo: solo.to_vec(), serial, figures })
    }

    pub(super) fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Did every job end with exactly the result it has alone.
    pub(super) fn all_equal(&self) -> bool {
        let mut jobs = self.figures.legs.iter().flat_map(|leg| &leg.jobs);
        jobs.all(|job| job.weights_equal_solo && job.losses_equal_solo)
    }

    pub(super) fn print(&self) {
        let (sum, gpu) = (self.figures.footprint_sum_bytes, self.figures.gpu_memory_bytes);
        println!(
            "\n{}: the jobs' footprints add up to {}, {:.2} x the GPU's {}.",
            self.solo.first().map_or("", |training| &training.summary.device),
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

fn print_leg(leg: &Leg, figures: &LegFigures, serial: Duration) {
    let how = if leg.at_boundary { "at boundaries" } else { "by deadline" };
    println!(
        "\nSwitching {how}: {} switches, {:.1} s; one after another and alone {:.1} s: {:.2} x.",
        figures.switches,
        leg.took.as_secs_f64(),
        serial.as_secs_f64(),
        figures.shared_per_serial
    );
    println!(
        "{:<10} {:>8} {:>6} {:>7} | {:>6} {:>6} {:>6} {:>8} {:>6} | {:>10} {:>10} {:>10} {:>10} | equal",
        "",
        "accuracy",
        "steps",
        "slices",
        "drain",
        "unmap",
        "save",
        "restore",
        "map",
        "alive",
        "saved",
        "restored",
        "footprint"
    );
    println!("{:<33} | mean per switch, µs {:>16} | mean per switch {:>27} |", "", "", "");
    for ((_, ended), job) in leg.jobs.iter().zip(&figures.jobs) {
        print_job(ended, job);
    }
}

fn print_job(ended: &EndedJob, job: &JobFigures) {
    let cost = ended.switch_micros;
    let mean = |bytes: u64| size(bytes / job.switches.max(1));
    println!(
        "{:<10} {:>7.1}% {:>6} {:>7} | {:>6} {:>6} {:>6} {:>8} {:>6} | {:>10} {:>10} {:>10} {:>10} | {}",
        job.name,
        job.accuracy * 100.0,
        job.steps,
        job.slices,
        cost.drain,
        cost.unmap,
        cost.save,
        cost.restore,
        cost.map,
        mean(job.live_temporary_bytes),
        mean(job.saved_bytes),
        mean(job.restored_bytes),
        size(job.footprint_bytes),
        if job.weights_equal_solo && job.losses_equal_solo { "yes" } else { "NO" },
    );
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}
