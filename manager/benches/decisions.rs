//! What the manager's decisions cost on GPUs of 1, 8 and 80 GiB. `cargo bench -p tidegate-manager --bench decisions`
//!
//! Two jobs have half of the GPU each as temporary memory, in pieces of one unit (there cannot be more), and some
//! persistent; a million live ranges on the largest GPU, as many in proportion on the others. Timed is the
//! scheduler alone: processes and movers answer at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::live::{Life, LiveRange};
use tidegate_ffi::wire::message::{JobSpec, LeaseRequest, ToMover, ToShim};
use tidegate_manager::scheduler::{Config, Effect, Event, Pages, Scheduler, UserQuotas};

const GIB: u64 = 1 << 30;
const UNIT: u64 = 2 << 20;
const SIZES: [u64; 3] = [GIB, 8 * GIB, 80 * GIB];
const RANGES_OF_80_GIB: u64 = 1_000_000;
const GPU: GpuUuid = GpuUuid([1; 16]);
const SLICE: Duration = Duration::from_millis(100);
/// Leases and frees that are timed, and switches.
const LEASES: u32 = 2_000;
const SWITCHES: usize = 20;

fn main() {
    println!(
        "GPU         pieces   ranges      lease       free   decision of a switch   all of it, per piece"
    );
    for size in SIZES {
        let mut bench = Bench::new(size);
        let [lease, free] = bench.leases_and_frees();
        let switches: Vec<Switch> = (0..SWITCHES).map(|_| bench.switch()).collect();
        let decision = median(switches.iter().map(|switch| switch.decision).collect());
        let whole = median(switches.iter().map(|switch| switch.whole).collect());
        println!(
            "{:>3} GiB {:>10} {:>8} {:>7.2} µs {:>7.2} µs {:>19.2} µs {:>19.2} µs",
            size / GIB,
            size / UNIT,
            (bench.live.len() - 1) * 2,
            micros(lease),
            micros(free),
            micros(decision),
            micros(whole) / (size / UNIT / 2) as f64,
        );
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Switch {
    /// Who has to stop.
    decision: Duration,
    /// All that the scheduler does until the other is open.
    whole: Duration,
}

struct Bench {
    scheduler: Scheduler,
    now: Duration,
    steps: u64,
    /// What is alive of either job's memory.
    live: Vec<LiveRange>,
    jobs: [(SessionId, TenantId); 2],
    /// Pieces that were leased last.
    leased: Vec<PieceId>,
}

struct NoPages;

impl Pages for NoPages {
    fn boundaries(&self, _: SessionId) -> u64 {
        0
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

impl Bench {
    /// The first job is open; the second waits to be.
    fn new(size: u64) -> Self {
        let units = (size / UNIT) as u32;
        let config = Config {
            unit_bytes: UNIT,
            piece_units: 1,
            offset_units: units / 64,
            headroom_units: 0,
            slice: SLICE,
            slice_max: Duration::from_secs(10),
            switch_percent: 5,
            boundary_deadline: SLICE,
            drain_limit: SLICE,
            answer_limit: SLICE,
            oversubscribe: false,
            expel_silent: false,
            poison: false,
            own_uid: 0,
            user_quotas: UserQuotas::default(),
            saved_quotas: UserQuotas::default(),
            tier_bytes: [4 * size, 0, 0],
            cxl_is_in_parts: false,
        };
        let half = u64::from(units / 2) * UNIT;
        let ranges = RANGES_OF_80_GIB * size / (80 * GIB) / 2;
        let range = |number| LiveRange {
            class: Class::Temporary,
            start: number * (half / ranges),
            bytes: half / ranges / 2,
            life: Life::Short,
        };
        let persistent = u64::from(units / 8) * UNIT;
        let persistent =
            LiveRange { class: Class::Persistent, start: 0, bytes: persistent, life: Life::Long };
        let live = std::iter::once(persistent).chain((0..ranges).map(range)).collect();
        let jobs = [1, 2].map(|number| (SessionId(number), TenantId(number)));
        let mut bench =
            Self { scheduler: Scheduler::new(config), now: SLICE, steps: 0, live, jobs, leased: Vec::new() };
        bench.tell(Event::GpuAdded { gpu: GPU, units, apart: 0, shares: [4 * size, 0, 0] });
        for (session, tenant) in jobs {
            let job = JobId(session.0);
            bench.tell(Event::JobArrived { job, uid: 1, spec: JobSpec::default() });
            bench.tell(Event::SessionJoined { session, job });
            let step = bench.step();
            bench.tell(Event::Attach { session, step, gpu: GPU });
            bench.pass_until(|scheduler| {
                scheduler.tenants().get(&tenant).is_some_and(|tenant| tenant.entering.is_none())
            });
            // Both are there before either has so much that the other could not come.
            bench.lease(tenant, Class::Persistent, 0, units / 8);
        }
        for (_, tenant) in jobs {
            bench.lease(tenant, Class::Temporary, 0, units / 2);
        }
        for _ in 0..4 {
            bench.switch();
        }
        bench
    }

    fn pass_until(&mut self, so: impl Fn(&Scheduler) -> bool) {
        while !so(&self.scheduler) {
            self.now = self.scheduler.next_wakeup().expect("something is to come").max(self.now);
            self.tell(Event::Tick);
        }
    }

    fn step(&mut self) -> Step {
        self.steps += 1;
        Step(self.steps)
    }

    fn lease(&mut self, tenant: TenantId, class: Class, first: u32, units: u32) -> Duration {
        let (first, units, ahead) = (SlotIndex(first), Units(units), Units(0));
        let request = LeaseRequest { step: self.step(), tenant, class, first, units, ahead, whole: false };
        self.tell(Event::Lease { session: SessionId(tenant.0), request })
    }

    /// The medians of one lease and of one free.
    fn leases_and_frees(&mut self) -> [Duration; 2] {
        let (session, tenant) = self.open();
        let behind = self.scheduler.gpus()[&GPU].ledger.total() / 2;
        let (mut leases, mut frees) = (Vec::new(), Vec::new());
        for _ in 0..LEASES {
            leases.push(self.lease(tenant, Class::Temporary, behind, 1));
            let pieces = std::mem::take(&mut self.leased);
            assert_eq!(pieces.len(), 1, "the lease was not served at once");
            frees.push(self.tell(Event::Returned {
                session,
                tenant,
                pieces,
                unused: Units(0),
                recalled: false,
            }));
        }
        [median(leases), median(frees)]
    }

    fn open(&self) -> (SessionId, TenantId) {
        let is_open = |(session, _): &&(SessionId, TenantId)| {
            let job = &self.scheduler.jobs()[&JobId(session.0)];
            job.phase == tidegate_manager::scheduler::Phase::Open
        };
        *self.jobs.iter().find(is_open).expect("one of them is open")
    }

    /// The slice ends, and the other job gets its turn.
    fn switch(&mut self) -> Switch {
        let was = self.open();
        let mut switch = Switch { decision: Duration::ZERO, whole: Duration::ZERO };
        while self.open() == was {
            self.now = self.scheduler.next_wakeup().expect("one waits").max(self.now);
            let began = Instant::now();
            let effects = self.scheduler.handle(self.now, Event::Tick, &NoPages);
            switch.decision = began.elapsed();
            switch.whole = switch.decision + self.answer_all(effects);
        }
        switch
    }

    /// What the scheduler takes for an event and all that follows from it.
    fn tell(&mut self, event: Event) -> Duration {
        let began = Instant::now();
        let effects = self.scheduler.handle(self.now, event, &NoPages);
        began.elapsed() + self.answer_all(effects)
    }

    fn answer_all(&mut self, effects: Vec<Effect>) -> Duration {
        let mut effects = VecDeque::from(effects);
        let mut time = Duration::ZERO;
        while let Some(effect) = effects.pop_front() {
            let Some(event) = self.answer(effect) else { continue };
            let began = Instant::now();
            let more = self.scheduler.handle(self.now, event, &NoPages);
            time += began.elapsed();
            effects.extend(more);
        }
        time
    }

    fn answer(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Shim(session, ToShim::Close { step, .. }) => {
                let (_, tenant) = self.jobs[session.0 as usize - 1];
                let maps = vec![(tenant, self.live.clone())];
                let (drain, outstanding) = (Duration::ZERO, Vec::new());
                Some(Event::Drained { session, step, at_boundary: true, drain, maps, outstanding })
            }
            Effect::Shim(session, ToShim::Unmap { step, .. } | ToShim::Map { step, .. }) => {
                Some(Event::ShimDone { session, step })
            }
            Effect::Shim(session, ToShim::Recall { tenant }) => Some(Event::Returned {
                session,
                tenant,
                pieces: Vec::new(),
                unused: Units(0),
                recalled: true,
            }),
            Effect::Shim(_, ToShim::Leased { pieces, .. }) => {
                self.leased = pieces.iter().map(|placed| placed.piece).collect();
                None
            }
            Effect::Mover(gpu, ToMover::Measure { step }) => {
                Some(Event::Measured { gpu, step, used_bytes: 0 })
            }
            Effect::Mover(gpu, order) => {
                let (step, bytes) = (order.step()?, order.bytes());
                Some(Event::MoverDone { gpu, step, bytes })
            }
            Effect::Expel(session, reason) => panic!("{session} was expelled: {reason}"),
            _ => None,
        }
    }
}
