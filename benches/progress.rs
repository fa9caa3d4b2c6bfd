//! How evenly jobs that share a GPU go on: `cargo bench --bench progress [-- NAME…] [--poison]`
//!
//! ```text
//! job of the mix     speed   of its part   longest without a step   makespan   switching
//!                    its steps in a second, while all were there, ÷ those it makes alone
//!                            the same ÷ what max-min fairness gives it: what it wants, or an equal part of what is left
//!                                          while all were there, once it had its memory
//!                                                                   all, from the first process's start to the last one's end,
//!                                                                   ÷ the sum of each alone
//!                                                                              of the time, by the manager's figures
//! ```
//! The jobs of a mix are started at once, and do not fit on the GPU together, unless said otherwise. `slow` is the worst
//! part in any window of so many seconds (ten slices). Kernels of `rhythm` take time, and no processor; the training loops
//! compute on the processor, so that two of them on few cores cannot both be as fast as alone: for those, `of its part` is
//! what the machine allows and the manager leaves. Every program has, at its end, the bytes that it has alone.
//!
//! With `--poison` jobs are stopped at any instant, and memory without a live byte is overwritten: what is looked at then is
//! that they end with the bytes that they have alone.
//!
//! `target/progress.svg` shows the steps of each job over the time.

#[path = "../tests/support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tests/support/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;

use stage::Stage;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::patience::{finish_within, output_within};
use support::{Jobs, Manager, tidegate};
use tidegate_manager::server::status::EndedJob;

const PATIENCE: Duration = Duration::from_secs(900);

struct Mix {
    name: &'static str,
    gpu: &'static str,
    options: &'static [&'static str],
    jobs: &'static [Plan],
}

/// A job of a mix.
#[derive(Clone, Copy)]
struct Plan {
    what: What,
    /// What part of the GPU's time it takes alone, %.
    wants: u64,
    /// How long after the others it comes, milliseconds, and with which priority.
    later: u64,
    priority: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// `rhythm`, with these words.
    Rhythm(&'static str),
    /// So many processes of it at once, in one job.
    Gang(u32, &'static str),
    /// `benches/loops.py`, with its name and how many steps it makes.
    Loop(&'static str, &'static str),
}

const fn rhythm(words: &'static str, wants: u64) -> Plan {
    Plan { what: What::Rhythm(words), wants, later: 0, priority: "0" }
}

const fn training(name: &'static str, steps: &'static str) -> Plan {
    Plan { what: What::Loop(name, steps), wants: 100, later: 0, priority: "0" }
}

/// 5 ms kernels, one after the other.
const BUSY: Plan = rhythm("mib=160 kernel=5000 steps=2000", 100);
const SHORT_SLICES: &[&str] = &["--slice", "100ms"];
const SMALL: &str = "1x256MiB";

/// On a GPU that has room for one of the jobs, with short slices.
const fn on_small(name: &'static str, jobs: &'static [Plan]) -> Mix {
    Mix { name, gpu: SMALL, options: SHORT_SLICES, jobs }
}

const MIXES: [Mix; 20] = [
    Mix {
        name: "equal-1000MiB",
        gpu: "1x1200MiB",
        options: &["--slice", "300ms"],
        jobs: &[
            rhythm("mib=1000 kernel=20000 steps=1800", 100),
            rhythm("mib=1000 kernel=20000 steps=1800", 100),
        ],
    },
    on_small("equal-160MiB", &[BUSY, BUSY]),
    on_small("gap-10ms", &[rhythm("mib=160 kernel=20000 gap=10000 steps=400", 67), BUSY]),
    on_small("gap-20ms", &[rhythm("mib=160 kernel=20000 gap=20000 steps=300", 50), BUSY]),
    on_small("gap-50ms", &[rhythm("mib=160 kernel=20000 gap=50000 steps=150", 29), BUSY]),
    Mix {
        name: "gap-50ms-of-16MiB",
        gpu: "1x24MiB",
        options: SHORT_SLICES,
        jobs: &[
            rhythm("mib=16 kernel=20000 gap=50000 steps=150", 29),
            rhythm("mib=16 kernel=5000 steps=2000", 100),
        ],
    },
    on_small("gap-200ms", &[rhythm("mib=160 kernel=20000 gap=200000 steps=60", 9), BUSY]),
    on_small("gap-1s", &[rhythm("mib=160 kernel=300000 gap=1000000 steps=12", 23), BUSY]),
    Mix {
        name: "gap-50ms-fits",
        gpu: "1x512MiB",
        options: SHORT_SLICES,
        jobs: &[rhythm("mib=160 kernel=20000 gap=50000 steps=150", 29), BUSY],
    },
    Mix {
        name: "both-gap-50ms-fits",
        gpu: "1x512MiB",
        options: SHORT_SLICES,
        jobs: &[
            rhythm("mib=160 kernel=20000 gap=50000 steps=150", 29),
            rhythm("mib=160 kernel=30000 gap=60000 steps=120", 33),
        ],
    },
    on_small(
        "kernels-of-3s",
        &[rhythm("mib=160 kernel=3000000 steps=8", 100), rhythm("mib=160 kernel=5000 steps=4000", 100)],
    ),
    on_small(
        "100-allocations",
        &[rhythm("mib=200 allocations=100 pause=10000 kernel=5000 steps=1000", 100), BUSY],
    ),
    on_small("100000-allocations", &[rhythm("mib=160 allocations=100000 kernel=5000 steps=2000", 100), BUSY]),
    on_small(
        "training-inference",
        &[
            rhythm("mib=200 kernel=30000 steps=300 boundaries=1", 100),
            rhythm("mib=100 kernel=10000 gap=500000 steps=20", 2),
        ],
    ),
    on_small(
        "late-priority",
        &[
            rhythm("mib=160 kernel=5000 steps=1500", 100),
            Plan { later: 2_000, priority: "5", ..rhythm("mib=160 kernel=5000 steps=400", 100) },
        ],
    ),
    on_small("three", &[BUSY; 3]),
    on_small("six", &[rhythm("mib=160 kernel=5000 steps=800", 100); 6]),
    on_small("gangs", &[Plan { what: What::Gang(2, "mib=80 kernel=5000 steps=1000"), ..BUSY }; 2]),
    on_small("trainers", &[training("trainer", "600"), training("trainer", "600")]),
    on_small("lightning", &[training("lightning", "600"), training("lightning", "600")]),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let is_known = |wanted: &String| MIXES.iter().any(|mix| mix.name == wanted);
    let unknown = wanted.iter().find(|wanted| !is_known(wanted));
    assert_eq!(unknown, None, "no mix of that name; there are {:?}", MIXES.map(|mix| mix.name));
    let stage = Stage::with("1x1500MiB", "rhythm", "stir_kernel");
    println!(
        "mix, job              speed  of its part  slow (window)   longest without a step  makespan  switching"
    );
    let mut picture = Picture::default();
    for mix in &MIXES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == mix.name) {
            measure(mix, &stage, &mut picture);
        }
    }
    // It need not be there: builds may lie elsewhere.
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("progress.svg");
    std::fs::write(&file, picture.drawn()).unwrap();
    println!("{}", file.display());
}

