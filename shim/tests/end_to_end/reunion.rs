//! The manager dies, whenever that may be, and the next one takes over: a program notices nothing
//! but the time; and one whose session nobody takes over is told so, and does not hang.

use crate::guest::{Guest, Line};
use crate::manager::{Manager, PATIENCE_MS, TENANT};
use crate::stage::UNIT;
use std::time::Duration;
use tidegate_ffi::units::{Class, Step};
use tidegate_ffi::wire::line::SILENCE;
use tidegate_ffi::wire::message::{FromShim, ToShim};

const GONE: &str = "tidegate: the manager is gone; waiting for the next one";
const LOST: &str = "CUDA_ERROR_SYSTEM_NOT_READY";

/// A guest that has said hello.
fn welcomed(manager: &mut Manager, closed: bool) -> (Guest, Line) {
    let guest = manager.guest(&[]);
    let mut line = guest.line();
    line.tell("init");
    manager.welcome(closed);
    assert_eq!(line.hear(), "ok");
    (guest, line)
}

/// Lives through a scene once for each of its moments, at which the manager dies.
fn at_every_moment(scene: fn(&mut Manager, &Guest, Line)) {
    let mut moments = 0;
    loop {
        let mut manager = Manager::start();
        let (guest, line) = welcomed(&mut manager, false);
        manager.cut.set(Some(moments));
        scene(&mut manager, &guest, line);
        assert!(guest.end().is_empty(), "it said something, cut at {moments}");
        manager.destroy_all();
        if manager.cut.get().is_some() {
            break;
        }
        moments += 1;
    }
    assert!(moments > 20, "only {moments} moments");
}

promise! {
    fn a_switch_survives_the_managers_death_at_every_moment() {
        at_every_moment(|manager, guest, mut line| {
            line.tell("context");
            manager.attach();
            assert_eq!(line.hear(), "ok");
            let (old, address) = manager.allocate(&mut line, 5000);
            assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");

            let (_, live) = manager.close(0, 0);
            assert_eq!(live.iter().map(|range| range.bytes).collect::<Vec<_>>(), [5000]);
            let mut waiting = guest.line();
            assert_eq!(waiting.ask("context"), "ok");
            waiting.tell(&format!("fill {address} 2500 9"));
            assert_eq!(manager.hear(), FromShim::Waiting);
            manager.send(ToShim::Unmap { step: Step(100), tenant: TENANT, pieces: vec![old.piece] }, &[]);
            assert_eq!(manager.hear(), FromShim::Done { step: Step(100) });
            let saved = manager.load(old.piece);
            manager.destroy(old.piece);
            let new = manager.make(old.class, old.slot.0, old.units.0);
            manager.store(new.piece, &saved);
            let handle = manager.export(new.piece);
            manager.send(ToShim::Map { step: Step(101), tenant: TENANT, pieces: vec![new] }, &[handle]);
            assert_eq!(manager.hear(), FromShim::Done { step: Step(101) });
            assert!(waiting.is_silent(), "it ran at a closed gate");
            manager.open();

            assert_eq!(waiting.hear(), "ok");
            assert_eq!(line.ask(&format!("read {address} 5000")), "3 9");
            assert_eq!(&manager.load(new.piece)[2498..2502], [9, 9, 3, 3]);
        });
    }
}

promise! {
    fn a_lease_that_crosses_the_closing_is_void_whenever_the_manager_dies() {
        at_every_moment(|manager, guest, mut line| {
            line.tell("context");
            manager.attach();
            assert_eq!(line.hear(), "ok");
            line.tell(&format!("allocate {}", 4 * UNIT));
            let lease = manager.hear_lease();
            let part = manager.make(lease.class, lease.first.0, 1);
            manager.give(&lease, vec![part], true);
            while guest.mapped_pieces() == 0 {
                std::thread::yield_now();
            }
            let (drained, live) = manager.close(0, 0);
            assert_eq!((&drained.outstanding[..], &live[..]), (&[lease.step][..], &[][..]));
            let void = manager.make(lease.class, lease.first.0, 4);
            manager.give(&lease, vec![void], false);
            manager.open();
            let mut other = guest.line();
            assert_eq!(other.ask("boundary"), "ok");
            manager.close(0, 0);
            manager.open();
            manager.grant(&lease);
            let address = line.hear();
            assert_eq!(line.ask(&format!("fill {address} {} 9", 4 * UNIT)), "ok");
            assert_eq!((manager.load(part.piece)[0], manager.load(void.piece)[0]), (0, 0));
        });
    }
}

promise! {
    fn without_a_manager_who_is_open_goes_on_and_who_needs_one_waits() {
        let mut manager = Manager::start();
        let (mut guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 5000);
        manager.part();
        assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
        assert_eq!(line.ask("boundary"), "ok");
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        let mut needy = guest.line();
        assert_eq!(needy.ask("context"), "ok");
        needy.tell("allocate 500000");
        assert_eq!(guest.next_words(), GONE);
        assert!(needy.is_silent());
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        manager.meet();
        let lease = manager.hear_lease();
        manager.grant(&lease);
        assert_ne!(needy.hear(), "");
        assert_eq!(guest.end(), [GONE]);
    }
}

promise! {
    fn who_is_stopped_waits_for_the_next_manager() {
        let mut manager = Manager::start();
        let (mut guest, mut line) = welcomed(&mut manager, true);
        line.tell("context");
        manager.attach();
        assert_eq!(line.hear(), "ok");
        line.tell("allocate 5000");
        assert_eq!(manager.hear(), FromShim::Waiting);
        manager.part();
        assert_eq!(guest.next_words(), GONE);
        assert!(line.is_silent());
        manager.meet();
        manager.open();
        let lease = manager.hear_lease();
        manager.grant(&lease);
        assert_ne!(line.hear(), "");
        assert_eq!(guest.end(), [GONE]);
    }
}

