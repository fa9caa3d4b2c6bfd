//! What happens in a schedule: the GPUs, the jobs and what goes wrong, all from one seed.

use super::random::Random;
use std::time::Duration;
use tidegate_ffi::wire::message::{JobSpec, Need};
use tidegate_manager::scheduler::{Config, UserQuotas};

/// A unit of the model, in bytes.
pub const UNIT: u64 = 4096;

/// A moment or a span of virtual time, in microseconds.
pub type Micros = u64;

/// One schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Units of each GPU.
    pub gpus: Vec<u32>,
    /// How the manager is told to share.
    pub config: Config,
    /// Who comes.
    pub jobs: Vec<JobPlan>,
    /// What goes wrong.
    pub faults: Faults,
    /// How long a message takes at most.
    pub latency: Micros,
    /// Nothing but turns is waited for: the bound on waiting is checked.
    pub plain: bool,
    /// The tiers may have no room for all that the jobs come to hold: some of it is refused.
    pub full_tiers: bool,
}

/// How often in 1000 something fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Orders of movers.
    pub make: u64,
    pub save: u64,
    pub restore: u64,
    pub scrub: u64,
    /// Units of each GPU that others than jobs take without being counted.
    pub outsiders: u32,
    /// Driver calls in processes.
    pub shim: u64,
    /// Orders to unmap that are never answered.
    pub silence: u64,
    /// Orders to map for which processes have too few descriptors. Nobody is expelled for that.
    pub descriptors: u64,
    /// Restores that bring back the wrong bytes (the test of the test).
    pub confusion: u64,
    /// Scrubs that leave everything as it was (the test of the test).
    pub laziness: u64,
    /// Orders at which the mover dies. It is replaced, and nobody may notice: this is no fault.
    pub mover_deaths: u64,
    /// Deaths of movers after which what was not answered counts as done (the test of the test).
    pub forgetfulness: u64,
}

/// A job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    pub uid: u32,
    pub spec: JobSpec,
    pub arrives: Micros,
    /// The announcer leaves this long after the arrival.
    pub released: Micros,
    pub sessions: Vec<SessionPlan>,
    /// The ranks wait for each other at each boundary.
    pub lockstep: bool,
}

/// A process.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// After the job's arrival.
    pub starts: Micros,
    /// Which GPUs it attaches.
    pub gpus: Vec<usize>,
    /// Units that its context takes, on each GPU.
    pub context: u32,
    /// Units that an array of it takes in each iteration, outside of pieces, on its first GPU.
    pub array: u32,
    /// Units that stay, on each GPU.
    pub persistent: u32,
    /// Units needed inside an iteration, on each GPU.
    pub temporary: u32,
    /// Units by which the persistent memory grows at some time.
    pub growth: u32,
    /// About how long an iteration computes.
    pub iteration: Micros,
    pub iterations: u32,
    /// Whether it tells boundaries.
    pub boundaries: bool,
    /// Percent of temporary allocations that live past the end of their iteration.
    pub prefetch: u64,
    /// Percent of iterations before which it submits nothing for a while.
    pub idles: u64,
    /// Percent of allocations with the wrong class.
    pub mislabelled: u64,
    /// Percent of computations that take longer than any drain.
    pub hangs: u64,
    /// Whether it describes what some of its work uses.
    pub describes: bool,
    /// From its first iteration on it has memory that cannot be moved.
    pub unmovable: bool,
    /// Percent of lasting allocations that it holds where they are.
    pub holds: u64,
    /// It dies so long after it started, wherever it is.
    pub dies: Option<Micros>,
}

