//! The queue on real threads. `tests/interleavings` has it in all orders of their steps.

use super::Span;
use super::queue::{Cause, Lane, NotTaken, Outcome, Queue, QueueError, Running, Ticket};
use super::tracker::Capacity;
use crate::random::Random;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

/// Longer than anything here can take, so that a test that waits in vain fails.
const PATIENCE: Duration = Duration::from_secs(60);

const ROOM: Capacity = Capacity { operations: 64, operands: 256, edges: 1024 };

type Call = dyn FnOnce(&Running<'_, Span, Work>) -> Result<(), Cause> + Send;

/// What a test has an operation do.
struct Work(Box<Call>);

impl Work {
    fn new(call: impl FnOnce() -> Result<(), Cause> + Send + 'static) -> Self {
        Self(Box::new(move |_| call()))
    }

    /// Does this, without fail.
    fn of(call: impl FnOnce() + Send + 'static) -> Self {
        Self::new(move || {
            call();
            Ok(())
        })
    }

    /// Does nothing.
    fn none() -> Self {
        Self::of(|| ())
    }

    fn fails(why: &'static str) -> Self {
        Self::new(move || Err(why.into()))
    }
}

/// Counts how often it runs.
fn counts(ran: &Arc<AtomicUsize>) -> Work {
    let ran = ran.clone();
    Work::of(move || {
        ran.fetch_add(1, SeqCst);
    })
}

fn lane() -> impl Lane<Span, Work> {
    |work: Work, running: &Running<'_, Span, Work>| (work.0)(running)
}

fn queue(room: Capacity, lanes: usize) -> Queue<Span, Work> {
    Queue::new(room, (0..lanes).map(|_| lane())).unwrap()
}

fn span(start: u64, end: u64) -> Span {
    Span::new(start, end)
}

/// Submits what touches one cell.
fn write(queue: &Queue<Span, Work>, cell: u64, work: Work) -> Ticket {
    queue.submit(work, &[], &[Span::id(cell)]).unwrap()
}

/// An operation that runs, and waits to be let go on.
struct Held(Sender<()>);

impl Held {
    fn go_on(self) {
        self.0.send(()).expect("it waits");
    }
}

/// Submits one that touches one cell, and waits until it runs.
fn hold(queue: &Queue<Span, Work>, cell: u64) -> (Held, Ticket) {
    let ((say, runs), (go_on, wait)) = (channel(), channel());
    let work = Work::new(move || {
        say.send(())?;
        Ok(wait.recv_timeout(PATIENCE)?)
    });
    let ticket = write(queue, cell, work);
    runs.recv_timeout(PATIENCE).expect("it runs");
    (Held(go_on), ticket)
}

#[test]
fn later_operations_that_nothing_is_in_the_way_of_go_ahead() {
    let queue = queue(ROOM, 2);
    let (held, first) = hold(&queue, 0);
    let second = write(&queue, 0, Work::none());
    let third = write(&queue, 1, Work::none());
    third.wait().unwrap();
    assert!(!first.is_done() && !second.is_done());
    held.go_on();
    second.wait().unwrap();
    assert!(first.is_done() || first.wait().is_ok());
}

#[test]
fn as_many_operations_run_at_once_as_there_are_lanes() {
    let queue = queue(ROOM, 3);
    let barrier = Arc::new(Barrier::new(3));
    let tickets = [0, 1, 2].map(|cell| {
        let barrier = barrier.clone();
        let work = Work::of(move || {
            barrier.wait();
        });
        write(&queue, cell, work)
    });
    tickets.iter().for_each(|ticket| ticket.wait().unwrap());
}

#[test]
fn a_free_lane_takes_the_oldest_that_may_run() {
    let queue = queue(ROOM, 1);
    let (held, _) = hold(&queue, 0);
    let order = Arc::new(Mutex::new(Vec::new()));
    for (number, cell) in [0, 1, 2, 0, 3].into_iter().enumerate() {
        let order = order.clone();
        write(&queue, cell, Work::of(move || order.lock().unwrap().push(number)));
    }
    held.go_on();
    drop(queue);
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn who_waits_for_one_that_fails_fails_with_its_cause_and_does_not_run() {
    let queue = queue(ROOM, 2);
    let (held, _) = hold(&queue, 9);
    let ran = Arc::new(AtomicUsize::new(0));
    let first = queue.submit(Work::fails("no luck"), &[Span::id(9)], &[Span::id(0)]).unwrap();
    let second = queue.submit(counts(&ran), &[Span::id(0)], &[Span::id(1)]).unwrap();
    let third = queue.submit(counts(&ran), &[Span::id(1), Span::id(9)], &[]).unwrap();
    let other = queue.submit(counts(&ran), &[Span::id(9)], &[Span::id(2)]).unwrap();
    held.go_on();
    assert_eq!(first.wait().unwrap_err().to_string(), "the operation failed: no luck");
    let why =
        format!("the operation did not run, since operation {} before it failed: no luck", first.number());
    assert_eq!([second, third].map(|ticket| ticket.wait().unwrap_err().to_string()), [why.clone(), why]);
    other.wait().unwrap();
    write(&queue, 0, counts(&ran)).wait().expect("who comes after a failure runs");
    assert_eq!(ran.load(SeqCst), 2);
}

#[test]
fn a_panic_is_a_failure_and_the_lane_goes_on() {
    let queue = queue(ROOM, 1);
    let panics = write(&queue, 0, Work::new(|| panic!("a test's panic")));
    let why = "the operation failed: it panicked: a test's panic";
    assert_eq!(panics.wait().unwrap_err().to_string(), why);
    let (held, ticket) = hold(&queue, 0);
    ticket.then(|_| panic!("a test's other panic"));
    held.go_on();
    write(&queue, 0, Work::none()).wait().unwrap();
}

#[test]
fn what_a_ticket_was_given_is_called_once_with_the_outcome() {
    let queue = queue(ROOM, 1);
    let (say, said) = channel();
    let (held, first) = hold(&queue, 0);
    let late = write(&queue, 0, Work::fails("no luck"));
    let told = |name: &'static str| {
        let say = say.clone();
        move |outcome: Outcome| say.send((name, outcome.is_ok())).unwrap()
    };
    first.then(told("first"));
    held.go_on();
    late.wait().unwrap_err();
    late.then(told("late"));
    drop((queue, say));
    assert_eq!(said.iter().collect::<Vec<_>>(), [("first", true), ("late", false)]);
}

#[test]
fn a_submitter_waits_for_room_and_gets_it_in_turn() {
    let queue = queue(Capacity { operations: 2, ..ROOM }, 1);
    let (held, _) = hold(&queue, 0);
    write(&queue, 0, Work::none());
    assert!(matches!(queue.try_submit(Work::none(), &[], &[]), Err(NotTaken::Full(_))));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| write(&queue, 1, Work::none()).wait());
        while queue.waiting() == 0 {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        held.go_on();
        waits.join().unwrap().unwrap();
    });
    let taken = queue.try_submit(Work::none(), &[], &[]);
    taken.unwrap_or_else(|error| panic!("{}", error.to_string())).wait().unwrap();
}

