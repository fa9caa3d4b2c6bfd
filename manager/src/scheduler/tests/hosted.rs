//! Host memory in a GPU's place.

use super::*;
use tidegate_ffi::wire::message::Location;

/// A job that has 80 of its GPU's units, and was told that 40 more are too much.
fn warned(desk: &mut Desk) -> SessionId {
    let session = desk.job(spec("large"));
    desk.lease(session, T, 0, 80);
    desk.live(session, T, 0, 80 * UNIT, Life::Short);
    desk.lease(session, T, 80, 40);
    assert_eq!((desk.refusals(session), desk.units(session, T)), (1, 80));
    session
}

/// The same, with 40 units of host memory; nothing is alive in the last piece.
fn large(desk: &mut Desk) -> SessionId {
    let session = warned(desk);
    desk.lease(session, T, 80, 40);
    desk.live(session, T, 80 * UNIT, 35 * UNIT, Life::Short);
    session
}

/// Starts a job that does not fit beside the large one, and lets it have its turn.
fn let_another_run(desk: &mut Desk) {
    let b = job_with(desk, "b", 10, 60);
    desk.until(|desk| desk.phase(b) == Phase::Open && desk.units(b, T) == 60);
}

/// A job that says that it needs so many units, and comes to a GPU.
fn come(desk: &mut Desk, gpu: GpuUuid, units: u64) -> SessionId {
    let need = Some(Need { persistent: 0, temporary: units * UNIT });
    let (_, session) = desk.start(JobSpec { need, ..spec("b") });
    desk.attach(session, gpu);
    session
}

fn hosted(desk: &Desk, session: SessionId) -> u32 {
    desk.scheduler.tenants()[&desk.tenant(session)].hosted_units()
}

fn host_pieces(desk: &Desk, session: SessionId) -> Vec<Placed> {
    let pieces = desk.pieces(session, T);
    pieces.into_iter().filter(|placed| placed.slot.0 >= 80).collect()
}

fn free(desk: &Desk) -> u32 {
    desk.scheduler.gpus()[&GPU].ledger.free()
}

/// Bytes of each order to make pieces, by where.
fn made(desk: &Desk, at: Location) -> u64 {
    let made = desk.log.iter().filter_map(|effect| match effect {
        Effect::Mover(_, order @ ToMover::Make { location, .. }) if *location == at => Some(order.bytes()),
        _ => None,
    });
    made.sum()
}

fn destroyed(desk: &Desk, piece: PieceId) -> bool {
    let is_destroyed = |effect: &Effect| matches!(effect, Effect::Mover(_, ToMover::Destroy { pieces, .. }) if pieces.contains(&piece));
    desk.log.iter().any(is_destroyed)
}

#[test]
fn who_asks_again_for_more_than_its_gpu_has_gets_host_memory() {
    let mut desk = Desk::new(|_| {});
    let a = large(&mut desk);
    assert_eq!((desk.refusals(a), desk.units(a, T), hosted(&desk, a)), (1, 120, 40));
    assert_eq!((made(&desk, Location::Device), made(&desk, Location::Host)), (80 * UNIT, 40 * UNIT));
    assert_eq!(host_pieces(&desk, a).len(), 8, "in pieces of five units");
    assert_eq!(free(&desk), 20, "it takes nothing of the GPU");
}

#[test]
fn a_lease_in_one_piece_gets_one() {
    let mut desk = Desk::new(|_| {});
    let a = warned(&mut desk);
    desk.lease_whole(a, T, 80, 40);
    assert_eq!(host_pieces(&desk, a).iter().map(|placed| placed.units.0).collect::<Vec<_>>(), [40]);
}

/// One allocation may need several leases, of which each would be refused in turn.
#[test]
fn who_was_told_once_is_not_told_again() {
    let mut desk = Desk::new(|_| {});
    let a = large(&mut desk);
    desk.lease(a, T, 120, 30);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (1, 70));
    desk.lease(a, T, 150, 20);
    assert_eq!((desk.refusals(a), hosted(&desk, a), free(&desk)), (1, 70, 0), "there was room");
    desk.lease(a, T, 170, 5);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (1, 75));
}

