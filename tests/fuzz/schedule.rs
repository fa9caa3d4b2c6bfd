//! Processes that say anything at any time to a real scheduler, beside an honest mover. After
//! each event the scheduler's invariants hold, and no order names a piece that is no more.

use arbitrary::{Result, Unstructured};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::live::{Life, LiveRange};
use tidegate_ffi::wire::message::{JobSpec, LeaseRequest, Need, Shortage, ToMover, ToShim};
use tidegate_manager::scheduler::{Config, Effect, Event, Pages, Scheduler, UserQuotas};

const UNIT: u64 = 1 << 16;
const GPUS: [GpuUuid; 2] = [GpuUuid([1; 16]), GpuUuid([2; 16])];

struct Page(u64);

impl Pages for Page {
    fn boundaries(&self, _: SessionId) -> u64 {
        self.0
    }

    fn learning(&self, session: SessionId) -> u64 {
        session.0 % 3
    }

    fn collectives(&self, session: SessionId) -> u64 {
        session.0 % 4 * self.0
    }

    fn is_stopped(&self, session: SessionId) -> bool {
        (self.0 + session.0).is_multiple_of(5)
    }
}

struct World {
    scheduler: Scheduler,
    now: Duration,
    orders: VecDeque<(GpuUuid, ToMover)>,
    /// Orders to processes that are not answered.
    asked: Vec<(SessionId, Step)>,
    expelled: BTreeSet<SessionId>,
    pieces: BTreeSet<PieceId>,
    next: u64,
}

/// Events, until the bytes end.
pub fn schedule(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut world = World::new();
    for gpu in GPUS {
        let shares = world.scheduler.config().tier_bytes.map(|bytes| bytes / GPUS.len() as u64);
        world.tell(Event::GpuAdded { gpu, units: 64, apart: 0, shares });
    }
    while !input.is_empty() {
        let Ok(event) = world.event(&mut input) else { return };
        event.into_iter().for_each(|event| world.tell(event));
    }
}

impl World {
    fn new() -> Self {
        let config = Config {
            unit_bytes: UNIT,
            piece_units: 4,
            offset_units: 1,
            headroom_units: 1,
            slice: Duration::from_millis(50),
            slice_max: Duration::from_secs(10),
            switch_percent: 5,
            boundary_deadline: Duration::from_millis(20),
            drain_limit: Duration::from_millis(20),
            answer_limit: Duration::from_millis(100),
            oversubscribe: false,
            expel_silent: false,
            poison: true,
            own_uid: 0,
            user_quotas: UserQuotas { others: None, named: [(1, 24 * UNIT)].into() },
            saved_quotas: UserQuotas { others: Some(48 * UNIT), named: [(1, 16 * UNIT)].into() },
            tier_bytes: [256 * UNIT, 0, 0],
            cxl_is_in_parts: false,
        };
        Self {
            scheduler: Scheduler::new(config),
            now: Duration::ZERO,
            orders: VecDeque::new(),
            asked: Vec::new(),
            expelled: BTreeSet::new(),
            pieces: BTreeSet::new(),
            next: 0,
        }
    }

    fn tell(&mut self, event: Event) {
        let effects = self.scheduler.handle(self.now, event, &Page(self.next / 64));
        assert_eq!(self.scheduler.check(), Ok(()));
        for effect in effects {
            self.note(effect);
        }
    }

    fn note(&mut self, effect: Effect) {
        match effect {
            Effect::Shim(session, ToShim::Unmap { step, tenant, pieces }) => {
                let tenant = self.scheduler.tenants().get(&tenant);
                let held = |piece: &PieceId| tenant.is_some_and(|tenant| tenant.held.contains(piece));
                assert!(!pieces.iter().any(held), "held memory goes: {pieces:?}");
                self.asked.push((session, step));
            }
            Effect::Shim(session, ToShim::Map { step, .. }) => self.asked.push((session, step)),
            Effect::Mover(gpu, order) => {
                self.check_order(&order);
                self.orders.push_back((gpu, order));
            }
            Effect::Expel(session, _) => {
                self.expelled.insert(session);
            }
            _ => {}
        }
    }

    fn check_order(&mut self, order: &ToMover) {
        let known = |pieces: &BTreeSet<PieceId>, piece: &PieceId| {
            assert!(pieces.contains(piece), "{order:?} names {piece}, which is no more");
        };
        match order {
            ToMover::Make { pieces, .. } => {
                pieces.iter().for_each(|(piece, _)| assert!(self.pieces.insert(*piece)));
            }
            ToMover::Save { moves, .. } | ToMover::Restore { moves, .. } => {
                moves.iter().for_each(|m| known(&self.pieces, &m.piece));
            }
            ToMover::Scrub { pieces, .. } => pieces.iter().for_each(|piece| known(&self.pieces, piece)),
            ToMover::Destroy { pieces, .. } => {
                for piece in pieces {
                    known(&self.pieces, piece);
                    self.pieces.remove(piece);
                }
            }
            ToMover::Forget { .. }
            | ToMover::Measure { .. }
            | ToMover::Share { .. }
            | ToMover::Warm { .. } => {}
            ToMover::Adopt { .. } | ToMover::Will(_) | ToMover::Heard | ToMover::End => {
                panic!("{order:?} is none of the scheduler's")
            }
        }
    }

