//! How long a turn is, and what becomes of it where a job is idle.

use super::*;
use crate::random::Random;

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
fn a_job_a_little_behind_at_the_end_of_its_slice_gets_no_second_whole_one() {
    let mut desk = Desk::new(|config| config.slice_max = ms(2_000));
    desk.order_time = ms(20);
    let [a, b] = switched(&mut desk);
    let slice = desk.job_of(a).slice_end.saturating_sub(desk.now);
    stand(&mut desk, a, ms(0));
    stand(&mut desk, b, slice + ms(30));
    desk.until(|desk| desk.phase(a) != Phase::Open);
    let last = grants(&desk, a).pop().unwrap();
    assert!(last <= slice + desk.scheduler.config.slice + ms(100), "{last:?} where a slice is {slice:?}");
    assert!(stands(&desk, a) >= slice + ms(30), "it has had what it was owed");
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
fn who_pauses_almost_as_long_as_two_switches_take_does_not_lend_its_turn_when_it_is_about_to_go_on() {
    let mut desk = Desk::new(|config| config.slice = ms(1_000));
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    // Two switches take 40 ms.
    for pause in [36, 36, 36, 43] {
        desk.tell(Event::Idle { session: a });
        desk.pass(ms(pause));
        assert_eq!(desk.phase(a), Phase::Open, "after {pause} ms");
        desk.tell(Event::Waiting { session: a });
    }
    let closings = desk.closings(a);
    desk.tell(Event::Idle { session: a });
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert!(desk.closings(a) > closings, "this one lasts");
}

#[test]
fn a_pause_is_not_lent_that_is_over_before_the_other_jobs_work_ends() {
    for (closing, is_lent) in [(10, true), (500, false)] {
        let mut desk = Desk::new(|config| config.slice = ms(1_000));
        desk.order_time = ms(10);
        let [a, b] = switched(&mut desk);
        desk.until(|desk| desk.phase(a) == Phase::Open);
        let other = desk.scheduler.sessions[&b].job;
        desk.scheduler.jobs.get_mut(&other).unwrap().stats.closings = [ms(closing); 7].into();
        // Two switches take 40 ms.
        for _ in 0..4 {
            desk.until(|desk| desk.phase(a) == Phase::Open);
            desk.tell(Event::Idle { session: a });
            desk.pass(ms(150));
            desk.tell(Event::Waiting { session: a });
        }
        desk.until(|desk| desk.phase(a) == Phase::Open);
        let closings = desk.closings(a);
        desk.tell(Event::Idle { session: a });
        desk.pass(ms(120));
        assert_eq!(desk.closings(a) > closings, is_lent, "work that takes {closing} ms");
    }
}

#[test]
fn a_job_is_watched_beside_one_that_may_be_back_at_any_moment() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.tell(Event::Idle { session: a });
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let is_watched = |desk: &Desk| desk.scheduler.sessions()[&b].tick_micros > 0;
    desk.pass(ms(800));
    desk.tell(Event::Tick);
    assert!(is_watched(&desk), "what it is ahead by then the other one waits for");
    desk.pass(ms(300));
    desk.tell(Event::Tick);
    assert!(!is_watched(&desk), "it is alone");
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
    let (now, sessions) = (desk.now, desk.scheduler.sessions());
    assert_eq!(sessions[&a].tick_micros, 1_000, "it looks often, where 8 ms would do for short pauses");
    desk.tell(Event::Idle { session: a });
    assert!(desk.phase(b) == Phase::Open && desk.now - now < ms(80), "nothing was waited for but orders");
}

#[test]
fn what_a_closing_waits_for_is_charged_though_the_job_was_said_to_be_idle() {
    let charged = |drain| {
        let mut desk = Desk::new(|_| {});
        desk.order_time = ms(10);
        let [a, b] = switched(&mut desk);
        desk.until(|desk| desk.phase(a) == Phase::Open);
        desk.drains.insert(a, drain);
        let before = desk.job_of(a).virtual_runtime;
        desk.tell(Event::Idle { session: a });
        desk.until(|desk| desk.phase(b) == Phase::Open);
        desk.job_of(a).virtual_runtime - before
    };
    assert_eq!(u128::from(charged(ms(190)) - charged(ms(0))), ms(190).as_nanos());
}