#[test]
fn what_is_never_taken_is_an_error_and_nobody_waits_for_it() {
    let queue = queue(Capacity { operands: 1, ..ROOM }, 1);
    let too_many = [Span::id(0), Span::id(1)];
    assert!(queue.submit(Work::none(), &too_many, &[]).is_err());
    assert!(matches!(queue.try_submit(Work::none(), &[], &too_many), Err(NotTaken::Never(_))));
    write(&queue, 0, Work::none()).wait().unwrap();
    assert!(matches!(
        Queue::<Span, Work>::new(ROOM, Some(lane()).into_iter().take(0)),
        Err(QueueError::NoLanes)
    ));
}

#[test]
fn a_queue_that_is_dropped_has_run_everything() {
    let ran = Arc::new(AtomicUsize::new(0));
    let queue = queue(ROOM, 3);
    for number in 0..500 {
        write(&queue, number % 7, counts(&ran));
    }
    drop(queue);
    assert_eq!(ran.load(SeqCst), 500);
}

#[test]
fn work_in_a_scope_may_borrow_and_is_done_when_the_scope_ends() {
    type Borrows<'a> = Box<dyn FnOnce() + Send + 'a>;
    let ran = AtomicUsize::new(0);
    let lane = |work: Borrows<'_>, _: &Running<'_, Span, Borrows<'_>>| {
        work();
        Ok(())
    };
    let returned = Queue::scope(ROOM, [lane, lane], |queue| {
        for number in 0..500 {
            let work: Borrows<'_> = Box::new(|| {
                ran.fetch_add(1, SeqCst);
            });
            queue.submit(work, &[], &[Span::id(number % 7)]).unwrap();
        }
        "what it returns"
    });
    assert_eq!((returned.unwrap(), ran.load(SeqCst)), ("what it returns", 500));
    let none = Queue::<Span, Borrows<'_>>::scope(ROOM, Some(lane).into_iter().take(0), |_| ());
    assert!(matches!(none, Err(QueueError::NoLanes)));
}

