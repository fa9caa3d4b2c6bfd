//! How long a turn is, and what becomes of it where a job is idle.

use super::*;

/// How long a job's grants were, but for the first.
fn grants(desk: &Desk, session: SessionId) -> Vec<Duration> {
    let grants = desk.job_of(session).stats.grants.iter().skip(1);
    grants.filter_map(|(from, to)| Some((*to)? - *from)).collect()
}

/// Rivals that have been switched some times, the first of which has its turn.
fn switched(desk: &mut Desk) -> [SessionId; 2] {
    let (a, b) = rivals(desk);
    desk.until(|desk| [a, b].iter().all(|job| desk.job_of(*job).stats.switches >= 4));
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    [a, b]
}

#[test]
fn a_slice_is_as_long_as_its_switches_cost_and_no_longer_than_the_longest() {
    // A switch takes two orders: the longest slice is out of reach, longer than nine of them, and shorter.
    for (slice_max, wanted) in [(60_000, 19 * 40), (500, 500), (100, 9 * 40)] {
        let mut desk = Desk::new(|config| config.slice_max = ms(slice_max));
        desk.order_time = ms(20);
        let [a, _] = switched(&mut desk);
        assert_eq!(desk.job_of(a).costs.next(), ms(40));
        desk.until(|desk| desk.job_of(a).stats.switches >= 6);
        let last = grants(&desk, a).pop().unwrap();
        assert!(last >= ms(wanted) && last <= ms(wanted) + ms(40), "{last:?}, {wanted} ms wanted");
    }
}

#[test]
fn where_many_wait_they_all_get_their_turn_in_three_of_the_longest_slices() {
    let mut desk = Desk::new(|config| config.slice_max = ms(2_000));
    desk.order_time = ms(35);
    let jobs: [SessionId; 7] = std::array::from_fn(|_| job_with(&mut desk, "job", 10, 60));
    desk.until(|desk| jobs.iter().all(|job| desk.job_of(*job).stats.switches >= 4));
    for job in jobs {
        let last = grants(&desk, job).pop().unwrap();
        assert!(last <= ms(1_000) + ms(100), "{last:?}: six wait, 6 s");
    }
}

#[test]
fn who_pauses_for_less_than_two_switches_keeps_its_turn() {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    let closings = desk.closings(a);
    for _ in 0..3 {
        desk.tell(Event::Idle { session: a });
        desk.pass(ms(30));
        assert_eq!((desk.phase(a), desk.phase(b)), (Phase::Open, Phase::Waiting));
        desk.tell(Event::Waiting { session: a });
    }
    assert_eq!(desk.closings(a), closings);
    desk.tell(Event::Idle { session: a });
    // Two switches: so long it was not idle before.
    desk.pass(ms(90));
    desk.until(|desk| desk.phase(b) == Phase::Open);
}

#[test]
fn whose_pauses_are_long_lends_its_turn_at_once() {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    for _ in 0..3 {
        desk.until(|desk| desk.phase(a) == Phase::Open);
        desk.tell(Event::Idle { session: a });
        desk.pass(ms(2_000));
        desk.tell(Event::Waiting { session: a });
    }
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let now = desk.now;
    desk.tell(Event::Idle { session: a });
    assert!(desk.phase(b) == Phase::Open && desk.now - now < ms(80), "nothing was waited for but orders");
}

#[test]
fn who_lent_its_turn_comes_back_when_the_borrower_has_had_half_a_slice() {
    let mut desk = Desk::new(|config| config.slice = ms(400));
    let [a, b] = switched(&mut desk);
    desk.tell(Event::Idle { session: a });
    assert_eq!(desk.phase(b), Phase::Open);
    desk.pass(ms(20));
    desk.tell(Event::Waiting { session: a });
    assert_eq!(desk.phase(b), Phase::Open, "it has not had half of one");
    desk.pass(ms(200));
    assert_eq!(desk.phase(a), Phase::Open, "which is over sooner than a whole one");
}

#[test]
fn what_a_job_is_owed_that_was_idle_for_long_is_no_more_than_the_longest_slice() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    desk.tell(Event::Idle { session: a });
    desk.pass(ms(5_000));
    desk.tell(Event::Waiting { session: a });
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let began = desk.now;
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let turn = desk.now - began;
    assert!(turn >= ms(900) && turn <= ms(1_100), "what it is owed, and a slice: {turn:?}");
}

/// A job that computes for so long, then pauses on the host; what it has computed.
struct Rhythm {
    session: SessionId,
    busy: Duration,
    gap: Duration,
    left: Duration,
    is_busy: bool,
    is_told: bool,
    used: Duration,
}

