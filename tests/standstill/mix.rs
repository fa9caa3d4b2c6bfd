//! What is played: a configuration, programs, and what happens to them. All of it depends on the seed.

use crate::dice::Dice;
use crate::plan::Plan;
use std::fmt::{Display, Formatter};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// How long a mix is, and a long one: where one program keeps another from its steps until it ends, a bound of that one has to
/// be over before.
const LENGTHS: [u64; 2] = [10_000, 25_000];

/// One mix. Sizes are bytes, times milliseconds.
#[derive(Debug, Clone)]
pub struct Mix {
    pub seed: u64,
    /// As in `--software-gpu`.
    pub gpu: String,
    pub slice: u64,
    pub boundary_deadline: u64,
    /// The manager's other options. `DISK` in them is a directory.
    pub options: Vec<String>,
    pub jobs: Vec<Job>,
    pub events: Vec<(u64, Event)>,
    /// After so long the programs are asked to end.
    pub length: u64,
}

/// One program.
#[derive(Debug, Clone)]
pub struct Job {
    pub start: u64,
    pub priority: i32,
    pub weight: u32,
    /// As in `--need`; empty: not told.
    pub need: String,
    pub plan: Plan,
}

/// What happens to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    KillJob(usize),
    /// All processes of a job are stopped for so long.
    StopJob(usize, u64),
    KillMover,
    KillManager,
    /// Both at once.
    KillBoth,
    /// The manager is killed, and before another one can take over a job's process becomes another program.
    Become(usize),
}

impl Mix {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut mix = Self::configuration(seed, &mut dice);
        let gpu = mix.gpu_bytes();
        let most = if gpu > 512 * MIB { 3 } else { 6 };
        for index in 0..dice.within(2, most) {
            let job = Job::of(&mut dice, gpu, index);
            mix.jobs.push(job);
        }
        if dice.one_in(3) {
            mix.add_events(&mut dice);
        }
        mix.length = LENGTHS[usize::from(dice.one_in(8))];
        if dice.one_in(8) {
            mix.grow_on_a_quota(&mut dice);
        }
        if dice.one_in(8) {
            mix.become_another(&mut dice);
        }
        mix
    }

    fn configuration(seed: u64, dice: &mut Dice) -> Self {
        let gpu = dice.of(&[64, 64, 64, 64, 64, 96, 128, 128, 192, 256, 256, 1024]);
        let link = if dice.one_in(4) { ",link=4GB/s" } else { "" };
        let slice = dice.of(&[20, 20, 50, 100, 200, 1000]);
        let boundary_deadline = dice.of(&[1, 20, 100, 500, 1000]);
        let unit = dice.of(&[64 * KIB, 256 * KIB, 2 * MIB]);
        let dram = gpu * MIB / 16 * dice.of(&[0, 1, 2, 4, 8, 16, 32, 32]);
        let mut options = vec![format!("--unit={unit}B"), format!("--dram={dram}B")];
        if dice.one_in(2) {
            options.push(format!("--offset={}B", unit * dice.of(&[1, 4])));
        }
        if dice.one_in(4) {
            options.push(format!("--disk=DISK={}MiB", gpu * dice.of(&[1, 2])));
        }
        if dice.one_in(6) {
            options.push(format!("--quota={}MiB", gpu * dice.of(&[1, 2, 4]) / 2));
        }
        if dice.one_in(8) {
            options.push(format!("--user-memory={}MiB", gpu * dice.of(&[2, 3, 6]) / 4));
        }
        if dice.one_in(8) {
            options.push("--poison".into());
        }
        let (jobs, events, length) = (Vec::new(), Vec::new(), LENGTHS[0]);
        Self {
            seed,
            gpu: format!("1x{gpu}MiB{link}"),
            slice,
            boundary_deadline,
            options,
            jobs,
            events,
            length,
        }
    }

    /// Programs that only grow, in tiers of which a quota leaves little.
    fn grow_on_a_quota(&mut self, dice: &mut Dice) {
        let gpu = self.gpu_bytes() / MIB;
        self.options.retain(|option| !["--dram", "--quota"].iter().any(|name| option.starts_with(name)));
        self.options.push(format!("--dram={}MiB", 4 * gpu));
        self.options.push(format!("--quota={}MiB", gpu * dice.within(2, 8) as u64 / 8));
        self.jobs.iter_mut().for_each(|job| (job.plan.grows, job.plan.steps) = (1, 10 * job.plan.steps));
        self.length = LENGTHS[1];
    }

    fn become_another(&mut self, dice: &mut Dice) {
        let job = dice.below(self.jobs.len());
        if self.jobs[job].plan.may_become() {
            let at = self.jobs[job].start + dice.within(1000, 5000) as u64;
            self.events.push((at, Event::Become(job)));
        }
    }

    pub fn gpu_bytes(&self) -> u64 {
        let (_, memory) = self.gpu.split_once('x').unwrap();
        memory.split_once("MiB").unwrap().0.parse::<u64>().unwrap() * MIB
    }

    /// The manager's arguments, with a directory for a disk tier.
    pub fn arguments(&self, disk: &str) -> Vec<String> {
        let times = [
            format!("--slice={}ms", self.slice),
            format!("--boundary-deadline={}ms", self.boundary_deadline),
        ];
        let options = self.options.iter().map(|option| option.replace("DISK", disk));
        options.chain(times).collect()
    }

    fn add_events(&mut self, dice: &mut Dice) {
        let mut at = 0;
        for _ in 0..dice.within(1, 3) {
            at += dice.within(500, 4000) as u64;
            let job = dice.below(self.jobs.len());
            let event = match dice.below(12) {
                0..4 => Event::StopJob(job, dice.within(100, 3000) as u64),
                4..6 => Event::KillJob(job),
                6..9 => Event::KillMover,
                9..11 => Event::KillManager,
                _ => Event::KillBoth,
            };
            self.events.push((at, event));
        }
    }
}