#[test]
fn host_memory_stays_mapped_while_others_run() {
    let mut desk = Desk::new(|_| {});
    let a = large(&mut desk);
    let pieces = host_pieces(&desk, a);
    let_another_run(&mut desk);
    assert_eq!(desk.pieces(a, T), pieces, "all the rest has gone");
    let tenant = desk.tenant(a);
    assert!(desk.unmapped(tenant).iter().all(|piece| pieces.iter().all(|placed| placed.piece != *piece)));
    assert_eq!(desk.moves_saved(tenant).iter().map(|m| m.bytes).sum::<u64>(), 80 * UNIT);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    assert_eq!((desk.units(a, T), hosted(&desk, a)), (120, 40));
}

#[test]
fn what_is_given_back_is_destroyed_and_nobodys_spare() {
    let mut desk = Desk::new(|_| {});
    let a = large(&mut desk);
    let given = host_pieces(&desk, a)[0];
    desk.give_back(a, &[given], 0);
    assert!(destroyed(&desk, given.piece) && desk.scheduler.gpus()[&GPU].spares.is_empty());
    assert_eq!(hosted(&desk, a), 35);
    let rest = host_pieces(&desk, a);
    desk.end(a);
    assert!(rest.iter().all(|placed| destroyed(&desk, placed.piece)));
}

#[test]
fn host_memory_in_a_gpus_place_is_of_its_share() {
    let mut desk = Desk::new(|config| config.tier_bytes = [131 * UNIT, 0, 0]);
    let share = |desk: &Desk| desk.scheduler.gpus()[&GPU].share_bytes()[0] / UNIT;
    let a = warned(&mut desk);
    // The other GPU has two jobs that do not fit there together, and may have to be saved.
    for units in [50, 51] {
        come(&mut desk, OTHER_GPU, units);
    }
    desk.lease(a, T, 80, 40);
    assert_eq!((desk.refusals(a), hosted(&desk, a), share(&desk)), (2, 0, 30), "it can have no more than 30");
    let why = desk.log.iter().rev().find_map(|effect| match effect {
        Effect::Shim(_, ToShim::LeaseRefused { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    let why = why.unwrap();
    assert!(why.contains("31457280 bytes of its share of the dram tier are free for 41943040"), "{why}");
    desk.lease(a, T, 80, 25);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (2, 25));
    // What would have to be saved of a newcomer has no room beside it.
    let b = come(&mut desk, GPU, 40);
    assert!(desk.scheduler.sessions()[&b].tenants.is_empty());
    desk.end(a);
    assert!(!desk.scheduler.sessions()[&b].tenants.is_empty());
}

#[test]
fn the_share_grows_for_host_memory() {
    let mut desk = Desk::new(|config| config.tier_bytes = [60 * UNIT, 0, 0]);
    let a = large(&mut desk);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (1, 40), "the other GPU needs none of its 30");
    let shares = [GPU, OTHER_GPU].map(|gpu| desk.scheduler.gpus()[&gpu].share_bytes()[0] / UNIT);
    assert!(shares[0] >= 40 && shares[0] + shares[1] <= 60, "{shares:?}");
}

#[test]
fn it_grows_beside_what_others_were_promised() {
    let mut desk = Desk::new(|config| config.tier_bytes = [160 * UNIT, 0, 0]);
    let a = warned(&mut desk);
    come(&mut desk, GPU, 21);
    // 101 may have to be saved, of 80: the other GPU has the rest.
    desk.lease(a, T, 80, 40);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (1, 40));
    let share = desk.scheduler.gpus()[&GPU].share_bytes()[0] / UNIT;
    assert!(share >= 140, "{share}");
}

#[test]
fn a_share_is_not_overrun_by_what_is_kept_for_its_owner() {
    let mut desk = Desk::new(|config| config.tier_bytes = [40 * UNIT, 0, 0]);
    let a = large(&mut desk);
    desk.lease(a, T, 120, 20);
    assert_eq!((hosted(&desk, a), free(&desk)), (40, 0));
    desk.lease(a, T, 140, 4);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (2, 40), "an eighth more is not there");
}

