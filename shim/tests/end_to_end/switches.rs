//! What a program notices of being stopped and going on: nothing but the time.

use crate::guest::{Guest, Line};
use crate::manager::{Manager, PATIENCE_MS, TENANT};
use crate::stage::UNIT;
use rustix::event::Timespec;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{Class, Step};
use tidegate_ffi::wire::live::Life;
use tidegate_ffi::wire::message::{FromShim, ToShim};

promise! {
    fn a_resumed_program_finds_every_live_byte_at_its_address() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (old, address) = manager.allocate(&mut line, 100000);
        assert_eq!(line.ask(&format!("fill {address} 100000 42")), "ok");

        let (drained, live) = manager.close(0, 0);
        assert!(!drained.at_boundary);
        assert_eq!(live.iter().map(|r| (r.class, r.start, r.bytes)).collect::<Vec<_>>(), [(Class::Temporary, 0, 100_000)]);
        manager.unmap(&[old]);
        let saved = manager.load(old.piece);
        manager.store(old.piece, &vec![0xff; saved.len()]);
        let new = manager.make(old.class, old.slot.0, old.units.0);
        manager.store(new.piece, &saved);

        line.tell(&format!("read {address} 100000"));
        assert_eq!(manager.hear(), FromShim::Waiting);
        assert!(line.is_silent(), "a copy went through a closed gate");
        manager.map(&[new]);
        manager.open();
        assert_eq!(line.hear(), "42 42");
        assert_eq!(line.ask(&format!("fill {address} 100000 43")), "ok");
        assert_eq!(manager.load(new.piece)[99_999], 43);
        assert_eq!(manager.load(old.piece)[0], 0xff, "the old piece was still reachable");
        guest.end();
    }
}

promise! {
    fn a_process_that_submits_nothing_is_not_waited_for_at_a_collective() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.allocate(&mut line, 100000);
        let (began, deadline) = (Instant::now(), Duration::from_secs(16));
        manager.ask_to_close_at_collective(17, deadline.as_millis() as u64);
        let (drained, _) = manager.hear_drained();
        assert!(!drained.at_boundary);
        assert!(began.elapsed() < deadline, "it was waited for until the deadline");
        manager.open();
        guest.end();
    }
}

promise! {
    fn many_switches_keep_addresses_and_bytes() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell("allocate 300000");
        let lease = manager.hear_lease();
        let mut piece = manager.grant(&lease);
        let address = line.hear();
        for round in 0..100 {
            assert_eq!(line.ask(&format!("fill {address} 300000 {round}")), "ok");
            manager.close(0, 0);
            manager.unmap(&[piece]);
            let saved = manager.load(piece.piece);
            // The GPU would be full before the end if the program kept any of them.
            manager.destroy(piece.piece);
            piece = manager.make(piece.class, piece.slot.0, piece.units.0);
            manager.store(piece.piece, &saved);
            manager.map(&[piece]);
            manager.open();
            assert_eq!(line.ask(&format!("read {address} 300000")), format!("{round} {round}"));
            assert_eq!(line.ask(&format!("range {address}")), format!("{address} 300000"));
        }
        guest.end();
    }
}

promise! {
    fn a_program_stops_at_the_boundary_it_is_asked_for_and_no_other() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        assert_eq!(line.ask("boundary"), "ok");
        manager.ask_to_close(3, PATIENCE_MS);
        // It has heard of it, and waits for the boundary.
        let gate = &manager.page.as_ref().unwrap().gate;
        while gate.load(Ordering::Relaxed) != 1 || !guest.gate_thread_sleeps() {
            std::thread::yield_now();
        }
        assert_eq!(line.ask("boundary"), "ok");
        line.tell("boundary");
        let (drained, _) = manager.hear_drained();
        assert!(drained.at_boundary);
        assert_eq!(drained.boundaries, 3);
        assert!(line.is_silent());
        manager.open();
        assert_eq!(line.hear(), "ok");
        guest.end();
    }
}

promise! {
    fn an_allocation_on_the_way_to_the_boundary_is_served() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.ask_to_close(0, PATIENCE_MS);
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        manager.grant(&lease);
        assert_ne!(line.hear(), "");
        line.tell("boundary");
        let (_, live) = manager.hear_drained();
        assert_eq!(live.len(), 1);
        manager.open();
        assert_eq!(line.hear(), "ok");
        guest.end();
    }
}

