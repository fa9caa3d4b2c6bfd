//! Virtual time: carries messages between the scheduler, the model processes and the model
//! movers, and watches that nothing is promised that is not kept.

use super::memory::{Fault, Memories, Memory};
use super::plan::{JobPlan, Micros, Plan, UNIT};
use super::process::{Around, Process, Timer};
use super::random::Random;
use super::tenant::Tenant;
use super::watcher::Watcher;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, Step, Tier};
use tidegate_ffi::wire::message::{Location, Shortage, Ticket, ToMover, ToShim};
use tidegate_manager::kept::{Keep, StoreError};
use tidegate_manager::planner::shares::PerTier;
use tidegate_manager::scheduler::{self, Effect, Event, Pages, Scheduler};

/// Something that will happen.
#[derive(Clone, Debug)]
enum Happening {
    Arrives(usize),
    Released(usize),
    Starts(usize, usize),
    Dies(SessionId),
    Hears(Event),
    Obeys(SessionId, ToShim),
    Rings(SessionId, Timer),
    Carries(GpuUuid),
    Replaced(GpuUuid),
    WakesUp,
    OutsidersLeave,
}

/// A mover: its orders in order.
#[derive(Default)]
struct Mover {
    orders: VecDeque<ToMover>,
    busy: bool,
    /// Another one was here before.
    replaced: bool,
}

/// What a schedule came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub events: u64,
    pub switches: u64,
    pub saved_bytes: u64,
    pub refused: u64,
    /// Pieces that processes held, and allocations that they could not hold.
    pub held: u64,
    pub not_held: u64,
    /// How often described work wrote an allocation before all memory was back.
    pub early_work: u64,
    pub homeless: u64,
    pub deaths: u64,
    pub expelled: u64,
    pub preempted_bytes: u64,
    pub prefetched_bytes: u64,
    pub failed_saves: u64,
    pub hosted_pieces: u64,
    pub changed_shares: PerTier,
    pub mover_deaths: u64,
    /// Orders to map that processes had too few descriptors for.
    pub shortened: u64,
    pub longest_wait: Micros,
    pub oversubscribed: bool,
}

struct Published(BTreeMap<SessionId, u64>);

impl Pages for Published {
    fn boundaries(&self, session: SessionId) -> u64 {
        self.0.get(&session).copied().unwrap_or(0)
    }

    fn learning(&self, _: SessionId) -> u64 {
        0
    }

    fn collectives(&self, _: SessionId) -> u64 {
        0
    }

    fn is_stopped(&self, _: SessionId) -> bool {
        false
    }
}

/// The simulated world.
pub struct World {
    pub plan: Plan,
    pub scheduler: Scheduler,
    pub memories: Memories,
    pub outcome: Outcome,
    pub processes: BTreeMap<SessionId, Process>,
    pub now: Micros,
    gpus: Vec<GpuUuid>,
    movers: BTreeMap<GpuUuid, Mover>,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    happenings: HashMap<u64, Happening>,
    sequence: u64,
    /// Whose connections the manager has ended.
    expelled: BTreeSet<SessionId>,
    /// Orders to map of which a process gets only so many pieces.
    shortened: BTreeMap<Step, u32>,
    /// The orders that were, with their pieces: the same a second time is carried out.
    lacked: BTreeSet<(Step, usize)>,
    /// The latest delivery on each connection: messages do not overtake.
    latest: BTreeMap<(SessionId, bool), Micros>,
    pages: Published,
    wakes_at: Option<Micros>,
    random: Random,
    watcher: Watcher,
    next_session: u64,
    jobs_left: usize,
    /// Prints what happens.
    pub loud: bool,
    /// The scheduler's own check comes after so many events.
    pub checks_every: u64,
    /// Events (per mille) after which the manager dies, and another takes over what it wrote down.
    /// Nobody may notice: chance has a source of its own for it.
    pub manager_deaths: u64,
    /// How often that happened.
    pub successions: u64,
    /// Long parts of the state.
    store: Vec<u8>,
    fate: Random,
}

/// More events than this: something goes round in circles.
const MOST_EVENTS: u64 = 60_000;