/// It comes to no boundary, and to no wait for its GPU, before its pause is over.
#[test]
fn a_job_that_is_idle_is_closed_without_waiting_for_a_boundary() {
    for reports in [false, true] {
        let mut desk = Desk::new(|_| {});
        let [a, b] = switched(&mut desk);
        if reports {
            desk.pages.boundaries.insert(a, 3);
        }
        desk.until(|desk| desk.phase(b) == Phase::Open);
        let (deadline, wait) = desk.patience(a).unwrap();
        assert!(deadline + wait > 0, "it goes on, and comes to one");
        desk.until(|desk| desk.phase(a) == Phase::Open);
        desk.tell(Event::Idle { session: a });
        desk.until(|desk| desk.phase(b) == Phase::Open);
        assert_eq!(desk.patience(a), Some((0, 0)), "reports boundaries: {reports}");
    }
}

#[test]
fn who_lent_its_turn_comes_back_when_the_borrower_has_had_twice_what_the_switches_take() {
    let mut desk = Desk::new(|config| config.slice = ms(400));
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    assert_eq!([a, b].map(|job| desk.job_of(job).costs.next()), [ms(20); 2]);
    desk.tell(Event::Idle { session: a });
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.pass(ms(10));
    desk.tell(Event::Waiting { session: a });
    desk.pass(ms(50));
    assert_eq!(desk.phase(b), Phase::Open, "it has not had 80 ms");
    desk.pass(ms(30));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let turn = grants(&desk, b).pop().unwrap();
    assert!(turn >= ms(80) && turn <= ms(100), "{turn:?}");
}

#[test]
fn who_wakes_before_the_borrowers_turn_has_begun_comes_back_after_a_short_one_too() {
    let mut desk = Desk::new(|config| config.slice = ms(400));
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Restore { .. }));
    desk.tell(Event::Idle { session: a });
    desk.until(|desk| desk.phase(b) == Phase::Restoring);
    desk.tell(Event::Waiting { session: a });
    desk.hold = |_| false;
    desk.finish_held();
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let turn = grants(&desk, b).pop().unwrap();
    assert!(turn >= ms(70) && turn <= ms(110), "{turn:?}");
}

#[test]
fn a_process_looks_the_more_often_whether_it_is_idle_the_less_its_switches_take() {
    // A switch takes two orders, and the two of a pause four: an eighth of that, in steps.
    for (order_time, wanted) in [(0, 16_000), (1, 1_000), (5, 4_000), (10, 8_000), (100, 16_000)] {
        let mut desk = Desk::new(|_| {});
        desk.order_time = ms(order_time);
        let [a, b] = switched(&mut desk);
        let ticks = [a, b].map(|session| desk.scheduler.sessions()[&session].tick_micros);
        assert_eq!(ticks, [wanted, 0], "switches of {} ms: the other is closed", 2 * order_time);
    }
}

#[test]
fn who_kept_its_turn_for_long_because_it_was_stopped_does_not_wait_as_long_for_the_next() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    desk.pages.stopped.insert(a);
    desk.pass(ms(20_000));
    assert_eq!(desk.phase(b), Phase::Waiting, "the memory of the stopped process is in its way");
    desk.go_on(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let began = desk.now;
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let turn = desk.now - began;
    assert!(turn >= ms(900) && turn <= ms(1_100), "the longest slice, and one: {turn:?}");
}

/// The first one is stopped with its turn for so long. How long the other one has its turn then.
fn turn_after_a_stop(desk: &mut Desk, a: SessionId, b: SessionId, stopped: Duration) -> Duration {
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.pages.stopped.insert(a);
    desk.pass(stopped);
    desk.go_on(a);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let began = desk.now;
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.now - began
}

#[test]
fn a_job_that_keeps_its_turn_for_long_again_and_again_waits_as_long() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    let turns =
        [1_000, 20_000, 20_000].map(|wanted| (turn_after_a_stop(&mut desk, a, b, ms(20_000)), ms(wanted)));
    for (turn, wanted) in turns {
        assert!(turn >= wanted * 9 / 10 && turn <= wanted * 11 / 10, "{turns:?}");
    }
    // What was forgiven is forgotten by and by.
    let forgiven = desk.job_of(a).forgiven;
    desk.pass(forgiven * 10);
    let less = desk.job_of(a).forgiven;
    assert!(less < forgiven * 2 / 3 && less > forgiven / 3, "half of it: {less:?} of {forgiven:?}");
}

