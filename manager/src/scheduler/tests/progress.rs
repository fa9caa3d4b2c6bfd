//! Progress (I11): a job that can run, runs, or is told why it cannot.

use super::*;
use tidegate_ffi::wire::message::Need;

/// Jobs on one GPU of 100 units that grow by four units at a time, up to `wanted` units each, whenever their last
/// lease is answered. All of their memory is alive. Returns how many units each has in the end.
fn grow(desk: &mut Desk, jobs: &[SessionId], first: u32, wanted: u32, life: Life) -> Vec<u32> {
    let mut has: Vec<u32> = vec![first; jobs.len()];
    let mut refused = vec![false; jobs.len()];
    for (session, units) in jobs.iter().zip(&has) {
        desk.lease(*session, T, 0, *units);
        desk.live(*session, T, 0, u64::from(*units) * UNIT, life);
    }
    let mut asked: Vec<Option<Step>> = vec![None; jobs.len()];
    for _ in 0..3_000 {
        for (index, session) in jobs.iter().enumerate() {
            if let Some(step) = asked[index] {
                if desk.answers(*session, step) > 0 {
                    desk.live(*session, T, u64::from(has[index]) * UNIT, 4 * UNIT, life);
                    has[index] += 4;
                    asked[index] = None;
                } else if desk.was_refused(*session, step) {
                    (refused[index], asked[index]) = (true, None);
                }
            }
            let wants_more = asked[index].is_none() && !refused[index] && has[index] < wanted;
            if wants_more && desk.phase(*session) == Phase::Open {
                asked[index] = Some(desk.lease(*session, T, has[index], 4));
            }
        }
        if asked.iter().all(Option::is_none) && (0..jobs.len()).all(|job| refused[job] || has[job] >= wanted)
        {
            return has;
        }
        desk.pass(ms(10));
    }
    panic!("a job waits for memory for ever: {has:?}, {:#?}", desk.scheduler.jobs());
}

/// The bytes that one GPU's movers may keep, and really have room for.
fn with_tiers(units: u64) -> Desk {
    with_tiers_and_offset(units, 0)
}

fn with_tiers_and_offset(units: u64, offset: u32) -> Desk {
    // Of two GPUs, the one that needs the tier gets it.
    let mut desk = Desk::new(|config| {
        (config.tier_bytes, config.offset_units) = ([units * UNIT, 0, 0], offset);
    });
    desk.tier_capacity = units * UNIT;
    desk
}

#[test]
fn a_job_that_said_its_need_gets_it_beside_a_job_that_grows() {
    let mut desk = with_tiers(10);
    let need = Some(Need { persistent: 0, temporary: 90 * UNIT });
    let first = desk.job(JobSpec { need, ..spec("a") });
    let second = desk.job(spec("b"));
    // 100 units of the GPU and 10 of the tier, less 5 that stay free so that memory can move.
    let has = grow(&mut desk, &[first, second], 2, 90, Life::Short);
    assert!(has[0] == 90 && (10..=15).contains(&has[1]), "{has:?}");
}

#[test]
fn jobs_that_grow_beyond_the_gpu_and_its_tiers_get_what_there_is_and_are_refused_the_rest() {
    // The room in which memory moves may be the offset between two spans.
    let kinds = [(0, Life::Short), (0, Life::Long), (5, Life::Long), (9, Life::Long)];
    for (tiers, (offset, life)) in
        [0, 6, 25, 50, 100].into_iter().flat_map(|tiers| kinds.map(|kind| (tiers, kind)))
    {
        let mut desk = with_tiers_and_offset(tiers, offset);
        let jobs = [desk.job(spec("a")), desk.job(spec("b"))];
        let has = grow(&mut desk, &jobs, 40, 64, life);
        let all = u64::from(has[0] + has[1]);
        println!("tiers of {tiers} units, offsets of {offset}, {life:?}: {has:?}");
        let most = (100 + tiers).min(128);
        assert!(all <= most.max(100), "{has:?} of 100 units and {tiers}");
        // A lease of four and the room for one piece of five may be missing, for each job.
        assert!(all + 2 * 9 >= most, "{has:?} of 100 units and {tiers}");
        for job in jobs {
            let slices = desk.job_of(job).stats.slices;
            if all > 100 {
                desk.until(|desk| desk.job_of(job).stats.slices > slices + 3);
            } else {
                assert_eq!(desk.phase(job), Phase::Open, "both fit");
            }
        }
    }
}

