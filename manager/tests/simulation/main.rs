//! The scheduler in a simulated world: random jobs, processes, movers and faults in virtual
//! time, all from one seed. After every event the invariants are checked (I1, I2, I4–I7, I9).
//!
//! A failing seed prints itself and replays exactly:
//! `SEED=123 cargo test -p tidegate-manager --test simulation random`.

mod memory;
mod plan;
mod process;
mod random;
mod tenant;
mod watcher;
mod world;

use plan::{Faults, Plan};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tidegate_manager::planner::shares::PerTier;
use tidegate_manager::scheduler::Job;
use world::{Outcome, World};

/// How many schedules `random_schedules_keep_every_promise` plays.
const SCHEDULES: u64 = 10_000;

/// In these schedules the manager dies after so many events (per mille): now and then, or at
/// almost every event.
fn manager_deaths(seed: u64) -> u64 {
    if seed.is_multiple_of(50) { 500 } else { 10 }
}

fn play(seed: u64, manager_deaths: u64, loud: bool) -> Result<(Outcome, u64), String> {
    let mut world = World::new(Plan::random(seed), seed);
    (world.loud, world.manager_deaths) = (loud, manager_deaths);
    world.run().map(|outcome| (outcome, world.successions))
}

/// One test at a time has all processors: their times are promises too.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// Plays seeds `1 ..= count` on all processors; the failures, by seed.
fn play_all<T: Send>(
    count: u64,
    play: impl Fn(u64) -> Result<T, String> + Sync + std::panic::RefUnwindSafe,
    take: impl Fn(T) + Sync,
) -> Vec<(u64, String)> {
    let (next, failures) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > count {
                return;
            }
            let outcome = std::panic::catch_unwind(|| play(seed));
            match outcome.unwrap_or_else(|_| Err("it panicked".into())) {
                Ok(outcome) => take(outcome),
                Err(wrong) => failures.lock().unwrap().push((seed, wrong)),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    failures
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_schedules_keep_every_promise() {
    if let Some(seed) = number_from("SEED") {
        let outcome = play(seed, manager_deaths(seed), std::env::var_os("LOUD").is_some());
        println!("SEED={seed}: {}", outcome.as_ref().map_or_else(|e| e.clone(), |o| format!("{o:?}")));
        assert!(outcome.is_ok());
        return;
    }
    let _turn = PROCESSORS.lock();
    let (began, sum) = (Instant::now(), Mutex::new(Sum::default()));
    let schedules = number_from("SCHEDULES").unwrap_or(SCHEDULES);
    let failures = play_all(
        schedules,
        |seed| play(seed, manager_deaths(seed), false),
        |(outcome, successions)| sum.lock().unwrap().add(&outcome, successions),
    );
    let sum = sum.into_inner().unwrap();
    println!("{sum:?} in {:.1} s", began.elapsed().as_secs_f64());
    for (seed, wrong) in failures.iter().take(20) {
        println!("SEED={seed} cargo test -p tidegate-manager --test simulation random\n  {wrong}");
    }
    assert!(failures.is_empty(), "{} schedules broke a promise", failures.len());
    assert!(sum.oversubscribed * 10 >= sum.schedules * 3, "too few schedules are oversubscribed");
    assert!(sum.early_work > 0, "no described work went before all memory was back");
    assert!(sum.hosted_pieces > 0, "nobody was given host memory in a GPU's place");
    assert!(sum.changed_shares.iter().all(|changed| *changed > 0), "the shares of a tier have not changed");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 14, 15, 92] {
        assert_eq!(play(seed, 10, false), play(seed, 10, false));
    }
}

#[test]
fn a_schedule_whose_managers_die_comes_to_what_it_would_have_come_to() {
    let _turn = PROCESSORS.lock();
    let both = |seed| {
        let ((lived, _), (died, successions)) = (play(seed, 0, false)?, play(seed, 100, false)?);
        (lived == died).then_some(successions).ok_or(format!("{died:?} instead of {lived:?}"))
    };
    let successions = AtomicU64::new(0);
    let failures = play_all(500, both, |more| _ = successions.fetch_add(more, Ordering::Relaxed));
    println!("{successions:?} successions");
    assert!(failures.is_empty(), "{} of 500: {:?}", failures.len(), failures.first());
    assert!(successions.into_inner() > 500);
}

#[test]
fn processes_that_lack_descriptors_for_a_moment_get_all_their_memory_back() {
    let _turn = PROCESSORS.lock();
    let lacking = |seed| {
        let mut plan = Plan::random(seed);
        plan.faults = Faults { descriptors: 400, ..Faults::default() };
        let outcome = World::new(plan, seed).run()?;
        match outcome.expelled {
            0 => Ok(outcome.shortened),
            expelled => Err(format!("{expelled} processes were expelled")),
        }
    };
    let shortened = AtomicU64::new(0);
    let failures = play_all(200, lacking, |more| _ = shortened.fetch_add(more, Ordering::Relaxed));
    println!("{shortened:?} orders were carried out in part");
    assert!(failures.is_empty(), "{} of 200: {:?}", failures.len(), failures.first());
    assert!(shortened.into_inner() > 300);
}

#[test]
fn jobs_that_hold_memory_leave_room_for_each_other() {
    let _turn = PROCESSORS.lock();
    let holding = |seed| {
        let mut plan = Plan::random(seed);
        plan.faults = Faults::default();
        plan.jobs.iter_mut().flat_map(|job| &mut job.sessions).for_each(|session| session.holds = 30);
        World::new(plan, seed).run()
    };
    let (held, not_held) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = play_all(1000, holding, |outcome| {
        held.fetch_add(outcome.held, Ordering::Relaxed);
        not_held.fetch_add(outcome.not_held, Ordering::Relaxed);
    });
    println!("{held:?} pieces were held, {not_held:?} allocations could not be");
    assert!(failures.is_empty(), "{} of 1000: {:?}", failures.len(), failures.first());
    assert!(held.into_inner() > 1000 && not_held.into_inner() > 100);
}

/// The test of the test: with this fault in the mover, some schedule must fail in this way.
fn is_found(fault: impl Fn(&mut Faults), promise: &str) {
    let found = (1..=100).any(|seed| {
        let mut plan = Plan::random(seed);
        plan.faults = Faults::default();
        fault(&mut plan.faults);
        World::new(plan, seed).run().is_err_and(|wrong| wrong.contains(promise))
    });
    assert!(found, "a mover that does not keep {promise} was not noticed");
}

#[test]
fn a_mover_that_restores_wrong_bytes_is_found() {
    is_found(|faults| faults.confusion = 100, "(I1)");
}

#[test]
fn a_mover_that_does_not_scrub_is_found() {
    is_found(|faults| faults.laziness = 1000, "(I8)");
}

#[test]
fn a_mover_that_forgets_before_it_has_answered_is_found() {
    let forget = |faults: &mut Faults| (faults.mover_deaths, faults.forgetfulness) = (100, 1000);
    is_found(forget, "cannot obey");
}

/// The greatest relative distance of a job's part of GPU time from its part of the weights.
fn unfairness(seed: u64) -> Result<f64, String> {
    let mut world = World::new(Plan::of_exclusive_jobs(seed), seed);
    world.checks_every = 16;
    world.run_until(|scheduler| scheduler.jobs().values().map(|job| job.stats.slices).sum::<u64>() >= 500)?;
    let jobs = || world.scheduler.jobs().values();
    let time: f64 = jobs().map(|job| job.runtime.as_secs_f64()).sum();
    let weights: f64 = jobs().map(|job| f64::from(job.spec.weight)).sum();
    let part = |job: &Job| job.runtime.as_secs_f64() / time / (f64::from(job.spec.weight) / weights);
    Ok(jobs().map(|job| (part(job) - 1.0).abs()).fold(0.0, f64::max))
}

#[test]
fn exclusive_jobs_share_the_gpu_by_their_weights() {
    let _turn = PROCESSORS.lock();
    let (began, all) = (Instant::now(), Mutex::new(Vec::new()));
    let failures = play_all(200, unfairness, |unfair| all.lock().unwrap().push(unfair));
    assert!(failures.is_empty(), "{failures:?}");
    let all = all.into_inner().unwrap();
    let (worst, mean) = (all.iter().copied().fold(0.0, f64::max), all.iter().sum::<f64>() / all.len() as f64);
    println!(
        "{} schedules: off by {:.2} % at worst, {:.2} % on average, in {:.1} s",
        all.len(),
        worst * 100.0,
        mean * 100.0,
        began.elapsed().as_secs_f64()
    );
    assert!(worst <= 0.05, "off by {worst}");
}

/// Figures of many schedules.
#[derive(Debug, Default)]
struct Sum {
    schedules: u64,
    oversubscribed: u64,
    events: u64,
    switches: u64,
    saved_bytes: u64,
    preempted_bytes: u64,
    prefetched_bytes: u64,
    refused: u64,
    early_work: u64,
    homeless: u64,
    deaths: u64,
    expelled: u64,
    failed_saves: u64,
    hosted_pieces: u64,
    changed_shares: PerTier,
    mover_deaths: u64,
    manager_deaths: u64,
    longest_wait: u64,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome, successions: u64) {
        self.schedules += 1;
        self.oversubscribed += u64::from(outcome.oversubscribed);
        self.events += outcome.events;
        self.switches += outcome.switches;
        self.saved_bytes += outcome.saved_bytes;
        self.preempted_bytes += outcome.preempted_bytes;
        self.prefetched_bytes += outcome.prefetched_bytes;
        self.refused += outcome.refused;
        self.early_work += outcome.early_work;
        self.homeless += outcome.homeless;
        self.deaths += outcome.deaths;
        self.expelled += outcome.expelled;
        self.failed_saves += outcome.failed_saves;
        self.hosted_pieces += outcome.hosted_pieces;
        for (sum, changed) in self.changed_shares.iter_mut().zip(outcome.changed_shares) {
            *sum += changed;
        }
        self.mover_deaths += outcome.mover_deaths;
        self.manager_deaths += successions;
        self.longest_wait = self.longest_wait.max(outcome.longest_wait);
    }
}