    fn event(&mut self, input: &mut Unstructured<'_>) -> Result<Option<Event>> {
        self.next += 1;
        self.now += Duration::from_millis(input.int_in_range(0..=3)?);
        Ok(match input.int_in_range(0..=15)? {
            0 => Some(self.arrival(input)?),
            1 | 2 => self.join(input)?,
            3..=6 => self.answer_of_mover(input)?,
            7 if !self.asked.is_empty() => {
                let (session, step) = self.asked.swap_remove(input.choose_index(self.asked.len())?);
                let answer = match input.ratio(1, 8)? {
                    true => Event::MappedSome { session, step, pieces: input.int_in_range(0..=3)? },
                    false => Event::ShimDone { session, step },
                };
                self.if_heard(session, answer)
            }
            8 => Some(Event::Tick),
            _ => self.word(input)?,
        })
    }

    fn arrival(&self, input: &mut Unstructured<'_>) -> Result<Event> {
        let need = input.arbitrary::<Option<(u8, u8)>>()?;
        let need =
            need.map(|(p, t)| Need { persistent: u64::from(p) * UNIT, temporary: u64::from(t) * UNIT });
        let memory = input.ratio(1, 8)?.then_some(UNIT * 20);
        let (priority, weight) = (input.int_in_range(0..=1)?, input.arbitrary()?);
        let spec =
            JobSpec { priority, weight, resident: input.ratio(1, 16)?, memory, need, ..JobSpec::default() };
        Ok(Event::JobArrived { job: JobId(self.next), uid: input.int_in_range(0..=1)?, spec })
    }

    fn join(&self, input: &mut Unstructured<'_>) -> Result<Option<Event>> {
        let jobs: Vec<JobId> = self.scheduler.jobs().keys().copied().collect();
        if jobs.is_empty() {
            return Ok(None);
        }
        let job = *input.choose(&jobs)?;
        Ok(Some(match input.ratio(1, 8)? {
            true => Event::JobReleased { job },
            false => Event::SessionJoined { session: SessionId(self.next), job },
        }))
    }

    fn answer_of_mover(&mut self, input: &mut Unstructured<'_>) -> Result<Option<Event>> {
        let fails = input.ratio(1, 12)?;
        let Some((gpu, order)) = self.orders.pop_front() else { return Ok(None) };
        let step = match &order {
            ToMover::Forget { .. }
            | ToMover::Warm { .. }
            | ToMover::Adopt { .. }
            | ToMover::Will(_)
            | ToMover::Heard
            | ToMover::End => return Ok(None),
            ToMover::Measure { step } => {
                let used_bytes = input.int_in_range(0..=64)? * UNIT;
                return Ok(Some(Event::Measured { gpu, step: *step, used_bytes }));
            }
            ToMover::Share { step, bytes, .. } => {
                return Ok(Some(Event::MoverDone { gpu, step: *step, bytes: *bytes }));
            }
            ToMover::Make { step, pieces, .. } if fails => {
                self.pieces.retain(|piece| pieces.iter().all(|(failed, _)| failed != piece));
                *step
            }
            ToMover::Make { step, .. }
            | ToMover::Save { step, .. }
            | ToMover::Restore { step, .. }
            | ToMover::Scrub { step, .. }
            | ToMover::Destroy { step, .. } => *step,
        };
        // What is to be scrubbed or destroyed is there.
        let fails =
            fails && matches!(order, ToMover::Make { .. } | ToMover::Save { .. } | ToMover::Restore { .. });
        let shortage = *input.choose(&[None, Some(Shortage::Memory), Some(Shortage::Tiers)])?;
        Ok(Some(match fails {
            true => Event::MoverFailed { gpu, step, reason: "fuzz".into(), shortage },
            false => Event::MoverDone { gpu, step, bytes: 1 },
        }))
    }

    /// What a process says, unless it was expelled: then nobody listens.
    fn if_heard(&self, session: SessionId, event: Event) -> Option<Event> {
        (!self.expelled.contains(&session)).then_some(event)
    }

