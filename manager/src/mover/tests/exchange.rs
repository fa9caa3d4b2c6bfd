//! A save and a restore that follow each other are carried out at once, over a link that carries more both ways.
//!
//! Two that are carried out at once are answered together, the save first: so a test that orders the restore first sees
//! which it was.

use super::super::copy::Gpu;
use super::super::orders::Mover;
use super::*;
use std::rc::Rc;

const OTHER: TenantId = TenantId(8);
/// A unit takes some 60 ms: long enough for two orders to come while one is carried out.
const LINK: &str = "1MB/s";
/// So many times the test may be slower than the mover.
const TRIES: usize = 20;

/// Piece 1 of one tenant, saved; piece 2 of another, which is not. The link has been measured.
struct Two {
    coming: (File, Vec<u8>),
    leaving: (File, Vec<u8>),
}

const COMING: u64 = 1;
const LEAVING: u64 = 2;

fn first_units(piece: u64, units: u64) -> [Move; 1] {
    [moved(piece, 0, units * UNIT, 1000)]
}

impl Two {
    fn new(bench: &mut Bench) -> Self {
        let (coming, leaving) = (filled(bench, COMING, 1), filled(bench, LEAVING, 1));
        Self::saved(bench, coming, leaving)
    }

    fn of_zeros(bench: &mut Bench) -> Self {
        let mut piece = |id| (bench.make(id, 1), vec![0; UNIT as usize]);
        let (coming, leaving) = (piece(COMING), piece(LEAVING));
        Self::saved(bench, coming, leaving)
    }

    fn saved(bench: &mut Bench, coming: (File, Vec<u8>), leaving: (File, Vec<u8>)) -> Self {
        bench.measure();
        assert_eq!(bench.save(&first_units(COMING, 1)), Ok(UNIT));
        coming.0.write_all_at(&vec![7; UNIT as usize], 0).unwrap();
        Self { coming, leaving }
    }

    /// Orders the restore of the one, then the save of the other; the answers, in the order in which they come.
    fn order(&self, bench: &mut Bench) -> (Step, Step, [FromMover; 2]) {
        let (restored, saved) = (bench.step(), bench.step());
        let (moves, poison) = (first_units(COMING, 1).to_vec(), Vec::new());
        bench.mover.send(&ToMover::Restore { step: restored, tenant: TENANT, moves, poison }, &[]);
        let moves = first_units(LEAVING, 1).to_vec();
        bench.mover.send(&ToMover::Save { step: saved, tenant: OTHER, moves, spared: 0 }, &[]);
        (restored, saved, [bench.answer().0, bench.answer().0])
    }

    /// What was ordered, the other way.
    fn undo(&self, bench: &mut Bench) {
        let moves = first_units(LEAVING, 1).to_vec();
        let back = bench.moved(|step| ToMover::Restore { step, tenant: OTHER, moves, poison: Vec::new() });
        assert_eq!(back, Ok(UNIT));
        assert_eq!(bench.save(&first_units(COMING, 1)), Ok(UNIT));
    }

    /// Until both were carried out at once.
    fn exchange(&self, bench: &mut Bench) -> (Step, Step) {
        for _ in 0..TRIES {
            let (restored, saved, answers) = self.order(bench);
            let [first, second] = answers.map(|answer| match answer {
                FromMover::Done { step, bytes: UNIT, .. } => step,
                answer => panic!("{answer:?}"),
            });
            if (first, second) == (saved, restored) {
                return (restored, saved);
            }
            self.undo(bench);
        }
        panic!("never at once")
    }

    fn pieces(&self) -> [(u64, u64, &File); 2] {
        [(COMING, 1, &self.coming.0), (LEAVING, 1, &self.leaving.0)]
    }

    fn are_whole(&self) -> bool {
        contents(&self.coming.0) == self.coming.1 && contents(&self.leaving.0) == self.leaving.1
    }
}

fn saved_again(bench: &mut Bench, two: &Two) {
    two.leaving.0.write_all_at(&vec![7; UNIT as usize], 0).unwrap();
    let moves = first_units(LEAVING, 1).to_vec();
    let back = bench.moved(|step| ToMover::Restore { step, tenant: OTHER, moves, poison: Vec::new() });
    assert_eq!(back, Ok(UNIT));
    assert!(two.are_whole());
}

#[test]
fn two_orders_go_both_ways_at_once() {
    over_a_link("exchange::two_orders_go_both_ways_at_once", LINK, 8, "", |bench| {
        let two = Two::new(bench);
        two.exchange(bench);
        assert!(two.are_whole());
        assert_eq!(bench.stored, [UNIT, 0, 0]);
        saved_again(bench, &two);
        assert_eq!(bench.saved_bytes(), 0);
    });
}

