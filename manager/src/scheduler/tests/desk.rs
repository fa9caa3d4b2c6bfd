//! A scheduler with everybody around it who answers at once: movers that succeed unless told to
//! fail, processes that close at once and report what the test says is alive.

use super::super::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_ffi::units::{Class, SlotIndex};
use tidegate_ffi::wire::live::{Life, LiveRange};
use tidegate_ffi::wire::message::{LeaseRequest, Location, Move, Peers, Placed, Shortage};

pub const UNIT: u64 = 1 << 20;
pub const GPU: GpuUuid = GpuUuid([1; 16]);
pub const OTHER_GPU: GpuUuid = GpuUuid([2; 16]);

pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The event of a lease whose step nobody looks at.
pub fn lease_event(session: SessionId, tenant: TenantId, class: Class, first: u32, units: u32) -> Event {
    let (first, units) = (SlotIndex(first), Units(units));
    let request = LeaseRequest { step: Step(1), tenant, class, first, units, ahead: Units(0), whole: false };
    Event::Lease { session, request }
}

/// What the processes' pages, and the kernel, say.
#[derive(Default)]
pub struct Counts {
    pub boundaries: BTreeMap<SessionId, u64>,
    /// Processes that are stopped: what they are told, they hear when they go on.
    pub stopped: BTreeSet<SessionId>,
    /// Of processes that have told no boundary yet, what they are about to.
    pub learning: BTreeMap<SessionId, u64>,
    /// How many collectives processes have launched.
    pub collectives: BTreeMap<SessionId, u64>,
}

impl Pages for Counts {
    fn boundaries(&self, session: SessionId) -> u64 {
        self.boundaries.get(&session).copied().unwrap_or(0)
    }

    fn learning(&self, session: SessionId) -> u64 {
        self.learning.get(&session).copied().unwrap_or(0)
    }

    fn collectives(&self, session: SessionId) -> u64 {
        self.collectives.get(&session).copied().unwrap_or(0)
    }

    fn is_stopped(&self, session: SessionId) -> bool {
        self.stopped.contains(&session)
    }
}

/// The desk. GPUs have 100 units; pieces have 5.
pub struct Desk {
    pub scheduler: Scheduler,
    pub now: Time,
    /// All effects so far.
    pub log: Vec<Effect>,
    pub uid: u32,
    /// Which orders fail.
    pub fail: fn(&ToMover) -> bool,
    /// Saves fail that move what lies there, or behind.
    pub fail_moves_from: Option<u64>,
    /// Processes that do not answer `Close`, until they are told to.
    pub deaf: BTreeSet<SessionId>,
    /// Processes that report no live map.
    pub silent: BTreeSet<SessionId>,
    /// The most pieces that processes can map at once.
    pub descriptors: BTreeMap<SessionId, u32>,
    /// Processes whose work does not end.
    pub undrainable: BTreeSet<SessionId>,
    /// How long their work took to end, as they say at a closing.
    pub drains: BTreeMap<SessionId, Duration>,
    pub expelled: BTreeSet<SessionId>,
    pub pages: Counts,
    /// Processes that do not come to a boundary before the deadline.
    pub late: BTreeSet<SessionId>,
    /// What they have not heard.
    unheard: Vec<(SessionId, ToShim)>,
    /// What processes give back when asked.
    pub recalls: BTreeMap<SessionId, Vec<Placed>>,
    /// Leases that the next `Drained` calls unanswered.
    pub outstanding: Vec<Step>,
    /// How long every order of a mover takes.
    pub order_time: Duration,
    /// What is answered only by [`Desk::finish_held`].
    pub hold: fn(&Effect) -> bool,
    pub forgotten: usize,
    /// Pieces that there are on the GPUs.
    made: BTreeMap<PieceId, (GpuUuid, u64)>,
    /// Pieces that do not fit beside what is outside cannot be made.
    pub short_of_memory: bool,
    /// Units in use outside of pieces.
    pub outside: u32,
    /// Pieces that are destroyed stay in use, outside.
    pub leaking: bool,
    /// The most moves in one order.
    pub longest_order: usize,
    /// No mover makes its shares of the tiers smaller.
    pub least_shares: [u64; 3],
    /// Saves of more find no room.
    pub tier_bytes: u64,
    /// All that is saved together is no more than this.
    pub tier_capacity: u64,
    /// What is saved, by tenant and order of saving.
    saved_bytes: BTreeMap<TenantId, u64>,
    /// Restores that find none.
    pub starve: fn(&ToMover) -> bool,
    held: Vec<Event>,
    live: BTreeMap<TenantId, Vec<LiveRange>>,
    closings: BTreeMap<SessionId, Step>,
    next: u64,
}

