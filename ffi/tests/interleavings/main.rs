//! The out-of-order queue under every schedule.
//!
//! `queue.rs` is compiled here once more, as it is, over a [`sync`] of `loom`'s types. Each test is a model: a few
//! threads, which `loom` runs again and again, each time with another choice of whose turn it is, until it has
//! tried all choices with no more than so many preemptions (`LOOM_MAX_PREEMPTIONS`). A model fails where threads
//! wait for each other for ever, where two use at once what only one may, and where it says so itself. Nobody
//! wakes up for no reason.

#[path = "../../../shim/tests/interleavings/alone.rs"]
mod alone;

// What no model uses.
#[allow(dead_code)]
#[path = "../../src/hazard/queue.rs"]
mod queue;

mod sync;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use queue::{Cause, Failure, Lane, NotTaken, Queue, Running, Ticket};
use std::sync::mpsc::channel;
use sync::model;
use tidegate_ffi::hazard::tracker::{self, Capacity};
use tidegate_ffi::hazard::{Operand, Region, Span};

/// The one cell that operations touch.
const CELL: Span = Span::id(0);

/// What a model's operation does.
enum Work {
    /// Adds its number to the log.
    Note(u32),
    /// Fails, once there is a note.
    Fail,
    /// Lets go of its region, and waits until another one has run.
    LetGoAndWait,
    /// Behind a note, runs only beside another one that does this.
    Meet,
}

/// What lanes share.
#[derive(Default)]
struct Lanes {
    /// What writes it has it alone: `loom` watches.
    log: Log,
    notes: Mutex<usize>,
    noted: Condvar,
}

struct Log(UnsafeCell<Vec<u32>>);

impl Default for Log {
    fn default() -> Self {
        Self(UnsafeCell::new(Vec::new()))
    }
}

// SAFETY: that no two threads use the log at once is what the models show: `loom` watches.
unsafe impl Sync for Log {}
// SAFETY: it is a list of numbers.
unsafe impl Send for Log {}

impl Log {
    fn add(&self, number: u32) {
        // SAFETY: `loom` fails the model if another thread uses the log.
        self.0.with_mut(|log| unsafe { &mut *log }.push(number));
    }

    fn all(&self) -> Vec<u32> {
        // SAFETY: `loom` fails the model if another thread writes the log.
        self.0.with(|log| unsafe { &*log }.clone())
    }
}

#[derive(Clone, Default)]
struct Player(Arc<Lanes>);

impl Lane<Span, Work> for Player {
    fn run(&mut self, work: Work, running: &Running<'_, Span, Work>) -> Result<(), Cause> {
        match work {
            Work::Note(number) => self.note(number),
            Work::Fail => {
                self.wait_for_notes(1);
                return Err("no luck".into());
            }
            Work::LetGoAndWait => {
                running.writes_only(0, Span::default())?;
                self.wait_for_notes(1);
            }
            Work::Meet => {
                self.say_that_one_ran();
                self.wait_for_notes(3);
            }
        }
        Ok(())
    }
}

impl Player {
    fn note(&self, number: u32) {
        self.0.log.add(number);
        self.say_that_one_ran();
    }

    fn say_that_one_ran(&self) {
        *self.0.notes.lock().unwrap() += 1;
        self.0.noted.notify_all();
    }

    fn wait_for_notes(&self, count: usize) {
        let mut notes = self.0.notes.lock().unwrap();
        while *notes < count {
            notes = self.0.noted.wait(notes).unwrap();
        }
    }
}

/// A queue, and what its lanes share.
fn queue(operations: usize, lanes: usize) -> (Arc<Queue<Span, Work>>, Player) {
    let player = Player::default();
    let capacity = Capacity { operations, operands: operations, edges: 8 };
    let queue = Queue::new(capacity, (0..lanes).map(|_| player.clone()));
    (Arc::new(queue.unwrap_or_else(|error| panic!("{error}"))), player)
}

fn write(queue: &Queue<Span, Work>, work: Work) -> Ticket {
    queue.submit(work, &[], &[CELL]).unwrap()
}

/// Waits for all operations and for the lanes.
fn end(queue: Arc<Queue<Span, Work>>) {
    drop(Arc::try_unwrap(queue).ok().expect("nobody else has it"));
}

