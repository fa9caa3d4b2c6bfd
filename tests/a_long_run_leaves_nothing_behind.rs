//! I4, I6, I7, I10 in the long run: jobs come and go on two GPUs, end well, are killed, and meet faults,
//! as do the movers. After each round there is nothing left of them, and after many rounds no more than
//! after a few.

#[allow(dead_code, reason = "the simulator uses more of it")]
#[path = "../manager/tests/simulation/random.rs"]
mod random;
mod support;

use random::Random;
use std::fs::read_to_string;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::deaths::movers;
use support::training::{Training, alone};
use support::{KIB, Manager, Probe, Status, files_but_memory, run_at, train_digits};
use tidegate_manager::server::status::GpuStatus;

/// So many jobs live at once.
const PLAYERS: u64 = 6;
/// Each player starts so many in a round.
const JOBS: u64 = 4;
/// Some rounds pass before anything is compared: caches fill, and histories.
const WARM_UP: usize = 3;
/// What the manager, or a mover, may grow by from then on, however long it goes on.
const GROWTH_KIB: u64 = 16 << 10;
/// Descriptors that the status's own connection, and one that is just closing, may take.
const FILES: usize = 6;

/// What fails every so often, in jobs that are meant to meet faults.
const FAULTS_OF_JOBS: [(&str, u64); 8] = [
    ("cuInit", 1),
    ("cuDevicePrimaryCtxRetain", 1),
    ("cuMemAddressReserve", 2),
    ("cuMemImportFromShareableHandle", 30),
    ("cuMemMap", 30),
    ("cuMemUnmap", 20),
    ("cuCtxRecordEvent", 9),
    ("cuMemcpyDtoH_v2", 5),
];

/// What fails in movers now and then.
const FAULTS_OF_MOVERS: &str = "cuMemCreate@%53=OUT_OF_MEMORY,cuMemMap@%67=UNKNOWN,\
    cuMemcpyDtoHAsync_v2@%89=UNKNOWN,cuMemcpyHtoDAsync_v2@%97=UNKNOWN,cuMemcpyBatchAsync_v2@%43=UNKNOWN,cuMemsetD8Async@%61=UNKNOWN,\
    cuStreamSynchronize@%131=UNKNOWN,cuMemRelease@%71=UNKNOWN";

struct Stage {
    manager: Manager,
    game: Game,
}

/// What the players know.
struct Game {
    socket: PathBuf,
    /// A line for each fault.
    faults: tempfile::NamedTempFile,
    /// What a training ends with when it is alone, by seed.
    solo: [String; 2],
}

fn arguments(seed: usize) -> [&'static str; 8] {
    ["--hidden", "128", "--batch", "120", "--steps", "80", "--seed", ["1", "2"][seed]]
}

impl Stage {
    fn set() -> Self {
        let faults = tempfile::NamedTempFile::new().unwrap();
        let options = ["--unit", "64KiB", "--offset", "64KiB", "--slice", "10ms", "--evict", "kill"];
        let environment = [
            ("TIDEGATE_SOFTGPU_FAULTS", Path::new(FAULTS_OF_MOVERS)),
            ("TIDEGATE_SOFTGPU_FAULTS_LOG", faults.path()),
        ];
        let manager = Manager::start_with("2x6MiB", &options, &environment);
        let solo = [0, 1].map(|seed| alone(&arguments(seed)));
        Self { game: Game { socket: manager.socket(), faults, solo }, manager }
    }

    /// All players start their jobs, one after another; then nothing is left.
    fn round(&self, seed: u64) -> Size {
        let game = &self.game;
        std::thread::scope(|scope| {
            for player in 0..PLAYERS {
                let mut random = Random::new(seed * PLAYERS + player);
                scope.spawn(move || (0..JOBS).for_each(|_| game.play(player, &mut random)));
            }
        });
        self.manager.status_when(nothing_is_left);
        self.size()
    }

    fn size(&self) -> Size {
        let manager = self.manager.pid();
        let of_movers = movers(&self.manager).into_iter().map(rss).max();
        Size { manager: rss(manager), movers: of_movers.unwrap(), files: files_but_memory(manager) }
    }
}

