//! Clients that say anything, with any file descriptors, to a real core, beside an honest mover (I10).
//! After each word the invariants hold; after the last client's end nothing of them is left.

use super::client::{ClientId, Role};
use super::clock::Clock;
use super::stage::{GPU, UNIT, connect_as, server_with};
use super::{Input, Server};
use crate::random::Random;
use crate::scheduler::{Event, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{Class, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::live::{self, Life, LiveRange};
use tidegate_ffi::wire::message::{
    Drained, FromCommand, FromMover, FromShim, JobClaim, JobSpec, LeaseRequest, MAX_USES, Placed, Resume,
    Shortage, SlotRun, Ticket, ToManager, When,
};
use tidegate_ffi::wire::page::Page;
use tidegate_ffi::wire::{Connection, Mapped};

/// Connections over the whole run: most come while others are there, some after they have gone.
const CONNECTIONS: u64 = 10;
const WORDS: usize = 600;

struct World {
    server: Server,
    random: Random,
    /// How often somebody lies, in a thousand times: who lies a lot is not listened to for long.
    lies: u64,
    /// The clients' ends.
    connections: BTreeMap<u64, Connection>,
    /// What they publish, and may still change.
    pages: Vec<Mapped<Page>>,
    /// Who has asked to attach.
    attached: BTreeSet<u64>,
    /// Each tenant's first slot that it has not asked memory for.
    slots: BTreeMap<TenantId, u32>,
    next: u64,
    steps: u64,
    time: Duration,
}

fn play(seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World {
        server: server_with(|config| config.slice = Duration::from_millis(5)),
        lies: random.between(0, 4),
        random,
        connections: BTreeMap::new(),
        pages: Vec::new(),
        attached: BTreeSet::new(),
        slots: BTreeMap::new(),
        next: 0,
        steps: 0,
        time: Duration::ZERO,
    };
    for _ in 0..WORDS {
        world.pass_time();
        world.go_on();
        assert_eq!(world.server.scheduler.check(), Ok(()), "seed {seed}");
    }
    world.end(seed);
}

impl World {
    fn go_on(&mut self) {
        match self.random.index(32) {
            0 | 1 if self.next < CONNECTIONS => drop(self.connect()),
            2 if self.random.chance(30) => self.lose_one(),
            3 if self.random.chance(30) => self.resume(),
            4 if self.random.chance(30) => self.command(),
            5..=12 => self.answer_of_mover(),
            13 => self.publish(),
            14 => self.server.tell_scheduler(Event::Tick),
            _ => self.word(),
        }
    }

    fn pass_time(&mut self) {
        self.time += Duration::from_micros(self.random.between(0, 2000));
        self.server.clock = Clock::showing(self.time);
    }

    fn lies(&mut self) -> bool {
        self.random.between(0, 999) < self.lies
    }

    /// One of two users, each with one process id.
    fn connect(&mut self) -> u64 {
        let who = [(1, 1), (2, 2)][self.random.index(2)];
        self.connect_as(who)
    }

    fn connect_as(&mut self, who: (u32, i32)) -> u64 {
        self.next += 1;
        let connection = connect_as(&mut self.server, self.next, who);
        self.connections.insert(self.next, connection);
        self.next
    }

    /// Somebody new, or one who is in the middle of something else.
    fn newcomer(&mut self) -> Option<u64> {
        if self.lies() { self.somebody() } else { (self.next < CONNECTIONS).then(|| self.connect()) }
    }

    /// A connection ends, and perhaps its process too.
    fn lose_one(&mut self) {
        let Some(id) = self.somebody() else { return };
        self.connections.remove(&id);
        if self.random.chance(30) {
            self.server.take_in(Input::Gone(ClientId(id)));
        }
    }

    fn somebody(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.server.clients.keys().map(|id| id.0).collect();
        (!ids.is_empty()).then(|| ids[self.random.index(ids.len())])
    }

    fn say(&mut self, id: u64, message: ToManager, fds: Vec<OwnedFd>) {
        self.server.take_in(Input::said(ClientId(id), message, fds));
    }

    /// Its own session's ticket over another connection, or a guess.
    fn resume(&mut self) {
        let Some(old) = self.somebody() else { return };
        let conversation = &self.server.clients[&ClientId(old)].conversation;
        let (who, own) = ((conversation.uid, conversation.pid), conversation.ticket());
        self.connections.remove(&old);
        let id = match self.lies() {
            true => self.somebody(),
            false => (self.next < CONNECTIONS).then(|| self.connect_as(who)),
        };
        let Some(id) = id else { return };
        let guess = Ticket { session: SessionId(self.random.between(0, CONNECTIONS)), secret: 0 };
        let ticket = if self.lies() { guess } else { own };
        let (heard, fds) = (if self.lies() { 9 } else { 0 }, vec![self.page()]);
        self.say(id, ToManager::Resume(Resume { ticket, heard }), fds);
    }

    fn command(&mut self) {
        let Some(id) = self.newcomer() else { return };
        // Not `Evict`: all processes are this one.
        let command = match self.random.index(4) {
            0 | 1 => FromCommand::Register(self.spec()),
            2 => FromCommand::Status { when: When::Now },
            _ => FromCommand::Status { when: When::Idle },
        };
        let fds = self.files();
        self.say(id, ToManager::Command(command), fds);
    }

    fn name(&mut self) -> String {
        ["a", "b\n\u{7}", ""][self.random.index(3)].into()
    }

    fn spec(&mut self) -> JobSpec {
        let memory = self.random.chance(20).then(|| self.random.between(0, 1 << 26));
        let (name, priority) = (self.name(), self.random.between(0, 1) as i32);
        let launch = self.random.chance(20).then(|| self.name());
        JobSpec { name, priority, weight: self.random.bits() as u32, memory, launch, ..JobSpec::default() }
    }

    /// File descriptors as strangers bring them.
    fn files(&mut self) -> Vec<OwnedFd> {
        let count = if self.random.chance(70) { 1 } else { self.random.index(4) };
        (0..count).map(|_| self.file()).collect()
    }

    fn file(&mut self) -> OwnedFd {
        match self.random.index(8) {
            0..=3 => self.page(),
            4..=6 => self.live_map(TenantId(1)),
            _ => tempfile::tempfile().unwrap().into(),
        }
    }

    fn page(&mut self) -> OwnedFd {
        let (page, file) = Page::create().unwrap();
        self.pages.push(page);
        file
    }

    /// A part of most of a tenant's pieces is alive.
    fn live_map(&mut self, tenant: TenantId) -> OwnedFd {
        let tenant = self.server.scheduler.tenants().get(&tenant);
        let mut pieces: Vec<Placed> =
            tenant.into_iter().flat_map(|tenant| tenant.pieces.values().copied()).collect();
        pieces.sort_unstable_by_key(|placed| (placed.class, placed.slot));
        let ranges = pieces.into_iter().filter_map(|placed| {
            let (start, bytes) = (u64::from(placed.slot.0) * UNIT, u64::from(placed.units.0) * UNIT);
            let from = self.random.between(0, bytes / 2);
            let life = [Life::Short, Life::Long, Life::Dead][self.random.between(0, 2) as usize];
            let bytes = self.random.between(1, bytes - from);
            let range = LiveRange { class: placed.class, start: start + from, bytes, life };
            self.random.chance(80).then_some(range)
        });
        let ranges: Vec<_> = ranges.collect();
        live::write(&ranges).unwrap()
    }

    /// A page changes under its reader.
    fn publish(&mut self) {
        let bits = self.random.bits();
        if let Some(page) = self.pages.last() {
            page.boundaries.store(bits, std::sync::atomic::Ordering::Relaxed);
            page.last_boundary.store(bits, std::sync::atomic::Ordering::Relaxed);
            let row = &page.tenants[bits as usize % page.tenants.len()];
            row.peak_bytes[0].store(bits, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The mover carries out its next order, or fails.
    fn answer_of_mover(&mut self) {
        let Some(step) = self.orders(is_movers).first().copied() else { return };
        let fails = self.random.chance(10);
        self.answer(step, fails);
    }

    /// The orders of a kind that are not answered.
    fn orders(&self, kind: fn(&str) -> bool) -> Vec<Step> {
        let scheduler = &self.server.scheduler;
        scheduler.orders().filter(|step| scheduler.name_of(*step).is_some_and(kind)).collect()
    }

    fn answer(&mut self, step: Step, fails: bool) {
        let name = self.server.scheduler.name_of(step);
        let (message, fds) = match name {
            // What is to be scrubbed or destroyed is there.
            Some("make" | "save" | "restore") if fails => {
                let shortage = self.random.chance(50).then_some(Shortage::Memory);
                (FromMover::Failed { step, reason: "fuzz".into(), shortage }, Vec::new())
            }
            Some("make") => {
                let pieces = self.server.making.get(&step).map_or(0, Vec::len);
                let files = (0..pieces).map(|_| tempfile::tempfile().unwrap().into()).collect();
                (FromMover::Made { step }, files)
            }
            Some("measure") => {
                let pieces: u64 = self.server.pieces.values().map(|piece| piece.bytes).sum();
                let most = if self.lies() { 64 } else { 4 };
                let outside = self.random.between(0, most) << 20;
                let (total_bytes, free_bytes) = (64 << 20, (64_u64 << 20).saturating_sub(pieces + outside));
                (FromMover::Measured { step, free_bytes, total_bytes, saved_bytes: 0 }, Vec::new())
            }
            _ => (FromMover::Done { step, bytes: 1, micros: 1 }, Vec::new()),
        };
        self.server.take_in(Input::Mover(GPU, message, fds));
    }

    fn word(&mut self) {
        let Some(id) = self.somebody() else { return };
        let heard_by = self.server.clients[&ClientId(id)].conversation.heard();
        // The next one, or one that was heard, or one that comes too soon.
        let number = heard_by + if self.lies() { self.random.between(0, 1) * 2 } else { 1 };
        let heard = if self.lies() { self.random.between(0, 50) } else { 0 };
        let message = self.message(id);
        let fds = match &message {
            _ if self.lies() => self.files(),
            FromShim::Hello(_) => vec![self.page()],
            FromShim::Drained(drained) => {
                drained.tenants.iter().map(|tenant| self.live_map(*tenant)).collect()
            }
            _ => Vec::new(),
        };
        self.say(id, ToManager::Shim(Numbered { number, heard, message }), fds);
    }

    fn message(&mut self, id: u64) -> FromShim {
        let step = self.step();
        let session = self.server.scheduler.sessions().get(&SessionId(id)).cloned();
        let own = session.as_ref().and_then(|session| session.tenants.first().copied());
        let tenant = if self.lies() { Some(TenantId(self.random.between(0, 9))) } else { own };
        let joined = self.server.clients[&ClientId(id)].role != Role::Unknown;
        if !joined && !self.lies() {
            let token = self.server.tokens.keys().next().copied().filter(|_| self.random.chance(50));
            return FromShim::Hello(token.map_or_else(|| JobClaim::Own(self.spec()), JobClaim::Token));
        }
        if session.is_some() && (self.attached.insert(id) || self.lies()) {
            return FromShim::Attach { step, gpu: GPU };
        }
        let closing = session.as_ref().and_then(|session| session.closing);
        let Some(tenant) = tenant else { return FromShim::Heard };
        match self.random.index(15) {
            // What it was asked comes first.
            0..=3 if closing.is_some() || self.lies() => self.drained(closing.unwrap_or(step), session),
            0..=4 => self.done(id),
            5..=8 => FromShim::Lease(self.lease(step, tenant)),
            9 => FromShim::Return {
                tenant,
                pieces: self.pieces(tenant),
                unused: Units(self.random.index(9) as u32),
                recalled: self.random.index(2) == 0,
            },
            10 => FromShim::Hold { step, tenant, pieces: self.pieces(tenant) },
            11 => FromShim::LetGo { tenant, pieces: self.pieces(tenant) },
            12 => FromShim::MakeRoom { step, gpu: GPU, units: Units(self.random.index(9) as u32) },
            13 => FromShim::Used { tenant, slots: self.uses() },
            _ => {
                if self.lies() {
                    return FromShim::Unsliceable { reason: "b\n".repeat(999) };
                }
                let stalled = FromShim::Stalled { step: closing.unwrap_or(step), is_overdue: self.lies() };
                let words = [FromShim::Idle, FromShim::Waiting, FromShim::JobDone, FromShim::Heard, stalled];
                words[self.random.index(5)].clone()
            }
        }
    }

    /// One that was not asked, or perhaps one that was.
    fn step(&mut self) -> Step {
        self.steps += 1;
        Step(if self.lies() { self.random.between(0, self.steps) } else { self.steps })
    }

    fn drained(&mut self, step: Step, session: Option<Session>) -> FromShim {
        FromShim::Drained(Drained {
            step,
            at_boundary: self.random.chance(50),
            drain_micros: self.random.bits(),
            tenants: session.map_or(Vec::new(), |session| session.tenants),
            outstanding: (0..=self.steps).rev().take(self.random.index(400)).map(Step).collect(),
            boundaries: self.random.bits(),
        })
    }

    fn lease(&mut self, step: Step, tenant: TenantId) -> LeaseRequest {
        let class = Class::ALL[self.random.index(2)];
        let (units, ahead) = (self.random.between(1, 12) as u32, self.random.between(0, 8) as u32);
        let next = self.slots.entry(tenant).or_default();
        let first = std::mem::replace(next, *next + units + ahead);
        let mut lie = |number: u32| {
            if self.random.between(0, 999) < self.lies { self.random.bits() as u32 } else { number }
        };
        let (first, units, ahead) = (SlotIndex(lie(first)), Units(lie(units)), Units(lie(ahead)));
        let whole = self.random.between(0, 3) == 0;
        LeaseRequest { step, tenant, class, first, units, ahead, whole }
    }

    fn uses(&mut self) -> Vec<SlotRun> {
        let count = if self.lies() { MAX_USES + self.random.index(2) } else { self.random.index(4) };
        let run = |random: &mut Random| SlotRun {
            class: Class::ALL[random.index(2)],
            first: SlotIndex(random.bits() as u32 >> random.index(32)),
            units: Units(random.bits() as u32 >> random.index(32)),
        };
        (0..count).map(|_| run(&mut self.random)).collect()
    }

    fn pieces(&mut self, tenant: TenantId) -> Vec<PieceId> {
        let own = self.server.scheduler.tenants().get(&tenant);
        let own: Vec<PieceId> = own.into_iter().flat_map(|tenant| tenant.pieces.keys().copied()).collect();
        let wrong = PieceId(self.random.between(0, 50));
        (0..self.random.index(3))
            .filter_map(|_| match self.lies() {
                true => Some(wrong),
                false => own.get(self.random.index(own.len())).copied(),
            })
            .collect()
    }

    /// An answer to an order that the process has, or has not.
    fn done(&mut self, id: u64) -> FromShim {
        let scheduler = &self.server.scheduler;
        let its = scheduler.orders().filter(|step| {
            let name = scheduler.name_of(*step).unwrap_or_default();
            scheduler.whose(*step) == Some(SessionId(id)) && !is_movers(name)
        });
        match its.last() {
            Some(step) if self.lies() => FromShim::Failed { step, reason: "x\n".repeat(1000) },
            Some(step) if self.random.chance(10) => {
                FromShim::MappedSome { step, pieces: self.random.index(3) as u32 }
            }
            Some(step) => FromShim::Done { step },
            None if self.lies() => FromShim::Done { step: Step(self.random.between(0, 99)) },
            None => FromShim::Waiting,
        }
    }

    /// Everybody dies, and the mover does what is left to do.
    fn end(mut self, seed: u64) {
        let ids: Vec<ClientId> = self.server.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.server.take_in(Input::Gone(id)));
        while let Some(step) = self.orders(is_movers).first() {
            self.answer(*step, false);
        }
        let scheduler = &self.server.scheduler;
        assert_eq!(scheduler.check(), Ok(()), "seed {seed}");
        assert!(scheduler.jobs().is_empty() && scheduler.tenants().is_empty(), "seed {seed}");
        let spares: Vec<PieceId> = scheduler.gpus()[&GPU].spares.keys().copied().collect();
        let held: Vec<PieceId> = self.server.pieces.keys().copied().collect();
        assert_eq!(held, spares, "seed {seed}: the manager holds what there is, and no more");
        assert!(self.server.making.is_empty() && self.server.tokens.is_empty(), "seed {seed}");
        assert!(self.server.clients.is_empty() && self.server.announcers.is_empty(), "seed {seed}");
        assert!(self.server.published.is_empty() && self.server.awaiting_idle.is_empty(), "seed {seed}");
    }
}

fn is_movers(name: &str) -> bool {
    !matches!(name, "unmap" | "map" | "map back")
}

#[test]
fn fixed_seeds_find_nothing() {
    (0..60).for_each(play);
}

/// Minutes in `MINUTES` (10).
#[test]
#[ignore = "takes as long as it is told to: tests/long/fuzz"]
fn new_seeds_find_nothing() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_micros() as u64);
    let count = (first..).take_while(|_| Instant::now() < end).map(play).count();
    println!("session: {count} executions, no finding");
}
