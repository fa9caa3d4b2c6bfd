use super::*;
use proptest::prelude::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);

fn lease(ledger: &mut Ledger, tenant: TenantId, region: Class, id: u64, units: u32) -> Result<u32, NoRoom> {
    ledger.lease(tenant, region, &[(PieceId(id), Units(units))], Slack::Kept)?;
    ledger.check().unwrap();
    Ok(ledger.piece(PieceId(id)).unwrap().start)
}

#[test]
fn a_newcomer_is_placed_after_the_last_span_and_its_offset() {
    for offset in [0, 4, 10] {
        let mut ledger = Ledger::new(Units(200), Units(offset));
        assert_eq!(lease(&mut ledger, A, Class::Persistent, 1, 20), Ok(0));
        assert_eq!(lease(&mut ledger, B, Class::Persistent, 2, 20), Ok(20 + offset));
        assert_eq!(lease(&mut ledger, C, Class::Persistent, 3, 20), Ok(40 + 2 * offset));
    }
}

#[test]
fn a_hole_is_taken_only_if_it_holds_the_need_and_an_offset() {
    let mut ledger = Ledger::new(Units(200), Units(5));
    lease(&mut ledger, A, Class::Persistent, 1, 20).unwrap();
    lease(&mut ledger, B, Class::Persistent, 2, 20).unwrap();
    ledger.release(PieceId(1));
    let mut tight = ledger.clone();
    assert_eq!(lease(&mut tight, C, Class::Persistent, 3, 21), Ok(50));
    assert_eq!(lease(&mut ledger, C, Class::Persistent, 3, 20), Ok(0));
}

#[test]
fn a_span_between_two_others_lies_an_offset_from_both() {
    for (units, start) in [(20, 25), (21, 75)] {
        let mut ledger = Ledger::new(Units(200), Units(5));
        for (tenant, id) in [(A, 1), (B, 2), (C, 3)] {
            lease(&mut ledger, tenant, Class::Persistent, id, 20).unwrap();
        }
        ledger.release(PieceId(2));
        assert_eq!(lease(&mut ledger, TenantId(4), Class::Persistent, 4, units), Ok(start));
    }
}

#[test]
fn growth_uses_the_offset_then_a_new_extent() {
    let mut ledger = Ledger::new(Units(200), Units(5));
    lease(&mut ledger, A, Class::Persistent, 1, 20).unwrap();
    lease(&mut ledger, B, Class::Persistent, 2, 20).unwrap();
    assert_eq!(lease(&mut ledger, A, Class::Persistent, 3, 5), Ok(20));
    assert_eq!(lease(&mut ledger, A, Class::Persistent, 4, 1), Ok(50));
    assert_eq!(ledger.spans().filter(|span| span.tenant == A).count(), 2);
}

#[test]
fn who_leaves_and_comes_back_finds_the_hole_it_left() {
    let mut ledger = Ledger::new(Units(200), Units(5));
    for (tenant, id) in [(A, 1), (B, 2), (C, 3)] {
        lease(&mut ledger, tenant, Class::Persistent, id, 20).unwrap();
    }
    ledger.release(PieceId(2));
    ledger.check().unwrap();
    assert_eq!(lease(&mut ledger, B, Class::Persistent, 4, 20), Ok(25));
}

#[test]
fn temporary_memory_comes_from_the_other_end() {
    let mut ledger = Ledger::new(Units(100), Units(5));
    assert_eq!(lease(&mut ledger, A, Class::Temporary, 1, 10), Ok(90));
    assert_eq!(lease(&mut ledger, A, Class::Temporary, 2, 10), Ok(80));
    ledger.release(PieceId(1));
    assert_eq!(lease(&mut ledger, A, Class::Temporary, 3, 4), Ok(96));
}

#[test]
fn headroom_stays_free() {
    let mut ledger = Ledger::new(Units(100), Units(5));
    ledger.set_headroom(Units(30));
    lease(&mut ledger, A, Class::Persistent, 1, 40).unwrap();
    assert_eq!(lease(&mut ledger, A, Class::Temporary, 2, 31), Err(NoRoom { short: 1 }));
    lease(&mut ledger, A, Class::Temporary, 3, 30).unwrap();
    assert!(lease(&mut ledger, A, Class::Persistent, 4, 1).is_err());
    assert_eq!(ledger.free(), 0);
}

