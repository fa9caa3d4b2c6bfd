//! A save and the restore after it are carried out at once, over a link that carries more both ways.

use super::super::exchange::Exchange;
use super::super::orders::Useless;
use super::*;

const OTHER: TenantId = TenantId(8);
/// So slow that a busy machine measures it well.
const LINK: &str = "250KB/s";
/// What moves over that link, in some 30 ms.
const FEW: u64 = 8 << 10;
/// So many times the test may be slower than the mover.
const TRIES: usize = 20;
/// Of one tenant, which is saved.
const LEAVING: u64 = 1;
/// Of another, which is restored.
const COMING: u64 = 2;

fn save(step: Step, tenant: TenantId, piece: u64) -> ToMover {
    save_of(step, tenant, piece, UNIT)
}

fn save_of(step: Step, tenant: TenantId, piece: u64, bytes: u64) -> ToMover {
    ToMover::Save { step, tenant, moves: vec![moved(piece, 0, bytes, 1000)], spared: 0 }
}

fn restore(step: Step, tenant: TenantId, piece: u64) -> ToMover {
    restore_of(step, tenant, piece, UNIT)
}

fn restore_of(step: Step, tenant: TenantId, piece: u64, bytes: u64) -> ToMover {
    let moves = vec![moved(piece, 0, bytes, 1000)];
    ToMover::Restore { step, tenant, moves, poison: Vec::new() }
}

fn overwrite(piece: &File) {
    piece.write_all_at(&vec![7; UNIT as usize], 0).unwrap();
}

/// A mover of which each order is a call. What it says goes nowhere.
struct Direct {
    mover: Mover,
    leaving: (File, Vec<u8>),
    coming: (File, Vec<u8>),
    next: u64,
}

impl Direct {
    /// With a unit of two tenants: of the one it is to be saved, of the other it is, and is overwritten on the GPU.
    fn new(config: &MoverConfig, fill: impl Fn(u64) -> Vec<u8>) -> Self {
        let mut mover = direct(config);
        let pieces = vec![(PieceId(LEAVING), UNIT), (PieceId(COMING), UNIT)];
        let made = ToMover::Make { step: Step(1), pieces, location: Location::Device };
        let made = mover.handle(made, Vec::new(), &mut hears).ok().unwrap();
        let mut files = made.into_iter().flat_map(|answer| answer.fds).map(File::from);
        let mut filled = |piece| {
            let (file, bytes) = (files.next().unwrap(), fill(piece));
            file.write_all_at(&bytes, 0).unwrap();
            (file, bytes)
        };
        let (leaving, coming) = (filled(LEAVING), filled(COMING));
        let mut direct = Self { mover, leaving, coming, next: 1 };
        direct.alone(|step| save(step, OTHER, COMING)).unwrap();
        overwrite(&direct.coming.0);
        direct
    }

    fn step(&mut self) -> Step {
        self.next += 1;
        Step(self.next)
    }

    fn alone(&mut self, order: impl FnOnce(Step) -> ToMover) -> Result<u64, String> {
        let step = self.step();
        let answers =
            self.mover.handle(order(step), Vec::new(), &mut hears).unwrap_or_else(|error| panic!("{error}"));
        match done(answers)[..] {
            [FromMover::Done { bytes, .. }] => Ok(bytes),
            ref answer => Err(format!("{answer:?}")),
        }
    }

    /// The one out and the other back; `false`: it was not done.
    fn exchange(&mut self) -> Result<bool, Useless> {
        let orders = [save(self.step(), TENANT, LEAVING), restore(self.step(), OTHER, COMING)];
        let answers = self.mover.exchange(&Exchange::of(&orders[0], &orders[1]).unwrap())?;
        let Some(answers) = answers else { return Ok(false) };
        let answers = done(answers);
        let [FromMover::Done { step: first, .. }, FromMover::Done { step: second, .. }] = answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!([Some(first), Some(second)], [orders[0].step(), orders[1].step()]);
        Ok(true)
    }

    fn used(&mut self) -> u64 {
        let measured = self.step();
        let answers =
            self.mover.handle(ToMover::Measure { step: measured }, Vec::new(), &mut hears).ok().unwrap();
        let saved = answers.iter().find_map(|answer| match answer.message {
            FromMover::Measured { saved_bytes, .. } => Some(saved_bytes),
            _ => None,
        });
        saved.unwrap()
    }

    /// What was saved comes back too, and then all is as it was.
    fn check(mut self) {
        assert!(contents(&self.coming.0) == self.coming.1);
        overwrite(&self.leaving.0);
        assert_eq!(self.alone(|step| restore(step, TENANT, LEAVING)), Ok(UNIT));
        assert!(contents(&self.leaving.0) == self.leaving.1 && contents(&self.coming.0) == self.coming.1);
        assert_eq!(self.used(), 0);
    }
}

/// Without what is kept for the next mover.
fn done(answers: Vec<Answer>) -> Vec<FromMover> {
    let is_answer =
        |message: &FromMover| matches!(message, FromMover::Done { .. } | FromMover::Failed { .. });
    answers.into_iter().map(|answer| answer.message).filter(is_answer).collect()
}

fn of_pattern(piece: u64) -> Vec<u8> {
    pattern(UNIT, piece)
}

