//! Many switches at moments that nobody chose, under threads that allocate, compute and free.

use crate::guest::Line;
use crate::manager::{Manager, TENANT};
use crate::stage::UNIT;
use rustix::event::Timespec;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_ffi::units::{PieceId, Step};
use tidegate_ffi::wire::live::LiveRange;
use tidegate_ffi::wire::message::{Drained, FromShim, LeaseRequest, Placed, ToShim};

/// The switches that must have happened for the promise to mean anything.
const SWITCHES: usize = 40;
/// What a thread does at once; it is told to do it again until the switches have happened.
const ROUNDS: u32 = 500;
/// So many pieces are asked back while so many threads want memory: enough for a lease to come
/// between, if it can.
const RETURNS: usize = 12_000;
const THREADS: u64 = 8;

promise! {
    fn threads_find_their_bytes_whenever_they_are_stopped() {
        storm_over_workers(SWITCHES, |_| {});
    }
}

promise! {
    fn threads_find_their_bytes_whatever_managers_die_meanwhile() {
        storm_over_workers(SWITCHES / 2, |manager| {
            // Another one lives a while; the seventeen is prime to what a switch takes.
            if manager.cut.get().is_none() {
                manager.cut.set(Some(17));
            }
        });
    }
}

/// Stops threads at work again and again; `between` is called between two switches.
fn storm_over_workers(least: usize, between: impl Fn(&Manager)) {
    let mut storm = Storm { manager: Manager::start(), placed: BTreeMap::new(), answered: Vec::new() };
    let (guest, _first) = storm.manager.guest_with_context();
    let mut workers: Vec<Line> = (0..3).map(|_| guest.line()).collect();
    for (seed, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.ask("context"), "ok");
        worker.tell(&format!("work {seed} {ROUNDS}"));
    }
    let mut switches = 0;
    let mut working = workers;
    while !working.is_empty() {
        between(&storm.manager);
        storm.serve_for_a_while();
        storm.switch();
        switches += 1;
        working.retain_mut(|worker| {
            let ended = worker.answers_within(Duration::from_micros(100));
            if ended {
                assert_eq!(worker.hear(), "ok");
            }
            let again = ended && switches < least;
            if again {
                worker.tell(&format!("work {switches} {ROUNDS}"));
            }
            !ended || again
        });
    }
    guest.end();
}

struct Storm {
    manager: Manager,
    /// What the guest has mapped.
    placed: BTreeMap<PieceId, Placed>,
    /// The leases answered since the last opening.
    answered: Vec<(LeaseRequest, PieceId)>,
}

impl Storm {
    /// Answers leases for some milliseconds.
    fn serve_for_a_while(&mut self) {
        for lease in std::mem::take(&mut self.manager.asked) {
            self.grant(lease);
        }
        let patience = Timespec { tv_sec: 0, tv_nsec: 3_000_000 };
        for _ in 0..3 {
            if self.manager.hears_within(&patience) {
                let message = self.manager.hear();
                self.note(message);
                for lease in std::mem::take(&mut self.manager.asked) {
                    self.grant(lease);
                }
            }
        }
    }

