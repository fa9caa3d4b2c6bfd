//! Threads that ask the manager, against the one that reads its answers, the one that stops the
//! process, and the end of a connection. The manager is the model's main thread.

use crate::gate::{BoundaryWait, GATE, Goal};
use crate::link::{Gone, Link, Order, Replies, Reply};
use crate::reunion::{Connection, Found, Session};
use crate::sync::mpsc::{Receiver, channel};
use crate::sync::thread::spawn;
use crate::sync::{model, never};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex as Alone};
use tidegate_ffi::units::{Class, PieceId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::line::Line;
use tidegate_ffi::wire::message::{Drained, FromShim, LeaseRequest, Placed, ToShim};

/// The manager's end of the conversation.
struct Manager {
    connection: Connection,
    line: Line<ToShim>,
}

impl Manager {
    fn say(&mut self, message: ToShim) {
        self.connection.tell(self.line.say(message).unwrap());
    }

    /// Waits for the next message.
    fn hear(&mut self) -> FromShim {
        loop {
            let letter = self.connection.take().expect("the shim does not end the connection");
            if let Some(message) = self.line.hear(letter).expect("messages come in their order") {
                return message;
            }
        }
    }

    /// Dies, with what was under way to it; the next one knows what it knew.
    fn die(&mut self, asks: &Receiver<u64>) -> Found {
        self.connection.cut();
        let heard = asks.recv().unwrap();
        self.connection = Connection::new();
        self.line.resume(heard).unwrap().into_iter().for_each(|letter| self.connection.tell(letter));
        Found { connection: self.connection.clone(), heard: self.line.heard() }
    }

    fn lease(&mut self, step: Step, piece: u64, more: bool) {
        let piece = PieceId(piece);
        let placed = Placed { piece, class: Class::Temporary, slot: SlotIndex(0), units: Units(1) };
        self.say(ToShim::Leased { step, pieces: vec![placed], more });
    }

    /// Ends the session; the orders that the shim has got from it.
    fn refuse(&mut self, orders: &Receiver<Order>) -> Vec<ToShim> {
        self.say(ToShim::Refused { reason: "it is over".into() });
        let mut got = Vec::new();
        while let Order::Message(order, _) = orders.recv().unwrap() {
            got.push(order);
        }
        got
    }
}

/// A process and its manager in the middle of a session. Its reader reads.
fn meet(session: Session) -> (Arc<Link>, Manager, Receiver<Order>) {
    let connection = Connection::new();
    let link = Arc::new(Link::new(Arc::new(connection.clone()), Line::new(), session));
    let (sender, orders) = channel();
    let (reader, its_end) = (link.clone(), Arc::new(connection.clone()));
    spawn(move || reader.read(its_end, &sender));
    (link, Manager { connection, line: Line::new() }, orders)
}

/// There is no other manager.
fn the_last() -> Session {
    Session(Box::new(|_| unreachable!("the connection does not end")))
}

fn ask_for_pieces(link: &Link) -> Result<Replies<'_>, Gone> {
    link.request(|step| {
        let (tenant, class, first) = (TenantId(1), Class::Temporary, SlotIndex(0));
        let (units, ahead) = (Units(1), Units(0));
        FromShim::Lease(LeaseRequest { step, tenant, class, first, units, ahead, whole: false })
    })
}

/// Asks for pieces, and maps what comes as a thread of the program does: `mapped` counts.
fn lease(link: &Link, mapped: &AtomicU64) -> Result<Vec<PieceId>, Gone> {
    let replies = ask_for_pieces(link)?;
    let mut got = Vec::new();
    loop {
        let Reply::Leased { pieces, more, arrival, .. } = replies.next()? else {
            panic!("not what was asked")
        };
        got.extend(pieces.iter().map(|placed| placed.piece));
        mapped.fetch_add(pieces.len() as u64, SeqCst);
        drop(arrival);
        if !more {
            return Ok(got);
        }
    }
}

#[test]
fn nobody_waits_for_a_manager_that_has_refused_the_process() {
    model(3, || {
        let (link, mut manager, orders) = meet(the_last());
        let asker = {
            let link = link.clone();
            spawn(move || lease(&link, &AtomicU64::new(0)))
        };
        manager.refuse(&orders);
        assert!(asker.join().unwrap().is_err());
        assert!(link.send(done(1)).is_err(), "nobody will hear it");
        // The closer is not kept by a program that comes to no boundary.
        assert_eq!(GATE.wait_for(Goal::Boundary(0), never(), None), BoundaryWait::GivenUp);
    });
}

#[test]
fn answers_come_to_who_asked_in_their_order() {
    model(1, || {
        let (link, mut manager, orders) = meet(the_last());
        let askers = [(); 2].map(|()| {
            let link = link.clone();
            spawn(move || lease(&link, &AtomicU64::new(0)).unwrap())
        });
        for _ in &askers {
            let FromShim::Lease(LeaseRequest { step, .. }) = manager.hear() else { panic!("nobody asked") };
            manager.lease(step, 10 * step.0, true);
            manager.lease(step, 10 * step.0 + 1, false);
        }
        let mut got = askers.map(|asker| asker.join().unwrap());
        got.sort();
        assert_eq!(got, [1, 2].map(|step| vec![PieceId(10 * step), PieceId(10 * step + 1)]));
        manager.refuse(&orders);
    });
}

