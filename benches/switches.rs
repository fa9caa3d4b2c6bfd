//! What a switch costs users: `cargo bench --bench switches [-- MIB…]`
//!
//! ```text
//! two programs of so many MiB on a GPU of 5/4 of that, the second a second after the first
//! a link of two fifths of what the machine copies in memory, at most 10 GB/s: both ways at once, the software GPU can keep up
//!
//!   MiB   save and restore ÷ what the link needs for their bytes, and how many ms longer    first ÷ tenth
//!         └ each from the second switch on, together
//!         whole switch ÷ what the link needs, and how many ms longer
//! ```
//! The figures are the manager's own (`switch_micros`, means over a job's switches), of manager, mover and programs as users run
//! them. A switch is one that leaves and one that comes; first and tenth are compared by the time for each byte that they move.

#[path = "../tests/support/c.rs"]
mod c;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../tests/support/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;

use stage::Stage;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::{Jobs as _, Manager};
use tidegate_manager::server::status::{EndedJob, Status};

/// Bytes per second, of the link at most.
const MOST: f64 = 10e9;
/// Such a part of what the machine copies is the link's rate.
const PART: f64 = 0.4;
/// Switches of both programs that are looked at.
const LAST: u64 = 24;
/// From so many MiB on it is half as many: slices are nine times as long as a switch at least, which are minutes.
const LARGE: u64 = 4096;
const NAMES: [&str; 2] = ["first", "second"];

fn main() {
    let wanted: Vec<u64> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if wanted.is_empty() { vec![64, 128, 256, 512, 1024] } else { wanted };
    let stage = Stage::with("1x64MiB", "rhythm", "stir_kernel");
    // Tenths of a GB/s, as the option takes it.
    let (copies, tenth) = (copy_rate(), 1e8);
    let rate = (copies * PART).min(MOST).div_euclid(tenth) * tenth;
    println!("a copy in memory: {:.1} GB/s; the link: {:.1} GB/s", copies / 1e9, rate / 1e9);
    println!(
        "{:>6}  {:>8}  {:>18}  {:>18}  {:>18}  {:>13}",
        "MiB", "switches", "save", "restore", "whole", "first ÷ tenth"
    );
    sizes.into_iter().for_each(|mib| measure(mib, rate, &stage));
}

/// What one thread copies in memory that no cache has, in bytes per second: the median of some copies.
fn copy_rate() -> f64 {
    const BYTES: usize = 64 << 20;
    let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let mut other = vec![0u8; 4 * BYTES];
    let mut rates: Vec<f64> = (0..9)
        .map(|round| {
            other.fill(round);
            let began = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
            BYTES as f64 / began.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What was moved and how long it took, summed over all switches so far, of both programs.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    switches: u64,
    /// Bytes.
    saved: f64,
    restored: f64,
    /// Seconds.
    save: f64,
    restore: f64,
    maps: f64,
}

impl Sums {
    fn of(status: &Status) -> Self {
        let living = status.jobs.iter().map(|job| &job.figures);
        let figures = living.chain(&status.ended).filter(|job| NAMES.contains(&job.name.as_str()));
        figures.fold(Self::default(), |sums, job| sums.with(job))
    }

    fn with(self, job: &EndedJob) -> Self {
        let seconds = |mean: u64| mean as f64 * job.switches as f64 / 1e6;
        Self {
            switches: self.switches + job.switches,
            saved: self.saved + (job.saved_bytes + job.preempted_bytes) as f64,
            restored: self.restored + job.restored_bytes as f64,
            save: self.save + seconds(job.switch_micros.save),
            restore: self.restore + seconds(job.switch_micros.restore),
            maps: self.maps + seconds(job.switch_micros.unmap + job.switch_micros.map),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            switches: self.switches - before.switches,
            saved: self.saved - before.saved,
            restored: self.restored - before.restored,
            save: self.save - before.save,
            restore: self.restore - before.restore,
            maps: self.maps - before.maps,
        }
    }

    fn all(self) -> f64 {
        self.save + self.restore + self.maps
    }
}

fn measure(mib: u64, rate: f64, stage: &Stage) {
    let last = if mib < LARGE { LAST } else { LAST / 2 };
    let gpu = format!("1x{}MiB,link={:.1}GB/s", mib * 5 / 4, rate / 1e9);
    let manager = Manager::start(&gpu, &["--slice", "100ms", "--slice-max", "300ms"]);
    let start = |name: &str| {
        let mut command = manager.run(&["--name", name], &stage.program);
        command.arg(&stage.kernels).args([
            format!("mib={mib}"),
            "kernel=5000".into(),
            "steps=1000000".into(),
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = start(NAMES[0]);
    std::thread::sleep(Duration::from_secs(1));
    let programs: [Child; 2] = [first, start(NAMES[1])];
    let mut seen = vec![Sums::default()];
    loop {
        let status = manager.status();
        let sums = Sums::of(&status);
        if seen.last().is_some_and(|last| last.switches < sums.switches) {
            seen.push(sums);
        }
        if sums.switches >= last {
            break;
        }
        assert!(!status.has_ended(NAMES[0]), "it is over after {} switches", sums.switches);
        // Each look starts a process.
        std::thread::sleep(Duration::from_millis(40));
    }
    let is_first = |sums: &&Sums| sums.saved >= (mib << 19) as f64 && sums.restored > 0.0;
    let early = *seen.iter().find(is_first).expect("a switch moves most of it");
    let late = *seen.last().unwrap();
    let steady = late.since(early);
    let ratio = |took: f64, bytes: f64, switches: u64| {
        let ideal = bytes / rate;
        format!("{:>6.2} {:>+7.1} ms", took / ideal, (took - ideal) * 1e3 / switches as f64)
    };
    let tenth = late.since(*seen.iter().rev().find(|sums| sums.switches + 6 <= last).unwrap());
    let each = |sums: Sums| sums.all() / (sums.saved + sums.restored);
    println!(
        "{mib:>6}  {:>8}  {:>18}  {:>18}  {:>18}  {:>13.2}",
        steady.switches,
        ratio(steady.save, steady.saved, steady.switches),
        ratio(steady.restore, steady.restored, steady.switches),
        ratio(steady.all(), steady.saved + steady.restored, steady.switches),
        each(early) / each(tenth),
    );
    for mut program in programs {
        program.kill().and_then(|()| program.wait()).unwrap();
    }
}
