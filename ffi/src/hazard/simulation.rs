//! Random graphs of operations on a machine in virtual time, out of order as the tracker allows, against the same
//! machine in order.
//!
//! The machine has `lanes`, each of which runs one operation at a time, and a `window`: so many operations at
//! most are submitted and not finished. Operations are submitted in their order, as soon as the window has room.
//! - *Out of order*: whenever a lane is free, the oldest operation that the tracker lets run starts.
//! - *In order*: an operation starts once all before it have started, those that it conflicts with are finished,
//!   a lane is free and the window has room.
//!
//! What is shown of each graph:
//! - The memory is the same in the end, and each operation has read what it would have read in order. An operation
//!   reads when it begins and again when it ends, and what it writes is garbage in between, so that any two that
//!   run at once and should not are seen. Half of the operations let go of half of a region on the way.
//! - All operations run, once.
//! - With as many lanes as operations none starts later than in order, whatever the window: those before it are
//!   never further behind, by induction.
//! - With few lanes that is not so: a later operation takes a lane that an earlier one is about to need (Graham's
//!   anomalies). It then takes (2 − 1/lanes) times as long as in order at most: while a lane is free, an operation
//!   of one chain of conflicts runs; the sum of all work over the lanes, and that chain, take no longer in order.
//!   How often it is longer, and by how much, is printed.

use super::tracker::{Capacity, OperationId, Otherwise, Submitted, Tracker};
use super::{Access, Operand, Span};
use crate::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const GRAPHS: u64 = 100_000;
const GRAPHS_ON_FEW_LANES: u64 = 30_000;
/// More operations than a graph has.
const MANY: usize = 48;
const WINDOWS: [usize; 4] = [2, 5, 12, MANY];

/// One operation: its operands, cells of the memory, and how long it takes.
struct Work {
    operands: Vec<Operand<Span>>,
    time: u64,
    /// Half of this operand, a written one, is done when half of the time is over.
    in_parts: Option<usize>,
}

impl Work {
    fn random(random: &mut Random, cells: u64) -> Self {
        let operand = |random: &mut Random| {
            let start = random.below(cells);
            let end = (start + 1 + random.below(4)).min(cells);
            let access = [Access::Read, Access::Read, Access::Write, Access::Both][random.below(4) as usize];
            Operand { region: Span::new(start, end), access }
        };
        let operands: Vec<_> = (0..1 + random.below(3)).map(|_| operand(random)).collect();
        let written = operands.iter().position(|operand| operand.access.writes());
        let in_parts = written.filter(|_| random.is_one_in(2));
        Self { operands, time: 2 + random.of_any_size(7), in_parts }
    }

    fn conflicts_with(&self, later: &Self) -> bool {
        self.operands.iter().any(|one| later.operands.iter().any(|other| one.conflicts_with(other)))
    }

    /// What is done of the operand that is worked through in parts, and what is left.
    fn parts(&self) -> Option<(usize, Span, Span)> {
        let operand = self.in_parts?;
        let Span { start, end } = self.operands[operand].region;
        let middle = start.midpoint(end);
        Some((operand, Span::new(start, middle), Span::new(middle, end)))
    }
}

fn mix(seed: u64, value: u64) -> u64 {
    Random::new(seed ^ value.rotate_left(32)).next()
}

/// What operations compute: each cell that one writes is a hash of all that it has read.
#[derive(Clone, PartialEq, Debug)]
struct Memory {
    cells: Vec<u64>,
    /// What each operation has read so far.
    read: Vec<u64>,
}

impl Memory {
    fn new(cells: u64, operations: usize) -> Self {
        Self { cells: (0..cells).collect(), read: (0..operations as u64).collect() }
    }

    fn read(&mut self, operation: usize, span: Span) {
        for cell in span.start..span.end {
            self.read[operation] = mix(self.read[operation], self.cells[cell as usize]);
        }
    }

    fn write(&mut self, operation: usize, span: Span) {
        for cell in span.start..span.end {
            self.cells[cell as usize] = mix(self.read[operation], cell);
        }
    }

    fn begin(&mut self, operation: usize, work: &Work) {
        let reads = work.operands.iter().filter(|operand| operand.access != Access::Write);
        reads.for_each(|operand| self.read(operation, operand.region));
        let writes = work.operands.iter().filter(|operand| operand.access.writes());
        writes.for_each(|operand| self.write(operation, operand.region));
    }

    fn half(&mut self, operation: usize, work: &Work) {
        let Some((_, done, _)) = work.parts() else { return };
        self.read[operation] = mix(self.read[operation], 1);
        self.write(operation, done);
    }