/// Units of all contexts, as if they were on one GPU.
fn contexts(jobs: &[JobPlan]) -> u32 {
    jobs.iter().flat_map(|job| &job.sessions).map(|session| session.gpus.len() as u32).sum()
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl Plan {
    /// A random schedule.
    pub fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let gpus = Self::random_gpus(random);
        let smallest = *gpus.iter().min().unwrap_or(&32);
        let mut config = Self::random_config(random, smallest);
        let faults = if random.chance(35) { Faults::random(random, smallest) } else { Faults::default() };
        let plain = faults.is_none() && random.chance(50);
        let mover_deaths = if !plain && random.chance(40) { random.between(1, 60) } else { 0 };
        let faults = Faults { mover_deaths, ..faults };
        let count = random.between(2, if gpus.len() > 2 { 7 } else { 5 });
        let mut jobs: Vec<JobPlan> =
            (0..count).map(|index| JobPlan::random(random, &gpus, &config, plain, index)).collect();
        if random.chance(40) {
            Self::give_contexts(&mut config, &gpus, &mut jobs);
            // Of another stream: without arrays a seed's schedule is what it was.
            let random = &mut Random::new(!seed);
            if random.chance(50) {
                Self::give_arrays(random, &config, &gpus, &mut jobs);
            }
        }
        let is_limited = random.chance(15);
        if is_limited {
            Self::limit_tier(random, &mut config, gpus.len() as u64, &mut jobs);
        }
        let latency = random.between(1, 60);
        // Of another stream: with large tiers a seed's schedule is what it was.
        let random = &mut Random::new(seed ^ 0x71e5);
        let full_tiers = !is_limited && random.chance(25);
        if full_tiers {
            config.tier_bytes = [random.between(0, gpus.iter().copied().map(u64::from).sum()) * UNIT, 0, 0];
            jobs.iter_mut().flat_map(|job| &mut job.sessions).for_each(|session| {
                session.growth = session.growth.max(random.units(0, 4));
            });
        }
        Self { gpus, config, jobs, faults, latency, plain: plain && !full_tiers, full_tiers }
    }

    /// Each context takes a unit, and every job still fits beside all of them.
    fn give_contexts(config: &mut Config, gpus: &[u32], jobs: &mut [JobPlan]) {
        config.headroom_units = config.headroom_units.max(1);
        jobs.iter_mut().flat_map(|job| &mut job.sessions).for_each(|session| session.context = 1);
        Self::fit_beside(contexts(jobs), config, gpus, jobs);
    }

    /// Some have arrays, in a third of the smallest GPU, and every job still fits beside all of them.
    fn give_arrays(random: &mut Random, config: &Config, gpus: &[u32], jobs: &mut [JobPlan]) {
        let most = gpus.iter().min().unwrap_or(&0) / 3;
        let mut taken = contexts(jobs);
        for session in jobs.iter_mut().flat_map(|job| &mut job.sessions) {
            let array = random.units(1, 3);
            if taken + array <= most {
                session.array = array;
                taken += array;
            }
        }
        Self::fit_beside(taken, config, gpus, jobs);
    }

    fn fit_beside(taken: u32, config: &Config, gpus: &[u32], jobs: &mut [JobPlan]) {
        let left: Vec<u32> = gpus.iter().map(|units| units - taken).collect();
        for job in jobs {
            let ranks = job.sessions.len() as u64;
            job.sessions.iter_mut().for_each(|session| session.fit(&left, config, ranks));
        }
    }

    /// Do contexts take memory.
    pub fn has_contexts(&self) -> bool {
        self.jobs.iter().flat_map(|job| &job.sessions).any(|session| session.context > 0)
    }

    fn random_gpus(random: &mut Random) -> Vec<u32> {
        let count = match random.between(0, 9) {
            0..=4 => 1,
            5..=6 => 2,
            7..=8 => random.between(3, 4),
            _ => random.between(5, 8),
        };
        (0..count).map(|_| random.units(24, 96)).collect()
    }

    fn random_config(random: &mut Random, smallest: u32) -> Config {
        Config {
            unit_bytes: UNIT,
            piece_units: random.units(1, 5),
            offset_units: if random.chance(50) { 0 } else { random.units(1, smallest / 12) },
            headroom_units: random.units(0, 2),
            slice: millis(random.between(1, 8)),
            // Drawn from no die, that older seeds still tell the same story.
            slice_max: millis(u64::from(8 + smallest % 32)),
            switch_percent: 2 + smallest % 18,
            boundary_deadline: millis(random.between(1, 4)),
            drain_limit: millis(random.between(2, 5)),
            answer_limit: millis(random.between(5, 20)),
            oversubscribe: false,
            expel_silent: false,
            poison: random.chance(50),
            own_uid: 0,
            user_quotas: UserQuotas::default(),
            saved_quotas: UserQuotas::default(),
            tier_bytes: [1 << 40, 0, 0],
            cxl_is_in_parts: false,
        }
    }

    /// A tier that takes what is declared and no more (I6): every job declares.
    fn limit_tier(random: &mut Random, config: &mut Config, gpus: u64, jobs: &mut [JobPlan]) {
        let mut most = 0;
        for job in jobs.iter_mut() {
            // One tenant for each GPU: what a job declares counts once there.
            job.sessions.truncate(1);
            job.sessions[0].gpus.truncate(1);
            let session = &mut job.sessions[0];
            session.mislabelled = 0;
            let bytes = |units: u32| u64::from(units) * UNIT;
            let need = Need {
                persistent: bytes(session.persistent + session.growth),
                temporary: bytes(session.temporary + session.temporary),
            };
            most = most.max(need.persistent + need.temporary);
            job.spec.need = Some(need);
        }
        let all = most * random.between(1, 3) * gpus;
        let some = |random: &mut Random, of: u64| random.between(0, of / UNIT) * UNIT;
        let dram = some(random, all);
        let cxl = some(random, all - dram);
        config.tier_bytes = [dram, cxl, all - dram - cxl];
        config.cxl_is_in_parts = random.chance(30);
    }

    /// Jobs on one GPU that are always busy, and of which no two fit together.
    pub fn of_exclusive_jobs(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let units = random.units(40, 80);
        let mut config = Self::random_config(random, units);
        (config.slice, config.boundary_deadline) = (millis(4), millis(4));
        let boundaries = random.chance(60);
        let job = |index: u64, random: &mut Random| {
            let session = SessionPlan {
                persistent: random.units(1, 4),
                temporary: units * 3 / 5,
                iteration: random.between(500, 2_500),
                iterations: u32::MAX,
                boundaries,
                ..SessionPlan::default()
            };
            let weight = random.between(1, 4) as u32;
            let spec = JobSpec { name: format!("job-{index}"), weight, ..JobSpec::default() };
            JobPlan { uid: 1, spec, arrives: 0, released: 0, sessions: vec![session], lockstep: false }
        };
        let jobs = (0..random.between(2, 4)).map(|index| job(index, random)).collect();
        Self {
            gpus: vec![units],
            config,
            jobs,
            faults: Faults::default(),
            latency: 20,
            plain: true,
            full_tiers: false,
        }
    }

    /// Sum of footprints over memory, of the GPU where it is greatest, in percent.
    pub fn oversubscription(&self) -> u64 {
        let footprint = |gpu: usize| -> u64 {
            let sessions = self.jobs.iter().flat_map(|job| &job.sessions);
            let there = sessions.filter(|session| session.gpus.contains(&gpu));
            there.map(|s| u64::from(s.persistent + s.growth + s.temporary)).sum()
        };
        (0..self.gpus.len()).map(|gpu| footprint(gpu) * 100 / u64::from(self.gpus[gpu])).max().unwrap_or(0)
    }
}