promise! {
    fn a_closing_goes_on_without_the_manager_that_wanted_it() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.allocate(&mut line, 5000);
        manager.ask_to_close(0, PATIENCE_MS);
        manager.wait_for_gate(1);
        manager.part();
        line.tell("boundary");
        manager.wait_for_gate(2);
        assert!(line.is_silent());
        manager.meet();
        let (drained, live) = manager.hear_drained();
        assert!(drained.at_boundary);
        assert_eq!(live.len(), 1, "the live map has travelled twice");
        manager.open();
        assert_eq!(line.hear(), "ok");
        guest.end();
    }
}

promise! {
    fn idleness_is_said_only_to_who_hears_it() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 5000);
        manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
        assert_eq!(manager.hear(), FromShim::Idle);
        manager.part();
        for _ in 0..4 {
            assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
            // Longer than it takes to count as idle.
            assert!((0..5).all(|_| line.is_silent()));
        }
        manager.meet();
        manager.ask_to_close(0, 0);
        let mut idle = 0;
        while let Err(message) = manager.hear_or_drained() {
            assert_eq!(message, FromShim::Idle);
            idle += 1;
        }
        assert!(idle <= 1, "{idle} old words were kept");
        guest.end();
    }
}

promise! {
    fn who_only_listens_says_so_now_and_then() {
        let mut manager = Manager::start();
        let (guest, _line) = manager.guest_with_context();
        let most = 3 * SILENCE as usize;
        for _ in 0..most {
            manager.send(ToShim::Watch { tick_micros: 0 }, &[]);
        }
        manager.close(0, 0);
        assert!(manager.acknowledged.get() >= 2, "{} acknowledgements", manager.acknowledged.get());
        guest.end();
    }
}

/// What is lost is said once, and by its reason.
fn said_once(said: &[String], words: &str) {
    assert!(
        matches!(said, [line] if line.contains(words) && line.contains("its memory is lost")),
        "{said:#?}"
    );
}

promise! {
    fn who_is_stopped_and_not_taken_over_is_told_and_does_not_hang() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (piece, address) = manager.allocate(&mut line, 5000);
        let mut leasing = guest.line();
        assert_eq!(leasing.ask("context"), "ok");
        leasing.tell("allocate 500000");
        manager.hear_lease();
        manager.close(0, 0);
        manager.unmap(&[piece]);
        let orders = [format!("fill {address} 5000 3"), "allocate 5000".into(), "boundary".into()];
        let mut waiting: Vec<Line> = orders.iter().map(|_| guest.line()).collect();
        for (line, order) in waiting.iter_mut().zip(&orders) {
            assert_eq!(line.ask("context"), "ok");
            line.tell(order);
            assert!(line.is_silent());
        }
        manager.die();
        assert_eq!(waiting.iter_mut().map(Line::hear).collect::<Vec<_>>(), [LOST, LOST, "ok"]);
        assert_eq!(leasing.hear(), LOST);
        for order in &orders {
            assert_eq!(line.ask(order), if order == "boundary" { "ok" } else { LOST });
        }
        assert_eq!(line.ask("capture"), LOST);
        assert_eq!(line.ask(&format!("free {address}")), "ok");
        said_once(&guest.end(), "its CUDA calls fail from now on");
    }
}

promise! {
    fn who_waits_for_its_first_slice_and_is_not_taken_over_is_told() {
        let mut manager = Manager::start();
        let (mut guest, mut line) = welcomed(&mut manager, true);
        line.tell("context");
        manager.hear();
        manager.die();
        assert_eq!(line.hear(), LOST);
        guest.next_words();
        said_once(&guest.end(), "the manager is gone");
    }
}

promise! {
    fn who_is_open_and_not_taken_over_goes_on_with_what_it_has() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 5000);
        // Longer than anything here is waited for.
        manager.ask_to_close(0, 10 * PATIENCE_MS);
        manager.wait_for_gate(1);
        line.tell("allocate 500000");
        manager.hear_lease();
        manager.die();
        // Nobody wants it closed any more: it does not wait for the boundary.
        manager.wait_for_gate(0);
        assert_eq!(line.hear(), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
        assert_eq!(line.ask("boundary"), "ok");
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        assert_eq!(line.ask("allocate 500000"), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(line.ask("done"), "ok");
        said_once(&guest.end(), "new memory cannot be had");
    }
}

promise! {
    fn who_is_refused_in_the_middle_does_not_look_for_another_manager() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.close(0, 0);
        line.tell("allocate 5000");
        assert_eq!(manager.hear(), FromShim::Waiting);
        manager.send(ToShim::Refused { reason: "it lied, and its memory is lost".into() }, &[]);
        assert_eq!(line.hear(), LOST);
        assert!(manager.hears_no_more());
        said_once(&guest.end(), "it lied");
    }
}

promise! {
    fn a_manager_that_leaves_out_a_message_ends_the_session() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.lose_a_message();
        manager.open();
        line.tell("allocate 5000");
        assert_eq!(line.hear(), "CUDA_ERROR_OUT_OF_MEMORY");
        assert!(matches!(&guest.end()[..], [line] if line.contains("was expected")));
    }
}

promise! {
    fn a_child_of_a_program_without_a_manager_is_left_alone() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.part();
        assert!(line.ask("fork").starts_with("true "), "the child died or hung");
        manager.meet();
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        assert_eq!(lease.class, Class::Temporary);
        manager.grant(&lease);
        assert_ne!(line.hear(), "");
        assert!(!line.answers_within(Duration::from_millis(1)));
        guest.end();
    }
}