/// The name of the `index`th GPU.
pub fn gpu_uuid(index: usize) -> GpuUuid {
    GpuUuid([index as u8 + 1; 16])
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(plan: Plan, seed: u64) -> Self {
        let gpus: Vec<GpuUuid> = (0..plan.gpus.len()).map(gpu_uuid).collect();
        let shares = plan.config.tier_bytes.map(|bytes| bytes / gpus.len() as u64);
        let memory = |units: &u32| Memory::new(*units, UNIT, shares);
        let mut memories: Memories = gpus.iter().copied().zip(plan.gpus.iter().map(memory)).collect();
        memories.values_mut().for_each(|memory| memory.outsiders = plan.faults.outsiders);
        let movers = gpus.iter().map(|gpu| (*gpu, Mover::default())).collect();
        let mut world = Self {
            scheduler: Scheduler::new(plan.config.clone()),
            memories,
            outcome: Outcome { oversubscribed: plan.oversubscription() > 100, ..Outcome::default() },
            processes: BTreeMap::new(),
            now: 0,
            gpus,
            movers,
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            sequence: 0,
            expelled: BTreeSet::new(),
            shortened: BTreeMap::new(),
            lacked: BTreeSet::new(),
            latest: BTreeMap::new(),
            pages: Published(BTreeMap::new()),
            wakes_at: None,
            random: Random::new(seed ^ 0x5eed),
            watcher: Watcher::default(),
            next_session: 0,
            jobs_left: plan.jobs.len(),
            loud: false,
            checks_every: 1,
            manager_deaths: 0,
            successions: 0,
            store: Vec::new(),
            fate: Random::new(seed ^ 0xdead),
            plan,
        };
        for (index, units) in world.plan.gpus.clone().into_iter().enumerate() {
            let added = Event::GpuAdded { gpu: gpu_uuid(index), units, apart: 0, shares };
            world.at(0, Happening::Hears(added));
        }
        world.at(150_000, Happening::OutsidersLeave);
        for index in 0..world.plan.jobs.len() {
            world.at(world.plan.jobs[index].arrives, Happening::Arrives(index));
        }
        world
    }

    fn at(&mut self, time: Micros, happening: Happening) {
        self.sequence += 1;
        self.happenings.insert(self.sequence, happening);
        self.queue.push(Reverse((time, self.sequence)));
    }

    /// Lets everything happen, to the end of the last job; the error names the broken promise.
    pub fn run(&mut self) -> Result<Outcome, String> {
        let limit = self.time_limit();
        while self.happen_next()? {
            if self.outcome.events > MOST_EVENTS || self.now > limit {
                return Err(self.locate(&format!("no end in sight (limit {limit} µs)")));
            }
        }
        self.check_end().map_err(|wrong| self.locate(&wrong))?;
        Ok(self.outcome)
    }

    /// Lets things happen until enough has.
    pub fn run_until(&mut self, enough: impl Fn(&Scheduler) -> bool) -> Result<Outcome, String> {
        while !enough(&self.scheduler) {
            if !self.happen_next()? {
                return Err(self.locate("nothing will ever happen again"));
            }
        }
        Ok(self.outcome)
    }

    fn happen_next(&mut self) -> Result<bool, String> {
        let Some(Reverse((time, index))) = self.queue.pop() else { return Ok(false) };
        self.now = time;
        if let Some(happening) = self.happenings.remove(&index) {
            self.happen(happening).map_err(|wrong| self.locate(&wrong))?;
        }
        Ok(true)
    }

    fn locate(&self, wrong: &str) -> String {
        let mut text = format!("at {} µs, event {}: {wrong}\n", self.now, self.outcome.events);
        for process in self.processes.values() {
            text += &format!("  {}\n", process.describe());
        }
        for (id, job) in self.scheduler.jobs() {
            text += &format!(
                "  {id}: {:?}, priority {}, vruntime {}, slice end {:?}, closed not before {:?}, resident {}, failed drains {}, cramped {}, idle {:?}\n",
                job.phase,
                job.spec.priority,
                job.virtual_runtime,
                job.slice_end,
                job.not_closed_before,
                job.spec.resident,
                job.failed_drains,
                job.cramped,
                job.sessions
                    .iter()
                    .map(|id| (*id, self.scheduler.sessions().get(id).is_some_and(|s| s.idle)))
                    .collect::<Vec<_>>()
            );
        }
        for (id, tenant) in self.scheduler.tenants() {
            let gpu = &self.scheduler.gpus()[&tenant.gpu];
            text += &format!(
                "  {id} of {} on {}: holds {:?}, peaks {} {}, ahead {}, asks {:?}, making {:?}, recall {:?}, saved {}\n",
                tenant.job,
                tenant.gpu,
                Class::ALL.map(|class| gpu.ledger.held(*id, class)),
                tenant.peak_persistent,
                tenant.peak_temporary,
                tenant.ahead,
                tenant.waiting,
                tenant.making,
                tenant.recall,
                tenant.saved.len()
            );
        }
        for (id, gpu) in self.scheduler.gpus() {
            let l = &gpu.ledger;
            text += &format!(
                "  {id}: {} units, {} free, {} reserved, top {}, packed {}, temporary {}, {} spares\n",
                l.total(),
                l.free(),
                l.reserved(),
                l.persistent_top(),
                l.packed_top(),
                l.temporary_units(),
                gpu.spares.len()
            );
        }
        text
    }

    /// Everything one after the other, a few times over, is enough for any schedule.
    fn time_limit(&self) -> Micros {
        let sessions = self.plan.jobs.iter().flat_map(|job| &job.sessions);
        let work: Micros = sessions
            .map(|s| u64::from(s.iterations) * (s.iteration * 2 + 6_000 * s.idles.min(1) + 9_000))
            .sum();
        let jobs = self.plan.jobs.len() as u64;
        400_000 + work * (4 + jobs)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        if self.loud {
            println!("{:>8} {happening:?}", self.now);
        }
        match happening {
            Happening::Arrives(index) => self.arrive(index),
            Happening::Released(index) => self.tell(Event::JobReleased { job: job_id(index) }),
            Happening::Starts(job, rank) => self.start(job, rank),
            Happening::Dies(session) => self.die(session),
            Happening::Hears(event) => self.hear(event),
            // Its connection is at an end, and with it what was on the way; the descriptors that came along
            // would be of memory that is retired.
            Happening::Obeys(session, _) if self.expelled.contains(&session) => Ok(()),
            Happening::Obeys(session, message) => {
                self.with_process(session, |process, around| process.obey(message, around))
            }
            Happening::Rings(session, timer) => {
                self.with_process(session, |process, around| process.ring(timer, around))
            }
            Happening::Carries(gpu) => self.carry(gpu),
            Happening::Replaced(gpu) => {
                self.movers.entry(gpu).or_default().busy = false;
                self.next_order(gpu);
                Ok(())
            }
            Happening::OutsidersLeave => {
                self.memories.values_mut().for_each(|memory| memory.outsiders = 0);
                Ok(())
            }
            Happening::WakesUp => {
                self.wakes_at = None;
                self.tell(Event::Tick)
            }
        }
    }

    fn arrive(&mut self, index: usize) -> Result<(), String> {
        let job = self.plan.jobs[index].clone();
        for (rank, session) in job.sessions.iter().enumerate() {
            self.at(self.now + session.starts, Happening::Starts(index, rank));
        }
        let last = job.sessions.iter().map(|session| session.starts).max().unwrap_or(0);
        let hello = last + self.plan.latency + 1;
        self.at(self.now + job.released.max(hello), Happening::Released(index));
        self.tell(Event::JobArrived { job: job_id(index), uid: job.uid, spec: job.spec })
    }

    fn start(&mut self, job: usize, rank: usize) -> Result<(), String> {
        self.next_session += 1;
        let id = SessionId(self.next_session);
        let plan = self.plan.jobs[job].sessions[rank].clone();
        if let Some(after) = plan.dies {
            self.at(self.now + after, Happening::Dies(id));
        }
        let random = Random::new(self.random.bits());
        let lockstep = self.plan.jobs[job].lockstep;
        self.processes.insert(id, Process::new(id, job, plan, lockstep, random));
        self.say(id, 0, Event::SessionJoined { session: id, job: job_id(job) });
        Ok(())
    }

    fn die(&mut self, session: SessionId) -> Result<(), String> {
        let Some(process) = self.processes.remove(&session) else { return Ok(()) };
        if process.tally.homeless > 0 {
            self.check_homeless(&process)?;
        }
        self.memories.values_mut().for_each(|memory| memory.bury(session));
        self.outcome.deaths += u64::from(!process.has_ended());
        self.outcome.refused += process.tally.refused;
        self.outcome.held += process.tally.held;
        self.outcome.not_held += process.tally.not_held;
        self.outcome.early_work += process.tally.early;
        self.outcome.homeless += process.tally.homeless;
        self.say(session, 0, Event::SessionEnded { session });
        self.go_on_at_barriers(process.job)
    }

    /// A process's word on its way; words of one process do not overtake each other.
    fn say(&mut self, session: SessionId, later: Micros, event: Event) {
        if self.expelled.contains(&session) && !matches!(event, Event::SessionEnded { .. }) {
            return;
        }
        let delay = self.random.between(0, self.plan.latency);
        let latest = self.latest.entry((session, true)).or_default();
        *latest = (*latest).max(self.now + later + delay);
        let time = *latest;
        self.at(time, Happening::Hears(event));
    }

    fn hear(&mut self, event: Event) -> Result<(), String> {
        self.watcher.hear(&event, &self.scheduler)?;
        self.tell(event)
    }

    fn with_process(
        &mut self,
        id: SessionId,
        action: impl FnOnce(&mut Process, &mut Around) -> Result<(), String>,
    ) -> Result<(), String> {
        let slowest_peer = self.slowest_peer(id);
        let Some(process) = self.processes.get_mut(&id) else { return Ok(()) };
        let before = process.boundaries;
        let mut around = Around {
            now: self.now,
            memories: &mut self.memories,
            gpus: &self.gpus,
            slowest_peer,
            says: Vec::new(),
            timers: Vec::new(),
        };
        let waited = process.waits_since;
        let outcome = action(process, &mut around);
        let (says, timers) = (around.says, around.timers);
        if let Some(since) = waited
            && process.waits_since != waited
        {
            self.outcome.longest_wait = self.outcome.longest_wait.max(self.now - since);
        }
        self.pages.0.insert(id, process.boundaries);
        let (ended, job, moved) = (process.has_ended(), process.job, process.boundaries > before);
        for (later, event) in says {
            let shortened = match &event {
                Event::ShimDone { step, .. } => self.shortened.remove(step).map(|pieces| (*step, pieces)),
                _ => None,
            };
            let some = |(step, pieces)| Event::MappedSome { session: id, step, pieces };
            self.say(id, later, shortened.map_or(event, some));
        }
        for (later, timer) in timers {
            self.at(self.now + later, Happening::Rings(id, timer));
        }
        outcome?;
        if ended {
            return self.die(id);
        }
        if moved { self.go_on_at_barriers(job) } else { Ok(()) }
    }

    fn slowest_peer(&self, id: SessionId) -> Option<u64> {
        let job = self.processes.get(&id)?.job;
        let peers = self.processes.iter().filter(|(peer, process)| **peer != id && process.job == job);
        peers.map(|(_, process)| process.boundaries).min()
    }

    fn go_on_at_barriers(&mut self, job: usize) -> Result<(), String> {
        let waiting = |(id, process): (&SessionId, &Process)| {
            (process.job == job && process.is_at_barrier()).then_some(*id)
        };
        let waiting: Vec<SessionId> = self.processes.iter().filter_map(waiting).collect();
        for id in waiting {
            self.with_process(id, |process, around| process.go(around))?;
        }
        Ok(())
    }

    /// The manager's turn.
    fn tell(&mut self, event: Event) -> Result<(), String> {
        self.outcome.events += 1;
        let effects = self.scheduler.handle(Duration::from_micros(self.now), event, &self.pages);
        self.succeed()?;
        if self.outcome.events.is_multiple_of(self.checks_every) {
            self.scheduler.check()?;
        }
        self.watcher.check_effects(&effects, &self.scheduler, &self.plan)?;
        for effect in effects {
            if self.loud {
                println!("           -> {effect:?}");
            }
            self.carry_out(effect)?;
        }
        self.check_retired()?;
        self.watcher.check_grants(&self.scheduler)?;
        self.check_stops()?;
        self.check_waits()?;
        if let Some(due) = self.scheduler.next_wakeup() {
            let due = (due.as_nanos().div_ceil(1000) as Micros).max(self.now + 1);
            if self.wakes_at.is_none_or(|at| due < at) {
                self.wakes_at = Some(due);
                self.at(due, Happening::WakesUp);
            }
        }
        Ok(())
    }

    /// Perhaps the manager dies: it has written its state down and sent nothing yet. What it would
    /// have sent is part of what it wrote, so the effects are still carried out.
    fn succeed(&mut self) -> Result<(), String> {
        if self.fate.between(0, 999) < self.manager_deaths {
            self.scheduler = self.next_scheduler().map_err(|error| error.to_string())?;
            self.successions += 1;
        }
        Ok(())
    }

    /// What the next manager reads.
    fn next_scheduler(&mut self) -> Result<Scheduler, StoreError> {
        self.scheduler.keep(&mut self.store)?;
        let state = postcard::to_stdvec(&self.scheduler)?;
        let mut next: Scheduler = postcard::from_bytes(&state)?;
        next.load(&self.store)?;
        Ok(next)
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Standstill(_) => {}
            Effect::Shim(session, message) => {
                if let ToShim::LeaseRefused { step, reason } = &message {
                    self.check_refusal(session, *step, reason)?;
                }
                self.deliver(session, message);
            }
            Effect::Welcome { session, job, closed } => {
                let ticket = Ticket { session, secret: 0 };
                self.deliver(session, ToShim::Welcome { job, closed, ticket, answer_limit_ms: 0 });
            }
            Effect::Mover(gpu, order) => self.order(gpu, order),
            Effect::Expel(session, reason) => {
                if self.plan.faults.is_none() {
                    return Err(format!("{session} did nothing wrong and is expelled: {reason}"));
                }
                self.outcome.expelled += 1;
                self.expelled.insert(session);
                self.memories.values_mut().for_each(|memory| memory.expel(session));
                // Most end soon; some go on for long with what they have.
                let longest = if self.random.chance(70) { 500 } else { 60_000 };
                let later = self.random.between(1, longest);
                self.at(self.now + later, Happening::Dies(session));
            }
            Effect::Destroyed(pieces) => self.close_handles(&pieces),
            Effect::Queue { .. } => {}
            Effect::JobEnded(_, job) => {
                self.jobs_left -= 1;
                self.outcome.switches += job.stats.switches;
                self.outcome.saved_bytes += job.stats.saved_bytes;
                self.outcome.preempted_bytes += job.stats.preempted_bytes;
                self.outcome.prefetched_bytes += job.stats.prefetched_bytes;
            }
        }
        Ok(())
    }

    /// Only who could not be served by an empty GPU is refused.
    fn check_refusal(&self, session: SessionId, step: Step, reason: &str) -> Result<(), String> {
        let Some(process) = self.processes.get(&session) else { return Ok(()) };
        let plan = &self.plan.jobs[process.job];
        let excused = plan.spec.memory.is_some()
            || plan.is_stubborn()
            || self.plan.full_tiers
            || !self.plan.faults.is_none();
        let Some((gpu, asked)) = process.asked(step).filter(|_| !excused) else { return Ok(()) };
        let peers = self.processes.values().filter(|peer| peer.job == process.job);
        let tenants = || peers.clone().flat_map(|peer| &peer.tenants).filter(|tenant| tenant.gpu == gpu);
        if plan.sessions.len() > 1 {
            // A rank may have freed something just after it was asked.
            return Ok(());
        }
        let ledger = &self.scheduler.gpus()[&gpu].ledger;
        let used = self.used_by(tenants());
        let is_resident = |job: JobId| self.scheduler.jobs().get(&job).is_some_and(|job| job.spec.resident);
        let others = self.scheduler.tenants().values().filter(|t| t.gpu == gpu && t.session != session);
        if plan.spec.resident && others.clone().next().is_some() {
            // What it would get another could not have again.
            return Ok(());
        }
        let stays = |tenant: &scheduler::Tenant| match is_resident(tenant.job) {
            true => tenant.most_units,
            false => tenant.held_units(),
        };
        let stays: u32 = others.map(stays).sum();
        if used + asked + stays + ledger.reserved() <= ledger.total() {
            return Err(format!("{session} uses {used}, asks for {asked}, and is refused: {reason}"));
        }
        Ok(())
    }

    /// Units that tenants hold and do not only keep.
    fn used_by<'a>(&self, tenants: impl Iterator<Item = &'a Tenant>) -> u32 {
        let used = |tenant: &Tenant| {
            let ledger = &self.scheduler.gpus()[&tenant.gpu].ledger;
            let held: u32 = Class::ALL.iter().map(|class| ledger.held(tenant.id, *class)).sum();
            held.saturating_sub(tenant.idle_units())
        };
        tenants.map(used).sum()
    }

    /// Who is let in has room for its context, and for an array beside what it uses itself, unless
    /// a job cannot be moved, or holds memory.
    fn check_homeless(&self, process: &Process) -> Result<(), String> {
        let plan = &self.plan;
        let excused = plan.jobs.iter().any(JobPlan::is_stubborn) || plan.full_tiers || !plan.faults.is_none();
        let gang = plan.jobs[process.job].sessions.len() > 1;
        if excused || gang {
            return Ok(());
        }
        if process.has_all_contexts() {
            let used = self.used_by(process.tenants.iter().filter(|t| t.gpu == process.tenants[0].gpu));
            let memory = &self.memories[&process.tenants[0].gpu];
            let tenants = self.processes.values().flat_map(|other| &other.tenants);
            let is_held = tenants.into_iter().any(|tenant| !tenant.held.is_empty());
            if is_held || used + memory.outside() + process.plan.array > memory.capacity {
                return Ok(());
            }
        }
        Err(format!("{} was let in, but there was no room for its context or array", process.id))
    }

    fn deliver(&mut self, session: SessionId, mut message: ToShim) {
        if self.expelled.contains(&session) {
            return;
        }
        if matches!(message, ToShim::Unmap { .. }) && self.chance(self.plan.faults.silence) {
            return;
        }
        let fails = self.chance(self.plan.faults.shim);
        if let ToShim::Map { step, .. } | ToShim::Unmap { step, .. } = &message
            && fails
        {
            let reason = "a fault was injected".into();
            return self.say(session, 5, Event::ShimFailed { session, step: *step, reason });
        }
        if let ToShim::Map { step, pieces, .. } = &mut message
            && self.chance(self.plan.faults.descriptors)
            && self.lacked.insert((*step, pieces.len()))
        {
            pieces.truncate(self.random.index(pieces.len()));
            self.shortened.insert(*step, pieces.len() as u32);
            self.outcome.shortened += 1;
        }
        let delay = self.random.between(0, self.plan.latency);
        let latest = self.latest.entry((session, false)).or_default();
        *latest = (*latest).max(self.now + delay);
        let time = *latest;
        self.at(time, Happening::Obeys(session, message));
    }

    fn close_handles(&mut self, pieces: &[PieceId]) {
        for piece in pieces {
            for memory in self.memories.values_mut() {
                if let Ok(piece) = memory.piece(*piece) {
                    piece.destroyed = true;
                }
            }
        }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.random.between(0, 999) < per_mille
    }

    fn order(&mut self, gpu: GpuUuid, order: ToMover) {
        if let Some(mover) = self.movers.get_mut(&gpu) {
            mover.orders.push_back(order);
        }
        self.next_order(gpu);
    }

    fn next_order(&mut self, gpu: GpuUuid) {
        let Some(mover) = self.movers.get_mut(&gpu).filter(|mover| !mover.busy) else { return };
        let Some(order) = mover.orders.front() else { return };
        mover.busy = true;
        let bytes: u64 = match order {
            ToMover::Save { moves, .. } | ToMover::Restore { moves, .. } => {
                moves.iter().map(|m| m.bytes).sum()
            }
            ToMover::Scrub { pieces, .. } => pieces.len() as u64 * UNIT,
            _ => UNIT,
        };
        let time = 5 + bytes / 2048;
        self.at(self.now + time, Happening::Carries(gpu));
    }

    /// A mover has carried out its first order.
    fn carry(&mut self, gpu: GpuUuid) -> Result<(), String> {
        let Some(order) = self.movers.get_mut(&gpu).and_then(|mover| {
            mover.busy = false;
            mover.orders.pop_front()
        }) else {
            return Ok(());
        };
        if self.chance(self.plan.faults.mover_deaths) {
            return self.lose_mover(gpu, order);
        }
        let answer = self.obey_order(gpu, order)?;
        self.next_order(gpu);
        match answer {
            Some(event) => self.hear(event),
            None => Ok(()),
        }
    }

    /// A mover dies at an order: before it, or when it is carried out but not answered. The next
    /// one is given it again.
    fn lose_mover(&mut self, gpu: GpuUuid, order: ToMover) -> Result<(), String> {
        self.outcome.mover_deaths += 1;
        let Some(before) = self.memories.get(&gpu).cloned() else { return Ok(()) };
        if self.random.chance(50) {
            self.obey_order(gpu, order.clone())?;
        }
        let forgetful = self.chance(self.plan.faults.forgetfulness);
        self.memories.entry(gpu).and_modify(|memory| memory.outlive_mover(before, forgetful));
        let mover = self.movers.entry(gpu).or_default();
        (mover.busy, mover.replaced) = (true, true);
        mover.orders.push_front(order);
        let pause = self.random.between(100, 1500);
        self.at(self.now + pause, Happening::Replaced(gpu));
        Ok(())
    }

    fn obey_order(&mut self, gpu: GpuUuid, order: ToMover) -> Result<Option<Event>, String> {
        let faults = self.plan.faults;
        let rate = match order {
            ToMover::Make { .. } => faults.make,
            ToMover::Save { .. } => faults.save,
            ToMover::Restore { .. } => faults.restore,
            ToMover::Scrub { .. } => faults.scrub,
            _ => 0,
        };
        let fails = self.chance(rate);
        let confuses = matches!(order, ToMover::Restore { .. }) && self.chance(faults.confusion);
        let lazy = self.chance(faults.laziness);
        let kept = if matches!(order, ToMover::Share { .. }) { self.random.between(0, 4) * UNIT } else { 0 };
        let is_save = matches!(order, ToMover::Save { .. });
        let replaced = self.movers.get(&gpu).is_some_and(|mover| mover.replaced);
        let Some(memory) = self.memories.get_mut(&gpu) else { return Err(format!("{gpu} is not there")) };
        if confuses {
            memory.confuse();
        }
        let (step, outcome) = match order {
            ToMover::Warm { .. } => return Ok(None),
            ToMover::Forget { tenant } => {
                memory.forget(tenant);
                return Ok(None);
            }
            ToMover::Make { step, .. }
            | ToMover::Save { step, .. }
            | ToMover::Restore { step, .. }
            | ToMover::Scrub { step, .. }
                if fails =>
            {
                self.outcome.failed_saves += u64::from(is_save);
                return Ok(Some(failure(gpu, step, "a fault was injected", None)));
            }
            ToMover::Save { step, .. } | ToMover::Restore { step, .. } | ToMover::Scrub { step, .. }
                if memory.is_void(&order) =>
            {
                return Ok(Some(failure(gpu, step, "a piece is gone", None)));
            }
            ToMover::Make { step, pieces, location } => {
                self.outcome.hosted_pieces += u64::from(location == Location::Host) * pieces.len() as u64;
                (step, memory.make(&pieces, location))
            }
            ToMover::Save { step, tenant, moves, .. } => (step, memory.save(tenant, &moves)),
            ToMover::Restore { step, tenant, moves, poison } => {
                (step, memory.restore(tenant, &moves, &poison))
            }
            ToMover::Scrub { step, .. } if lazy => (step, Ok(0)),
            ToMover::Scrub { step, pieces } => (step, memory.scrub(&pieces)),
            ToMover::Destroy { step, pieces, .. } if replaced => (step, memory.destroy_rest(&pieces)),
            ToMover::Destroy { step, pieces, .. } => (step, memory.destroy(&pieces)),
            ToMover::Share { step, tier, bytes } => {
                let bytes = memory.set_share(tier, bytes, kept);
                self.outcome.changed_shares[tier.index()] += 1;
                self.check_shares(tier)?;
                (step, Ok(bytes))
            }
            ToMover::Adopt { .. } | ToMover::Will(_) | ToMover::Heard | ToMover::End => return Ok(None),
            ToMover::Measure { step } => {
                let used_bytes = u64::from(memory.used_by_all()) * UNIT;
                return Ok(Some(Event::Measured { gpu, step, used_bytes }));
            }
        };
        match outcome {
            Ok(bytes) => Ok(Some(Event::MoverDone { gpu, step, bytes })),
            Err(Fault::SavedAlready(what)) if faults.restore > 0 => Ok(Some(failure(gpu, step, &what, None))),
            Err(Fault::Wrong(what) | Fault::SavedAlready(what)) => {
                Err(format!("the mover of {gpu} cannot obey: {what}"))
            }
            // What lies outside of pieces is measured now and then: the GPU has the last word.
            Err(Fault::NoGpuMemory) if faults.outsiders > 0 || self.plan.has_contexts() => {
                Ok(Some(failure(gpu, step, "out of memory", Some(Shortage::Memory))))
            }
            Err(Fault::NoGpuMemory) => Err(format!("{gpu} is full, but its ledger says it is not (I4)")),
            Err(Fault::NoTierMemory) => Err(format!("the tier of {gpu} is full though all needs fit (I6)")),
        }
    }

    /// All movers together have no more of a tier than there is, whatever the manager thinks that they have.
    fn check_shares(&self, tier: Tier) -> Result<(), String> {
        let shares: u64 = self.memories.values().map(|memory| memory.shares[tier.index()]).sum();
        let bytes = self.plan.config.tier_bytes[tier.index()];
        match shares <= bytes {
            true => Ok(()),
            false => Err(format!("the movers' shares of {tier} are {shares} bytes of {bytes} (I6)")),
        }
    }

    /// What somebody keeps who should have given it back counts as used (I8).
    fn check_retired(&self) -> Result<(), String> {
        for (id, gpu) in self.scheduler.gpus() {
            let (kept, retired) = (self.memories[id].orphaned(), gpu.ledger.retired());
            // A death is known to the manager a little later than it happens.
            if kept > retired {
                return Err(format!("{kept} units of {id} are kept, {retired} are retired (I8)"));
            }
        }
        Ok(())
    }

    /// Ranks that wait for each other stop at the same boundary (I5).
    fn check_stops(&self) -> Result<(), String> {
        for (job, _) in self.plan.jobs.iter().enumerate().filter(|(_, job)| job.lockstep) {
            let of_job = |process: &&Process| process.job == job && !self.expelled.contains(&process.id);
            let ranks = || self.processes.values().filter(of_job);
            let stops: Option<Vec<u64>> =
                ranks().map(|rank| rank.tally.stopped_at.filter(|_| rank.is_closed())).collect();
            if stops.as_ref().is_some_and(|stops| stops.windows(2).any(|pair| pair[0] != pair[1])) {
                return Err(format!("the ranks of job {job} stopped at boundaries {stops:?} (I5)"));
            }
        }
        Ok(())
    }

    /// Nobody waits longer than everybody else's turns take.
    fn check_waits(&self) -> Result<(), String> {
        if !self.plan.plain {
            return Ok(());
        }
        let bound = self.wait_bound();
        for process in self.processes.values() {
            if let Some(since) = process.waits_since
                && self.now - since > bound
            {
                return Err(format!(
                    "{} of job {} has waited since {since}, bound {bound}",
                    process.id, process.job
                ));
            }
        }
        Ok(())
    }

    /// (jobs + 2) turns of the longest slice, switch and closing, for the lightest job.
    fn wait_bound(&self) -> Micros {
        let config = &self.plan.config;
        let slices = self.scheduler.jobs().values().map(|job| config.slice.max(job.stats.mean_switch() * 19));
        let slice = slices.max().unwrap_or(config.slice);
        let weights: u64 = self.plan.jobs.iter().map(|job| u64::from(job.spec.weight)).sum();
        let turn = slice + config.boundary_deadline * 3 + config.drain_limit + Duration::from_millis(5);
        turn.as_micros() as Micros * (self.plan.jobs.len() as u64 + 2 + weights)
    }

    /// After the last job everything is free or spare, and nothing is under way (I7).
    fn check_end(&mut self) -> Result<(), String> {
        if self.jobs_left > 0 || !self.processes.is_empty() {
            return Err(format!("nothing will ever happen again, but {} jobs are left", self.jobs_left));
        }
        let scheduler = &self.scheduler;
        if !scheduler.jobs().is_empty() || !scheduler.sessions().is_empty() || !scheduler.tenants().is_empty()
        {
            return Err("somebody is still in the books".into());
        }
        if scheduler.orders_under_way() > 0 {
            return Err(format!("{} orders are still waited for", scheduler.orders_under_way()));
        }
        for (id, gpu) in scheduler.gpus() {
            let memory = &self.memories[id];
            if !gpu.retired.is_empty() {
                return Err(format!("{:?} are retired for nobody", gpu.retired));
            }
            if let Some((piece, record)) =
                gpu.ledger.pieces().find(|(piece, _)| !gpu.spares.contains_key(piece))
            {
                return Err(format!("{piece} is nobody's and not spare: {record:?}"));
            }
            if memory.count() != gpu.spares.len() {
                return Err(format!("{id} has {} pieces, {} are spare", memory.count(), gpu.spares.len()));
            }
            if memory.saved_bytes() > 0 {
                return Err(format!("{} bytes are saved for nobody", memory.saved_bytes()));
            }
        }
        Ok(())
    }
}

fn job_id(index: usize) -> JobId {
    JobId(index as u64 + 1)
}

fn failure(gpu: GpuUuid, step: Step, reason: &str, shortage: Option<Shortage>) -> Event {
    Event::MoverFailed { gpu, step, reason: reason.into(), shortage }
}
