//! What it costs to submit an operation to the hazard tracker and to complete one, on one thread, with so many
//! outstanding all the time: `cargo bench -p tidegate-ffi --bench hazard`.
//!
//! - `two conflicts`: an operation writes one block and reads two neighbouring ones that two outstanding
//!   operations write, so that it waits for these two; the oldest is completed, and wakes whom it held up.
//! - `no conflict`: an operation reads one block and writes another, which nobody else touches.
//! - `all sizes`: blocks of 256 bytes to 1 GiB, small ones as often as large ones, far apart; two operands.
//! - `shared weights`: each also reads one region that all others read.
//!
//! Blocks lie in no order, as an allocator's do. Measured is the thread's own time on its processor, so that what
//! else the machine does counts little.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;
use tidegate_ffi::hazard::tracker::{Capacity, OperationId, Otherwise, Submitted, Tracker};
use tidegate_ffi::hazard::{Operand, Span};

const OUTSTANDING: [usize; 3] = [16, 256, 4096];
/// Bytes between blocks.
const STRIDE: u64 = 1 << 31;
/// Bytes of a block, where all are alike.
const BLOCK: u64 = 1 << 20;

type Operands = Vec<Operand<Span>>;

/// The time that this thread has run.
struct ThreadTime;

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn end(&self, began: Duration) -> Duration {
        self.start() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        time.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// The tracker, full to the brim, and what is submitted in turn.
struct Bench {
    tracker: Tracker<Span>,
    outstanding: VecDeque<OperationId>,
    operations: Vec<Operands>,
    next: usize,
}

impl Bench {
    /// Each operation is to have so many conflicts.
    fn new(outstanding: usize, operations: Vec<Operands>, conflicts: usize) -> Self {
        let room = outstanding + 1;
        let capacity = Capacity { operations: room, operands: room * 4, edges: room * 4 };
        let tracker = Tracker::new(capacity);
        let mut bench = Self { tracker, outstanding: VecDeque::with_capacity(room), operations, next: 0 };
        (0..outstanding).for_each(|_| bench.submit());
        let last = bench.outstanding.back().expect("some are outstanding");
        assert_eq!(bench.tracker.waits_for(*last), Ok(conflicts as u32), "this is another case");
        bench
    }

    fn submit(&mut self) {
        let operands = &self.operations[self.next];
        self.next = (self.next + 1) % self.operations.len();
        match self.tracker.submit(operands, Otherwise::Buffer) {
            Ok(Submitted::Ready(id) | Submitted::Buffered(id, _)) => self.outstanding.push_back(id),
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self) {
        self.submit();
        let oldest = self.outstanding.pop_front().expect("some are outstanding");
        let completed = self.tracker.complete(oldest, |woken| {
            black_box(woken);
        });
        completed.expect("the oldest waits for nobody");
    }
}

/// A permutation of the numbers less than a power of two.
fn scattered(number: usize, count: usize) -> u64 {
    (number.wrapping_mul(0x9e37_79b1) & (count - 1)) as u64
}

fn block(number: u64, bytes: u64) -> Span {
    Span::new(number * STRIDE, number * STRIDE + bytes)
}

/// Each waits for two.
fn two_conflicts(outstanding: usize) -> Vec<Operands> {
    let count = outstanding * 4;
    // Two operations one after the other write neighbouring halves of one block.
    let half = |operation: usize| {
        let start = scattered(operation % count / 2, count) * STRIDE + (operation % 2) as u64 * BLOCK;
        Span::new(start, start + BLOCK)
    };
    let operation = |at: usize| {
        let earlier = (at + count - outstanding / 2) % count / 2 * 2;
        let read = Span::new(half(earlier).start, half(earlier + 1).end);
        vec![Operand::read(read), Operand::write(half(at))]
    };
    (0..count).map(operation).collect()
}

fn no_conflict(outstanding: usize) -> Vec<Operands> {
    let count = outstanding * 4;
    let at = |number| block(scattered(number, count), BLOCK);
    (0..count / 2).map(|pair| vec![Operand::read(at(pair * 2)), Operand::write(at(pair * 2 + 1))]).collect()
}

fn all_sizes(outstanding: usize) -> Vec<Operands> {
    let count = outstanding * 4;
    let at = |number: usize| {
        let bits = 8 + scattered(number, 1 << 20) % 23;
        block(scattered(number, count), 1 << bits)
    };
    (0..count / 2).map(|pair| vec![Operand::read(at(pair * 2)), Operand::write(at(pair * 2 + 1))]).collect()
}

fn shared_weights(outstanding: usize) -> Vec<Operands> {
    let weights = block(1 << 20, 1 << 30);
    let mut operations = no_conflict(outstanding);
    operations.iter_mut().for_each(|operands| operands.push(Operand::read(weights)));
    operations
}

fn submit_and_complete(criterion: &mut Criterion<ThreadTime>) {
    type Make = fn(usize) -> Vec<Operands>;
    let kinds: [(&str, Make, usize); 4] = [
        ("two conflicts", two_conflicts, 2),
        ("no conflict", no_conflict, 0),
        ("all sizes", all_sizes, 0),
        ("shared weights", shared_weights, 0),
    ];
    for (name, make, conflicts) in kinds {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(1));
        for outstanding in OUTSTANDING {
            let mut bench = Bench::new(outstanding, make(outstanding), conflicts);
            group.bench_function(BenchmarkId::from_parameter(outstanding), |timer| {
                timer.iter(|| bench.step())
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = submit_and_complete
}
criterion_main!(benches);