#[test]
fn jobs_whose_memory_fills_gpu_and_tiers_but_for_a_piece_still_take_turns() {
    let mut desk = with_tiers(40);
    let jobs = ["a", "b", "c"].map(|name| desk.job(spec(name)));
    let has = grow(&mut desk, &jobs, 20, 60, Life::Short);
    assert!(has.iter().sum::<u32>() > 100, "{has:?}");
    for _ in 0..5 {
        let before = jobs.map(|job| desk.job_of(job).stats.slices);
        desk.until(|desk| {
            jobs.iter().zip(before).all(|(job, slices)| desk.job_of(*job).stats.slices > slices)
        });
    }
}

/// The tier has less room than its share says: a mover stores whole blocks.
#[test]
fn jobs_go_on_where_the_tiers_take_less_than_they_should() {
    for capacity in [0, 10, 35] {
        let mut desk = with_tiers(60);
        desk.tier_capacity = capacity * UNIT;
        let jobs = [desk.job(spec("a")), desk.job(spec("b"))];
        for job in jobs {
            desk.lease(job, T, 0, 40);
            desk.live(job, T, 0, 40 * UNIT, Life::Short);
        }
        let asked = jobs.map(|job| desk.lease(job, T, 40, 20));
        let is_answered = |desk: &Desk, index: usize| {
            desk.answers(jobs[index], asked[index]) > 0 || desk.was_refused(jobs[index], asked[index])
        };
        desk.until(|desk| is_answered(desk, 0) && is_answered(desk, 1));
    }
}

#[test]
fn what_a_job_had_before_it_gets_again_though_others_have_grown_since() {
    let mut desk = with_tiers(30);
    let a = job_with(&mut desk, "a", 1, 60);
    // It gives all of it back, as between two iterations.
    desk.dead(a, T);
    desk.give_back(a, &desk.pieces(a, T), 0);
    let b = desk.job(spec("b"));
    let has = grow(&mut desk, &[b], 8, 90, Life::Short);
    assert!(has[0] <= 70, "{has:?}: no room is left for what the other job had");
    let step = desk.lease(a, T, 0, 60);
    desk.until(|desk| desk.answers(a, step) > 0);
    assert!(!desk.was_refused(a, step));
}

/// A job that has all that it can get beside another, and is open: it was refused more.
fn job_that_has_all() -> (Desk, SessionId) {
    let mut desk = with_tiers(30);
    let [job, other] = ["a", "b"].map(|name| job_with(&mut desk, name, 1, 59));
    desk.until(|desk| desk.units(other, T) == 59);
    for slot in (60..).step_by(4) {
        let step = desk.lease(job, T, slot, 4);
        desk.until(|desk| desk.answers(job, step) > 0 || desk.was_refused(job, step));
        if desk.was_refused(job, step) {
            break;
        }
        desk.live(job, T, u64::from(slot) * UNIT, 4 * UNIT, Life::Short);
    }
    desk.until(|desk| desk.phase(job) == Phase::Open);
    (desk, job)
}

#[test]
fn a_job_that_closes_is_not_refused_what_its_own_unused_memory_has_room_for() {
    let (mut desk, job) = job_that_has_all();
    desk.deaf.insert(job);
    desk.until(|desk| desk.phase(job) == Phase::Closing);
    desk.dead(job, T);
    let step = desk.lease(job, T, 100, 8);
    assert!(!desk.was_refused(job, step), "it was not asked for it yet");
    desk.deaf.remove(&job);
    desk.answer_closings(job);
    desk.until(|desk| desk.answers(job, step) > 0 || desk.was_refused(job, step));
    assert!(!desk.was_refused(job, step));
}

#[test]
fn what_was_freed_while_a_recall_was_under_way_is_asked_for_before_a_lease_is_refused() {
    let (mut desk, job) = job_that_has_all();
    // Its answers are given here.
    desk.pages.stopped.insert(job);
    let [first, second] = [100, 120].map(|slot| desk.lease(job, T, slot, 20));
    let is_refused = |desk: &Desk| [first, second].into_iter().any(|lease| desk.was_refused(job, lease));
    // One piece that it gives back by itself is no answer.
    let [piece, unused @ ..] = &desk.pieces(job, T)[..] else { unreachable!() };
    desk.give_back(job, std::slice::from_ref(piece), 0);
    assert!(!is_refused(&desk), "it has not answered");
    desk.answer_recall(job, &[]);
    assert!(!is_refused(&desk), "it has freed some since it was asked");
    desk.answer_recall(job, unused);
    desk.until(|desk| desk.answers(job, first) > 0 && desk.answers(job, second) > 0);
    assert!(!is_refused(&desk));
}