impl Faults {
    fn random(random: &mut Random, smallest: u32) -> Self {
        let mut rate = |percent| if random.chance(percent) { random.between(1, 60) } else { 0 };
        let mut faults = Self {
            make: rate(40),
            save: rate(50),
            restore: rate(25),
            scrub: rate(40),
            shim: rate(15) / 4,
            silence: rate(25) / 2,
            ..Self::default()
        };
        if random.chance(20) {
            faults.outsiders = random.units(1, smallest / 6);
        }
        faults
    }

    /// Nothing goes wrong.
    pub fn is_none(&self) -> bool {
        self.make
            + self.save
            + self.restore
            + self.scrub
            + self.shim
            + self.silence
            + u64::from(self.outsiders)
            == 0
    }
}

impl JobPlan {
    fn random(random: &mut Random, gpus: &[u32], config: &Config, plain: bool, index: u64) -> Self {
        let ranks = if random.chance(25) { random.between(2, 3) } else { 1 };
        let late = random.chance(30);
        let boundaries = random.chance(70);
        let mut sessions: Vec<SessionPlan> = Vec::new();
        for rank in 0..ranks {
            let mut session = SessionPlan::random(random, gpus, config, ranks, boundaries);
            session.starts = if late { random.between(0, 20_000) } else { rank };
            if ranks > 1 && gpus.len() > 1 && random.chance(70) {
                session.gpus = vec![(session.gpus[0] + rank as usize) % gpus.len()];
                session.fit(gpus, config, ranks);
            }
            if plain {
                (session.hangs, session.unmovable, session.dies) = (0, false, None);
            }
            sessions.push(session);
        }
        let lockstep = ranks > 1 && !late && boundaries && random.chance(70);
        if lockstep {
            let iterations = sessions[0].iterations;
            sessions.iter_mut().for_each(|session| session.iterations = iterations);
        }
        let spec = JobSpec {
            name: format!("job-{index}"),
            priority: if plain || random.chance(60) { 0 } else { random.between(0, 2) as i32 },
            weight: random.between(1, 4) as u32,
            resident: !plain && random.chance(4),
            memory: None,
            need: None,
            // Of no random source: a seed's schedule is what it was.
            oversubscribe: index.is_multiple_of(2),
            launch: None,
        };
        let (arrives, released) = (random.between(0, 40_000), random.between(0, 2) * 5_000);
        let mut job = Self { uid: random.units(0, 1), spec, arrives, released, sessions, lockstep };
        job.declare(random);
        job
    }