/// A manager that hears `Drained` takes back what it had leased to those on the list, and answers
/// them anew when it lets the process go on. Whether pieces or the list come first, both sides agree
/// on who has what.
#[test]
fn what_crosses_the_list_of_leases_is_void_on_both_sides() {
    model(2, || {
        let (link, mut manager, orders) = meet(the_last());
        let mapped = Arc::new(AtomicU64::new(0));
        let asker = {
            let (link, mapped) = (link.clone(), mapped.clone());
            spawn(move || lease(&link, &mapped).unwrap())
        };
        let closer = spawn(move || {
            link.hold();
            assert!(GATE.wait_until_empty(never()));
            // The live map tells of what is mapped now.
            let in_map = mapped.load(SeqCst);
            link.send_drained(|outstanding| drained(outstanding, in_map), Vec::new()).unwrap();
        });
        let theirs = play_a_switch(&mut manager);
        assert_eq!(asker.join().unwrap(), [theirs], "the pieces that the manager knows of");
        closer.join().unwrap();
        assert_eq!(manager.refuse(&orders), [ToShim::Open]);
    });
}

/// Leases one piece, before `Drained` or after it; which one is the shim's in the end.
fn play_a_switch(manager: &mut Manager) -> PieceId {
    let (mut asked, mut is_drained, mut theirs) = (None, false, None);
    while theirs.is_none() || !is_drained {
        match manager.hear() {
            FromShim::Lease(request) => {
                asked = Some(request.step);
                manager.lease(request.step, 1, false);
                theirs = Some(PieceId(1));
            }
            FromShim::Drained(Drained { outstanding, boundaries: in_map, .. }) => {
                is_drained = true;
                theirs = theirs.filter(|_| !outstanding.contains(&asked.unwrap()));
                assert_eq!(in_map, theirs.iter().count() as u64, "pieces of which the live map tells");
                manager.say(ToShim::Open);
                if let (Some(step), None) = (asked, theirs) {
                    manager.lease(step, 2, false);
                    theirs = Some(PieceId(2));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    theirs.unwrap()
}

fn drained(outstanding: Vec<Step>, in_map: u64) -> FromShim {
    FromShim::Drained(Drained {
        step: Step(1),
        at_boundary: true,
        drain_micros: 0,
        tenants: Vec::new(),
        outstanding,
        boundaries: in_map,
    })
}

/// The work did not end: there is no `Drained`.
#[test]
fn what_was_held_back_is_handed_on_when_the_process_goes_on() {
    model(2, || {
        let (link, mut manager, orders) = meet(the_last());
        let asker = {
            let link = link.clone();
            spawn(move || lease(&link, &AtomicU64::new(0)).unwrap())
        };
        let closer = spawn(move || {
            link.hold();
            link.hand_on();
        });
        let FromShim::Lease(LeaseRequest { step, .. }) = manager.hear() else { panic!("nobody asked") };
        manager.lease(step, 1, true);
        manager.lease(step, 2, false);
        assert_eq!(asker.join().unwrap(), [PieceId(1), PieceId(2)]);
        closer.join().unwrap();
        manager.refuse(&orders);
    });
}

#[test]
fn two_threads_messages_are_each_heard_once_when_the_manager_dies() {
    model(2, || the_manager_dies_after_the_first_of(&[&[1], &[2]]));
}

#[test]
fn a_threads_messages_are_heard_once_and_in_order_when_the_manager_dies() {
    model(2, || the_manager_dies_after_the_first_of(&[&[1, 2, 3]]));
}

/// Threads say so much; the manager hears one message and dies, at whatever moment, and the next one
/// hears the rest.
fn the_manager_dies_after_the_first_of(said: &'static [&[u64]]) {
    let ((ask, asks), (answer, answers)) = (channel(), channel());
    let (ask, answers) = (Alone::new(ask), Alone::new(answers));
    let session = Session(Box::new(move |heard| {
        let (ask, answers) = (ask.lock().unwrap(), answers.lock().unwrap());
        ask.send(heard).unwrap();
        answers.recv().unwrap()
    }));
    let (link, mut manager, orders) = meet(session);
    let say = |steps: &'static [u64]| {
        let link = link.clone();
        spawn(move || steps.iter().for_each(|step| link.send(done(*step)).unwrap()))
    };
    let sayers: Vec<_> = said.iter().map(|steps| say(steps)).collect();
    manager.say(ToShim::Watch { tick_micros: 20_000 });
    let mut heard = vec![manager.hear()];
    let next = manager.die(&asks);
    answer.send(next).unwrap_or_else(|_| panic!("the reader waits for it"));
    manager.say(ToShim::Watch { tick_micros: 0 });
    let all = said.iter().map(|steps| steps.len()).sum();
    heard.resize_with(all, || manager.hear());
    for steps in said {
        let said: Vec<_> = steps.iter().map(|step| done(*step)).collect();
        let of_thread: Vec<_> = heard.iter().filter(|message| said.contains(message)).cloned().collect();
        assert_eq!(of_thread, said, "each message once, in its order");
    }
    sayers.into_iter().for_each(|sayer| sayer.join().unwrap());
    assert_eq!(
        manager.refuse(&orders),
        [ToShim::Watch { tick_micros: 20_000 }, ToShim::Watch { tick_micros: 0 }]
    );
}

fn done(step: u64) -> FromShim {
    FromShim::Done { step: Step(step) }
}