    fn end(&mut self, operation: usize, work: &Work) {
        let reads = work.operands.iter().filter(|operand| operand.access == Access::Read);
        reads.for_each(|operand| self.read(operation, operand.region));
        self.read[operation] = mix(self.read[operation], 2);
        for (position, operand) in work.operands.iter().enumerate().filter(|(_, one)| one.access.writes()) {
            let rest = work.parts().filter(|(in_parts, ..)| *in_parts == position);
            self.write(operation, rest.map_or(operand.region, |(_, _, rest)| rest));
        }
    }
}

/// When each operation starts, and when all are finished.
#[derive(Debug)]
struct Schedule {
    starts: Vec<u64>,
    makespan: u64,
}

/// An operation starts once all before it have started: so many of these as there are lanes, or as the window
/// takes, but one, may still run.
fn in_order(graph: &[Work], lanes: usize, window: usize) -> Schedule {
    let at_once = lanes.min(window);
    let [mut starts, mut ends, mut sorted] = [const { Vec::new() }; 3];
    for (operation, work) in graph.iter().enumerate() {
        let conflicts = (0..operation).filter(|earlier| graph[*earlier].conflicts_with(work));
        let after_conflicts = conflicts.map(|earlier| ends[earlier]).max().unwrap_or(0);
        let room = (operation + 1).checked_sub(at_once + 1).map_or(0, |done| sorted[done]);
        let start = starts.last().copied().unwrap_or(0).max(after_conflicts).max(room);
        starts.push(start);
        let end = start + work.time;
        ends.push(end);
        sorted.insert(sorted.partition_point(|other| *other < end), end);
    }
    Schedule { starts, makespan: sorted.last().copied().unwrap_or(0) }
}

/// What happens to an operation that runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Half,
    End,
}

/// The machine out of order.
struct Machine<'a> {
    graph: &'a [Work],
    tracker: &'a mut Tracker<Span>,
    memory: Memory,
    lanes: usize,
    now: u64,
    ids: Vec<OperationId>,
    /// Where the tracker's operation stands in the graph.
    operations: Vec<usize>,
    ready: BinaryHeap<Reverse<usize>>,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    starts: Vec<Option<u64>>,
}

impl<'a> Machine<'a> {
    fn run(
        graph: &'a [Work],
        tracker: &'a mut Tracker<Span>,
        memory: Memory,
        lanes: usize,
    ) -> (Schedule, Memory) {
        let starts = vec![None; graph.len()];
        let (ids, operations) = (Vec::new(), vec![0; MANY]);
        let (ready, events) = (BinaryHeap::new(), BinaryHeap::new());
        let mut machine =
            Self { graph, tracker, memory, lanes, now: 0, ids, operations, ready, events, starts };
        machine.submit_and_start();
        while let Some(Reverse((time, operation, event))) = machine.events.pop() {
            machine.now = time;
            machine.handle(operation, event);
            // What happens at one time is all over before others start.
            if machine.events.peek().is_none_or(|Reverse((next, ..))| *next > time) {
                machine.submit_and_start();
            }
        }
        let starts = machine.starts.into_iter().map(|start| start.expect("no operation is left behind"));
        (Schedule { starts: starts.collect(), makespan: machine.now }, machine.memory)
    }

    fn submit_and_start(&mut self) {
        while self.ids.len() < self.graph.len() && self.submit() {}
        while self.lanes > 0
            && let Some(Reverse(operation)) = self.ready.pop()
        {
            self.start(operation);
        }
    }

    /// Submits the next operation; `false`: the window is full.
    fn submit(&mut self) -> bool {
        let operation = self.ids.len();
        let id = match self.tracker.submit(&self.graph[operation].operands, Otherwise::Buffer).unwrap() {
            Submitted::Ready(id) => {
                self.ready.push(Reverse(operation));
                id
            }
            Submitted::Buffered(id, _) => id,
            Submitted::Full(_) => return false,
            Submitted::Blocked(_) => unreachable!("it is to be buffered"),
        };
        self.ids.push(id);
        self.operations[id.slot()] = operation;
        true
    }

    fn start(&mut self, operation: usize) {
        let was = self.starts[operation].replace(self.now);
        assert_eq!(was, None, "operation {operation} ran twice");
        self.lanes -= 1;
        let work = &self.graph[operation];
        self.memory.begin(operation, work);
        self.events.push(Reverse((self.now + work.time / 2, operation, Event::Half)));
        self.events.push(Reverse((self.now + work.time, operation, Event::End)));
    }

