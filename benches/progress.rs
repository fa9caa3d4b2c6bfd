//! How evenly jobs that share a GPU go on: `cargo bench --bench progress [-- NAME…]`
//!
//! ```text
//! job of the pair    speed   of its part   longest without a step   makespan   switching
//!                    its steps in a second, while both were there, ÷ those it makes alone
//!                            the same ÷ what max-min fairness gives it: what it wants, or an equal part of what is left
//!                                          while both were there, once it had its memory
//!                                                                   both, from the first start to the last end,
//!                                                                   ÷ the sum of each alone
//!                                                                              of the time, by the manager's figures
//! ```
//! All jobs of a mix are started at once, and do not fit on the GPU together, unless said otherwise. `slow` is the worst
//! part in any window of so many seconds (ten slices). Kernels of these programs take time, and no processor.

#[path = "../tests/support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tests/support/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;

use stage::Stage;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::patience::{finish_within, output_within};
use support::{Jobs, Manager};
use tidegate_manager::server::status::EndedJob;

const PATIENCE: Duration = Duration::from_secs(600);

struct Mix {
    name: &'static str,
    gpu: &'static str,
    options: &'static [&'static str],
    /// What each program is told, and what part of the GPU's time it takes alone, %.
    jobs: &'static [(&'static str, u64)],
}

/// 5 ms kernels, one after the other.
const BUSY: (&str, u64) = ("mib=160 kernel=5000 steps=2000", 100);

const MIXES: [Mix; 8] = [
    Mix {
        name: "equal-1000MiB",
        gpu: "1x1200MiB",
        options: &["--slice", "300ms"],
        jobs: &[("mib=1000 kernel=20000 steps=600", 100), ("mib=1000 kernel=20000 steps=600", 100)],
    },
    Mix {
        name: "gap-10ms",
        gpu: "1x256MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=160 kernel=20000 gap=10000 steps=400", 67), BUSY],
    },
    Mix {
        name: "gap-20ms",
        gpu: "1x256MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=160 kernel=20000 gap=20000 steps=300", 50), BUSY],
    },
    Mix {
        name: "gap-50ms",
        gpu: "1x256MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=160 kernel=20000 gap=50000 steps=150", 29), BUSY],
    },
    Mix {
        name: "gap-50ms-fits",
        gpu: "1x512MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=160 kernel=20000 gap=50000 steps=150", 29), BUSY],
    },
    Mix {
        name: "kernels-of-3s",
        gpu: "1x256MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=160 kernel=3000000 steps=8", 100), ("mib=160 kernel=5000 steps=4000", 100)],
    },
    Mix {
        name: "100-allocations",
        gpu: "1x256MiB",
        options: &["--slice", "100ms"],
        jobs: &[("mib=200 allocations=100 pause=10000 kernel=5000 steps=1000", 100), BUSY],
    },
    Mix { name: "three", gpu: "1x256MiB", options: &["--slice", "100ms"], jobs: &[BUSY, BUSY, BUSY] },
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let stage = Stage::with("1x1500MiB", "rhythm", "stir_kernel");
    println!(
        "mix, job              speed  of its part  slow (window)   longest without a step  makespan  switching"
    );
    for mix in &MIXES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == mix.name) {
            measure(mix, &stage);
        }
    }
}

/// When a program began, had its memory, and ended each step.
struct Times {
    began: u64,
    ready: u64,
    steps: Vec<u64>,
}

impl Times {
    fn of(child: Child) -> Self {
        Self::said(&finish_within(PATIENCE, child))
    }

    fn said(output: &std::process::Output) -> Self {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let mut times = text.lines().map(|line| line.parse().unwrap());
        Self { began: times.next().unwrap(), ready: times.next().unwrap(), steps: times.collect() }
    }

    fn end(&self) -> u64 {
        self.steps.last().copied().unwrap_or(self.ready)
    }

    /// Steps in a second, between two times.
    fn speed(&self, from: u64, to: u64) -> f64 {
        self.steps.iter().filter(|step| (from..to).contains(step)).count() as f64 * 1e6 / (to - from) as f64
    }