promise! {
    fn a_lease_that_crosses_the_closing_is_void_and_answered_anew() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell(&format!("allocate {}", 4 * UNIT));
        let lease = manager.hear_lease();
        let part = manager.make(lease.class, lease.first.0, 1);
        assert_eq!(guest.mapped_pieces(), 0);
        manager.give(&lease, vec![part], true);
        while guest.mapped_pieces() == 0 {
            std::thread::yield_now();
        }
        let (drained, live) = manager.close(0, 0);
        assert_eq!(drained.outstanding, [lease.step]);
        assert_eq!(live, []);
        let void = manager.make(lease.class, lease.first.0, 4);
        manager.give(&lease, vec![void], false);
        assert!(line.is_silent(), "a void answer was taken");
        manager.open();
        manager.grant(&lease);
        let address = line.hear();
        assert_eq!(line.ask(&format!("fill {address} {} 9", 4 * UNIT)), "ok");
        assert_eq!((manager.load(part.piece)[0], manager.load(void.piece)[0]), (0, 0));
        guest.end();
    }
}

promise! {
    fn an_allocation_while_closed_waits_and_is_in_the_next_map() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (piece, first) = manager.allocate(&mut line, 1000);
        manager.close(0, 0);
        line.tell("allocate 1000");
        assert_eq!(manager.hear(), FromShim::Waiting);
        assert!(line.is_silent(), "memory of a piece that may go was given out");
        manager.unmap(&[piece]);
        manager.map(&[piece]);
        manager.open();
        assert_ne!(line.hear(), first);
        assert_eq!(manager.close(0, 0).1.iter().map(|r| (r.start, r.bytes)).collect::<Vec<_>>(), [(0, 1000), (1024, 1000)]);
        manager.open();
        guest.end();
    }
}

promise! {
    fn what_survives_two_switches_or_is_said_to_be_persistent_is_long_lived() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        assert_eq!(line.ask("push 1"), "ok");
        line.tell("allocate 1000");
        let lease = manager.hear_lease();
        assert_eq!(lease.class, Class::Persistent);
        manager.grant(&lease);
        line.hear();
        assert_eq!(line.ask("pop"), "ok");
        line.tell("allocate 1000");
        let lease = manager.hear_lease();
        assert_eq!(lease.class, Class::Temporary);
        manager.grant(&lease);
        line.hear();
        let long_lived = || {
            let (_, live) = manager.close(0, 0);
            manager.open();
            live.iter().map(|range| range.life == Life::Long).collect::<Vec<_>>()
        };
        assert_eq!(long_lived(), [true, false]);
        assert_eq!(long_lived(), [true, false]);
        assert_eq!(long_lived(), [true, true]);
        guest.end();
    }
}

promise! {
    fn the_gate_closes_while_a_stream_captures() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (piece, address) = manager.allocate(&mut line, 1000);
        let stream = line.ask("capture");
        for _ in 0..2 {
            manager.close(0, 0);
            let mut other = guest.line();
            assert_eq!(other.ask("context"), "ok");
            other.tell("capture");
            assert!(other.is_silent(), "a capture began behind a closed gate");
            manager.unmap(&[piece]);
            manager.map(&[piece]);
            manager.open();
            assert_ne!(other.hear(), "");
        }
        assert_eq!(line.ask(&format!("capture-fill {stream} {address} 1000 7")), "ok");
        assert_eq!(line.ask(&format!("launch-captured {stream}")), "ok");
        assert_eq!(line.ask(&format!("read {address} 1000")), "7 7");
        guest.end();
    }
}

/// Another line of a guest, which is about to end the context; the driver waits for its work.
fn begin_to_release_a_context_with_work(guest: &Guest, line: &mut Line) -> Line {
    assert_eq!(line.ask("block"), "ok");
    let mut other = guest.line();
    other.tell("release");
    assert!(other.is_silent(), "the driver waits for the work");
    other
}

/// The gate is to close, and work has not ended after half a second.
fn begin_a_drain_that_does_not_end(manager: &Manager) {
    // A 64th of the limit goes by before it closes beside a capture.
    manager.ask_to_drain(Step(99), 0, 0, 6400);
    let until = Instant::now() + Duration::from_millis(500);
    let mut heard = std::iter::repeat_with(|| manager.hear()).take_while(|_| Instant::now() < until);
    assert!(heard.all(|message| matches!(message, FromShim::Stalled { .. } | FromShim::Waiting)));
}