#[test]
fn a_save_takes_a_restore_along() {
    on_a_software_gpu("exchange::a_save_takes_a_restore_along", 2, "", |bench| {
        let mut direct = Direct::new(&bench.config, of_pattern);
        assert!(direct.exchange().unwrap());
        assert_eq!(direct.used(), UNIT);
        direct.check();
    });
}

#[test]
fn zeros_go_both_ways_without_room() {
    on_a_software_gpu("exchange::zeros_go_both_ways_without_room", 2, "", |bench| {
        let mut direct = Direct::new(&bench.config, |_| vec![0; UNIT as usize]);
        assert!(direct.exchange().unwrap());
        assert_eq!(direct.used(), 0);
        direct.check();
    });
}

/// Nothing of either was done: each can be, in order.
fn goes_alone(mut direct: Direct) {
    assert!(!direct.exchange().unwrap());
    assert!(contents(&direct.leaving.0) == direct.leaving.1);
    assert_eq!(direct.used(), UNIT);
    assert_eq!(direct.alone(|step| restore(step, OTHER, COMING)), Ok(UNIT));
    assert_eq!(direct.alone(|step| save(step, TENANT, LEAVING)), Ok(UNIT));
    direct.check();
}

#[test]
fn what_has_no_room_beside_what_comes_goes_alone() {
    let test = "exchange::what_has_no_room_beside_what_comes_goes_alone";
    let directory = std::env::temp_dir();
    // There would be room in a tier that is slower.
    let config = |gpu| MoverConfig { disk: Some(directory), disk_bytes: 8 * UNIT, ..config(gpu, UNIT) };
    in_its_own_process(test, &[], config, |bench| {
        let direct = Direct::new(&bench.config, of_pattern);
        goes_alone(direct);
    });
}

#[test]
fn where_a_copy_out_fails_each_order_goes_alone() {
    let test = "exchange::where_a_copy_out_fails_each_order_goes_alone";
    // The first is the save of what comes.
    let faults = "cuMemcpyDtoHAsync_v2@2=OUT_OF_MEMORY";
    on_a_software_gpu(test, 8, faults, |bench| goes_alone(Direct::new(&bench.config, of_pattern)));
}

#[test]
fn where_a_copy_back_fails_each_order_goes_alone() {
    let test = "exchange::where_a_copy_back_fails_each_order_goes_alone";
    let faults = "cuMemcpyHtoDAsync_v2@1=OUT_OF_MEMORY";
    on_a_software_gpu(test, 8, faults, |bench| goes_alone(Direct::new(&bench.config, of_pattern)));
}

/// By its line: two orders that come one behind the other, until the mover sees both.
#[test]
fn the_next_mover_undoes_both_where_nobody_heard() {
    let test = "exchange::the_next_mover_undoes_both_where_nobody_heard";
    let spec = format!("1x{}B,link={LINK}", GPU_UNITS * UNIT);
    on_a_node(
        &spec,
        test,
        &[],
        |gpu| config(gpu, 8 * UNIT),
        |bench| {
            let (leaving, bytes_left) = filled(bench, LEAVING, 1);
            let (coming, bytes_come) = filled(bench, COMING, 1);
            bench.measure();
            let exchanged = (0..TRIES).find_map(|_| {
                assert_eq!(bench.moved(|step| save_of(step, OTHER, COMING, FEW)), Ok(FEW));
                coming.write_all_at(&[7; FEW as usize], 0).unwrap();
                let (saved, restored) = (bench.step(), bench.step());
                bench.mover.send(&save_of(saved, TENANT, LEAVING, FEW), &[]);
                bench.mover.send(&restore_of(restored, OTHER, COMING, FEW), &[]);
                let mut took = |wanted| match bench.answer().0 {
                    FromMover::Done { step, bytes: FEW, micros } if step == wanted => micros,
                    answer => panic!("{answer:?}"),
                };
                // Those of an exchange took the same time, for they are one.
                let was_one = took(saved) == took(restored);
                assert!(contents(&coming) == bytes_come);
                if !was_one {
                    assert_eq!(bench.moved(|step| restore_of(step, TENANT, LEAVING, FEW)), Ok(FEW));
                }
                was_one.then_some([saved, restored])
            });
            let [saved, restored] = exchanged.expect("never at once");
            assert_eq!(bench.saved_bytes(), FEW);
            coming.write_all_at(&[7; FEW as usize], 0).unwrap();
            bench.replace(&[(LEAVING, 1, &leaving), (COMING, 1, &coming)], &[saved, restored]);
            assert_eq!(bench.saved_bytes(), FEW);
            // Given again, they are carried out as if for the first time.
            for order in [save_of(saved, TENANT, LEAVING, FEW), restore_of(restored, OTHER, COMING, FEW)] {
                assert!(matches!(bench.ask(order).0, FromMover::Done { bytes: FEW, .. }));
            }
            leaving.write_all_at(&[7; FEW as usize], 0).unwrap();
            assert_eq!(bench.moved(|step| restore_of(step, TENANT, LEAVING, FEW)), Ok(FEW));
            assert!(contents(&leaving) == bytes_left && contents(&coming) == bytes_come);
        },
    );
}