impl Rhythm {
    /// What it wants of the GPU's time.
    fn wants(&self) -> f64 {
        self.busy.as_secs_f64() / (self.busy + self.gap).as_secs_f64()
    }

    /// So much time passes. An idle process says so after two ticks.
    fn pass(&mut self, desk: &mut Desk, time: Duration) {
        let is_open = desk.phase(self.session) == Phase::Open;
        if self.is_busy && !is_open {
            return;
        }
        self.left = self.left.saturating_sub(time);
        self.used += if self.is_busy { time } else { Duration::ZERO };
        if !self.is_busy && !self.is_told && self.gap - self.left >= ms(40) {
            self.is_told = true;
            desk.tell(Event::Idle { session: self.session });
        }
        if self.left > Duration::ZERO {
            return;
        }
        if !self.is_busy && std::mem::take(&mut self.is_told) {
            desk.tell(Event::Waiting { session: self.session });
        }
        self.is_busy = !self.is_busy || self.gap.is_zero();
        self.left = if self.is_busy { self.busy } else { self.gap };
    }
}

/// What max-min fairness gives each of these.
fn fair_parts(wants: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| wants[*a].total_cmp(&wants[*b]));
    let (mut left, mut parts) = (1.0, vec![0.0; wants.len()]);
    for (nth, job) in order.iter().enumerate() {
        parts[*job] = f64::min(wants[*job], left / (wants.len() - nth) as f64);
        left -= parts[*job];
    }
    parts
}

#[test]
fn who_wants_a_part_of_the_time_gets_it_beside_who_wants_all() {
    const STEP: Duration = Duration::from_millis(5);
    // Milliseconds of work and of pauses; 0: no pauses.
    let mixes: [&[(u64, u64)]; 6] = [
        &[(300, 600), (100, 0)],
        &[(100, 900), (100, 0)],
        &[(1_000, 3_000), (100, 0)],
        &[(300, 1_200), (400, 1_600), (100, 0)],
        &[(200, 800), (100, 0), (100, 0)],
        &[(1_000, 500), (100, 0)],
    ];
    for mix in mixes {
        let mut desk = Desk::new(|_| {});
        let mut jobs: Vec<Rhythm> = (mix.iter())
            .map(|&(busy, gap)| {
                let session = job_with(&mut desk, "job", 10, 60);
                let (busy, gap) = (ms(busy), ms(gap));
                let [is_busy, is_told] = [true, false];
                Rhythm { session, busy, gap, left: busy, is_busy, is_told, used: Duration::ZERO }
            })
            .collect();
        // 500 slices.
        let steps = 50_000 / 5;
        for _ in 0..steps {
            desk.pass(STEP);
            jobs.iter_mut().for_each(|job| job.pass(&mut desk, STEP));
        }
        let wants: Vec<f64> = jobs.iter().map(Rhythm::wants).collect();
        for (job, part) in jobs.iter().zip(fair_parts(&wants)) {
            let got = job.used.as_secs_f64() / (STEP * steps).as_secs_f64();
            assert!(got >= part - 0.05, "{mix:?}: {got:.3} of {part:.3}, for {:?}", (job.busy, job.gap));
        }
    }
}

#[test]
fn who_is_not_watched_any_more_is_not_known_to_be_idle() {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    desk.tell(Event::Idle { session: a });
    assert!(desk.scheduler.sessions()[&a].idle);
    // Nobody else wants its turn: what it does from now on it does not say.
    desk.end(b);
    desk.pass(ms(1));
    assert!(!desk.scheduler.sessions()[&a].idle);
    assert_eq!(desk.job_of(a).pauses.since(), None);
}

#[test]
fn who_comes_beside_idle_jobs_alone_has_no_claim_on_the_time_before() {
    let mut desk = Desk::new(|_| {});
    let a = job_with(&mut desk, "a", 10, 60);
    desk.pass(ms(10_000));
    let urgent = desk.job(JobSpec { priority: 1, ..spec("urgent") });
    fill(&mut desk, urgent, 10, 60);
    desk.until(|desk| desk.phase(a) == Phase::Waiting);
    desk.tell(Event::Idle { session: a });
    let before = desk.job_of(a).virtual_runtime;
    assert!(desk.scheduler.sessions()[&a].idle && before >= 5_000_000_000);
    let c = desk.job(spec("c"));
    assert!(desk.job_of(c).virtual_runtime >= before);
}

#[test]
fn the_death_of_the_only_busy_process_of_a_job_begins_its_pause() {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, _] = switched(&mut desk);
    let worker = desk.join(desk.scheduler.sessions()[&a].job);
    desk.tell(Event::Idle { session: a });
    assert_eq!(desk.job_of(a).pauses.since(), None, "the other is busy");
    desk.end(worker);
    assert!(desk.job_of(a).pauses.since().is_some());
}
