//! A model process: a training program behind a gate, as `message.rs` says a shim behaves.

use super::memory::Memories;
use super::plan::{Micros, SessionPlan};
use super::random::Random;
use super::tenant::{Claim, Life, Tenant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, PieceId, SessionId, Step, TenantId, Units};
use tidegate_ffi::wire::message::{Placed, ToShim};
use tidegate_manager::scheduler::Event;

/// A process that submits nothing for so long says that it is idle, when asked to.
const QUIET: Micros = 1_500;
/// How many allocations of a hundred have no live byte until they are written again.
const HOLLOW: u64 = 15;

/// Something that a process waits for, apart from messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The program goes on, if it is still where it was.
    Go(u64),
    /// A closing's boundary did not come in time.
    Deadline(Step),
    /// All work has ended.
    Drained(Step),
    /// Nothing was submitted for a while.
    Quiet(u64),
}

/// What a process can reach.
pub struct Around<'a> {
    pub now: Micros,
    pub memories: &'a mut Memories,
    /// The GPUs' names.
    pub gpus: &'a [GpuUuid],
    /// The least boundary count among the job's other processes.
    pub slowest_peer: Option<u64>,
    /// What it says, and how much later.
    pub says: Vec<(Micros, Event)>,
    pub timers: Vec<(Micros, Timer)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Closing {
        step: Step,
        target: u64,
        drain_limit: Micros,
    },
    Draining {
        step: Step,
        at_boundary: bool,
        began: Micros,
    },
    Closed,
    /// Work on memory that is there already may go.
    Ajar,
}

/// What the program does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Ready,
    /// Until a timer.
    Computing,
    Resting,
    Attaching(Step),
    /// For something outside of pieces, so many units by its own guess.
    MakingRoom {
        step: Step,
        thing: Thing,
        units: u32,
    },
    Allocating,
    AtBarrier,
    AtGate,
    Ended,
}

/// What takes memory outside of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    /// The context on a tenant's GPU.
    Context(TenantId),
    /// An array on the first GPU, until the iteration's end.
    Array,
}

#[derive(Clone, Debug)]
enum Operation {
    MakeArray,
    Attach(usize),
    Allocate { class: Class, units: u32, life: Life },
    Compute(Micros),
    EndIteration,
    Boundary,
    Barrier,
    GiveBack,
    Rest(Micros),
}

/// An allocation under way.
#[derive(Clone, Debug)]
struct Birth {
    tenant: usize,
    class: Class,
    units: u32,
    life: Life,
    /// `None`: it waits at the gate.
    place: Option<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    first: u32,
    claims: Vec<Claim>,
    /// The claim that is asked for, and how.
    asked: usize,
    step: Step,
}

/// What happened to a process that the watcher wants to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub refused: u64,
    /// Pieces that it holds.
    pub held: u64,
    /// Allocations that it could not hold.
    pub not_held: u64,
    /// There was no room for its context, or its array.
    pub homeless: u64,
    pub opened: u64,
    pub at_boundary: u64,
    /// How often described work wrote an allocation before all was there.
    pub early: u64,
    /// The boundary count at its last closing at a boundary.
    pub stopped_at: Option<u64>,
}

/// A process.
pub struct Process {
    pub id: SessionId,
    pub job: usize,
    pub plan: SessionPlan,
    pub lockstep: bool,
    pub boundaries: u64,
    pub tally: Tally,
    pub tenants: Vec<Tenant>,
    /// Since when it waits at a closed gate, or for memory while it is closed.
    pub waits_since: Option<Micros>,
    random: Random,
    gate: Gate,
    doing: Doing,
    operations: VecDeque<Operation>,
    births: Vec<Birth>,
    iterations_left: u32,
    started: bool,
    said_waiting: bool,
    said_unmovable: bool,
    /// Pieces that it asked to hold, by tenant.
    asked_holds: BTreeMap<Step, (usize, Vec<PieceId>)>,
    watched: bool,
    busy_until: Micros,
    generation: u64,
    next_step: u64,
}

