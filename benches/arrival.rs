//! How soon a late job of a higher priority runs, on a GPU that another one fills.
//! `cargo bench --bench arrival`
//!
//! The low job trains without end. The high one arrives (`cuInit`), allocates more temporary
//! memory than is left, submits its first work, and goes; again and again. The low job gives way
//! at its next boundary, so the longest wait is one of its steps and a switch.

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use bench::{Spread, Training};
use std::time::{Duration, Instant};
use support::{Jobs, MIB, Manager};

const ARRIVALS: usize = 15;
const GPU: &str = "1x19MiB";
const OPTIONS: [&str; 6] = ["--unit", "256KiB", "--offset", "512KiB", "--slice", "10s"];
const TRAINING: [&str; 6] = ["--hidden", "512", "--batch", "480", "--steps", "1000000"];
/// Steps of the low job that are timed, before the first arrival.
const STEPS: usize = 20;
const NEED: &str = "0,10MiB";

fn main() {
    let manager = Manager::start(GPU, &OPTIONS);
    println!("a software GPU: {GPU} {}; the low job: train_digits {}", OPTIONS.join(" "), TRAINING.join(" "));
    println!("the high job: --priority 1 --need {NEED}, {ARRIVALS} arrivals");
    let alone = Spread::of((0..ARRIVALS).map(|_| arrive(&manager).in_all));
    println!("from its arrival to its first work done, alone: {}", alone.line(" ms"));
    let mut low = Training::start(manager.run(&["--name", "low"], &support::train_digits()), &TRAINING);
    let step = mean_step(&mut low);
    let late: Vec<Arrival> = (0..ARRIVALS).map(|_| arrive_late(&manager)).collect();
    let (in_all, until_granted) = (late.iter().map(|a| a.in_all), late.iter().map(|a| a.until_granted));
    println!("the same while the low job trains:              {}", Spread::of(in_all).line(" ms"));
    println!("of this, until its gate was opened first:       {}", Spread::of(until_granted).line(" ms"));
    let figures = manager.job("low").figures;
    println!("a step of the low job takes {step:.3} ms; it gave way {} times", figures.switches);
    println!("{} of them at a boundary; mean, in µs: {:?}", figures.at_boundary, figures.switch_micros);
}

/// Milliseconds.
struct Arrival {
    in_all: f64,
    until_granted: f64,
}

fn arrive(manager: &Manager) -> Arrival {
    let mut high = manager.probe(&["--name", "high", "--priority", "1", "--need", NEED]);
    // Any answer: it runs, and has not touched CUDA.
    high.order("hello");
    let _ = high.answer();
    let began = Instant::now();
    high.tell("device 0");
    high.tell(&format!("alloc t {}", 10 * MIB));
    high.tell("poke t 0 1");
    let in_all = began.elapsed().as_secs_f64() * 1e3;
    let until_granted = manager.job("high").figures.first_wait_micros.expect("it was granted") as f64 / 1e3;
    high.end();
    manager.status_when(|status| status.jobs.iter().all(|job| job.figures.name != "high"));
    Arrival { in_all, until_granted }
}

/// The same in the middle of the low job's training.
fn arrive_late(manager: &Manager) -> Arrival {
    manager.status_when(|status| status.job("low").state == "open");
    // A few of its steps: it has all its memory again, and arrivals fall anywhere in a step.
    std::thread::sleep(Duration::from_millis(400));
    arrive(manager)
}

/// The mean time of the low job's steps, in milliseconds.
fn mean_step(low: &mut Training) -> f64 {
    let times: Vec<f64> =
        (0..=STEPS).map(|_| low.step().expect("it trains on").as_secs_f64() * 1e3).collect();
    (times[STEPS] - times[0]) / STEPS as f64
}