/// The notes of two submitters, 1 and 2 of the one and 3 of the other, in the order in which a queue makes them.
fn notes_of_two_submitters(operations: usize, lanes: usize) -> Vec<u32> {
    let (queue, player) = queue(operations, lanes);
    let other = queue.clone();
    let submitter = loom::thread::spawn(move || drop(write(&other, Work::Note(3))));
    write(&queue, Work::Note(1));
    write(&queue, Work::Note(2));
    submitter.join().unwrap();
    end(queue);
    player.0.log.all()
}

#[test]
fn operations_of_two_submitters_run_once_alone_and_in_their_order() {
    model(2, || {
        let log = notes_of_two_submitters(3, 2);
        assert!([[1, 2, 3], [1, 3, 2], [3, 1, 2]].iter().any(|order| log == order), "{log:?}");
    });
}

#[test]
fn submitters_that_wait_for_room_get_it() {
    model(2, || {
        assert_eq!(notes_of_two_submitters(1, 1).len(), 3);
    });
}

#[test]
fn who_waits_for_a_ticket_is_told() {
    model(3, || {
        let (queue, player) = queue(2, 1);
        let (say, said) = channel();
        let first = write(&queue, Work::Note(1));
        first.then(move |outcome| say.send(outcome.is_ok()).unwrap());
        write(&queue, Work::Note(2)).wait().unwrap();
        assert_eq!(player.0.log.all(), [1, 2]);
        assert_eq!(said.try_recv(), Ok(true), "the first is told before the second runs");
        end(queue);
    });
}

#[test]
fn who_no_longer_conflicts_runs_beside_the_earlier_one() {
    model(2, || {
        let (queue, player) = queue(2, 2);
        let first = write(&queue, Work::LetGoAndWait);
        let second = write(&queue, Work::Note(1));
        first.wait().unwrap();
        second.wait().unwrap();
        end(queue);
        assert_eq!(player.0.log.all(), [1]);
    });
}

#[test]
fn who_waits_for_one_that_fails_does_not_run() {
    model(2, || {
        let (queue, player) = queue(3, 2);
        let tickets = [Work::Fail, Work::Note(1), Work::Note(2)].map(|work| write(&queue, work));
        player.say_that_one_ran();
        let [first, second, third] = tickets.map(|ticket| ticket.wait());
        end(queue);
        assert!(matches!(first, Err(Failure::Failed(_))));
        assert!(matches!([second, third], [Err(Failure::Skipped { .. }), Err(Failure::Skipped { .. })]));
        assert_eq!(player.0.log.all(), []);
    });
}

#[test]
fn a_queue_that_is_dropped_keeps_all_its_lanes_to_the_end() {
    model(2, || {
        let (queue, player) = queue(3, 2);
        write(&queue, Work::Note(1));
        for _ in 0..2 {
            queue.submit(Work::Meet, &[CELL], &[]).unwrap();
        }
        end(queue);
        assert_eq!(player.0.log.all(), [1]);
    });
}

#[test]
fn a_scope_ends_when_all_that_was_submitted_is_finished() {
    model(2, || {
        let player = Player::default();
        let capacity = Capacity { operations: 2, operands: 2, edges: 8 };
        let lanes = (0..2).map(|_| player.clone());
        let ticket = Queue::scope(capacity, lanes, |queue: &Queue<Span, Work>| {
            write(queue, Work::Note(1));
            write(queue, Work::Note(2))
        });
        assert!(ticket.is_ok_and(|ticket| ticket.is_done()));
        assert_eq!(player.0.log.all(), [1, 2]);
    });
}

#[test]
fn a_queue_without_room_says_so_or_takes_the_work() {
    model(3, || {
        let (queue, player) = queue(1, 1);
        write(&queue, Work::Note(1));
        let taken = match queue.try_submit(Work::Note(2), &[], &[CELL]) {
            Ok(_) => vec![1, 2],
            Err(NotTaken::Full(_)) => vec![1],
            Err(NotTaken::Never(error)) => panic!("{error}"),
        };
        end(queue);
        assert_eq!(player.0.log.all(), taken);
    });
}