impl Process {
    /// A process that has said hello.
    pub fn new(id: SessionId, job: usize, plan: SessionPlan, lockstep: bool, random: Random) -> Self {
        Self {
            id,
            job,
            lockstep,
            boundaries: 0,
            tally: Tally::default(),
            tenants: Vec::new(),
            waits_since: None,
            random,
            gate: Gate::Closed,
            doing: Doing::Ready,
            operations: plan.gpus.iter().map(|gpu| Operation::Attach(*gpu)).collect(),
            births: Vec::new(),
            iterations_left: plan.iterations,
            started: false,
            said_waiting: false,
            said_unmovable: false,
            asked_holds: BTreeMap::new(),
            watched: false,
            busy_until: 0,
            generation: 0,
            next_step: 0,
            plan,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.doing == Doing::Ended
    }

    pub fn has_all_contexts(&self) -> bool {
        self.tenants.len() == self.plan.gpus.len()
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.gate, Gate::Closed | Gate::Ajar)
    }

    pub fn is_at_barrier(&self) -> bool {
        self.doing == Doing::AtBarrier
    }

    /// For the report of a failure.
    pub fn describe(&self) -> String {
        format!(
            "{} of job {}: gate {:?}, doing {:?}, {} iterations left, births {:?}",
            self.id, self.job, self.gate, self.doing, self.iterations_left, self.births
        )
    }

    /// What a lease asks for.
    pub fn asked(&self, step: Step) -> Option<(GpuUuid, u32)> {
        let of_step = |birth: &&Birth| birth.place.as_ref().is_some_and(|place| place.step == step);
        let birth = self.births.iter().find(of_step)?;
        let place = birth.place.as_ref()?;
        Some((self.tenants[birth.tenant].gpu, place.claims[place.asked].units))
    }

    fn passable(&self) -> bool {
        matches!(self.gate, Gate::Open | Gate::Closing { .. })
    }

    fn step(&mut self) -> Step {
        self.next_step += 1;
        Step(self.next_step)
    }