    /// The longest time without a step, between two times.
    fn longest(&self, from: u64, to: u64) -> u64 {
        let steps = self.steps.iter().copied().filter(|step| (from..to).contains(step));
        let marks: Vec<u64> = [from].into_iter().chain(steps).chain([to]).collect();
        marks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

fn measure(mix: &Mix, stage: &Stage) {
    let manager = Manager::start(mix.gpu, mix.options);
    let program = |mut command: Command, words: &str| {
        command.arg(&stage.kernels).args(words.split(' ')).stdin(Stdio::null());
        command
    };
    // Alone, under the same manager: what is compared is sharing.
    let alone: Vec<Times> = (mix.jobs.iter())
        .map(|(words, _)| {
            let command = program(manager.run(&["--name", "alone"], &stage.program), words);
            Times::said(&output_within(PATIENCE, command))
        })
        .collect();
    let names: Vec<String> = (0..mix.jobs.len()).map(|nth| format!("{}-{nth}", mix.name)).collect();
    let start = |(name, (words, _)): (&String, &(&str, u64))| {
        let mut command = program(manager.run(&["--name", name], &stage.program), words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<Child> = names.iter().zip(mix.jobs).map(start).collect();
    let shared: Vec<Times> = started.into_iter().map(Times::of).collect();
    let status = manager.status_when(|status| names.iter().all(|name| status.has_ended(name)));
    let [first, last] =
        [shared.iter().map(|job| job.began).min().unwrap(), shared.iter().map(Times::end).max().unwrap()];
    let serial: u64 = alone.iter().map(|job| job.end() - job.began).sum();
    let all_there = shared.iter().map(|job| job.ready).max().unwrap();
    let first_end = shared.iter().map(Times::end).min().unwrap();
    for (nth, (job, alone)) in shared.iter().zip(&alone).enumerate() {
        let figures = status.ended_job(&names[nth]);
        let by_itself = alone.speed(alone.ready, alone.end() + 1);
        let part = parts(mix)[nth];
        if all_there >= first_end {
            println!("{:<20} one after the other: {:.1} s", names[nth], seconds(job.end() - job.began));
            continue;
        }
        let speed = job.speed(all_there, first_end) / by_itself;
        let window = (10 * mean_grant(figures)).clamp(1, first_end - all_there);
        let starts = (all_there..=first_end - window).step_by((window / 10).max(1) as usize);
        let worst = starts.map(|from| job.speed(from, from + window) / by_itself).fold(f64::MAX, f64::min);
        println!(
            "{:<20}  {speed:>5.2}  {:>11.2}  {:>4.2} ({:>4.1} s)  {:>20.2} s  {:>8.2}  {:>8.1} %",
            names[nth],
            speed / part,
            worst / part,
            seconds(window),
            seconds(job.longest(all_there, first_end)),
            (last - first) as f64 / serial as f64,
            100.0 * switching(figures) as f64 / (job.end() - job.began) as f64,
        );
    }
}

/// Of its speed alone, what max-min fairness gives each job of a mix.
fn parts(mix: &Mix) -> Vec<f64> {
    let wants: Vec<f64> = mix.jobs.iter().map(|(_, percent)| *percent as f64 / 100.0).collect();
    let mut gets = vec![0.0; wants.len()];
    let (mut left, mut open): (f64, Vec<usize>) = (1.0, (0..wants.len()).collect());
    open.sort_by(|a, b| wants[*a].total_cmp(&wants[*b]));
    for (nth, job) in open.iter().enumerate() {
        gets[*job] = wants[*job].min(left / (open.len() - nth) as f64);
        left -= gets[*job];
    }
    gets.iter().zip(&wants).map(|(gets, wants)| gets / wants).collect()
}

/// How long a job's grants were on average, microseconds.
fn mean_grant(job: &EndedJob) -> u64 {
    let lengths: Vec<u64> = job.grants.iter().filter_map(|(from, to)| Some((*to)? - from)).collect();
    lengths.iter().sum::<u64>() / (lengths.len() as u64).max(1)
}

/// How long its switches took together, without its own work's end, microseconds.
fn switching(job: &EndedJob) -> u64 {
    let micros = &job.switch_micros;
    (micros.unmap + micros.save + micros.restore + micros.map) * job.switches
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