#[test]
fn a_job_that_keeps_its_turn_for_long_now_and_then_waits_as_long_too() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    let usual_until =
        |desk: &mut Desk, switches| desk.until(|desk| desk.job_of(a).stats.switches >= switches);
    for round in 1..=3 {
        usual_until(&mut desk, round * 6);
        let turn = turn_after_a_stop(&mut desk, a, b, ms(10_000));
        let least = if round == 1 { 900 } else { 7_500 };
        assert!(turn >= ms(least), "the {round}th time: {turn:?}");
    }
}

#[test]
fn a_job_that_comes_is_owed_nothing_where_another_one_is() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, _] = switched(&mut desk);
    let owes = desk.scheduler.sessions()[&a].job;
    desk.scheduler.jobs.get_mut(&owes).unwrap().virtual_runtime += ms(800).as_nanos() as u64;
    let most = desk.job_of(a).virtual_runtime;
    let c = job_with(&mut desk, "c", 10, 60);
    assert!(desk.job_of(c).virtual_runtime >= most, "it begins where the one stands that has had most");
}

/// How long the turn is of a job that was idle for long, as it never was before, and is idle for `pause` after each `busy` then. Another
/// one has the next turn.
fn turn_of_one_that_is_owed(busy: Duration, pause: Duration) -> Duration {
    let mut desk = Desk::new(|_| {});
    desk.order_time = ms(10);
    let [a, b] = switched(&mut desk);
    let is_idle_for = |desk: &mut Desk, pause| {
        desk.tell(Event::Idle { session: a });
        desk.pass(pause);
        desk.tell(Event::Waiting { session: a });
    };
    desk.until(|desk| desk.phase(a) == Phase::Open);
    for _ in 0..3 {
        is_idle_for(&mut desk, ms(20));
    }
    is_idle_for(&mut desk, ms(30_000));
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let began = desk.now;
    while desk.phase(b) != Phase::Open {
        desk.pass(busy);
        if !pause.is_zero() {
            is_idle_for(&mut desk, pause);
        }
    }
    desk.now - began
}

#[test]
fn a_job_that_is_owed_time_does_not_spend_it_on_pauses_in_one_turn() {
    let turn = turn_of_one_that_is_owed(ms(5), Duration::ZERO);
    assert!(turn > ms(9_000), "it computes: {turn:?}");
    for (busy, pause) in [(5, 20), (20, 8)] {
        let turn = turn_of_one_that_is_owed(ms(busy), ms(pause));
        assert!(turn < ms(1_500), "two switches take longer than its pauses: {turn:?}");
    }
}

#[test]
fn what_all_jobs_are_owed_that_were_idle_is_no_more_than_the_longest_slice() {
    let mut desk = Desk::new(|config| config.slice_max = ms(10_000));
    let [a, _] = switched(&mut desk);
    let others = ["c", "d", "e", "f"].map(|name| job_with(&mut desk, name, 10, 60));
    let claims = [a, others[0], others[1], others[2], others[3]]
        .map(|session| desk.scheduler.claim_of(desk.scheduler.sessions()[&session].job));
    assert!(claims.iter().sum::<Duration>() <= ms(10_000), "{claims:?}");
    assert!(claims.iter().all(|claim| *claim >= ms(1_000)), "{claims:?}");
}