    /// Goes on until something has to be waited for.
    pub fn go(&mut self, around: &mut Around) -> Result<(), String> {
        while matches!(self.doing, Doing::Ready | Doing::AtGate | Doing::AtBarrier) {
            let Some(operation) = self.operations.front().cloned() else {
                self.plan_ahead();
                continue;
            };
            if !self.start(operation, around)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Starts an operation; `false`: it has to wait, and stays the first.
    fn start(&mut self, operation: Operation, around: &mut Around) -> Result<bool, String> {
        let submits = matches!(operation, Operation::Allocate { .. } | Operation::Compute(_));
        if submits && !self.passable() {
            self.wait_at_gate(around);
            return Ok(false);
        }
        if matches!(operation, Operation::Barrier)
            && around.slowest_peer.is_some_and(|slowest| slowest < self.boundaries)
        {
            self.doing = Doing::AtBarrier;
            self.grow_quiet(around);
            return Ok(false);
        }
        self.operations.pop_front();
        self.doing = Doing::Ready;
        match operation {
            Operation::Attach(gpu) => {
                let step = self.step();
                self.doing = Doing::Attaching(step);
                let gpu = around.gpus[gpu];
                around.says.push((0, Event::Attach { session: self.id, step, gpu }));
            }
            Operation::Allocate { class, units, life } => {
                self.allocate(class, units, life, around)?;
                // Two threads allocate at once now and then.
                if let Some(Operation::Allocate { class, units, life }) = self.operations.front().cloned()
                    && self.random.chance(40)
                {
                    self.operations.pop_front();
                    self.allocate(class, units, life, around)?;
                }
            }
            Operation::Compute(time) => {
                if self.plan.unmovable && !std::mem::replace(&mut self.said_unmovable, true) {
                    let reason = "the plan says so".into();
                    around.says.push((0, Event::Unsliceable { session: self.id, reason }));
                }
                self.doing = Doing::Computing;
                self.busy_until = around.now + time;
                self.go_on_after(time, around);
            }
            Operation::MakeArray => self.make(Thing::Array, around)?,
            Operation::EndIteration => {
                self.tenants.iter_mut().for_each(Tenant::end_iteration);
                if self.plan.array > 0
                    && let Some(memory) = around.memories.get_mut(&self.tenants[0].gpu)
                {
                    memory.drop_outside(self.id, self.plan.array);
                }
            }
            Operation::Boundary => self.boundary(around),
            Operation::Barrier => {}
            Operation::GiveBack => self.give_back(around)?,
            Operation::Rest(time) => {
                self.doing = Doing::Resting;
                self.go_on_after(time, around);
                self.grow_quiet(around);
            }
        }
        Ok(true)
    }

    fn go_on_after(&mut self, time: Micros, around: &mut Around) {
        self.generation += 1;
        around.timers.push((time, Timer::Go(self.generation)));
    }

    fn wait_at_gate(&mut self, around: &mut Around) {
        self.doing = Doing::AtGate;
        self.waits_since.get_or_insert(around.now);
        if !self.said_waiting {
            self.said_waiting = true;
            around.says.push((0, Event::Waiting { session: self.id }));
        }
    }

    fn grow_quiet(&mut self, around: &mut Around) {
        if self.watched {
            self.generation += u64::from(self.doing == Doing::Allocating || self.doing == Doing::AtBarrier);
            around.timers.push((QUIET, Timer::Quiet(self.generation)));
        }
    }

    fn boundary(&mut self, around: &mut Around) {
        self.boundaries += 1;
        if let Gate::Closing { step, target, drain_limit } = self.gate
            && self.boundaries >= target
        {
            self.shut(step, true, drain_limit, around);
        }
    }

    fn plan_ahead(&mut self) {
        let plan = self.plan.clone();
        if !self.started {
            self.started = true;
            self.plan_allocations(plan.persistent, Class::Persistent, Life::Program);
            return;
        }
        if self.iterations_left == 0 {
            self.doing = Doing::Ended;
            return;
        }
        self.iterations_left -= 1;
        if plan.growth > 0 && (self.iterations_left == plan.iterations / 2) {
            self.plan_allocations(plan.growth, Class::Persistent, Life::Program);
        }
        self.plan_allocations(plan.temporary, Class::Temporary, Life::Iteration);
        if self.random.chance(plan.idles) {
            let rest = self.random.between(100, 8_000);
            self.operations.push_back(Operation::Rest(rest));
        }
        let time = self.random.between(plan.iteration / 2, plan.iteration * 3 / 2);
        if plan.array > 0 {
            self.operations.push_back(Operation::MakeArray);
        }
        self.operations.push_back(Operation::Compute(time / 2));
        let rest = if self.random.chance(plan.hangs) { 8_000 } else { time / 2 };
        self.operations.push_back(Operation::Compute(rest));
        self.operations.push_back(Operation::EndIteration);
        if self.random.chance(5) {
            self.operations.push_back(Operation::GiveBack);
        }
        if plan.boundaries {
            self.operations.push_back(Operation::Boundary);
            if self.lockstep {
                self.operations.push_back(Operation::Barrier);
            }
        }
    }

    /// Splits units into a few allocations.
    fn plan_allocations(&mut self, mut units: u32, class: Class, life: Life) {
        while units > 0 {
            let part = self.random.units(1, units.div_ceil(2));
            units -= part;
            let class = match class {
                Class::Persistent if self.random.chance(self.plan.mislabelled) => Class::Temporary,
                Class::Temporary if self.random.chance(self.plan.mislabelled) => Class::Persistent,
                right => right,
            };
            let prefetched = life == Life::Iteration && self.random.chance(self.plan.prefetch);
            let life = if prefetched { Life::Prefetched } else { life };
            self.operations.push_back(Operation::Allocate { class, units: part, life });
        }
    }

    fn allocate(&mut self, class: Class, units: u32, life: Life, around: &mut Around) -> Result<(), String> {
        for tenant in 0..self.tenants.len() {
            self.births.push(Birth { tenant, class, units, life, place: None });
        }
        self.start_births(around)
    }

    /// Gives places to the births that wait at the gate, and questions to those that have one.
    fn start_births(&mut self, around: &mut Around) -> Result<(), String> {
        let mut index = 0;
        while index < self.births.len() {
            if self.births[index].place.is_some() {
                index += 1;
            } else if !self.passable() {
                self.doing = Doing::Allocating;
                self.waits_since.get_or_insert(around.now);
                if !self.said_waiting {
                    self.said_waiting = true;
                    around.says.push((0, Event::Waiting { session: self.id }));
                }
                return Ok(());
            } else {
                index += usize::from(!self.start_birth(index, around)?);
            }
        }
        self.doing = if self.births.is_empty() { Doing::Ready } else { Doing::Allocating };
        if self.doing == Doing::Allocating {
            self.waits_since.get_or_insert(around.now);
            self.grow_quiet(around);
        } else {
            self.waits_since = None;
        }
        Ok(())
    }

    /// Finds a place; `true` when the allocation is there already.
    fn start_birth(&mut self, index: usize, around: &mut Around) -> Result<bool, String> {
        let birth = self.births[index].clone();
        let ahead = if birth.class == Class::Temporary { self.random.units(0, 6) } else { 0 };
        let step = self.step();
        let tenant = &mut self.tenants[birth.tenant];
        let (first, claims) = tenant.start(birth.class, birth.units, ahead);
        if claims.is_empty() {
            let settled = tenant.settle(birth.class, first, &claims);
            debug_assert!(settled);
            self.births.remove(index);
            self.be_born(&birth, first, around)?;
            return Ok(true);
        }
        let request = tenant.question(step, birth.class, claims[0]);
        around.says.push((0, Event::Lease { session: self.id, request }));
        self.births[index].place = Some(Place { first, claims, asked: 0, step });
        Ok(false)
    }

    fn be_born(&mut self, birth: &Birth, first: u32, around: &mut Around) -> Result<(), String> {
        let tokens = (0..birth.units).map(|_| self.random.bits() | 1).collect();
        let tail = self.random.between(0, super::plan::UNIT - 1);
        let at = (birth.class, first);
        let born = self.boundaries;
        let tenant = &mut self.tenants[birth.tenant];
        tenant.give_birth(around.memories, at, tokens, tail, birth.life, born)?;
        if self.random.chance(HOLLOW) {
            tenant.hollow_out(at);
        }
        if birth.life == Life::Program && self.plan.holds > 0 && self.random.chance(self.plan.holds) {
            self.hold(birth, first, around);
        }
        Ok(())
    }

    fn hold(&mut self, birth: &Birth, first: u32, around: &mut Around) {
        let step = self.step();
        let tenant = &self.tenants[birth.tenant];
        let pieces = tenant.pieces_behind(birth.class, first, birth.units);
        let event = Event::Hold { session: self.id, step, tenant: tenant.id, pieces: pieces.clone() };
        around.says.push((0, event));
        self.asked_holds.insert(step, (birth.tenant, pieces));
    }

    fn held(&mut self, step: Step) -> Result<(), String> {
        let held = self.asked_holds.remove(&step);
        let (tenant, pieces) = held.ok_or(format!("{}: {step} is held, but not asked", self.id))?;
        self.tally.held += pieces.len() as u64;
        self.tenants[tenant].held.extend(pieces);
        Ok(())
    }

    fn leased(
        &mut self,
        step: Step,
        pieces: &[Placed],
        more: bool,
        around: &mut Around,
    ) -> Result<(), String> {
        if self.is_closed() {
            // It crossed `Drained`: void on both sides.
            return Ok(());
        }
        let asked = |birth: &Birth| birth.place.as_ref().is_some_and(|place| place.step == step);
        let Some(index) = self.births.iter().position(asked) else {
            return Err(format!("{}: {step} is answered, but not asked", self.id));
        };
        let birth = self.births[index].clone();
        let Some(mut place) = birth.place.clone() else { return Ok(()) };
        let claim = place.claims[place.asked];
        self.tenants[birth.tenant].leased(around.memories, step, claim, pieces, more)?;
        if more {
            return Ok(());
        }
        place.asked += 1;
        if let Some(claim) = place.claims.get(place.asked) {
            place.step = self.step();
            let request = self.tenants[birth.tenant].question(place.step, birth.class, *claim);
            around.says.push((0, Event::Lease { session: self.id, request }));
            self.births[index].place = Some(place);
            return Ok(());
        }
        if self.tenants[birth.tenant].settle(birth.class, place.first, &place.claims) {
            self.births.remove(index);
            self.be_born(&birth, place.first, around)?;
        } else {
            // A piece was taken away meanwhile: another place.
            self.births[index].place = None;
        }
        self.start_births(around)?;
        self.go(around)
    }

    fn lease_refused(&mut self, step: Step, around: &mut Around) -> Result<(), String> {
        if self.asked_holds.remove(&step).is_some() {
            self.tally.not_held += 1;
            return Ok(());
        }
        self.tally.refused += 1;
        let asked = |birth: &Birth| birth.place.as_ref().is_some_and(|place| place.step == step);
        let Some(index) = self.births.iter().position(asked) else {
            return Err(format!("{}: {step} is refused, but not asked", self.id));
        };
        let birth = self.births.remove(index);
        if let Some(place) = birth.place {
            let _ = self.tenants[birth.tenant].settle(birth.class, place.first, &place.claims);
        }
        self.start_births(around)?;
        self.go(around)
    }

    fn give_back(&mut self, around: &mut Around) -> Result<(), String> {
        for index in 0..self.tenants.len() {
            self.give_back_of(index, false, around)?;
        }
        Ok(())
    }

    fn give_back_of(&mut self, index: usize, recalled: bool, around: &mut Around) -> Result<(), String> {
        let pieces = self.tenants[index].give_back_idle(around.memories)?;
        let (session, tenant) = (self.id, self.tenants[index].id);
        around.says.push((0, Event::Returned { session, tenant, pieces, unused: Units(0), recalled }));
        Ok(())
    }

    /// A timer is up.
    pub fn ring(&mut self, timer: Timer, around: &mut Around) -> Result<(), String> {
        match (timer, self.gate) {
            (Timer::Go(generation), _) if generation == self.generation => self.computed(around),
            (Timer::Deadline(of), Gate::Closing { step, drain_limit, .. }) if of == step => {
                self.shut(step, false, drain_limit, around);
                Ok(())
            }
            (Timer::Drained(of), Gate::Draining { step, at_boundary, began }) if of == step => {
                self.drained(step, at_boundary, began, around)
            }
            (Timer::Quiet(generation), Gate::Open) if generation == self.generation && self.watched => {
                if matches!(self.doing, Doing::Resting | Doing::Allocating | Doing::AtBarrier) {
                    around.says.push((0, Event::Idle { session: self.id }));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn computed(&mut self, around: &mut Around) -> Result<(), String> {
        if self.doing == Doing::Computing {
            let (nth, token) = (self.random.between(1, 4) as usize, self.random.bits() | 1);
            for tenant in &mut self.tenants {
                tenant.rewrite(around.memories, nth, token)?;
            }
        }
        self.doing = Doing::Ready;
        self.go(around)
    }

    /// The gate shuts; what was submitted still runs.
    fn shut(&mut self, step: Step, at_boundary: bool, drain_limit: Micros, around: &mut Around) {
        let ends = self.busy_until.max(around.now) - around.now + self.random.between(1, 40);
        self.gate = Gate::Draining { step, at_boundary, began: around.now };
        if ends <= drain_limit {
            around.timers.push((ends, Timer::Drained(step)));
        } else {
            self.gate = Gate::Open;
            around.says.push((drain_limit, Event::NotDrained { session: self.id, step }));
        }
    }

    fn drained(
        &mut self,
        step: Step,
        at_boundary: bool,
        began: Micros,
        around: &mut Around,
    ) -> Result<(), String> {
        self.gate = Gate::Closed;
        self.said_waiting = self.doing == Doing::AtGate && self.said_waiting;
        self.tally.at_boundary += u64::from(at_boundary);
        self.tally.stopped_at = at_boundary.then_some(self.boundaries);
        let mut maps = Vec::new();
        for tenant in &mut self.tenants {
            tenant.void_arriving(around.memories)?;
            maps.push((tenant.id, tenant.live_ranges(self.boundaries)));
            if self.plan.describes {
                let slots = tenant.some_slots(&mut self.random);
                around.says.push((0, Event::Used { session: self.id, tenant: tenant.id, slots }));
            }
        }
        let outstanding = self.births.iter().filter_map(|birth| Some(birth.place.as_ref()?.step)).collect();
        let drain = Duration::from_micros(around.now - began);
        let session = self.id;
        around.says.push((0, Event::Drained { session, step, at_boundary, drain, maps, outstanding }));
        Ok(())
    }

    /// Carries out a message of the manager.
    pub fn obey(&mut self, message: ToShim, around: &mut Around) -> Result<(), String> {
        match message {
            ToShim::Welcome { closed, .. } => {
                self.gate = if closed { Gate::Closed } else { Gate::Open };
                self.go(around)
            }
            // These processes borrow nothing.
            ToShim::Refused { .. } | ToShim::AttachRefused { .. } | ToShim::Lent { .. } | ToShim::Heard => {
                Ok(())
            }
            ToShim::Held { step } => self.held(step),
            ToShim::Room { step, more } => self.room(step, more, around),
            ToShim::Attached { step, tenant, .. } => self.attached(step, tenant, around),
            ToShim::Leased { step, pieces, more } => self.leased(step, &pieces, more, around),
            ToShim::LeaseRefused { step, .. } => self.lease_refused(step, around),
            ToShim::Close { step, boundary, deadline_ms, drain_ms, .. } => {
                self.close(step, boundary, deadline_ms * 1000, drain_ms * 1000, around)
            }
            ToShim::Unmap { step, tenant, pieces } => {
                self.while_closed("Unmap")?;
                self.tenant(tenant)?.unmap(around.memories, &pieces)?;
                self.done(step, around);
                Ok(())
            }
            ToShim::Map { step, tenant, pieces } => {
                if self.gate != Gate::Ajar {
                    self.while_closed("Map")?;
                }
                self.tenant(tenant)?.map(around.memories, &pieces)?;
                self.done(step, around);
                self.work_on_what_is_there(around)
            }
            ToShim::Ajar => {
                self.while_closed("Ajar")?;
                if !self.plan.describes {
                    return Err(format!("{} is ajar, and describes nothing", self.id));
                }
                self.gate = Gate::Ajar;
                self.work_on_what_is_there(around)
            }
            ToShim::Open => self.open(around),
            ToShim::Recall { tenant } => {
                let index = self.tenants.iter().position(|known| known.id == tenant);
                index.map_or(Ok(()), |index| self.give_back_of(index, true, around))
            }
            ToShim::Watch { tick_micros } => {
                self.watched = tick_micros > 0;
                if matches!(self.doing, Doing::Resting | Doing::Allocating | Doing::AtBarrier) {
                    self.grow_quiet_now(around);
                }
                Ok(())
            }
        }
    }

    fn grow_quiet_now(&self, around: &mut Around) {
        if self.watched {
            around.timers.push((QUIET, Timer::Quiet(self.generation)));
        }
    }

    fn done(&mut self, step: Step, around: &mut Around) {
        let later = self.random.between(1, 80);
        around.says.push((later, Event::ShimDone { session: self.id, step }));
    }

    /// Described work goes at the gate that is ajar, where all that it uses is there.
    fn work_on_what_is_there(&mut self, around: &mut Around) -> Result<(), String> {
        if self.gate == Gate::Ajar {
            let (nth, token) = (self.random.between(1, 3) as usize, self.random.bits() | 1);
            for tenant in &mut self.tenants {
                self.tally.early += tenant.rewrite_what_is_there(around.memories, nth, token)? as u64;
            }
        }
        Ok(())
    }

    fn while_closed(&self, order: &str) -> Result<(), String> {
        match self.gate {
            Gate::Closed => Ok(()),
            gate => Err(format!("{}: {order} while the gate is {gate:?}", self.id)),
        }
    }

    fn tenant(&mut self, id: TenantId) -> Result<&mut Tenant, String> {
        let known = self.tenants.iter_mut().find(|tenant| tenant.id == id);
        known.ok_or_else(|| format!("{id} is not of {}", self.id))
    }

    fn attached(&mut self, step: Step, id: TenantId, around: &mut Around) -> Result<(), String> {
        if self.doing != Doing::Attaching(step) {
            return Err(format!("{}: {step} is answered, but not asked", self.id));
        }
        self.make(Thing::Context(id), around)
    }

    /// Makes something outside of pieces, or asks for room for it.
    fn make(&mut self, thing: Thing, around: &mut Around) -> Result<(), String> {
        if self.is_made(thing, around) {
            return self.go(around);
        }
        self.ask_for_room(thing, 1, around);
        Ok(())
    }

    fn ask_for_room(&mut self, thing: Thing, units: u32, around: &mut Around) {
        let step = self.step();
        self.doing = Doing::MakingRoom { step, thing, units };
        let gpu = self.gpu_of(thing, around);
        around.says.push((0, Event::MakeRoom { session: self.id, step, gpu, units }));
    }

    /// A context is that of the tenant that comes next.
    fn gpu_of(&self, thing: Thing, around: &Around) -> GpuUuid {
        match thing {
            Thing::Context(_) => around.gpus[self.plan.gpus[self.tenants.len()]],
            Thing::Array => self.tenants[0].gpu,
        }
    }

    /// Whether there is room for it.
    fn is_made(&mut self, thing: Thing, around: &mut Around) -> bool {
        let gpu = self.gpu_of(thing, around);
        let units = match thing {
            Thing::Context(_) => self.plan.context,
            Thing::Array => self.plan.array,
        };
        let memory = around.memories.get_mut(&gpu);
        let made = memory.is_some_and(|memory| memory.take_outside(self.id, units));
        if made {
            self.doing = Doing::Ready;
            if let Thing::Context(id) = thing {
                self.tenants.push(Tenant::new(id, gpu, self.id));
            }
        }
        made
    }

    /// There is room now; the program ends if it is too little, and there is no more.
    fn room(&mut self, answered: Step, more: bool, around: &mut Around) -> Result<(), String> {
        let Doing::MakingRoom { step, thing, units } = self.doing else {
            return Err(format!("{}: it is given room, but does not ask for it", self.id));
        };
        if step != answered {
            return Err(format!("{}: {answered} is answered, but not asked", self.id));
        }
        if self.is_made(thing, around) {
            return self.go(around);
        }
        if more {
            self.ask_for_room(thing, units * 2, around);
        } else {
            self.tally.homeless += 1;
            self.doing = Doing::Ended;
        }
        Ok(())
    }

    fn close(
        &mut self,
        step: Step,
        target: u64,
        deadline: Micros,
        drain_limit: Micros,
        around: &mut Around,
    ) -> Result<(), String> {
        if self.gate != Gate::Open {
            return Err(format!("{}: Close while the gate is {:?}", self.id, self.gate));
        }
        self.said_waiting = false;
        if target > 0 && self.boundaries >= target {
            let (session, boundary) = (self.id, self.boundaries);
            around.says.push((0, Event::Passed { session, step, boundary }));
            return Ok(());
        }
        self.gate = Gate::Closing { step, target, drain_limit };
        around.timers.push((deadline, Timer::Deadline(step)));
        Ok(())
    }

    fn open(&mut self, around: &mut Around) -> Result<(), String> {
        self.tally.opened += 1;
        self.said_waiting = false;
        self.waits_since = None;
        if self.is_closed() {
            for tenant in &mut self.tenants {
                tenant.reopen(around.memories)?;
            }
            self.gate = Gate::Open;
            self.generation += u64::from(self.doing == Doing::AtGate);
        }
        if self.doing == Doing::Allocating {
            self.waits_since = Some(around.now);
            self.start_births(around)?;
        }
        self.go(around)
    }
}