#[test]
fn what_was_given_back_is_kept_for_who_may_need_it_again() {
    let mut desk = Desk::new(|config| config.tier_bytes = [120 * UNIT, 100 * UNIT, 0]);
    let a = large(&mut desk);
    let pieces = host_pieces(&desk, a);
    desk.give_back(a, &pieces, 0);
    desk.dead(a, T);
    desk.live(a, T, 0, 80 * UNIT, Life::Short);
    let_another_run(&mut desk);
    let spared = desk.log.iter().find_map(|effect| match effect {
        Effect::Mover(_, ToMover::Save { spared, .. }) => Some(*spared),
        _ => None,
    });
    assert_eq!(spared, Some(45 * UNIT), "an eighth more than it had");
}

#[test]
fn host_memory_is_of_its_users_quota() {
    let mut desk = Desk::new(|config| config.saved_quotas.others = Some(30 * UNIT));
    let a = warned(&mut desk);
    desk.lease(a, T, 80, 40);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (2, 0));
    desk.lease(a, T, 80, 30);
    assert_eq!((desk.refusals(a), hosted(&desk, a)), (2, 30));
}

#[test]
fn what_was_made_for_a_lease_that_is_void_by_then_is_destroyed() {
    let mut desk = Desk::new(|_| {});
    let a = warned(&mut desk);
    let b = job_with(&mut desk, "b", 1, 10);
    desk.until(|desk| desk.units(b, T) == 10);
    desk.until(|desk| desk.phase(a) == Phase::Open);
    desk.hold = |effect| matches!(effect, Effect::Mover(_, ToMover::Make { location: Location::Host, .. }));
    desk.lease(a, T, 80, 40);
    desk.lease(b, T, 10, 60);
    desk.until(|desk| desk.phase(b) == Phase::Open);
    let being_made = desk.log.iter().rev().find_map(|effect| match effect {
        Effect::Mover(_, ToMover::Make { pieces, location: Location::Host, .. }) => Some(pieces.clone()),
        _ => None,
    });
    assert_eq!(hosted(&desk, a), 0, "it is not its own yet");
    desk.finish_held();
    assert!(being_made.unwrap().iter().all(|(piece, _)| destroyed(&desk, *piece)));
    desk.until(|desk| hosted(desk, a) == 40);
}

#[test]
fn where_no_host_memory_can_be_made_the_lease_is_refused() {
    let mut desk = Desk::new(|_| {});
    desk.fail = |order| matches!(order, ToMover::Make { location: Location::Host, .. });
    let a = warned(&mut desk);
    desk.lease(a, T, 80, 40);
    assert_eq!((desk.refusals(a), desk.units(a, T), hosted(&desk, a)), (2, 80, 0));
    desk.scheduler.check().unwrap();
}

#[test]
fn a_job_that_did_not_ask_for_host_memory_is_refused_beyond_its_gpus_size() {
    let mut desk = Desk::new(|config| config.oversubscribe = false);
    let job = warned(&mut desk);
    for _ in 0..3 {
        desk.lease(job, T, 80, 40);
    }
    assert_eq!((desk.refusals(job), hosted(&desk, job)), (4, 0));
    let asked = JobSpec { oversubscribe: true, ..spec("larger") };
    desk.end(job);
    let job = desk.job(asked);
    desk.lease(job, T, 0, 80);
    for _ in 0..2 {
        desk.lease(job, T, 80, 40);
    }
    assert_eq!((desk.refusals(job), hosted(&desk, job)), (1, 40));
}
