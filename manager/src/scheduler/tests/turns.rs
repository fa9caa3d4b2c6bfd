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
fn what_a_job_is_owed_that_was_idle_for_long_is_a_slice() {
    let mut desk = Desk::new(|_| {});
    let [a, b] = switched(&mut desk);
    desk.tell(Event::Idle { session: a });
    desk.pass(ms(5_000));
    desk.tell(Event::Waiting { session: a });
    desk.until(|desk| desk.phase(a) == Phase::Open);
    let began = desk.now;
    desk.until(|desk| desk.phase(b) == Phase::Open);
    assert!(desk.now - began <= ms(300), "a slice, and what it is owed: {:?}", desk.now - began);
}