promise! {
    fn a_capture_is_not_broken_by_what_is_asked_on_other_threads() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 4);
        assert_eq!(line.ask(&format!("fill {address} 4 0")), "ok");
        let mut other = guest.line();
        for order in ["context", "lane", &format!("await {address}")] {
            assert_eq!(other.ask(order), "ok");
        }
        let stream = line.ask("capture");
        // Whether what was freed has ended is asked here, and there whether a value wait has.
        assert_eq!(other.ask("reuse"), "ok");
        assert_eq!(other.ask(&format!("steps {address} 20")), "ok");
        assert_eq!(line.ask(&format!("end-capture {stream}")), "ok");
        assert_eq!(other.ask(&format!("allow {address}")), "ok");
        guest.end();
    }
}

promise! {
    fn work_of_a_context_that_is_being_destroyed_has_ended_when_the_gate_closes() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = begin_to_release_a_context_with_work(&guest, &mut line);
        begin_a_drain_that_does_not_end(&manager);
        assert_eq!([line.ask("unblock"), other.hear()], ["ok", "ok"]);
        manager.hear_drained();
        manager.open();
        guest.end();
    }
}

promise! {
    fn the_gate_closes_beside_a_capture_beside_which_a_context_with_work_was_destroyed() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = guest.line();
        let stream = line.ask("capture");
        assert_eq!(other.ask("come-and-go"), "ok");
        manager.close(0, 0);
        manager.open();
        assert_eq!(line.ask(&format!("end-capture {stream}")), "ok");
        guest.end();
    }
}

promise! {
    fn the_gate_closes_when_the_program_has_reset_its_context() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        assert_eq!(line.ask("reset"), "ok");
        for _ in 0..2 {
            manager.close(0, 0);
            manager.open();
        }
        guest.end();
    }
}

/// The gate closes while a stream captures when what this order submits, or what was submitted before, has ended.
fn closes_when_all_has_ended_but_a_capture(before: &str, meanwhile: &str) {
    let mut manager = Manager::start();
    let (guest, mut line) = manager.guest_with_context();
    let mut other = guest.line();
    assert_eq!([other.ask("context"), other.ask(before)], ["ok", "ok"]);
    let stream = line.ask("capture");
    assert_eq!(other.ask(meanwhile), "ok");
    begin_a_drain_that_does_not_end(&manager);
    assert_eq!(other.ask("unblock"), "ok");
    manager.hear_drained();
    manager.open();
    assert_eq!(line.ask(&format!("end-capture {stream}")), "ok");
    manager.close(0, 0);
    manager.open();
    guest.end();
}

promise! {
    fn what_was_submitted_before_a_capture_has_ended_when_the_gate_closes() {
        closes_when_all_has_ended_but_a_capture("block", "context");
    }
}

promise! {
    fn what_is_submitted_beside_a_capture_has_ended_when_the_gate_closes() {
        closes_when_all_has_ended_but_a_capture("context", "block");
    }
}

promise! {
    fn what_a_thread_has_in_its_own_default_stream_beside_a_capture_has_ended_when_the_gate_closes() {
        closes_when_all_has_ended_but_a_capture("context", "block-own");
    }
}

promise! {
    fn what_a_stream_had_that_was_destroyed_beside_a_capture_has_ended_when_the_gate_closes() {
        closes_when_all_has_ended_but_a_capture("context", "block-dying");
    }
}

/// The gate does not close while a stream captures, for after these orders it is not known when all other work has ended. The
/// word `STREAM` in them is the stream.
fn closes_after_the_capture(meanwhile: &[&str], before_its_end: &[&str]) {
    let mut manager = Manager::start();
    let (guest, mut line) = manager.guest_with_context();
    let stream = line.ask("capture");
    assert_eq!(line.ask("relax"), "ok");
    let carry_out = |line: &mut Line, orders: &[&str]| {
        for order in orders {
            assert_eq!(line.ask(&order.replace("STREAM", &stream)), "ok", "{order}");
        }
    };
    carry_out(&mut line, meanwhile);
    let step = Step(98);
    manager.ask_to_drain(step, 0, 0, 50);
    let mut heard = std::iter::repeat_with(|| manager.hear());
    let answer = heard.find(|message| !matches!(message, FromShim::Stalled { .. }));
    assert!(matches!(answer, Some(FromShim::NotDrained { step: Step(98), .. })), "{answer:?}");
    manager.ask_to_close(0, 0);
    carry_out(&mut line, before_its_end);
    carry_out(&mut line, &["end-capture STREAM"]);
    manager.hear_drained();
    line.tell("capture");
    assert!(line.is_silent(), "a capture began behind a closed gate");
    manager.open();
    assert_ne!(line.hear(), "");
    guest.end();
}