    /// Whether it may refuse to stop.
    pub fn is_stubborn(&self) -> bool {
        let stays = |session: &SessionPlan| session.hangs > 0 || session.unmovable;
        self.spec.resident || self.sessions.iter().any(stays)
    }

    fn declare(&mut self, random: &mut Random) {
        let bytes = |units: u32| u64::from(units) * UNIT;
        let session = &self.sessions[0];
        if random.chance(40) {
            let right = random.chance(70);
            let persistent = bytes(session.persistent + session.growth);
            let temporary = if right { bytes(session.temporary) } else { bytes(session.temporary / 3) };
            self.spec.need = Some(Need { persistent, temporary });
        }
        if random.chance(10) {
            let whole = bytes(session.persistent + session.growth + session.temporary);
            self.spec.memory = Some(if random.chance(70) { whole * 2 } else { whole * 2 / 3 });
        }
    }
}

impl Default for SessionPlan {
    /// On the first GPU, without memory, for ever.
    fn default() -> Self {
        Self {
            starts: 0,
            gpus: vec![0],
            context: 0,
            array: 0,
            persistent: 0,
            temporary: 0,
            growth: 0,
            iteration: 1_000,
            iterations: u32::MAX,
            boundaries: true,
            prefetch: 0,
            idles: 0,
            mislabelled: 0,
            hangs: 0,
            describes: false,
            unmovable: false,
            holds: 0,
            dies: None,
        }
    }
}

impl SessionPlan {
    fn random(random: &mut Random, gpus: &[u32], config: &Config, ranks: u64, boundaries: bool) -> Self {
        let first = random.index(gpus.len());
        let both = gpus.len() > 1 && random.chance(12);
        let gpus_used = if both { vec![first, (first + 1) % gpus.len()] } else { vec![first] };
        let size = gpus[first];
        let mut session = Self {
            starts: 0,
            gpus: gpus_used,
            context: 0,
            array: 0,
            persistent: random.units(1, size / 4),
            temporary: random.units(1, size * 2 / 3),
            growth: if random.chance(25) { random.units(1, 4) } else { 0 },
            iteration: random.between(100, 3_000),
            iterations: random.between(2, 12) as u32,
            boundaries,
            prefetch: random.between(0, 40),
            idles: if random.chance(20) { random.between(5, 40) } else { 0 },
            mislabelled: if random.chance(20) { random.between(5, 40) } else { 0 },
            hangs: if random.chance(6) { random.between(5, 60) } else { 0 },
            describes: random.chance(40),
            unmovable: random.chance(4),
            holds: 0,
            dies: random.chance(12).then(|| random.between(0, 60_000)),
        };
        session.fit(gpus, config, ranks);
        session
    }

    /// Makes the process small enough that its job has room on an empty GPU.
    fn fit(&mut self, gpus: &[u32], config: &Config, ranks: u64) {
        let smallest = self.gpus.iter().map(|gpu| gpus[*gpu]).min().unwrap_or(24);
        let room = (smallest - config.headroom_units) / ranks as u32 - config.offset_units.min(smallest / 8);
        self.growth = self.growth.min(room / 8);
        self.persistent = self.persistent.min(room / 3).max(1);
        self.temporary = self.temporary.min(room - self.persistent - self.growth).max(1);
    }
}