impl Game {
    /// One job, from its start to its end.
    fn play(&self, player: u64, random: &mut Random) {
        let name = format!("player {player}");
        let gpu = random.index(2).to_string();
        let start = |program: &Path| {
            let mut command = run_at(&self.socket, &["--name", &name], program);
            command.env("CUDA_VISIBLE_DEVICES", &gpu);
            command
        };
        match random.index(4) {
            0 => {
                let seed = random.index(2);
                let result = Training::start(start(&train_digits()), &arguments(seed)).result();
                assert_eq!(result, self.solo[seed]);
            }
            1 => work(Probe::start(start(&support::probe())), random, Manner::Well),
            2 => work(Probe::start(start(&support::probe())), random, Manner::Killed),
            _ => {
                let (function, nth) = FAULTS_OF_JOBS[random.index(FAULTS_OF_JOBS.len())];
                let mut command = start(&support::probe());
                command.env("TIDEGATE_SOFTGPU_FAULTS", format!("{function}@%{nth}=UNKNOWN"));
                command.env("TIDEGATE_SOFTGPU_FAULTS_LOG", self.faults.path());
                // Who is killed for what it cannot give back does not say so.
                command.process_group(0);
                work(Probe::start(command), random, Manner::Faulty);
            }
        }
    }
}

/// How a job goes.
#[derive(PartialEq, Eq)]
enum Manner {
    Well,
    Killed,
    /// It is told of errors, and never sees a wrong byte.
    Faulty,
}

fn work(mut job: Probe, random: &mut Random, manner: Manner) {
    let mut orders = vec!["device 0".to_owned(), "fork".into()];
    let (persistent, temporary) = (random.between(64, 700) * KIB, random.between(100, 3000) * KIB);
    orders.extend([format!("alloc p {persistent} persistent"), "fill p 1".into()]);
    orders.extend([format!("alloc t {temporary}"), "fill t 2".into()]);
    for _ in 0..random.between(2, 12) {
        let more = random.between(1, 1000) * KIB;
        orders.extend(["check p 1", "boundary", "check t 2"].map(String::from));
        orders.extend([format!("alloc x {more}"), "fill x 3".into(), "check x 3".into(), "free x".into()]);
    }
    if manner == Manner::Killed {
        orders.truncate(random.between(1, orders.len() as u64) as usize);
    }
    for order in orders {
        match job.try_tell(&order) {
            Ok(_) => {}
            Err(error) if manner == Manner::Faulty && !error.contains("differs") => return,
            // A mover's fault may cost a job its memory before it has it, and nothing that it has.
            Err(error) if order.starts_with("alloc") && error.contains("OUT_OF_MEMORY") => return,
            Err(error) => panic!("{order}: {error}"),
        }
    }
    if manner == Manner::Well {
        job.end();
    }
}

fn nothing_is_left(status: &Status) -> bool {
    let used = |gpu: &GpuStatus| {
        gpu.persistent.used_bytes + gpu.temporary.used_bytes + gpu.tiers[0].used_bytes + gpu.retired_bytes
    };
    status.jobs.is_empty()
        && status.gpus.iter().all(|gpu| !gpu.mover.lost && used(gpu) == 0 && gpu.outsider_bytes == Some(0))
}

/// Resident KiB, and open files.
#[derive(Clone, Copy, Debug)]
struct Size {
    manager: u64,
    movers: u64,
    files: usize,
}

fn rss(pid: u32) -> u64 {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    rss.map_or(0, |rss| rss.trim().trim_end_matches(" kB").parse().unwrap())
}

/// The first rounds have these seeds; who wants more rounds gets more seeds.
fn rounds(wanted: impl Fn(usize) -> bool) {
    let stage = Stage::set();
    let mut sizes: Vec<Size> = Vec::new();
    while wanted(sizes.len()) {
        let size = stage.round(sizes.len() as u64);
        println!("round {}: {size:?}", sizes.len());
        sizes.push(size);
        let Some(early) = sizes.get(WARM_UP) else { continue };
        assert!(size.manager <= early.manager + GROWTH_KIB, "the manager grows: {early:?} {size:?}");
        assert!(size.movers <= early.movers + GROWTH_KIB, "the movers grow: {early:?} {size:?}");
        assert!(size.files <= early.files + FILES, "descriptors: {early:?} {size:?}");
    }
    let faults = read_to_string(stage.game.faults.path()).unwrap().lines().count();
    let replaced: u64 = stage.manager.status().gpus.iter().map(|gpu| gpu.mover.replacements).sum();
    let jobs = sizes.len() as u64 * PLAYERS * JOBS;
    println!("{jobs} jobs, {faults} faults, {replaced} movers replaced");
    assert!(faults > 0);
}

#[test]
fn a_long_run_leaves_nothing_behind() {
    rounds(|done| done < WARM_UP + 1);
}

/// Minutes in `MINUTES` (30).
#[test]
#[ignore = "takes as long as it is told to: tests/long/soak"]
fn nor_does_a_longer_one() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(30.0);
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    rounds(|_| Instant::now() < end);
}
