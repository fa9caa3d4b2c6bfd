//! How soon a job whose memory comes back runs its first kernel, where that is described, and where it is not.
//! `cargo bench --bench described`
//!
//! The large job has 1 GiB, of which its first kernel uses the last twentieth. It gives way to another one; when that
//! has ended, its turn begins, and the first kernel waits for the bytes that it uses, or for all. Measured from the
//! other's end: what both ways cost alike (death is noticed, what the other had is scrubbed) counts in both, so the other
//! has little. Each time with new jobs: what has survived two switches stays on the GPU.

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use bench::Spread;
use std::time::Instant;
use support::{MIB, Manager};

const ROUNDS: usize = 7;
const GPU: &str = "1x1040MiB,link=10GB/s";
const OPTIONS: [&str; 4] = ["--slice", "10ms", "--dram", "4GiB"];
const LARGE: u64 = 1024 * MIB;
const USED: u64 = LARGE / 20;
const FROM: u64 = LARGE - USED;
/// What it writes of that: what the kernel itself takes is not the question.
const TOUCHED: u64 = MIB;
/// Of the other job: more than is left.
const SMALL: u64 = 24 * MIB;

fn main() {
    let manager = Manager::start(GPU, &OPTIONS);
    println!(
        "a software GPU: {GPU} {}; of {} MiB the first kernel uses {}",
        OPTIONS.join(" "),
        LARGE / MIB,
        USED / MIB
    );
    let kernel = format!("set x {FROM} {TOUCHED} 2");
    let described = format!("described x {FROM} {USED} {kernel}");
    // What the large job does before it gives way, and what it is timed for.
    let ways = [(&kernel, &kernel), (&described, &described), (&described, &kernel)];
    let mut times = ways.map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for ((before, timed), times) in ways.iter().zip(&mut times) {
            let taken = first_kernel(&manager, before, timed);
            // The first round warms up.
            times.extend((round > 0).then_some(taken));
        }
    }
    let [never, with, without] = times.map(Spread::of);
    println!("from the other's end to the first kernel's:");
    println!("in a job that describes nothing:             {}", never.line(" ms"));
    println!("described:                                   {}", with.line(" ms"));
    println!("not described, in a job that describes some: {}", without.line(" ms"));
    println!("described ÷ undescribed: {:.3}", with.median / never.median);
}

/// Milliseconds from another job's end to that of the first kernel after it.
fn first_kernel(manager: &Manager, before: &str, timed: &str) -> f64 {
    let mut large = manager.probe(&["--name", "large"]);
    large.tell("device 0");
    large.tell(&format!("alloc x {LARGE}"));
    large.tell(&format!("set x 0 {LARGE} 1"));
    large.tell(before);
    let mut other = manager.probe(&["--name", "other", "--priority", "1"]);
    other.tell("device 0");
    other.tell(&format!("alloc y {SMALL}"));
    other.tell(&format!("set y 0 {SMALL} 1"));
    large.order(timed);
    other.end();
    let began = Instant::now();
    large.answer().expect("the kernel ends");
    let taken = began.elapsed().as_secs_f64() * 1e3;
    assert_eq!(large.try_tell("peek x 0").as_deref(), Ok("1"));
    let figures = manager.job("large").figures;
    assert_eq!((figures.saved_bytes, figures.restored_bytes), (LARGE, LARGE), "all of it has gone and come");
    large.end();
    manager.status_when(|status| status.jobs.is_empty());
    taken
}