/// PyTorch on software GPUs, with transformers and lightning: made at the first use.
fn python() -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tmp/packages/loops");
    let python = directory.join("bin/python");
    let done = |command: &mut Command| assert!(command.stdin(Stdio::null()).status().unwrap().success());
    done(Command::new(tidegate()).args(["softgpu", "venv"]).arg(&directory).stdout(Stdio::null()));
    let packages = ["-m", "pip", "install", "-q", "transformers", "accelerate", "lightning"];
    done(Command::new(&python).args(packages));
    python
}

impl Plan {
    fn command(&self, manager: &Manager, name: &str, stage: &Stage) -> Command {
        let options = ["--name", name, "--priority", self.priority];
        let mut command = match self.what {
            What::Rhythm(words) => {
                let mut command = manager.run(&options, &stage.program);
                command.arg(&stage.kernels).args(words.split(' '));
                command
            }
            What::Gang(processes, words) => {
                let mut command = manager.run(&options, Path::new("/bin/sh"));
                // The first one's times are read.
                let others = format!("\"$0\" \"$1\" {words} >/dev/null & ").repeat(processes as usize - 1);
                let text = format!("{others}\"$0\" \"$1\" {words} && wait");
                command.arg("-c").arg(text).arg(&stage.program).arg(&stage.kernels);
                command
            }
            What::Loop(name, steps) => {
                let mut command = manager.run(&options, &python());
                command
                    .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/loops.py"))
                    .args([name, steps]);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// When a program began, had its memory, and ended each step.
#[derive(Clone)]
struct Times {
    began: u64,
    ready: u64,
    steps: Vec<u64>,
    /// What it says of its bytes at its end.
    digest: Option<String>,
}

/// A program by itself, and how long its process lived: from its start to its end, when it has looked at its bytes.
#[derive(Clone)]
struct Alone {
    times: Times,
    life: Duration,
}

impl Alone {
    fn measure(command: Command) -> Self {
        let begin = Instant::now();
        let times = Times::said(&output_within(PATIENCE, command));
        Self { times, life: begin.elapsed() }
    }
}

impl Times {
    fn of(child: Child) -> Self {
        Self::said(&finish_within(PATIENCE, child))
    }

    fn said(output: &std::process::Output) -> Self {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let (times, words): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.parse::<u64>().is_ok());
        let mut times = times.into_iter().map(|line| line.parse().unwrap());
        let (began, ready) = (times.next().unwrap(), times.next().unwrap());
        Self { began, ready, steps: times.collect(), digest: words.last().map(ToString::to_string) }
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

fn measure(mix: &Mix, stage: &Stage, picture: &mut Picture) {
    let poison = std::env::args().any(|argument| argument == "--poison");
    let poisoned: &[&str] = if poison { &["--poison", "--boundary-deadline", "1ms"] } else { &[] };
    let manager = Manager::start(mix.gpu, &[mix.options, poisoned].concat());
    // Alone, under the same manager: what is compared is sharing. Equal jobs are measured once.
    let mut alone: Vec<Alone> = Vec::new();
    for (nth, plan) in mix.jobs.iter().enumerate() {
        let earlier = mix.jobs[..nth].iter().position(|other| other.what == plan.what);
        let measured = match earlier {
            Some(earlier) => alone[earlier].clone(),
            None => Alone::measure(plan.command(&manager, "alone", stage)),
        };
        alone.push(measured);
    }
    let serial: Duration = alone.iter().map(|alone| alone.life).sum();
    let alone: Vec<Times> = alone.into_iter().map(|alone| alone.times).collect();
    let names: Vec<String> = (0..mix.jobs.len()).map(|nth| format!("{}-{nth}", mix.name)).collect();
    let start = |(name, plan): (&String, &Plan)| {
        std::thread::sleep(Duration::from_millis(plan.later));
        plan.command(&manager, name, stage).spawn().unwrap()
    };
    let begin = Instant::now();
    let started: Vec<Child> = names.iter().zip(mix.jobs).map(start).collect();
    let shared: Vec<Times> = started.into_iter().map(Times::of).collect();
    let makespan = begin.elapsed();
    for (name, (job, alone)) in names.iter().zip(shared.iter().zip(&alone)) {
        assert_eq!(job.digest, alone.digest, "{name} ends with other bytes than alone");
    }
    let status = manager.status_when(|status| names.iter().all(|name| status.has_ended(name)));
    let [first, last] =
        [shared.iter().map(|job| job.began).min().unwrap(), shared.iter().map(Times::end).max().unwrap()];
    picture.add(mix, &names, &shared, first, last);
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
            makespan.as_secs_f64() / serial.as_secs_f64(),
            100.0 * switching(figures) as f64 / (job.end() - job.began) as f64,
        );
    }
}

/// Of its speed alone, what max-min fairness gives each job of a mix.
fn parts(mix: &Mix) -> Vec<f64> {
    let wants: Vec<f64> = mix.jobs.iter().map(|plan| plan.wants as f64 / 100.0).collect();
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

/// The steps of all jobs over the time.
#[derive(Default)]
struct Picture {
    rows: String,
    height: u32,
}

impl Picture {
    const WIDTH: f64 = 1000.0;
    const LEFT: u32 = 170;
    const ROW: u32 = 18;
    const COLORS: [&'static str; 6] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];

    /// A row for each job: bars where it made steps, the darker the nearer to the greatest number in so much time.
    fn add(&mut self, mix: &Mix, names: &[String], jobs: &[Times], from: u64, to: u64) {
        const BARS: usize = 500;
        let span = (to - from).max(1) as f64;
        for (nth, (name, job)) in names.iter().zip(jobs).enumerate() {
            let mut bars = [0u32; BARS];
            for step in &job.steps {
                bars[(((step - from) as f64 / span * BARS as f64) as usize).min(BARS - 1)] += 1;
            }
            let most = f64::from(*bars.iter().max().unwrap_or(&1)).max(1.0);
            let top = self.height + nth as u32 * Self::ROW;
            self.text(0, top + 13, name);
            for (bar, steps) in bars.iter().enumerate().filter(|(_, steps)| **steps > 0) {
                let (left, width) = (
                    f64::from(Self::LEFT) + bar as f64 * Self::WIDTH / BARS as f64,
                    Self::WIDTH / BARS as f64,
                );
                let _ = writeln!(
                    self.rows,
                    r#"<rect x="{left:.1}" y="{}" width="{width:.1}" height="{}" fill="{}" fill-opacity="{:.2}"/>"#,
                    top + 2,
                    Self::ROW - 4,
                    Self::COLORS[nth % Self::COLORS.len()],
                    0.3 + 0.7 * f64::from(*steps) / most
                );
            }
        }
        self.height += jobs.len() as u32 * Self::ROW;
        let seconds = format!("{}: {:.1} s", mix.name, span / 1e6);
        self.text(Self::LEFT, self.height + 10, &seconds);
        self.height += 24;
    }

    fn text(&mut self, left: u32, bottom: u32, text: &str) {
        let _ = writeln!(
            self.rows,
            r#"<text x="{left}" y="{bottom}" font-size="12" font-family="sans-serif">{text}</text>"#
        );
    }

    fn drawn(&self) -> String {
        let (width, height) = (f64::from(Self::LEFT) + Self::WIDTH + 10.0, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.rows
        )
    }
}