#[test]
fn a_growing_persistent_region_closes_the_holes_of_the_temporary_one() {
    let mut ledger = Ledger::new(Units(100), Units(0));
    for id in 1..=10 {
        lease(&mut ledger, A, Class::Temporary, id, 5).unwrap();
    }
    for id in [1, 3, 5, 7, 9] {
        ledger.release(PieceId(id));
    }
    assert_eq!(lease(&mut ledger, B, Class::Persistent, 20, 75), Ok(0));
    assert_eq!(ledger.free(), 0);
}

#[test]
fn promotion_renumbers_a_piece_into_its_tenants_span() {
    let mut ledger = Ledger::new(Units(100), Units(5));
    lease(&mut ledger, A, Class::Persistent, 1, 10).unwrap();
    lease(&mut ledger, A, Class::Temporary, 2, 7).unwrap();
    ledger.renumber(PieceId(2), Owner::Tenant(A), Class::Persistent).unwrap();
    ledger.check().unwrap();
    assert_eq!(ledger.piece(PieceId(2)).unwrap().start, 10);
    assert_eq!(ledger.temporary_units(), 0);
}

#[test]
fn promotion_needs_no_free_unit() {
    let mut ledger = Ledger::new(Units(100), Units(5));
    lease(&mut ledger, A, Class::Persistent, 1, 40).unwrap();
    for id in 2..=7 {
        lease(&mut ledger, B, Class::Temporary, id, 10).unwrap();
    }
    assert_eq!(ledger.free(), 0);
    for id in 2..=7 {
        ledger.renumber(PieceId(id), Owner::Tenant(B), Class::Persistent).unwrap();
        ledger.check().unwrap();
    }
    assert_eq!((ledger.temporary_units(), ledger.offset()), (0, 5));
}

#[test]
fn the_persistent_region_closes_its_holes_only_when_nothing_else_makes_room() {
    let mut ledger = Ledger::new(Units(100), Units(5));
    for (tenant, id) in [(A, 1), (B, 2), (C, 3)] {
        lease(&mut ledger, tenant, Class::Persistent, id, 20).unwrap();
    }
    ledger.release(PieceId(2));
    lease(&mut ledger, A, Class::Temporary, 4, 25).unwrap();
    assert_eq!(ledger.piece(PieceId(3)).unwrap().start, 50, "there was room");
    lease(&mut ledger, A, Class::Temporary, 5, 30).unwrap();
    assert_eq!(ledger.piece(PieceId(3)).unwrap().start, 25, "behind A's span and its offset");
    assert_eq!(ledger.free(), 0);
}

#[test]
fn offsets_give_way_only_to_who_asks_without_them() {
    let mut ledger = Ledger::new(Units(100), Units(10));
    lease(&mut ledger, A, Class::Persistent, 1, 50).unwrap();
    assert_eq!(lease(&mut ledger, B, Class::Persistent, 2, 50), Err(NoRoom { short: 10 }));
    ledger.lease(B, Class::Persistent, &[(PieceId(2), Units(50))], Slack::Offsets).unwrap();
    ledger.check().unwrap();
    assert_eq!((ledger.free(), ledger.offset()), (0, 10));
    assert!(ledger.lease(C, Class::Temporary, &[(PieceId(3), Units(1))], Slack::Offsets).is_err());
}

#[test]
fn headroom_gives_way_only_to_memory_that_was_here_before() {
    let mut ledger = Ledger::new(Units(100), Units(0));
    ledger.set_headroom(Units(20));
    lease(&mut ledger, A, Class::Temporary, 1, 75).unwrap();
    let ten = [(PieceId(2), Units(10))];
    assert!(ledger.lease(B, Class::Temporary, &ten, Slack::Offsets).is_err());
    ledger.lease(B, Class::Temporary, &ten, Slack::Headroom).unwrap();
    ledger.check().unwrap();
    assert_eq!((ledger.short_of(0), ledger.headroom(), ledger.free()), (5, 20, 0));
}

#[test]
fn what_lies_outside_cannot_be_had() {
    let mut ledger = Ledger::new(Units(100), Units(0));
    lease(&mut ledger, A, Class::Temporary, 1, 30).unwrap();
    lease(&mut ledger, A, Class::Temporary, 2, 30).unwrap();
    ledger.set_outside(Units(50));
    assert_eq!(ledger.short_of(0), 10);
    ledger.release(PieceId(1));
    assert_eq!(lease(&mut ledger, B, Class::Temporary, 3, 21), Err(NoRoom { short: 1 }), "in a hole");
    assert!(ledger.lease(B, Class::Temporary, &[(PieceId(4), Units(21))], Slack::Headroom).is_err());
    lease(&mut ledger, B, Class::Temporary, 5, 20).unwrap();
}

