//! I10: whatever driver call fails, in a job or in the mover, its owner gets an error in words or goes
//! on untouched; nobody else notices, no byte is ever wrong, and nothing is lost for good.
//!
//! `tests/long/faults` injects a hundred of each.

mod support;

use std::path::{Path, PathBuf};
use support::{MIB, Manager, Probe, Status, files_but_pieces};

/// What a job's process calls at each step of its life and of a switch; every how many-th call fails.
const OF_JOBS: [(&str, u32); 13] = [
    ("cuInit", 1),
    ("cuDevicePrimaryCtxRetain", 1),
    ("cuCtxSetCurrent", 1),
    ("cuMemAddressReserve", 2),
    ("cuMemImportFromShareableHandle", 3),
    ("cuMemMap", 3),
    ("cuMemSetAccess", 3),
    ("cuMemUnmap", 3),
    ("cuMemRelease", 3),
    ("cuCtxRecordEvent", 7),
    // Who cannot be drained three times in a row is never closed again.
    ("cuEventQuery", 7),
    ("cuMemcpyHtoD_v2", 1),
    ("cuMemcpyDtoH_v2", 3),
];

/// What the mover calls.
const OF_MOVERS: [(&str, u32); 12] = [
    ("cuMemCreate", 5),
    ("cuMemExportToShareableHandle", 5),
    ("cuMemAddressReserve", 5),
    ("cuMemMap", 5),
    ("cuMemSetAccess", 5),
    // Some of the saves must succeed, else nobody ever gives way.
    ("cuMemcpyDtoHAsync_v2", 100),
    ("cuMemcpyHtoDAsync_v2", 100),
    ("cuMemsetD8Async", 2),
    ("cuStreamSynchronize", 5),
    ("cuMemGetInfo_v2", 2),
    ("cuMemUnmap", 5),
    ("cuMemRelease", 5),
];

/// A GPU on which one of two jobs fits at a time.
fn manager(environment: &[(&str, &Path)]) -> Manager {
    // Who cannot give memory back would keep it until it ends: so it is ended.
    let options = ["--unit", "64KiB", "--offset", "0", "--slice", "5ms", "--evict", "kill"];
    Manager::start_with("1x5MiB", &options, environment)
}

/// Every n-th call of a function fails, and a file that says how often one did.
struct Faults {
    rule: String,
    log: tempfile::NamedTempFile,
}

impl Faults {
    fn every(nth: u32, function: &str) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        Self { rule: format!("{function}@%{nth}=UNKNOWN"), log }
    }

    fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let log = self.log.path().to_owned();
        [("TIDEGATE_SOFTGPU_FAULTS", PathBuf::from(&self.rule)), ("TIDEGATE_SOFTGPU_FAULTS_LOG", log)]
    }

    fn count(&self) -> usize {
        std::fs::read_to_string(self.log.path()).unwrap().lines().count()
    }
}

/// So many faults of each kind; more where that is asked for.
fn wanted() -> usize {
    std::env::var("FAULTS").map_or(6, |count| count.parse().unwrap())
}

/// A job as it is when it has memory, if it comes so far.
struct Worker {
    probe: Probe,
    seed: u64,
}

impl Worker {
    fn start(manager: &Manager, name: &str, seed: u64, faults: Option<&Faults>) -> Result<Self, String> {
        let mut command = manager.run(&["--name", name], &support::probe());
        if let Some(faults) = faults {
            command.envs(faults.environment());
        }
        let mut worker = Self { probe: Probe::start(command), seed };
        worker.ask("device 0")?;
        worker.ask(&format!("alloc t {}", 3 * MIB))?;
        worker.ask(&format!("fill t {seed}"))?;
        Ok(worker)
    }

    /// An error is one of the driver's, in its words: never a wrong byte.
    fn ask(&mut self, order: &str) -> Result<(), String> {
        let answer = self.probe.try_tell(order).map(drop);
        if let Err(error) = &answer {
            let named = error.contains("CUDA_ERROR") || error == "the program ended";
            assert!(named && !error.contains("differs"), "{order}: {error}");
        }
        answer
    }

    fn check(&mut self) -> Result<(), String> {
        self.ask(&format!("check t {}", self.seed))
    }
}

/// What a faulty driver has kept may count as outside until its process is gone.
fn nothing_is_held(status: &Status) -> bool {
    let gpu = &status.gpus[0];
    let used = gpu.persistent.used_bytes + gpu.temporary.used_bytes + gpu.tiers[0].used_bytes;
    status.jobs.is_empty() && used + gpu.retired_bytes == 0
}

/// Works until so many faults have struck. One round in which none did is one of too many calls of
/// the others; a hundred mean that the function is not called.
fn until_struck(faults: &Faults, mut work: impl FnMut()) {
    let (mut idle, mut struck) = (0, 0);
    while struck < wanted() {
        work();
        let now = faults.count();
        idle = if now > struck { 0 } else { idle + 1 };
        struck = now;
        assert!(idle < 100, "{} strikes no more", faults.rule);
    }
}

#[test]
fn a_fault_in_a_job_hurts_it_alone() {
    let manager = manager(&[]);
    let mut honest = Worker::start(&manager, "honest", 1, None).unwrap();
    // A switch, for which the mover makes what it keeps.
    drop(Worker::start(&manager, "another", 2, None));
    honest.check().unwrap();
    manager.status_when(|status| status.jobs.len() == 1);
    let files = files_but_pieces(manager.pid());
    let mut total = 0;
    for (function, nth) in OF_JOBS {
        let faults = Faults::every(nth, function);
        let mut victim = None;
        until_struck(&faults, || {
            let mut worker = match victim.take() {
                Some(worker) => worker,
                None => match Worker::start(&manager, "victim", 2, Some(&faults)) {
                    Ok(worker) => worker,
                    Err(_) => return,
                },
            };
            honest.check().unwrap();
            // Who was hurt ends, and another takes its place.
            victim = worker.check().is_ok().then_some(worker);
        });
        drop(victim);
        honest.check().unwrap();
        total += faults.count();
        eprintln!("{} faults in {function} of jobs", faults.count());
    }
    eprintln!("{total} faults in jobs");
    manager.status_when(|status| status.jobs.len() == 1 && status.gpus[0].retired_bytes == 0);
    // Of a job that is just gone, some may still be closing; and one is the status's own connection.
    manager.status_when(|_| files_but_pieces(manager.pid()) <= files + 4);
    drop(honest);
    manager.status_when(nothing_is_held);
}

#[test]
fn a_fault_in_a_mover_loses_no_byte() {
    let mut total = 0;
    for (function, nth) in OF_MOVERS {
        let faults = Faults::every(nth, function);
        let environment = faults.environment();
        let environment: Vec<(&str, &Path)> = environment.iter().map(|(n, v)| (*n, v.as_path())).collect();
        let manager = manager(&environment);
        let mut jobs = [None, None];
        until_struck(&faults, || {
            // The GPU's memory is measured for it.
            manager.status();
            for (index, (job, name)) in jobs.iter_mut().zip(["a", "b"]).enumerate() {
                let worker = job.take().map_or_else(
                    || Worker::start(&manager, name, index as u64, None),
                    |mut worker: Worker| worker.check().map(|()| worker),
                );
                *job = worker.ok();
            }
        });
        total += faults.count();
        eprintln!("{} faults in {function} of movers", faults.count());
        drop(jobs);
        manager.status_when(nothing_is_held);
    }
    eprintln!("{total} faults in movers");
}
