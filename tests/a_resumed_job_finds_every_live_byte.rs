//! I1: whatever was allocated, freed and written in between, a job that runs again finds every
//! live byte as it left it, while all that is not alive is overwritten at each switch.

mod support;

use support::{KIB, Manager, Probe};

/// Names, sizes and seeds of what a job has; sizes that straddle units and pieces.
struct Contents {
    job: Probe,
    live: Vec<(String, u64)>,
    next: u64,
}

impl Contents {
    fn new(manager: &Manager, name: &str) -> Self {
        let mut job = manager.probe(&["--name", name]);
        job.tell("device 0");
        Self { job, live: Vec::new(), next: name.len() as u64 }
    }

    fn random(&mut self) -> u64 {
        self.next = self.next.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.next >> 33
    }

    fn allocate(&mut self) {
        let (seed, class) =
            (self.random(), ["temporary", "persistent"][usize::from(self.random().is_multiple_of(5))]);
        let bytes = [1, 511, 4097, 70 * KIB, 300 * KIB, 1000 * KIB][self.random() as usize % 6];
        let name = format!("m{seed}");
        self.job.tell(&format!("alloc {name} {bytes} {class}"));
        self.job.tell(&format!("fill {name} {seed}"));
        self.live.push((name, seed));
    }

    fn free_one(&mut self) {
        let index = self.random() as usize % self.live.len();
        let (name, _) = self.live.swap_remove(index);
        self.job.tell(&format!("free {name}"));
    }

    fn check_all(&mut self) {
        for (name, seed) in &self.live {
            self.job.tell(&format!("check {name} {seed}"));
        }
    }
}

#[test]
fn a_resumed_job_finds_every_live_byte() {
    let sizes = ["--unit", "64KiB", "--piece", "256KiB", "--offset", "64KiB"];
    // Some switches are at a boundary, some by deadline.
    let times = ["--slice", "10ms", "--boundary-deadline", "100ms"];
    let manager = Manager::start("1x6MiB", &[&sizes[..], &times[..], &["--poison"]].concat());
    let names = ["a", "bb", "ccc"];
    let mut jobs = names.map(|name| Contents::new(&manager, name));
    let mut round = 0;
    let mut work = || {
        round += 1;
        for contents in &mut jobs {
            if contents.live.len() < 8 {
                contents.allocate();
            } else {
                contents.free_one();
                contents.free_one();
            }
            contents.check_all();
            if round % 3 == 0 {
                contents.job.tell("boundary");
            }
        }
    };
    (0..30).for_each(|_| work());
    manager.work_until_switched(&names, 20, work);
    jobs.into_iter().for_each(|contents| contents.job.end());
}