/// Of 40 units and 20 ahead that a job had alone, and gives back, it says that so many were never used: what another
/// job gets then, of 100 units and 30 in the tiers.
fn grown_beside_one_that_left_unused(unused: u32) -> u32 {
    let mut desk = with_tiers(30);
    let a = desk.job(spec("a"));
    desk.lease_ahead(a, T, 0, 40, 20);
    desk.give_back(a, &desk.pieces(a, T), unused);
    let b = desk.job(spec("b"));
    let [grown] = grow(&mut desk, &[b], 8, 100, Life::Short)[..] else { unreachable!() };
    let step = desk.lease(a, T, 0, 60 - unused);
    desk.until(|desk| desk.answers(a, step) > 0);
    assert!(!desk.was_refused(a, step), "it had as much before");
    grown
}

#[test]
fn what_a_job_used_of_what_was_leased_ahead_it_gets_again() {
    assert!(grown_beside_one_that_left_unused(0) <= 70, "no room is left for what the other job had");
    assert!(grown_beside_one_that_left_unused(20) > 70, "nothing is kept for what the other job never used");
}

#[test]
fn a_job_gives_way_to_one_that_cannot_be_closed_though_that_one_fits_nowhere_else() {
    let mut desk = Desk::new(|_| {});
    let serving = desk.job(spec("serving"));
    fill(&mut desk, serving, 1, 20);
    desk.tell(Event::Unsliceable { session: serving, reason: "it uses managed memory".into() });
    // On two GPUs; on the first it waits for nothing, and is in the way of the job that serves.
    let (_, both) = desk.start(spec("on both"));
    desk.attach(both, OTHER_GPU);
    desk.attach(both, GPU);
    let on_gpu = desk.scheduler.sessions()[&both].tenants[1];
    desk.tell(desk::lease_event(both, on_gpu, T, 0, 60));
    desk.lease(both, T, 0, 60);
    desk.tell(Event::Unsliceable { session: both, reason: "it uses managed memory".into() });
    let (_, small) = desk.start(spec("small"));
    desk.attach(small, OTHER_GPU);
    fill(&mut desk, small, 1, 29);
    desk.lease(small, T, 29, 5);
    desk.live(small, T, 29 * UNIT, 5 * UNIT, Life::Short);
    desk.lease(serving, T, 20, 30);
    let asked = desk.lease(both, T, 60, 20);
    desk.until(|desk| desk.answers(both, asked) > 0);
}

/// A job that wants what another one holds, whose saves find no memory; and what it wants.
fn wants_what_cannot_be_saved() -> (Desk, SessionId, Step) {
    let mut desk = Desk::new(|config| {
        config.tier_bytes = [200 * UNIT, 0, 0];
        config.drain_limit = ms(1000);
    });
    desk.starve = |order| matches!(order, ToMover::Save { .. });
    job_with(&mut desk, "holds", 1, 60);
    let wants = desk.job(spec("wants"));
    let step = desk.lease(wants, T, 0, 60);
    desk.pass(ms(800));
    assert!(!desk.was_refused(wants, step) && desk.answers(wants, step) == 0);
    (desk, wants, step)
}

#[test]
fn who_waits_for_memory_that_the_machine_cannot_save_gets_it_when_it_can() {
    let (mut desk, wants, step) = wants_what_cannot_be_saved();
    desk.starve = |_| false;
    desk.until(|desk| desk.answers(wants, step) > 0);
}

#[test]
fn who_waits_for_memory_that_the_machine_can_never_save_is_told_so() {
    let (mut desk, wants, step) = wants_what_cannot_be_saved();
    desk.until(|desk| desk.was_refused(wants, step));
}