    fn word(&self, input: &mut Unstructured<'_>) -> Result<Option<Event>> {
        let sessions: Vec<SessionId> = self.scheduler.sessions().keys().copied().collect();
        if sessions.is_empty() {
            return Ok(None);
        }
        let session = *input.choose(&sessions)?;
        let own = &self.scheduler.sessions()[&session];
        // Mostly its own, else anybody's.
        let tenant = match own.tenants.first() {
            Some(tenant) if input.ratio(31, 32)? => *tenant,
            _ => TenantId(input.int_in_range(1..=8)?),
        };
        let step = Step(self.next);
        let gpu = *input.choose(&GPUS)?;
        let event = match input.int_in_range(0..=23)? {
            0..=2 => Event::Attach { session, step, gpu },
            3..=8 => Event::Lease { session, request: lease(input, step, tenant)? },
            9..=11 => {
                let (pieces, unused) = (self.some_pieces(input, tenant)?, Units(input.int_in_range(0..=9)?));
                Event::Returned { session, tenant, pieces, unused, recalled: input.arbitrary()? }
            }
            12..=15 => {
                let closing = own.closing.unwrap_or(Step(input.int_in_range(0..=99)?));
                if input.ratio(1, 6)? {
                    Event::Stalled { session, step: closing, is_overdue: input.arbitrary()? }
                } else if input.ratio(1, 6)? {
                    Event::NotDrained { session, step: closing }
                } else if input.ratio(1, 8)? {
                    Event::Passed { session, step: closing, boundary: input.arbitrary()? }
                } else {
                    let maps = own.tenants.iter().map(|tenant| Ok((*tenant, live(input)?)));
                    let maps = maps.collect::<Result<_>>()?;
                    let outstanding =
                        (0..self.next).rev().take(input.int_in_range(0..=64)?).map(Step).collect();
                    let (at_boundary, drain) = (input.arbitrary()?, Duration::ZERO);
                    Event::Drained { session, step: closing, at_boundary, drain, maps, outstanding }
                }
            }
            16 => Event::Idle { session },
            17 => Event::Waiting { session },
            18 => Event::MakeRoom { session, step, gpu, units: input.int_in_range(0..=70)? },
            19 if input.ratio(1, 8)? => {
                let step = Step(input.int_in_range(0..=200)?);
                Event::ShimFailed { session, step, reason: String::new() }
            }
            20 if input.ratio(1, 3)? => return Ok(Some(Event::SessionEnded { session })),
            21 => Event::Hold { session, step, tenant, pieces: self.some_pieces(input, tenant)? },
            23 if input.ratio(1, 8)? => Event::Unsliceable { session, reason: String::new() },
            22 => Event::LetGo { session, tenant, pieces: self.some_pieces(input, tenant)? },
            _ => return Ok(None),
        };
        Ok(self.if_heard(session, event))
    }

    fn some_pieces(&self, input: &mut Unstructured<'_>, tenant: TenantId) -> Result<Vec<PieceId>> {
        let own = self.scheduler.tenants().get(&tenant).into_iter().flat_map(|tenant| tenant.pieces.keys());
        let own: Vec<PieceId> = own.copied().collect();
        if own.is_empty() || input.ratio(1, 16)? {
            return Ok(vec![PieceId(input.int_in_range(0..=99)?)]);
        }
        (0..input.int_in_range(0..=3)?).map(|_| input.choose(&own).copied()).collect()
    }
}

fn class(input: &mut Unstructured<'_>) -> Result<Class> {
    input.choose(&Class::ALL).copied()
}

fn lease(input: &mut Unstructured<'_>, step: Step, tenant: TenantId) -> Result<LeaseRequest> {
    let absurd = input.ratio(1, 64)?;
    let number = |input: &mut Unstructured<'_>, most: u32| {
        if absurd { input.arbitrary() } else { input.int_in_range(0..=most) }
    };
    let step = if input.ratio(1, 32)? { Step(step.0 - 1) } else { step };
    let (first, units, ahead) = (number(input, 255)?, number(input, 24)?, number(input, 8)?);
    let (first, units, ahead) = (SlotIndex(first), Units(units), Units(ahead));
    let whole = input.ratio(1, 4)?;
    Ok(LeaseRequest { step, tenant, class: class(input)?, first, units, ahead, whole })
}

fn live(input: &mut Unstructured<'_>) -> Result<Vec<LiveRange>> {
    let mut ranges = Vec::new();
    for of in Class::ALL {
        let mut at = 0;
        for _ in 0..input.int_in_range(0..=6)? {
            let start = at + u64::from(input.arbitrary::<u16>()?) * 32;
            let bytes = 1 + u64::from(input.arbitrary::<u16>()?) * 16;
            let life = *input.choose(&[Life::Short, Life::Long, Life::Dead])?;
            ranges.push(LiveRange { class: of, start, bytes, life });
            at = start + bytes;
        }
    }
    if input.ratio(1, 32)? {
        ranges.reverse();
    }
    Ok(ranges)
}