promise! {
    fn the_gate_does_not_close_during_a_capture_where_streams_of_several_contexts_have_work() {
        closes_after_the_capture(&["call cuMemcpyPeer"], &[]);
    }
}

promise! {
    fn the_gate_does_not_close_during_a_capture_where_a_stream_takes_part_that_had_work() {
        closes_after_the_capture(&["lane", "join STREAM"], &["join-back STREAM"]);
    }
}

promise! {
    fn the_gate_closes_beside_a_capture_that_a_call_has_broken() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = guest.line();
        assert_eq!([other.ask("context"), other.ask("relax")], ["ok", "ok"]);
        let (_, address) = manager.allocate(&mut line, 1000);
        let stream = line.ask("capture-blocking");
        // The legacy default stream would wait for it.
        assert_eq!(other.ask(&format!("set {address} 1000 7")), "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
        manager.close(0, 0);
        manager.open();
        assert_eq!(line.ask(&format!("end-capture {stream}")), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
        manager.close(0, 0);
        manager.open();
        guest.end();
    }
}

promise! {
    fn a_capture_goes_on_whose_end_was_refused() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = guest.line();
        assert_eq!(other.ask("context"), "ok");
        let stream = line.ask("capture");
        let end = format!("end-capture {stream}");
        assert_eq!(other.ask(&end), "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD");
        manager.close(0, 0);
        manager.open();
        assert_eq!(line.ask(&end), "ok");
        manager.close(0, 0);
        manager.open();
        guest.end();
    }
}

promise! {
    fn a_capture_ends_with_its_stream() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        for _ in 0..2 {
            let stream = line.ask("capture");
            assert_eq!(line.ask(&format!("destroy {stream}")), "ok");
            manager.close(0, 0);
            manager.open();
        }
        guest.end();
    }
}

promise! {
    fn a_capture_may_wait_for_what_only_the_manager_can_give() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let stream = line.ask("capture");
        assert_eq!(line.ask("relax"), "ok");
        assert_eq!(line.ask("call cuMemcpyPeer"), "ok");
        manager.ask_to_close(0, 0);
        assert!(matches!(manager.hear(), FromShim::Stalled { .. }));
        assert_eq!(line.ask(&format!("end-capture {stream}")), "ok");
        manager.hear_drained();
        guest.end();
    }
}

promise! {
    fn beside_a_capture_goes_at_once_what_would_begin_at_once() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 1000);
        // Others wait: calls are counted.
        manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
        let capturing = line.ask("capture");
        let mut other = guest.line();
        assert_eq!(other.ask("context"), "ok");
        // At the pace at which unknown calls go this would take a minute and a half.
        assert_eq!(other.ask(&format!("steps {address} 10000")), "ok");
        assert_eq!(line.ask(&format!("end-capture {capturing}")), "ok");
        guest.end();
    }
}

promise! {
    fn what_counts_the_work_under_way_breaks_no_capture() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 1000);
        // Long enough for a hundred marks, each of which would break a capture in half of the cases.
        assert_eq!(line.ask(&format!("captures {address} 2000000")), "ok");
        guest.end();
    }
}

promise! {
    fn a_watched_program_says_once_that_it_is_idle_and_once_that_it_is_so_no_more() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 1000);
        manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
        assert_eq!(manager.hear(), FromShim::Idle);
        for byte in 1..4 {
            assert_eq!(line.ask(&format!("fill {address} 1000 {byte}")), "ok");
            assert_eq!(manager.hear(), FromShim::Waiting);
            assert_eq!(manager.hear(), FromShim::Idle);
        }
        guest.end();
    }
}

promise! {
    fn a_program_is_idle_with_an_open_capture_when_its_work_has_ended() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = guest.line();
        assert_eq!(other.ask("context"), "ok");
        let stream = line.ask("capture");
        assert_eq!(other.ask("block-own"), "ok");
        manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
        assert!(!manager.hears_within(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }), "it has work");
        assert_eq!(other.ask("unblock"), "ok");
        assert_eq!(manager.hear(), FromShim::Idle);
        assert_eq!(line.ask(&format!("end-capture {stream}")), "ok");
        guest.end();
    }
}

promise! {
    fn a_program_is_not_idle_while_a_thread_ends_a_context_that_has_work() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut other = begin_to_release_a_context_with_work(&guest, &mut line);
        manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
        assert!(!manager.hears_within(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }), "it has work");
        assert_eq!([line.ask("unblock"), other.hear()], ["ok", "ok"]);
        assert_eq!(manager.hear(), FromShim::Idle);
        guest.end();
    }
}