#[test]
fn a_scope_that_is_left_by_a_panic_ends() {
    let left = catch_unwind(|| {
        Queue::scope(ROOM, [lane()], |queue| {
            write(queue, 0, Work::none());
            panic!("a test's panic");
        })
    });
    assert!(left.is_err());
}

#[test]
fn what_an_operation_has_left_behind_is_free_for_others() {
    let queue = queue(ROOM, 2);
    let (first_half, done) = channel();
    let shrinks = Work(Box::new(move |running| {
        running.reads_only(1, span(0, 0)).unwrap_err();
        running.reads_only(0, span(250, 300))?;
        running.writes_only(0, span(50, 100))?;
        done_within_patience(&done)
    }));
    let first = queue.submit(shrinks, &[span(200, 300)], &[span(0, 100)]).unwrap();
    let last = queue.submit(Work::none(), &[span(0, 51)], &[]).unwrap();
    let second = queue.submit(Work::none(), &[span(0, 50)], &[span(200, 250)]).unwrap();
    second.wait().unwrap();
    assert!(!first.is_done() && !last.is_done());
    first_half.send(()).unwrap();
    last.wait().unwrap();
    first.wait().unwrap();
}

fn done_within_patience(done: &Receiver<()>) -> Result<(), Cause> {
    Ok(done.recv_timeout(PATIENCE)?)
}

/// Submits random operations, each of which writes a hash of what it reads; the memory when all are done, which
/// is when `submit` is dropped.
fn computed(seed: u64, memory: &[AtomicU64], mut submit: impl FnMut(Vec<u64>, u64, u64)) -> Vec<u64> {
    let mut random = Random::new(seed);
    for number in 0..200 {
        let reads = (0..random.below(3)).map(|_| random.below(CELLS)).collect();
        submit(reads, random.below(CELLS), number);
    }
    drop(submit);
    memory.iter().map(|cell| cell.load(SeqCst)).collect()
}

const CELLS: u64 = 12;

fn memory() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..CELLS).map(AtomicU64::new).collect())
}

fn compute(memory: &[AtomicU64], reads: &[u64], write: u64, number: u64) {
    let read = |hash: u64, cell: &u64| Random::new(hash ^ memory[*cell as usize].load(SeqCst)).next();
    memory[write as usize].store(reads.iter().fold(number, read), SeqCst);
}

#[test]
fn results_on_threads_are_those_in_order() {
    for seed in 0..100 {
        let (one, other) = (memory(), memory());
        let expected = computed(seed, &one, |reads, write, number| compute(&one, &reads, write, number));
        let (queue, cells) = (queue(Capacity { operations: 16, ..ROOM }, 4), other.clone());
        let found = computed(seed, &other, move |reads, write, number| {
            let cells = cells.clone();
            let spans: Vec<_> = reads.iter().map(|cell| Span::id(*cell)).collect();
            let work = Work::of(move || compute(&cells, &reads, write, number));
            queue.submit(work, &spans, &[Span::id(write)]).unwrap();
        });
        assert_eq!(found, expected, "seed {seed}");
    }
}