#[test]
fn of_jobs_that_stood_still_the_one_that_has_waited_longest_comes_first() {
    let mut desk = Desk::new(|config| config.tier_bytes = [400 * UNIT, 0, 0]);
    let jobs = ["a", "b", "c", "d"].map(|name| job_with(&mut desk, name, 1, 60));
    let waiting: Vec<SessionId> = jobs.into_iter().filter(|job| desk.phase(*job) == Phase::Waiting).collect();
    let ids: BTreeSet<JobId> = waiting.iter().map(|job| desk.scheduler.sessions()[job].job).collect();
    let longest = waiting[2];
    for id in &ids {
        let job = desk.scheduler.jobs.get_mut(id).unwrap();
        job.waits_since = Some(ms(1));
    }
    let id = desk.scheduler.sessions()[&longest].job;
    let job = desk.scheduler.jobs.get_mut(&id).unwrap();
    (job.waits_since, job.virtual_runtime) = (Some(ms(0)), 1_000_000_000);
    desk.scheduler.resolve(&ids);
    desk.until(|desk| waiting.iter().any(|job| desk.phase(*job) == Phase::Open));
    assert_eq!(desk.phase(longest), Phase::Open);
}

/// Two jobs of 40 units, whose work does not end.
fn undrainable_jobs() -> (Desk, [SessionId; 2]) {
    let mut desk = Desk::new(|_| {});
    let jobs = [desk.job(spec("a")), desk.job(spec("b"))];
    for job in jobs {
        let lease = desk.lease(job, T, 0, 40);
        desk.live(job, T, 0, 40 * UNIT, Life::Long);
        desk.until(|desk| desk.answers(job, lease) == 1);
        desk.undrainable.insert(job);
    }
    (desk, jobs)
}

/// The work of each may wait for a thread that waits for the memory: to try again would take as long each time.
#[test]
fn of_jobs_that_could_not_be_drained_once_and_wait_for_each_others_memory_the_last_that_came_is_refused() {
    let (mut desk, jobs) = undrainable_jobs();
    let [first, last] = jobs.map(|job| desk.lease(job, T, 40, 30));
    desk.until(|desk| desk.was_refused(jobs[1], last));
    assert!(jobs.iter().all(|job| desk.job_of(*job).failed_drains <= 1), "{:#?}", desk.scheduler.jobs());
    assert!(!desk.was_refused(jobs[0], first));
    desk.end(jobs[1]);
    desk.until(|desk| desk.answers(jobs[0], first) == 1);
}

/// The same where the closing of the second takes longer than the pause after the first has failed.
#[test]
fn a_job_that_could_not_be_drained_and_waits_for_memory_is_not_closed_anew_while_another_closes() {
    let (mut desk, jobs) = undrainable_jobs();
    desk.deaf.insert(jobs[1]);
    let [first, last] = jobs.map(|job| desk.lease(job, T, 40, 30));
    desk.until(|desk| desk.job_of(jobs[0]).failed_drains == 1 && desk.phase(jobs[1]) == Phase::Closing);
    desk.pass(ms(350));
    assert_eq!(desk.phase(jobs[1]), Phase::Closing);
    assert_eq!((desk.phase(jobs[0]), desk.job_of(jobs[0]).stats.failed_drains), (Phase::Open, 1));
    desk.answer_closings(jobs[1]);
    desk.until(|desk| desk.was_refused(jobs[1], last));
    assert_eq!(desk.job_of(jobs[1]).stats.failed_drains, 1);
    assert!(!desk.was_refused(jobs[0], first));
}

#[test]
fn of_jobs_that_cannot_be_closed_and_wait_for_each_other_the_last_that_came_is_refused() {
    let mut desk = Desk::new(|config| config.tier_bytes = [400 * UNIT, 0, 0]);
    let jobs = ["first", "last"].map(|name| job_with(&mut desk, name, 1, 40));
    for session in jobs {
        desk.tell(Event::Unsliceable { session, reason: "it uses managed memory".into() });
    }
    let [first, last] = jobs.map(|job| desk.lease(job, T, 50, 30));
    desk.until(|desk| desk.was_refused(jobs[1], last));
    assert!(!desk.was_refused(jobs[0], first));
    desk.end(jobs[1]);
    desk.until(|desk| desk.answers(jobs[0], first) > 0);
}