promise! {
    fn a_program_that_is_watched_no_longer_can_end_its_context() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 1000);
        manager.send(ToShim::Watch { tick_micros: 200_000 }, &[]);
        assert_eq!(manager.hear(), FromShim::Idle);
        assert_eq!(line.ask(&format!("fill {address} 1000 1")), "ok");
        // At this tick its work was marked. There is no further one.
        assert_eq!(manager.hear(), FromShim::Waiting);
        manager.send(ToShim::Watch { tick_micros: 0 }, &[]);
        assert_eq!(line.ask("release"), "ok");
        guest.end();
    }
}

/// Other jobs wait, and no work ends: calls are made until one is held. By what the bytes are read that they set to 3.
fn hold_a_call(manager: &mut Manager, line: &mut Line) -> String {
    let (_, address) = manager.allocate(line, 1000);
    let set = format!("set {address} 1000 3");
    assert_eq!([line.ask("block"), line.ask(&set)], ["ok", "ok"]);
    manager.send(ToShim::Watch { tick_micros: 20_000 }, &[]);
    // The order may be heard after some calls.
    let is_held = (0..100).any(|_| {
        line.tell(&set);
        let is_silent = line.is_silent();
        assert!(is_silent || line.hear() == "ok");
        is_silent
    });
    assert!(is_held);
    format!("read {address} 1000")
}

promise! {
    fn while_others_wait_little_is_under_way_but_no_boundary_waits_for_that() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let read = hold_a_call(&mut manager, &mut line);
        manager.ask_to_close(0, PATIENCE_MS);
        assert_eq!(line.hear(), "ok", "it is to come to its boundary");
        line.tell("boundary");
        assert_eq!(guest.line().ask("unblock"), "ok");
        let (drained, _) = manager.hear_drained();
        assert!(drained.at_boundary);
        manager.open();
        assert_eq!(line.hear(), "ok");
        assert_eq!(line.ask(&read), "3 3");
        guest.end();
    }
}

promise! {
    fn no_call_is_held_for_good_though_no_work_ends() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let read = hold_a_call(&mut manager, &mut line);
        manager.send(ToShim::Watch { tick_micros: 0 }, &[]);
        assert_eq!(line.hear(), "ok", "no other job waits");
        assert_eq!(guest.line().ask("unblock"), "ok");
        assert_eq!(line.ask(&read), "3 3");
        guest.end();
    }
}

promise! {
    fn a_process_that_has_drained_gets_memory_when_it_is_closed_again() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut blocked = guest.line();
        assert_eq!(blocked.ask("context"), "ok");
        manager.close(0, 0);
        // What it submits then does not end before the answer has come: so it cannot drain by then.
        blocked.tell("block");
        assert_eq!(manager.hear(), FromShim::Waiting);
        line.tell("allocate 1000");
        manager.ask_to_go_on(2);
        let (mut lease, mut is_blocked) = (None, false);
        while lease.is_none() || !is_blocked {
            match manager.hear_or_drained() {
                // A thread says that it waits, and then comes to the gate.
                Ok(_) => manager.ask_to_go_on(2),
                Err(FromShim::Lease(asked)) => lease = Some(asked),
                Err(FromShim::Stalled { .. }) => is_blocked = true,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(blocked.hear(), "ok");
        manager.grant(&lease.unwrap());
        let address = line.hear();
        assert!(address.parse::<u64>().is_ok(), "{address}");
        assert_eq!(guest.line().ask("unblock"), "ok");
        assert_eq!(manager.hear_drained().0.outstanding, []);
        manager.open();
        assert_eq!(line.ask(&format!("fill {address} 1000 1")), "ok");
        guest.end();
    }
}

promise! {
    fn orders_that_make_no_sense_are_refused_and_harm_nobody() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.send(ToShim::Unmap { step: Step(5), tenant: TENANT, pieces: vec![] }, &[]);
        assert!(matches!(manager.hear(), FromShim::Failed { step: Step(5), .. }));
        manager.close(0, 0);
        let wild = manager.make(Class::Temporary, u32::MAX - 1, 1);
        let handle = manager.export(wild.piece);
        manager.send(ToShim::Map { step: Step(6), tenant: TENANT, pieces: vec![wild] }, &[handle]);
        assert!(matches!(manager.hear(), FromShim::Failed { step: Step(6), .. }));
        manager.open();
        assert_eq!(line.ask("info"), "8388608 8388608");
        guest.end();
    }
}