    fn note(&mut self, message: FromShim) {
        match message {
            FromShim::Lease(lease) => self.manager.asked.push(lease),
            FromShim::Waiting | FromShim::Stalled { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn grant(&mut self, lease: LeaseRequest) {
        let piece = self.manager.grant(&lease);
        self.placed.insert(piece.piece, piece);
        self.answered.push((lease, piece.piece));
    }

    /// Stops the guest, takes all its memory, gives back what is alive and poison for the rest.
    fn switch(&mut self) {
        self.manager.ask_to_close(0, 0);
        let (drained, live) = self.wait_for_drained();
        self.void(&drained.outstanding);
        let old: Vec<Placed> = self.placed.values().copied().collect();
        self.placed.clear();
        self.manager.unmap(&old);
        let new: Vec<Placed> = old.iter().filter_map(|piece| self.replace(piece, &live)).collect();
        self.manager.map(&new);
        self.placed.extend(new.into_iter().map(|piece| (piece.piece, piece)));
        self.answered.clear();
        self.manager.open();
    }

    /// Every second lease that comes now is answered at once: its answer may cross `Drained`.
    fn wait_for_drained(&mut self) -> (Drained, Vec<LiveRange>) {
        loop {
            match self.manager.hear_or_drained() {
                Ok(drained) => return drained,
                Err(message) => self.note(message),
            }
            if self.manager.asked.len() > 1 {
                let lease = self.manager.asked.remove(0);
                self.grant(lease);
            }
        }
    }

    fn void(&mut self, outstanding: &[Step]) {
        for (lease, piece) in std::mem::take(&mut self.answered) {
            if outstanding.contains(&lease.step) {
                self.placed.remove(&piece);
                self.manager.destroy(piece);
                self.manager.asked.push(lease);
            }
        }
    }

    /// A new piece with the live bytes of the old one, if it has any.
    fn replace(&mut self, old: &Placed, live: &[LiveRange]) -> Option<Placed> {
        let saved = self.manager.load(old.piece);
        self.manager.destroy(old.piece);
        let start = u64::from(old.slot.0) * UNIT;
        let end = start + saved.len() as u64;
        let mut bytes = vec![0xff; saved.len()];
        let mut alive = false;
        for range in live.iter().filter(|range| range.class == old.class) {
            let (from, to) = (range.start.max(start), (range.start + range.bytes).min(end));
            if from < to {
                let part = (from - start) as usize..(to - start) as usize;
                bytes[part.clone()].copy_from_slice(&saved[part]);
                alive = true;
            }
        }
        alive.then(|| {
            let new = self.manager.make(old.class, old.slot.0, old.units.0);
            self.manager.store(new.piece, &bytes);
            new
        })
    }
}

promise! {
    fn nobody_asks_for_slots_whose_pieces_it_has_not_given_back() {
        let mut storm = Storm { manager: Manager::start(), placed: BTreeMap::new(), answered: Vec::new() };
        let (guest, _first) = storm.manager.guest_with_context();
        let mut working: Vec<Line> = (0..THREADS).map(|_| guest.line()).collect();
        for worker in &mut working {
            assert_eq!(worker.ask("context"), "ok");
            worker.tell(&format!("churn {UNIT} {ROUNDS}"));
        }
        let mut returned = 0;
        while !working.is_empty() {
            for _ in 0..100 {
                storm.manager.send(ToShim::Recall { tenant: TENANT }, &[]);
                returned += storm.serve_until_returned();
            }
            working.retain_mut(|worker| {
                let ended = worker.answers_within(Duration::from_micros(1));
                if ended {
                    assert_eq!(worker.hear(), "ok");
                }
                let again = ended && returned < RETURNS;
                if again {
                    worker.tell(&format!("churn {UNIT} {ROUNDS}"));
                }
                !ended || again
            });
        }
        guest.end();
    }
}

impl Storm {
    /// Answers leases, none of which may be for a slot that has a piece, until the recall is
    /// answered: how many pieces came back.
    fn serve_until_returned(&mut self) -> usize {
        loop {
            match self.manager.hear() {
                FromShim::Return { pieces, .. } => {
                    for piece in &pieces {
                        self.placed.remove(piece).expect("a piece that it has");
                        self.manager.destroy(*piece);
                    }
                    return pieces.len();
                }
                FromShim::Lease(lease) => {
                    let end = lease.first.0 + lease.units.0;
                    let there = |piece: &&Placed| {
                        let behind = piece.slot.0 < end && lease.first.0 < piece.slot.0 + piece.units.0;
                        piece.class == lease.class && behind
                    };
                    let there = self.placed.values().find(there);
                    assert!(there.is_none(), "{lease:?}, where it still has {there:?}");
                    self.grant(lease);
                }
                other => self.note(other),
            }
        }
    }
}