#[test]
fn zeros_go_both_ways_without_room() {
    over_a_link("exchange::zeros_go_both_ways_without_room", LINK, 8, "", |bench| {
        let two = Two::of_zeros(bench);
        two.exchange(bench);
        assert!(two.are_whole());
        assert_eq!(bench.stored, [0; 3]);
        saved_again(bench, &two);
    });
}

#[test]
fn what_has_no_room_beside_what_comes_waits_for_it() {
    let test = "exchange::what_has_no_room_beside_what_comes_waits_for_it";
    let directory = std::env::temp_dir();
    // A tier that is slower than waiting.
    let config = |gpu| MoverConfig { disk: Some(directory), disk_bytes: 8 * UNIT, ..config(gpu, UNIT) };
    on_a_node(test, &format!(",link={LINK}"), &[], config, |bench| {
        let two = Two::new(bench);
        let (restored, saved, answers) = two.order(bench);
        let is_of =
            |answer: &FromMover, step| matches!(answer, FromMover::Done { step: of, .. } if *of == step);
        assert!(is_of(&answers[0], restored) && is_of(&answers[1], saved), "{answers:?}");
        assert_eq!(bench.stored, [UNIT, 0, 0]);
        assert!(two.are_whole());
        saved_again(bench, &two);
    });
}

#[test]
fn where_copies_fail_each_order_is_carried_out_alone() {
    let test = "exchange::where_copies_fail_each_order_is_carried_out_alone";
    // The first is the save that the restore is of.
    on_a_software_gpu(test, 8, "cuMemcpyDtoHAsync_v2@2=OUT_OF_MEMORY", |bench| {
        let gpu = Gpu::open(&bench.config.driver, bench.config.gpu).unwrap();
        let mut mover = Mover::new(Rc::new(gpu), &bench.config).unwrap();
        let mut handle = |order, other| -> Vec<FromMover> {
            let answers = mover.handle(order, other, Vec::new()).unwrap_or_else(|error| panic!("{error}"));
            let messages = answers.into_iter().map(|answer| answer.message);
            messages
                .filter(|message| matches!(message, FromMover::Done { .. } | FromMover::Failed { .. }))
                .collect()
        };
        let pieces = vec![(PieceId(COMING), UNIT), (PieceId(LEAVING), UNIT)];
        handle(ToMover::Make { step: Step(1), pieces, location: Location::Device }, None);
        let save = |step, tenant, piece| {
            let moves = first_units(piece, 1).to_vec();
            ToMover::Save { step: Step(step), tenant, moves, spared: 0 }
        };
        let restore = |step, tenant, piece| {
            let moves = first_units(piece, 1).to_vec();
            ToMover::Restore { step: Step(step), tenant, moves, poison: Vec::new() }
        };
        let steps = |answers: Vec<FromMover>| -> Vec<u64> {
            let step = |answer| match answer {
                FromMover::Done { step, .. } => step.0,
                answer => panic!("{answer:?}"),
            };
            answers.into_iter().map(step).collect()
        };
        // Memory that is fresh is zeros, and takes no room: so the poison of tests.
        let poison = ToMover::Restore {
            step: Step(2),
            tenant: TENANT,
            moves: Vec::new(),
            poison: ids(&[COMING, LEAVING]),
        };
        handle(poison, None);
        assert_eq!(steps(handle(save(3, TENANT, COMING), None)), [3]);
        assert_eq!(steps(handle(restore(4, TENANT, COMING), Some(save(5, OTHER, LEAVING)))), [4, 5]);
        // Nothing is left of the first attempt.
        assert_eq!(steps(handle(restore(6, OTHER, LEAVING), Some(save(7, TENANT, COMING)))), [7, 6]);
    });
}

#[test]
fn the_next_mover_undoes_both_where_nobody_heard() {
    let test = "exchange::the_next_mover_undoes_both_where_nobody_heard";
    over_a_link(test, LINK, 8, "", |bench| {
        let two = Two::new(bench);
        let (restored, saved) = two.exchange(bench);
        two.coming.0.write_all_at(&vec![7; UNIT as usize], 0).unwrap();
        bench.replace(&two.pieces(), &[restored, saved]);
        assert_eq!(bench.saved_bytes(), UNIT);
        // Given again, they are carried out as if for the first time.
        let moves = first_units(LEAVING, 1).to_vec();
        let save = ToMover::Save { step: saved, tenant: OTHER, moves, spared: 0 };
        assert!(matches!(bench.ask(save).0, FromMover::Done { bytes: UNIT, .. }));
        assert_eq!(bench.restore(&first_units(COMING, 1), &[]), Ok(UNIT));
        saved_again(bench, &two);
    });
}
