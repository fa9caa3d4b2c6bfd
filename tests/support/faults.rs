//! Faults at chosen calls, and the jobs that meet them.

use super::{MIB, Manager, Probe, Status, files_but_memory, probe};
use std::path::{Path, PathBuf};
use tidegate_ffi::os::faults;

/// Every n-th call of one kind fails, and a file says how often one did.
pub struct Faults {
    rule: String,
    variables: [&'static str; 2],
    /// So many are enough; more where that is asked for.
    wanted: usize,
    log: tempfile::NamedTempFile,
}

impl Faults {
    /// Of the driver's functions.
    pub fn of_driver(function: &str, nth: u32) -> Self {
        let variables = ["TIDEGATE_SOFTGPU_FAULTS", "TIDEGATE_SOFTGPU_FAULTS_LOG"];
        Self::new(format!("{function}@%{nth}=UNKNOWN"), variables, 6)
    }

    /// Of the system's calls, as `tidegate_ffi::os` names them, in processes of one kind.
    pub fn of_system(kind: &str, call: &str, nth: u32, error: &str) -> Self {
        Self::new(format!("{kind}:{call}@%{nth}={error}"), [faults::VARIABLE, faults::LOG_VARIABLE], 3)
    }

    fn new(rule: String, variables: [&'static str; 2], wanted: usize) -> Self {
        let wanted = std::env::var("FAULTS").map_or(wanted, |count| count.parse().unwrap());
        Self { rule, variables, wanted, log: tempfile::NamedTempFile::new().unwrap() }
    }

    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let [rule, log] = self.variables;
        [(rule, PathBuf::from(&self.rule)), (log, self.log.path().to_owned())]
    }

    pub fn count(&self) -> usize {
        std::fs::read_to_string(self.log.path()).unwrap().lines().count()
    }
}

/// Works until enough faults have struck. One round in which none did is one of too many calls of
/// the others; a hundred mean that the function is not called.
pub fn until_struck(faults: &Faults, mut work: impl FnMut()) {
    let (mut idle, mut struck) = (0, 0);
    while struck < faults.wanted {
        work();
        let now = faults.count();
        idle = if now > struck { 0 } else { idle + 1 };
        struck = now;
        assert!(idle < 100, "{} strikes no more", faults.rule);
    }
    eprintln!("{struck} faults by {}", faults.rule);
}

/// A GPU on which one of two jobs fits at a time. The faults are the manager's and its movers'.
pub fn manager(faults: Option<&Faults>) -> Manager {
    // Who cannot give memory back would keep it until it ends: so it is ended.
    let options = ["--unit", "64KiB", "--offset", "0", "--slice", "5ms", "--evict", "kill"];
    let environment = faults.map(Faults::environment);
    let environment: Vec<(&str, &Path)> =
        environment.iter().flatten().map(|(name, value)| (*name, value.as_path())).collect();
    Manager::start_with("1x5MiB", &options, &environment)
}

/// A job as it is when it has memory, if it comes so far.
pub struct Worker {
    pub probe: Probe,
    seed: u64,
}

impl Worker {
    pub fn start(manager: &Manager, name: &str, seed: u64, faults: Option<&Faults>) -> Result<Self, String> {
        let mut command = manager.run(&["--name", name], &probe());
        if let Some(faults) = faults {
            command.envs(faults.environment());
        }
        let mut worker = Self { probe: Probe::start(command), seed };
        worker.ask("device 0")?;
        worker.ask(&format!("alloc t {}", 3 * MIB))?;
        worker.ask(&format!("fill t {seed}"))?;
        Ok(worker)
    }

    /// A job comes and goes, if it comes so far. Its memory is in smaller pieces than the other jobs': so these are destroyed for
    /// it, and its own for them.
    pub fn pass_by(manager: &Manager) {
        let mut passer = Self { probe: Probe::start(manager.run(&["--name", "passer"], &probe())), seed: 0 };
        let unit = format!("handle {}", 64 << 10);
        // What it cannot have is left.
        let _ = passer.ask("device 0").and_then(|()| (0..40).try_for_each(|_| passer.ask(&unit)));
    }

    /// An error is one of the driver's, in its words: never a wrong byte.
    pub fn ask(&mut self, order: &str) -> Result<(), String> {
        let answer = self.probe.try_tell(order).map(drop);
        if let Err(error) = &answer {
            let named = error.contains("CUDA_ERROR") || error == "the program ended";
            assert!(named && !error.contains("differs"), "{order}: {error}");
        }
        answer
    }

    pub fn check(&mut self) -> Result<(), String> {
        self.ask(&format!("check t {}", self.seed))
    }

    /// Work on one job after the other: each is started, or started again if it was hurt.
    pub fn each_works(manager: &Manager, jobs: &mut [Option<Self>]) {
        for (index, job) in jobs.iter_mut().enumerate() {
            let worker = job.take().map_or_else(
                || Self::start(manager, &format!("job {index}"), index as u64, None),
                |mut worker| worker.check().map(|()| worker),
            );
            *job = worker.ok();
        }
    }
}

/// Jobs with faults of each kind, one after another, beside an honest one: that notices nothing, and
/// nothing of them is left.
pub fn hurt_jobs(kinds: &[Faults]) {
    let manager = manager(None);
    let mut honest = Worker::start(&manager, "honest", 1, None).unwrap();
    // A switch, for which the mover makes what it keeps.
    drop(Worker::start(&manager, "another", 2, None));
    honest.check().unwrap();
    manager.status_when(|status| status.jobs.len() == 1);
    let files = files_but_memory(manager.pid());
    kinds.iter().for_each(|faults| hurt_a_job(&manager, &mut honest, faults));
    eprintln!("{} faults in jobs", kinds.iter().map(Faults::count).sum::<usize>());
    manager.status_when(|status| status.jobs.len() == 1 && status.gpus[0].retired_bytes == 0);
    // Of a job that is just gone, some may still be closing; and one is the status's own connection.
    manager.status_when(|_| files_but_memory(manager.pid()) <= files + 4);
    drop(honest);
    manager.status_when(nothing_is_held);
}

/// A job with faults beside an honest one. Who was hurt ends, and another takes its place.
fn hurt_a_job(manager: &Manager, honest: &mut Worker, faults: &Faults) {
    let mut victim: Option<Worker> = None;
    until_struck(faults, || {
        let worker = victim.take().map_or_else(|| Worker::start(manager, "victim", 2, Some(faults)), Ok);
        honest.check().unwrap();
        // It works on, and over another connection.
        let works = |worker: &mut Worker| worker.check().and_then(|()| worker.ask("cut"));
        victim = worker.ok().and_then(|mut worker| works(&mut worker).is_ok().then_some(worker));
    });
    drop(victim);
    honest.check().unwrap();
}

/// What a faulty driver has kept may count as outside until its process is gone.
pub fn nothing_is_held(status: &Status) -> bool {
    let gpu = &status.gpus[0];
    let used = gpu.persistent.used_bytes + gpu.temporary.used_bytes + gpu.tiers[0].used_bytes;
    status.jobs.is_empty() && used + gpu.retired_bytes == 0
}