#[test]
fn what_a_job_is_owed_that_was_idle_for_long_is_no_more_than_the_longest_slice() {
    let mut desk = Desk::new(|config| config.slice_max = ms(1_000));
    let [a, b] = switched(&mut desk);
    let c = job_with(&mut desk, "c", 10, 60);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.tell(Event::Idle { session: a });
    desk.pass(ms(20_000));
    desk.until(|desk| desk.phase(b) == Phase::Open);
    desk.tell(Event::Waiting { session: a });
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let began = desk.now;
    desk.until(|desk| desk.phase(a) != Phase::Open);
    let turn = desk.now - began;
    assert!(
        turn >= ms(450) && turn <= ms(600),
        "what it is owed, a half for each of two, and a slice: {turn:?}"
    );
    desk.until(|desk| desk.phase(c) == Phase::Open);
    let waited = desk.now - began;
    assert!(waited <= ms(1_500), "those that it was idle beside wait no longer: {waited:?}");
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

/// What max-min fairness gives jobs that want these parts of the time.
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

/// What jobs get of so much time where those that compute share the GPU equally at each moment: a job that is slowed down
/// wants less, for its pauses come later.
fn fluid(mix: &[(u64, u64)], time: u64) -> Vec<f64> {
    // Whether it computes, and what is left of that.
    let mut jobs: Vec<(bool, f64)> = mix.iter().map(|(busy, _)| (true, *busy as f64)).collect();
    let mut used = vec![0.0; mix.len()];
    for _ in 0..time {
        let computing = jobs.iter().filter(|(is_busy, _)| *is_busy).count() as f64;
        for ((job, used), &(busy, gap)) in jobs.iter_mut().zip(&mut used).zip(mix) {
            let (is_busy, left) = job;
            let done = if *is_busy { 1.0 / computing } else { 1.0 };
            *used += if *is_busy { done } else { 0.0 };
            *left -= done;
            if *left <= 0.0 {
                *is_busy = !*is_busy || gap == 0;
                *left += if *is_busy { busy } else { gap } as f64;
            }
        }
    }
    used.into_iter().map(|used| used / time as f64).collect()
}

/// What each of these jobs got of so much time, in which each wants its part of the GPU.
fn share(desk: &mut Desk, mix: &[(u64, u64)], time: Duration) -> Vec<(Rhythm, f64)> {
    const STEP: Duration = Duration::from_millis(5);
    let mut jobs: Vec<Rhythm> = (mix.iter())
        .map(|&(busy, gap)| {
            let session = job_with(desk, "job", 10, 60);
            let (busy, gap) = (ms(busy), ms(gap));
            let [is_busy, is_told] = [true, false];
            Rhythm { session, busy, gap, left: busy, is_busy, is_told, used: Duration::ZERO }
        })
        .collect();
    let end = desk.now + time;
    while desk.now < end {
        let before = desk.now;
        desk.pass(STEP);
        let passed = desk.now - before;
        jobs.iter_mut().for_each(|job| job.pass(desk, passed));
    }
    let got: Vec<f64> = jobs.iter().map(|job| job.used.as_secs_f64() / time.as_secs_f64()).collect();
    jobs.into_iter().zip(got).collect()
}

/// Milliseconds of work and of pauses; 0: no pauses.
#[track_caller]
fn check_fairness(mix: &[(u64, u64)], are_wants_fixed: bool) {
    let mut desk = Desk::new(|_| {});
    // 500 of the shortest slices.
    let time = 50_000;
    let shares = share(&mut desk, mix, ms(time));
    let wants: Vec<f64> = mix.iter().map(|&(busy, gap)| busy as f64 / (busy + gap) as f64).collect();
    let parts = fluid(mix, time).into_iter().zip(fair_parts(&wants));
    let parts = parts.map(|(fluid, fair)| if are_wants_fixed { fair } else { fluid.min(fair) });
    let most = shares.iter().map(|(_, got)| *got).fold(0.0, f64::max);
    for ((job, got), part) in shares.iter().zip(parts) {
        // Or none has more that could be given to it.
        assert!(
            *got >= part.min(most) - 0.05,
            "{mix:?}: {got:.3} of {part:.3}, for {:?}, and {most:.3} for another",
            (job.busy, job.gap)
        );
    }
}

#[test]
fn who_wants_a_part_of_the_time_gets_it_beside_who_wants_all() {
    let mixes: [&[(u64, u64)]; 6] = [
        &[(300, 600), (100, 0)],
        &[(100, 900), (100, 0)],
        &[(1_000, 3_000), (100, 0)],
        &[(300, 1_200), (400, 1_600), (100, 0)],
        &[(200, 800), (100, 0), (100, 0)],
        &[(1_000, 500), (100, 0)],
    ];
    mixes.into_iter().for_each(|mix| check_fairness(mix, true));
}

#[test]
fn jobs_of_any_rhythms_get_what_max_min_fairness_gives_them() {
    // Pauses that are seen: longer than what is left of a slice when one ends. Of more than three jobs each may have to wait
    // for several others, each time.
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let jobs = random.between(2, 3);
        let rhythm = |random: &mut Random| match random.chance(30) {
            true => (100, 0),
            false => (20 * random.between(5, 50), 50 * random.between(6, 45)),
        };
        let mix: Vec<(u64, u64)> = (0..jobs).map(|_| rhythm(&mut random)).collect();
        check_fairness(&mix, false);
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