/// The closed job's memory has no place to go, so it leads out of the deadlock of the other two no more than they do.
#[test]
fn of_jobs_that_cannot_be_closed_one_is_refused_though_a_closed_job_has_memory_that_exceeds_its_quota() {
    let mut desk = Desk::new(|config| config.tier_bytes = [400 * UNIT, 0, 0]);
    let jobs = ["plain", "first", "last"].map(|name| desk.job(spec(name)));
    // What they have, and what they had besides.
    let units = [(40, 0), (20, 25), (30, 25)];
    for (session, (units, more)) in jobs.into_iter().zip(units).rev() {
        desk.lease(session, P, 0, units + more);
        desk.until(|desk| desk.units(session, P) == units + more);
        let unused: Vec<Placed> =
            desk.pieces(session, P).into_iter().filter(|placed| placed.slot.0 >= units).collect();
        desk.give_back(session, &unused, 0);
        desk.live(session, P, 0, u64::from(units) * UNIT, Life::Long);
    }
    desk.until(|desk| jobs.into_iter().zip(units).all(|(job, (units, _))| desk.units(job, P) == units));
    // What would exceed it was promised before.
    desk.scheduler.config.saved_quotas.others = Some(10 * UNIT);
    let [_, first, last] = jobs;
    for session in [first, last] {
        desk.tell(Event::Unsliceable { session, reason: "it uses managed memory".into() });
    }
    let [of_first, of_last] = [(first, 20), (last, 30)].map(|(job, at)| desk.lease(job, P, at, 25));
    desk.until(|desk| desk.was_refused(last, of_last));
    assert_eq!(desk.scheduler.standstills(), 0);
    assert!(!desk.was_refused(first, of_first), "it may go on when the last ends");
    desk.end(last);
    desk.until(|desk| desk.answers(first, of_first) > 0);
}

/// What becomes persistent, is freed, and is allocated anew as temporary memory, counts once.
#[test]
fn a_job_whose_memory_changes_its_class_gets_no_more_than_it_was_promised() {
    let mut desk = with_tiers(30);
    let [a, b] = ["a", "b"].map(|name| desk.job(spec(name)));
    desk.lease(a, T, 0, 60);
    desk.live(a, T, 0, 60 * UNIT, Life::Long);
    desk.lease(b, T, 0, 50);
    desk.live(b, T, 0, 50 * UNIT, Life::Short);
    let is_persistent = |desk: &Desk| desk.scheduler.gpus()[&GPU].ledger.held(desk.tenant(a), P) == 60;
    desk.until(|desk| is_persistent(desk) && desk.phase(a) == Phase::Open);
    desk.dead(a, T);
    desk.give_back(a, &desk.pieces(a, T), 0);
    let step = desk.lease(a, T, 0, 60);
    desk.until(|desk| desk.answers(a, step) > 0);
    desk.live(a, T, 0, 60 * UNIT, Life::Short);
    let step = desk.lease(a, T, 60, 20);
    desk.until(|desk| desk.answers(a, step) > 0 || desk.was_refused(a, step));
    assert!(desk.was_refused(a, step), "130 units of 130 leave no room to move");
    for job in [a, b] {
        let slices = desk.job_of(job).stats.slices;
        desk.until(|desk| desk.job_of(job).stats.slices > slices + 1);
    }
}

#[test]
fn tiers_that_had_less_room_for_a_time_are_used_again() {
    let mut desk = with_tiers(30);
    let jobs = ["a", "b"].map(|name| desk.job(spec(name)));
    for job in jobs {
        desk.lease(job, T, 0, 60);
        desk.live(job, T, 0, 60 * UNIT, Life::Short);
    }
    desk.until(|desk| desk.job_of(jobs[0]).stats.slices > 2 && desk.phase(jobs[0]) == Phase::Open);
    desk.tier_capacity = 20 * UNIT;
    desk.pass(ms(1_000));
    assert_eq!(desk.phase(jobs[0]), Phase::Open, "it has all of its memory on the GPU");
    let waits = desk.scheduler.waits_of(desk.scheduler.sessions()[&jobs[1]].job);
    let told = waits.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(told.contains("back on") && told.contains("no room"), "{told}");
    desk.tier_capacity = 30 * UNIT;
    for job in jobs {
        let slices = desk.job_of(job).stats.slices;
        desk.until(|desk| desk.job_of(job).stats.slices > slices);
    }
}

#[test]
fn two_jobs_of_which_each_fits_to_the_last_unit_beside_one_that_is_never_closed_take_turns() {
    let mut desk = Desk::with_gpus(32, |config| (config.offset_units, config.piece_units) = (1, 1));
    let serving = desk.job(JobSpec { resident: true, ..spec("serving") });
    fill(&mut desk, serving, 12, 1);
    let jobs = ["first", "second"].map(|name| job_with(&mut desk, name, 15, 4));
    for _ in 0..4 {
        desk.until(|desk| desk.phase(jobs[0]) == Phase::Open);
        desk.until(|desk| desk.phase(jobs[1]) == Phase::Open);
    }
    assert_eq!(desk.phase(serving), Phase::Open);
}