impl Job {
    fn of(dice: &mut Dice, gpu: u64, index: usize) -> Self {
        let ranks = if dice.one_in(4) { dice.within(2, 3) as u64 } else { 1 };
        let threads = dice.of(&[1, 1, 1, 2, 3, 5]);
        let high = (gpu / 100 * dice.of(&[10, 30, 50, 60, 70, 80, 95]) / ranks).min(400 * MIB);
        let low = high / 100 * dice.within(0, 90) as u64;
        let plan = Plan {
            seed: dice.next() >> 32,
            rank: 0,
            ranks,
            threads,
            steps: dice.within(100, 1500) as u64,
            low,
            high,
            grain: (high / threads / dice.within(3, 24) as u64).clamp(64 * KIB, 8 * MIB),
            level: dice.within(3, 30) as u64,
            gap: dice.of(&[0, 0, 2, 5, 20, 100]),
            kernel: dice.of(&[0, 1, 2, 5, 5, 20, 100]),
            values: dice.of(&[0, 0, 0, 0, 0, 5, 30]),
            fork: dice.of(&[0, 0, 0, 0, 0, 1, 2, 3]),
            boundaries: dice.below(2) as u64,
            grows: 0,
            managed: u64::from(dice.one_in(40)),
            pools: dice.of(&[0, 0, 0, 30, 100]),
            graphs: dice.of(&[0, 0, 10, 50]),
            persistent: u64::from(dice.one_in(3)),
        };
        let need = match dice.below(4) {
            0 => format!("0,{}B", high * ranks),
            1 => format!("{}B,{}B", high * ranks / 2, high * ranks / 2),
            _ => String::new(),
        };
        let start = if index == 0 { 0 } else { dice.within(0, 1500) as u64 };
        let priority = dice.of(&[0, 0, 0, 0, 0, 0, 1, -1]);
        let weight = dice.of(&[1, 1, 1, 2, 4]);
        Self { start, priority, weight, need, plan }
    }

    /// What `tidegate run` is told.
    pub fn options(&self, name: &str) -> Vec<String> {
        let mut options = vec![
            format!("--name={name}"),
            format!("--priority={}", self.priority),
            format!("--weight={}", self.weight),
        ];
        if !self.need.is_empty() {
            options.push(format!("--need={}", self.need));
        }
        options
    }
}

impl Display for Mix {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let arguments = self.arguments("DISK").join(" ");
        writeln!(f, "manager: --software-gpu {} {arguments}, for {} ms", self.gpu, self.length)?;
        for (index, job) in self.jobs.iter().enumerate() {
            let options = job.options(&format!("job{index}")).join(" ");
            writeln!(f, "job{index}: after {} ms, {options}, {}", job.start, job.plan)?;
        }
        for (at, event) in &self.events {
            writeln!(f, "after {at} ms: {event:?}")?;
        }
        Ok(())
    }
}