#[derive(Clone, Debug)]
enum Operation {
    Lease { tenant: u64, persistent: bool, units: Vec<u32>, slack: Slack },
    Release(usize),
    Renumber(usize),
    Spare(usize),
    Headroom(u32),
    Outside(u32),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1..5u64, any::<bool>(), prop::collection::vec(1..12u32, 1..4), slack())
            .prop_map(|(tenant, persistent, units, slack)| Operation::Lease { tenant, persistent, units, slack }),
        3 => any::<usize>().prop_map(Operation::Release),
        1 => any::<usize>().prop_map(Operation::Renumber),
        1 => any::<usize>().prop_map(Operation::Spare),
        1 => (0..20u32).prop_map(Operation::Headroom),
        1 => (0..20u32).prop_map(Operation::Outside),
    ]
}

fn slack() -> impl Strategy<Value = Slack> {
    prop_oneof![6 => Just(Slack::Kept), 1 => Just(Slack::Offsets), 1 => Just(Slack::Headroom)]
}

fn nth(ledger: &Ledger, index: usize) -> Option<(PieceId, Record)> {
    let count = ledger.pieces().count();
    (count > 0).then(|| ledger.pieces().nth(index % count).unwrap())
}

fn apply(ledger: &mut Ledger, next: &mut u64, operation: Operation) {
    let before = (ledger.pieces().count(), ledger.free());
    match operation {
        Operation::Lease { tenant, persistent, units, slack } => {
            let region = if persistent { Class::Persistent } else { Class::Temporary };
            let pieces: Vec<_> = units
                .iter()
                .map(|&units| {
                    *next += 1;
                    (PieceId(*next), Units(units))
                })
                .collect();
            let overdrawn = ledger.short_of(0);
            match ledger.lease(TenantId(tenant), region, &pieces, slack) {
                Ok(()) => {
                    assert!(pieces.iter().all(|(piece, _)| ledger.piece(*piece).is_some()));
                    assert!(
                        slack == Slack::Headroom || overdrawn == ledger.short_of(0),
                        "headroom was taken"
                    );
                    assert!(ledger.short_of(0) <= overdrawn.max(ledger.headroom()), "there was no room");
                }
                Err(NoRoom { short }) => {
                    assert!(short > 0);
                    let wanted: u32 = pieces.iter().map(|(_, units)| units.0).sum();
                    let held: u32 = ledger.pieces().map(|(_, record)| record.units).sum();
                    let kept_free =
                        if slack == Slack::Headroom { ledger.outside() } else { ledger.reserved() };
                    assert!(
                        slack == Slack::Kept || held + wanted + kept_free > ledger.total(),
                        "there was room"
                    );
                    assert_eq!(
                        before,
                        (ledger.pieces().count(), ledger.free()),
                        "a refused lease changed something"
                    );
                }
            }
        }
        Operation::Release(index) => {
            if let Some((piece, _)) = nth(ledger, index) {
                ledger.release(piece);
            }
        }
        Operation::Renumber(index) => {
            if let Some((piece, record @ Record { owner: Owner::Tenant(_), .. })) = nth(ledger, index) {
                let other =
                    if record.region == Class::Persistent { Class::Temporary } else { Class::Persistent };
                let _ = ledger.renumber(piece, record.owner, other);
                assert_eq!(ledger.piece(piece).unwrap().units, record.units);
            }
        }
        Operation::Spare(index) => {
            if let Some((piece, _)) = nth(ledger, index) {
                let _ = ledger.spare(piece);
            }
        }
        Operation::Headroom(units) => ledger.set_headroom(Units(units)),
        Operation::Outside(units) => ledger.set_outside(Units(units)),
    }
}

proptest! {
    #[test]
    fn two_tenants_never_hold_one_unit(operations in prop::collection::vec(operation(), 1..200)) {
        let (mut ledger, mut next) = (Ledger::new(Units(128), Units(3)), 0);
        for operation in operations {
            apply(&mut ledger, &mut next, operation);
            ledger.check().map_err(TestCaseError::fail)?;
        }
    }
}