impl Desk {
    pub fn new(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_gpus(100, change)
    }

    /// With GPUs of so many units.
    pub fn with_gpus(units: u32, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            unit_bytes: UNIT,
            piece_units: 5,
            offset_units: 0,
            headroom_units: 0,
            slice: ms(100),
            slice_max: Duration::from_secs(10),
            switch_percent: 5,
            boundary_deadline: ms(20),
            drain_limit: ms(20),
            answer_limit: ms(1000),
            oversubscribe: true,
            expel_silent: false,
            poison: false,
            own_uid: 0,
            user_quotas: UserQuotas::default(),
            saved_quotas: UserQuotas::default(),
            tier_bytes: [1 << 40, 0, 0],
            cxl_is_in_parts: false,
        };
        change(&mut config);
        let mut desk = Self {
            scheduler: Scheduler::new(config),
            now: ms(1),
            log: Vec::new(),
            uid: 1,
            fail: |_| false,
            fail_moves_from: None,
            deaf: BTreeSet::new(),
            silent: BTreeSet::new(),
            descriptors: BTreeMap::new(),
            undrainable: BTreeSet::new(),
            drains: BTreeMap::new(),
            expelled: BTreeSet::new(),
            pages: Counts::default(),
            late: BTreeSet::new(),
            unheard: Vec::new(),
            recalls: BTreeMap::new(),
            outstanding: Vec::new(),
            order_time: Duration::ZERO,
            hold: |_| false,
            forgotten: 0,
            made: BTreeMap::new(),
            short_of_memory: false,
            leaking: false,
            outside: 0,
            longest_order: 0,
            least_shares: [0; 3],
            tier_bytes: u64::MAX,
            tier_capacity: u64::MAX,
            saved_bytes: BTreeMap::new(),
            starve: |_| false,
            held: Vec::new(),
            live: BTreeMap::new(),
            closings: BTreeMap::new(),
            next: 0,
        };
        desk.add_gpu(GPU, units);
        desk.add_gpu(OTHER_GPU, units);
        desk
    }

    pub fn add_gpu(&mut self, gpu: GpuUuid, units: u32) {
        // Two have all of the tiers.
        let is_one_of_two = self.scheduler.gpus().len() < 2;
        let share = |bytes| if is_one_of_two { bytes / 2 } else { 0 };
        let shares = self.scheduler.config().tier_bytes.map(share);
        self.tell(Event::GpuAdded { gpu, units, apart: 0, shares });
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A job with one process, attached to the first GPU.
    pub fn job(&mut self, spec: JobSpec) -> SessionId {
        let (_, session) = self.start(spec);
        self.attach(session, GPU);
        session
    }

    /// A job with one process.
    pub fn start(&mut self, spec: JobSpec) -> (JobId, SessionId) {
        let job = JobId(self.fresh());
        self.tell(Event::JobArrived { job, uid: self.uid, spec });
        let session = self.join(job);
        self.tell(Event::JobReleased { job });
        (job, session)
    }

    pub fn join(&mut self, job: JobId) -> SessionId {
        let session = SessionId(self.fresh());
        self.tell(Event::SessionJoined { session, job });
        session
    }

    pub fn attach(&mut self, session: SessionId, gpu: GpuUuid) {
        let step = Step(self.fresh());
        self.tell(Event::Attach { session, step, gpu });
    }

    pub fn end(&mut self, session: SessionId) {
        self.tell(Event::SessionEnded { session });
    }

    pub fn lease(&mut self, session: SessionId, class: Class, first: u32, units: u32) -> Step {
        self.lease_ahead(session, class, first, units, 0)
    }

    pub fn lease_ahead(
        &mut self,
        session: SessionId,
        class: Class,
        first: u32,
        units: u32,
        ahead: u32,
    ) -> Step {
        self.ask_lease(session, class, [first, units, ahead], false)
    }

    pub fn lease_whole(&mut self, session: SessionId, class: Class, first: u32, units: u32) {
        self.ask_lease(session, class, [first, units, 0], true);
    }

    /// `place`: the first slot, how many units, how many ahead.
    fn ask_lease(&mut self, session: SessionId, class: Class, place: [u32; 3], whole: bool) -> Step {
        let (step, tenant) = (Step(self.fresh()), self.tenant(session));
        let [first, units, ahead] = place;
        let (first, units, ahead) = (SlotIndex(first), Units(units), Units(ahead));
        if units.0 > 0 {
            let request = LeaseRequest { step, tenant, class, first, units, ahead, whole };
            self.tell(Event::Lease { session, request });
        }
        step
    }

    /// From now on the live map says this of these bytes.
    pub fn live(&mut self, session: SessionId, class: Class, start: u64, bytes: u64, life: Life) {
        let tenant = self.tenant(session);
        let live = self.live.entry(tenant).or_default();
        live.push(LiveRange { class, start, bytes, life });
    }

    /// From now on nothing of the class is alive.
    pub fn dead(&mut self, session: SessionId, class: Class) {
        let tenant = self.tenant(session);
        self.live.entry(tenant).or_default().retain(|range| range.class != class);
    }

    /// Tells the scheduler, and answers all that follows from it.
    pub fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let effects = self.scheduler.handle(self.now, event, &self.pages);
            self.scheduler.check().unwrap();
            for effect in effects {
                if let Effect::Standstill(report) = &effect {
                    panic!("{report} (I11)");
                }
                match self.answer(&effect) {
                    Some(answer) if (self.hold)(&effect) => self.held.push(answer),
                    answer => events.extend(answer),
                }
                self.log.push(effect);
            }
        }
    }

    fn answer(&mut self, effect: &Effect) -> Option<Event> {
        match effect {
            Effect::Shim(session, message) => self.answer_as_process(*session, message),
            Effect::Mover(gpu, order) => self.answer_as_mover(*gpu, order),
            Effect::Expel(session, _) => {
                self.expelled.insert(*session);
                None
            }
            _ => None,
        }
    }

    fn answer_as_process(&mut self, session: SessionId, message: &ToShim) -> Option<Event> {
        if self.pages.stopped.contains(&session) {
            self.unheard.push((session, message.clone()));
            return None;
        }
        match message {
            ToShim::Map { step, pieces, .. }
                if self.descriptors.get(&session).is_some_and(|most| (*most as usize) < pieces.len()) =>
            {
                Some(Event::MappedSome { session, step: *step, pieces: self.descriptors[&session] })
            }
            ToShim::Unmap { step, .. } | ToShim::Map { step, .. } => {
                Some(Event::ShimDone { session, step: *step })
            }
            ToShim::Close { step, .. } => {
                self.closings.insert(session, *step);
                (!self.deaf.contains(&session)).then(|| self.closing_answer(session))?
            }
            ToShim::Recall { tenant } => {
                let pieces = self.recalls.remove(&session).unwrap_or_default();
                let pieces = pieces.iter().map(|placed| placed.piece).collect();
                Some(Event::Returned { session, tenant: *tenant, pieces, unused: Units(0), recalled: true })
            }
            _ => None,
        }
    }

    fn closing_answer(&mut self, session: SessionId) -> Option<Event> {
        let step = self.closings.remove(&session)?;
        if self.undrainable.contains(&session) {
            return Some(Event::NotDrained { session, step });
        }
        let tenants = self.scheduler.sessions()[&session].tenants.clone();
        let told = tenants.into_iter().filter(|_| !self.silent.contains(&session));
        let map = |tenant: TenantId| {
            let mut live = self.live.get(&tenant).cloned().unwrap_or_default();
            live.sort_unstable_by_key(|range| (range.class, range.start));
            (tenant, live)
        };
        let maps = told.map(map).collect();
        let outstanding = std::mem::take(&mut self.outstanding);
        let at_boundary = !self.late.contains(&session);
        let drain = self.drains.get(&session).copied().unwrap_or_default();
        Some(Event::Drained { session, step, at_boundary, drain, maps, outstanding })
    }

    /// A deaf process hears at last.
    pub fn answer_closings(&mut self, session: SessionId) {
        if let Some(answer) = self.closing_answer(session) {
            self.tell(answer);
        }
    }

    /// A process gives pieces back, and says that so many units that were leased ahead it never used.
    pub fn give_back(&mut self, session: SessionId, pieces: &[Placed], unused: u32) {
        self.returned(session, pieces, unused, false);
    }

    /// A process answers a recall with these pieces.
    pub fn answer_recall(&mut self, session: SessionId, pieces: &[Placed]) {
        self.returned(session, pieces, 0, true);
    }

    fn returned(&mut self, session: SessionId, pieces: &[Placed], unused: u32, recalled: bool) {
        let pieces = pieces.iter().map(|placed| placed.piece).collect();
        let tenant = self.tenant(session);
        self.tell(Event::Returned { session, tenant, pieces, unused: Units(unused), recalled });
    }

    /// A process says that it has passed the boundary at which it was to close.
    pub fn pass_by(&mut self, session: SessionId, boundary: u64) {
        if let Some(step) = self.closings.remove(&session) {
            self.tell(Event::Passed { session, step, boundary });
        }
    }

    fn answer_as_mover(&mut self, gpu: GpuUuid, order: &ToMover) -> Option<Event> {
        self.now += self.order_time;
        if let ToMover::Measure { step } = order {
            let in_pieces: u64 =
                self.made.values().filter(|(on, _)| *on == gpu).map(|(_, bytes)| bytes).sum();
            let used_bytes = in_pieces + u64::from(self.outside) * UNIT;
            return Some(Event::Measured { gpu, step: *step, used_bytes });
        }
        if let ToMover::Share { step, tier, bytes } = order {
            // In whole pages.
            let bytes = (*bytes).max(self.least_shares[tier.index()]) / 4096 * 4096;
            return Some(Event::MoverDone { gpu, step: *step, bytes });
        }
        let (step, moves): (Step, &[Move]) = match order {
            ToMover::Save { step, moves, .. } | ToMover::Restore { step, moves, .. } => (*step, moves),
            ToMover::Make { step, .. } | ToMover::Scrub { step, .. } | ToMover::Destroy { step, .. } => {
                (*step, &[])
            }
            ToMover::Measure { .. }
            | ToMover::Share { .. }
            | ToMover::Warm { .. }
            | ToMover::Adopt { .. }
            | ToMover::Will(_)
            | ToMover::Heard
            | ToMover::End => return None,
            ToMover::Forget { tenant } => {
                self.forgotten += 1;
                self.saved_bytes.remove(tenant);
                return None;
            }
        };
        self.longest_order = self.longest_order.max(moves.len());
        let is_save = matches!(order, ToMover::Save { .. });
        let too_far = self.fail_moves_from.is_some_and(|from| is_save && moves.iter().any(|m| m.at >= from));
        let saved: u64 = self.saved_bytes.values().sum();
        if is_save && (order.bytes() > self.tier_bytes || saved + order.bytes() > self.tier_capacity) {
            let reason = "the tier is full".into();
            return Some(Event::MoverFailed { gpu, step, reason, shortage: Some(Shortage::Tiers) });
        }
        if (self.starve)(order) {
            let reason = "there is no memory".into();
            return Some(Event::MoverFailed { gpu, step, reason, shortage: Some(Shortage::Memory) });
        }
        if (self.fail)(order) || too_far {
            let reason = "it was told to fail".into();
            return Some(Event::MoverFailed { gpu, step, reason, shortage: None });
        }
        let in_pieces: u64 = self.made.values().filter(|(on, _)| *on == gpu).map(|(_, bytes)| bytes).sum();
        let used = in_pieces + u64::from(self.outside) * UNIT;
        if let ToMover::Make { step, pieces, .. } = order
            && self.short_of_memory
            && used + pieces.iter().map(|(_, bytes)| bytes).sum::<u64>() > 100 * UNIT
        {
            let reason = "there is not so much".into();
            return Some(Event::MoverFailed { gpu, step: *step, reason, shortage: Some(Shortage::Memory) });
        }
        match order {
            ToMover::Make { pieces, location: Location::Device, .. } => {
                self.made.extend(pieces.iter().map(|(piece, bytes)| (*piece, (gpu, *bytes))));
            }
            ToMover::Destroy { pieces, watched_for_leaks, .. } => {
                let gone = self.made.extract_if(.., |piece, _| pieces.contains(piece));
                let bytes: u64 = gone.map(|(_, (_, bytes))| bytes).sum();
                if self.leaking {
                    self.outside += (bytes / UNIT) as u32;
                }
                let leaked = if self.leaking && *watched_for_leaks { bytes } else { 0 };
                return Some(Event::MoverDone { gpu, step, bytes: leaked });
            }
            ToMover::Save { tenant, .. } => *self.saved_bytes.entry(*tenant).or_default() += order.bytes(),
            ToMover::Restore { tenant, .. } => *self.saved_bytes.entry(*tenant).or_default() -= order.bytes(),
            _ => {}
        }
        Some(Event::MoverDone { gpu, step, bytes: moves.iter().map(|m| m.bytes).sum() })
    }

    /// What was held back is done.
    pub fn finish_held(&mut self) {
        self.hold = |_| false;
        for event in std::mem::take(&mut self.held) {
            self.tell(event);
        }
    }

    /// A stopped process goes on, and answers what it was told meanwhile.
    pub fn go_on(&mut self, session: SessionId) {
        self.pages.stopped.remove(&session);
        let (heard, unheard) =
            std::mem::take(&mut self.unheard).into_iter().partition(|(to, _)| *to == session);
        self.unheard = unheard;
        for (session, message) in heard {
            if let Some(answer) = self.answer_as_process(session, &message) {
                self.tell(answer);
            }
        }
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.scheduler.next_wakeup().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.tell(Event::Tick);
        }
        self.now = self.now.max(until);
        self.tell(Event::Tick);
    }

    /// Time passes until something is so.
    pub fn until(&mut self, so: impl Fn(&Desk) -> bool) {
        for _ in 0..3_000 {
            if so(self) {
                return;
            }
            self.pass(ms(10));
        }
        panic!("it never came to that: {:#?}", self.scheduler.jobs());
    }

    pub fn job_of(&self, session: SessionId) -> &Job {
        &self.scheduler.jobs()[&self.scheduler.sessions()[&session].job]
    }

    pub fn phase(&self, session: SessionId) -> Phase {
        self.job_of(session).phase
    }

    pub fn tenant(&self, session: SessionId) -> TenantId {
        self.scheduler.sessions()[&session].tenants[0]
    }

    /// Its pieces behind a class's slots, in order.
    pub fn pieces(&self, session: SessionId, class: Class) -> Vec<Placed> {
        let tenant = &self.scheduler.tenants()[&self.tenant(session)];
        let mut pieces: Vec<Placed> = tenant.pieces.values().filter(|p| p.class == class).copied().collect();
        pieces.sort_unstable_by_key(|placed| placed.slot);
        pieces
    }

    pub fn units(&self, session: SessionId, class: Class) -> u32 {
        self.pieces(session, class).iter().map(|placed| placed.units.0).sum()
    }

    pub fn spans(&self, session: SessionId) -> Vec<crate::ledger::Span> {
        let tenant = self.tenant(session);
        self.scheduler.gpus()[&GPU].ledger.spans().filter(|span| span.tenant == tenant).collect()
    }

    fn to_shim(&self, session: SessionId) -> impl Iterator<Item = &ToShim> {
        self.log.iter().filter_map(move |effect| match effect {
            Effect::Shim(to, message) if *to == session => Some(message),
            _ => None,
        })
    }

    pub fn refusals(&self, session: SessionId) -> usize {
        self.to_shim(session).filter(|message| matches!(message, ToShim::LeaseRefused { .. })).count()
    }

    pub fn was_refused(&self, session: SessionId, lease: Step) -> bool {
        self.to_shim(session)
            .any(|message| matches!(message, ToShim::LeaseRefused { step, .. } if *step == lease))
    }

    /// Boundary and deadline of each `Close`.
    pub fn closes(&self, session: SessionId) -> Vec<(u64, u64)> {
        let closes = self.to_shim(session).filter_map(|message| match message {
            ToShim::Close { boundary, deadline_ms, .. } => Some((*boundary, *deadline_ms)),
            _ => None,
        });
        closes.collect()
    }

    /// How long a process was given until a boundary, and until a wait for its GPU, by its last `Close`, milliseconds.
    pub fn patience(&self, session: SessionId) -> Option<(u64, u64)> {
        let closes = self.to_shim(session).filter_map(|message| match message {
            ToShim::Close { deadline_ms, wait_ms, .. } => Some((*deadline_ms, *wait_ms)),
            _ => None,
        });
        closes.last()
    }

    pub fn closings(&self, session: SessionId) -> usize {
        self.closes(session).len()
    }

    /// How many calls each of a process's threads makes before it drains anew, by its last `Close`.
    pub fn calls(&self, session: SessionId) -> Option<u32> {
        self.last_close(session).map(|(calls, _)| calls)
    }

    /// How long its drain may take, in milliseconds, by its last `Close`.
    pub fn drain_ms(&self, session: SessionId) -> Option<u64> {
        self.last_close(session).map(|(_, drain_ms)| drain_ms)
    }

    /// What it is told of the other processes of its job, by its last `Close`.
    pub fn peers(&self, session: SessionId) -> Option<Peers> {
        self.to_shim(session)
            .filter_map(|message| match message {
                ToShim::Close { peers, .. } => Some(*peers),
                _ => None,
            })
            .last()
    }

    fn last_close(&self, session: SessionId) -> Option<(u32, u64)> {
        let closes = self.to_shim(session).filter_map(|message| match message {
            ToShim::Close { calls, drain_ms, .. } => Some((*calls, *drain_ms)),
            _ => None,
        });
        closes.last()
    }

    /// First slot, length and `more` of each answer.
    pub fn parts(&self, session: SessionId, of: Step) -> Vec<(u32, u32, bool)> {
        let parts = self.to_shim(session).filter_map(|message| match message {
            ToShim::Leased { step, pieces, more } if *step == of => {
                Some((pieces[0].slot.0, pieces.iter().map(|p| p.units.0).sum(), *more))
            }
            _ => None,
        });
        parts.collect()
    }

    pub fn answers(&self, session: SessionId, step: Step) -> usize {
        self.parts(session, step).len()
    }

    pub fn opened(&self) -> Vec<SessionId> {
        let opened = self.log.iter().filter_map(|effect| match effect {
            Effect::Shim(session, ToShim::Open) => Some(*session),
            _ => None,
        });
        opened.collect()
    }

    pub fn unmapped(&self, of: TenantId) -> Vec<PieceId> {
        let unmapped = self.log.iter().filter_map(|effect| match effect {
            Effect::Shim(_, ToShim::Unmap { tenant, pieces, .. }) if *tenant == of => Some(pieces.clone()),
            _ => None,
        });
        unmapped.flatten().collect()
    }

    pub fn mapped_again(&self, of: TenantId) -> Vec<Placed> {
        let mapped = self.log.iter().filter_map(|effect| match effect {
            Effect::Shim(_, ToShim::Map { tenant, pieces, .. }) if *tenant == of => Some(pieces.clone()),
            _ => None,
        });
        mapped.flatten().collect()
    }

    pub fn moves_saved(&self, of: TenantId) -> Vec<Move> {
        let moves = self.log.iter().filter_map(|effect| match effect {
            Effect::Mover(_, ToMover::Save { tenant, moves, .. }) if *tenant == of => Some(moves.clone()),
            _ => None,
        });
        moves.flatten().collect()
    }

    pub fn moves_restored(&self, of: TenantId) -> Vec<Move> {
        let moves = self.log.iter().filter_map(|effect| match effect {
            Effect::Mover(_, ToMover::Restore { tenant, moves, .. }) if *tenant == of => Some(moves.clone()),
            _ => None,
        });
        moves.flatten().collect()
    }

    pub fn made_bytes(&self) -> u64 {
        let made = self.log.iter().filter_map(|effect| match effect {
            Effect::Mover(_, ToMover::Make { pieces, .. }) => {
                Some(pieces.iter().map(|(_, bytes)| bytes).sum::<u64>())
            }
            _ => None,
        });
        made.sum()
    }
}
