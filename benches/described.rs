//! How soon a job whose memory comes back runs its first kernel, where that is described, and where it is not.
//! `cargo bench --bench described`
//!
//! The large job has 1 GiB, of which its first kernel uses the last twentieth. It gives way to another one; when that
//! has ended, its turn begins, and the first kernel waits for the bytes that it uses, or for all. Measured from the
//! other's end: what both ways cost alike (death is noticed, what the other had is scrubbed) counts in both, so the other
//! has little.

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use bench::Spread;
use std::time::Instant;
use support::{Jobs, MIB, Manager, Probe};

const ROUNDS: usize = 7;
const GPU: &str = "1x1088MiB,link=10GB/s";
const OPTIONS: [&str; 4] = ["--slice", "10ms", "--dram", "4GiB"];
const LARGE: u64 = 1024 * MIB;
const USED: u64 = LARGE / 20;
const FROM: u64 = LARGE - USED;
/// Of the other job: more than is left.
const SMALL: u64 = 80 * MIB;

fn main() {
    let manager = Manager::start(GPU, &OPTIONS);
    println!(
        "a software GPU: {GPU} {}; of {} MiB the first kernel uses {}",
        OPTIONS.join(" "),
        LARGE / MIB,
        USED / MIB
    );
    let mut large = manager.probe(&["--name", "large"]);
    large.tell("device 0");
    large.tell(&format!("alloc x {LARGE}"));
    large.tell(&format!("set x 0 {LARGE} 1"));
    let kernel = format!("set x {FROM} {USED} 2");
    let described = format!("described x {FROM} {USED} {kernel}");
    let mut rounds = |order: &str| {
        // The first warms up: it makes pages, and says what is used first.
        first_kernel(&manager, &mut large, order);
        Spread::of((0..ROUNDS).map(|_| first_kernel(&manager, &mut large, order)))
    };
    let never = rounds(&kernel);
    let with = rounds(&described);
    let without = rounds(&kernel);
    println!("from the other's end to the first kernel's:");
    println!("in a job that describes nothing:             {}", never.line(" ms"));
    println!("described:                                   {}", with.line(" ms"));
    println!("not described, in a job that describes some: {}", without.line(" ms"));
    println!("described ÷ undescribed: {:.3}", with.median / never.median);
    let figures = manager.job("large").figures;
    println!("it came back in parts {} times; a switch, in µs: {:?}", figures.ajar, figures.switch_micros);
}

/// Milliseconds from another job's end to that of the first kernel after it.
fn first_kernel(manager: &Manager, large: &mut Probe, order: &str) -> f64 {
    let mut other = manager.probe(&["--name", "other", "--priority", "1"]);
    other.tell("device 0");
    other.tell(&format!("alloc y {SMALL}"));
    other.tell("set y 0 1 1");
    large.order(order);
    other.end();
    let began = Instant::now();
    large.answer().expect("the kernel ends");
    let taken = began.elapsed().as_secs_f64() * 1e3;
    large.tell("peek x 0");
    manager.status_when(|status| status.job("large").state == "open" && status.jobs.len() == 1);
    taken
}
