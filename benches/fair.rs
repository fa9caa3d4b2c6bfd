//! What a modest mover gets of a tier that a greedy one uses too, to its fair part, a half. `cargo bench --bench fair`
//!
//! The tier is a model: it serves one request after the other, in the order in which they come, so many bytes in a
//! second. The greedy mover has eight requests under way at once, the modest one has one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::{scope, sleep};
use std::time::Duration;
use tidegate_ffi::units::GpuUuid;
use tidegate_ffi::wire::create_sealed;
use tidegate_manager::mover::turns::{BYTES, STEP, SharedTier, Stay, Turns};

/// How long the tier takes for a step: 1 GB/s.
const STEP_TIME: Duration = Duration::from_millis(4);
const SECONDS: u64 = 3;
const GREEDY: usize = 8;

fn main() {
    println!("a tier of 1 GB/s, {SECONDS} s: a mover with one request at once beside one with {GREEDY}");
    for (name, in_turns) in [("who comes first", false), ("in turns", true)] {
        let (greedy, modest) = race(in_turns);
        let fair = (greedy + modest) as f64 / 2.0;
        println!(
            "{name:<16} greedy {greedy:>4} MiB, modest {modest:>4} MiB: {:.2} of its fair part",
            modest as f64 / fair
        );
    }
}

/// How many MiB each has moved.
fn race(in_turns: bool) -> (u64, u64) {
    let file = state_file();
    let [greedy, modest] = [1, 2].map(|gpu| Turns::of(GpuUuid([gpu; 16]), file.as_fd()).unwrap());
    let (tier, is_over) = (Tier::default(), AtomicBool::new(false));
    let moved = [AtomicU64::new(0), AtomicU64::new(0)];
    let go = |stay: &Stay<'_>, moved: &AtomicU64| {
        while !is_over.load(Ordering::Relaxed) {
            if in_turns {
                stay.take(STEP);
            }
            tier.serve();
            moved.fetch_add(STEP >> 20, Ordering::Relaxed);
        }
    };
    let stays = [&greedy, &modest].map(|turns| turns.enter(SharedTier::Disk));
    scope(|scope| {
        (0..GREEDY).for_each(|_| drop(scope.spawn(|| go(&stays[0], &moved[0]))));
        scope.spawn(|| go(&stays[1], &moved[1]));
        sleep(Duration::from_secs(SECONDS));
        is_over.store(true, Ordering::Relaxed);
    });
    (moved[0].load(Ordering::Relaxed), moved[1].load(Ordering::Relaxed))
}

/// As a manager's, with nothing but the page in it.
fn state_file() -> OwnedFd {
    create_sealed("fair", BYTES).unwrap()
}

/// Serves whoever drew the lowest number.
#[derive(Default)]
struct Tier {
    drawn: AtomicU64,
    serving: Mutex<u64>,
    next: Condvar,
}

impl Tier {
    fn serve(&self) {
        let number = self.drawn.fetch_add(1, Ordering::SeqCst);
        let serving = self.serving.lock().unwrap();
        let mut serving = self.next.wait_while(serving, |serving| *serving != number).unwrap();
        sleep(STEP_TIME);
        *serving += 1;
        self.next.notify_all();
    }
}