    fn handle(&mut self, operation: usize, event: Event) {
        let Self { graph, tracker, memory, ids, operations, ready, .. } = self;
        let wake = |woken: OperationId| ready.push(Reverse(operations[woken.slot()]));
        let (work, id) = (&graph[operation], ids[operation]);
        match event {
            Event::Half => {
                memory.half(operation, work);
                if let Some((operand, _, rest)) = work.parts() {
                    tracker.shrink(id, operand, rest, wake).unwrap();
                }
            }
            Event::End => {
                memory.end(operation, work);
                tracker.complete(id, wake).unwrap();
                self.lanes += 1;
            }
        }
    }
}

/// How much faster out of order was, and how often it was slower.
#[derive(Default)]
struct Tally {
    graphs: u32,
    speed_ups: f64,
    longer: u32,
    worst: f64,
}

impl Tally {
    fn add(&mut self, in_order: &Schedule, out_of_order: &Schedule) {
        let ratio = out_of_order.makespan as f64 / in_order.makespan as f64;
        self.graphs += 1;
        self.speed_ups += 1.0 / ratio;
        self.longer += u32::from(ratio > 1.0);
        self.worst = self.worst.max(ratio);
    }

    fn print(&self, machine: &str) {
        let Self { graphs, speed_ups, longer, worst } = self;
        println!(
            "{machine}: {graphs} graphs, {:.2} times as fast as in order on average, longer than that in {longer}, \
             by {:.0} % at most",
            speed_ups / f64::from(*graphs),
            (worst - 1.0).max(0.0) * 100.0,
        );
    }
}

/// A graph, and what its memory is in the end.
struct Case {
    graph: Vec<Work>,
    before: Memory,
    after: Memory,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        let cells = 4 + random.of_any_size(9);
        let graph: Vec<_> = (0..2 + random.below(38)).map(|_| Work::random(random, cells)).collect();
        let before = Memory::new(cells, graph.len());
        let mut after = before.clone();
        for (operation, work) in graph.iter().enumerate() {
            after.begin(operation, work);
            after.half(operation, work);
            after.end(operation, work);
        }
        Self { graph, before, after }
    }

    /// The schedule out of order, once it is known to have computed the same.
    fn run(&self, tracker: &mut Tracker<Span>, lanes: usize, seed: u64) -> Schedule {
        let (schedule, memory) = Machine::run(&self.graph, tracker, self.before.clone(), lanes);
        assert!(memory == self.after, "graph {seed} on {lanes} lanes has another result than in order");
        assert!(tracker.is_empty());
        schedule
    }
}

fn tracker(window: usize) -> Tracker<Span> {
    Tracker::new(Capacity { operations: window, operands: window * 3, edges: window * window })
}

#[test]
fn with_enough_lanes_no_operation_starts_later_than_in_order_and_results_are_equal() {
    let mut trackers = WINDOWS.map(tracker);
    let mut tally = Tally::default();
    for seed in 0..GRAPHS {
        let mut random = Random::new(seed);
        let case = Case::random(&mut random);
        let tracker = &mut trackers[random.below(4) as usize];
        let in_order = in_order(&case.graph, MANY, tracker.room().operations);
        let out_of_order = case.run(tracker, MANY, seed);
        for (operation, (start, latest)) in out_of_order.starts.iter().zip(&in_order.starts).enumerate() {
            assert!(start <= latest, "graph {seed}: operation {operation} starts at {start}, not {latest}");
        }
        assert!(out_of_order.makespan <= in_order.makespan, "graph {seed}");
        tally.add(&in_order, &out_of_order);
    }
    tally.print("as many lanes as operations");
}

#[test]
fn with_few_lanes_results_are_equal_and_grahams_bound_holds() {
    let mut tracker = tracker(MANY);
    let mut tallies: [Tally; 9] = Default::default();
    for seed in 0..GRAPHS_ON_FEW_LANES {
        let mut random = Random::new(seed);
        let case = Case::random(&mut random);
        let lanes = [1, 2, 3, 4, 8][random.below(5) as usize];
        let in_order = in_order(&case.graph, lanes, MANY);
        let out_of_order = case.run(&mut tracker, lanes, seed);
        let bound = (2 * lanes as u64 - 1) * in_order.makespan;
        assert!(out_of_order.makespan * lanes as u64 <= bound, "graph {seed} on {lanes} lanes");
        tallies[lanes].add(&in_order, &out_of_order);
    }
    for (lanes, tally) in tallies.iter().enumerate().filter(|(_, tally)| tally.graphs > 0) {
        tally.print(&format!("{lanes} lanes"));
    }
}
