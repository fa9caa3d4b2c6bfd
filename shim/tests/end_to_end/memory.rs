//! Memory as a program sees it.

use crate::manager::{Manager, TENANT};
use crate::stage::UNIT;
use std::sync::atomic::Ordering;
use tidegate_ffi::units::{Class, Step, Units};
use tidegate_ffi::wire::message::{FromShim, Placed, ToShim};

promise! {
    fn backed_memory_is_given_out_again_without_a_message() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, first) = manager.allocate(&mut line, 1000);
        assert_eq!(line.ask(&format!("free {first}")), "ok");
        assert_eq!(line.ask("allocate 2000"), first);
        let second = line.ask("allocate 2000");
        assert_eq!(second.parse::<u64>().unwrap(), first.parse::<u64>().unwrap() + 2048);
        let row = &manager.page.as_ref().unwrap().tenants[0];
        assert_eq!(row.tenant.load(Ordering::Relaxed), TENANT.0);
        assert_eq!(row.live_bytes[Class::Temporary.index()].load(Ordering::Relaxed), 4000);
        assert_eq!(row.mapped_bytes[Class::Temporary.index()].load(Ordering::Relaxed), UNIT);
        guest.end();
    }
}

promise! {
    fn a_program_is_told_of_its_own_allocations_and_quota() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        manager.grant(&lease);
        let address: u64 = line.hear().parse().unwrap();
        assert_eq!(line.ask("info"), format!("{} {}", (8 << 20) - 5000, 8 << 20));
        assert_eq!(line.ask(&format!("range {}", address + 4999)), format!("{address} 5000"));
        assert_eq!(line.ask(&format!("range {}", address + 5000)), "CUDA_ERROR_NOT_FOUND");
        for (attribute, value) in [(2, 2), (3, address + 9), (9, 0), (11, address), (12, 5000)] {
            assert_eq!(line.ask(&format!("attribute {attribute} {}", address + 9)), value.to_string());
        }
        guest.end();
    }
}

promise! {
    fn wrong_frees_and_sizes_are_refused_as_the_driver_does() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        assert_eq!(line.ask("allocate 0"), "CUDA_ERROR_INVALID_VALUE");
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        manager.grant(&lease);
        let address: u64 = line.hear().parse().unwrap();
        assert_eq!(line.ask(&format!("free {}", address + 512)), "CUDA_ERROR_INVALID_VALUE");
        assert_eq!(line.ask(&format!("free {address}")), "ok");
        assert_eq!(line.ask(&format!("free {address}")), "CUDA_ERROR_INVALID_VALUE");
        guest.end();
    }
}

promise! {
    fn a_refused_lease_is_out_of_memory_and_can_be_tried_again() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        manager.send(ToShim::LeaseRefused { step: lease.step, reason: "full".into() }, &[]);
        assert_eq!(line.hear(), "CUDA_ERROR_OUT_OF_MEMORY");
        line.tell("allocate 5000");
        let again = manager.hear_lease();
        assert_eq!((again.first, again.units), (lease.first, lease.units));
        manager.grant(&again);
        assert_ne!(line.hear(), "");
        assert!(guest.end().is_empty(), "it said something");
    }
}

promise! {
    fn what_came_of_a_lease_before_it_was_refused_stays_for_the_next() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        line.tell(&format!("allocate {}", 2 * UNIT));
        let lease = manager.hear_lease();
        let first = manager.make(lease.class, lease.first.0, 1);
        manager.give(&lease, vec![first], true);
        manager.send(ToShim::LeaseRefused { step: lease.step, reason: "full".into() }, &[]);
        assert_eq!(line.hear(), "CUDA_ERROR_OUT_OF_MEMORY");
        line.tell(&format!("allocate {}", 2 * UNIT));
        let rest = manager.hear_lease();
        assert_eq!((rest.first.0, rest.units.0), (lease.first.0 + 1, 1));
        let second = manager.grant(&rest);
        let address = line.hear();
        assert_eq!(line.ask(&format!("fill {address} {} 5", 2 * UNIT)), "ok");
        assert_eq!([first, second].map(|piece| manager.load(piece.piece)[0]), [5, 5]);
        let row = &manager.page.as_ref().unwrap().tenants[0];
        assert_eq!(row.mapped_bytes[Class::Temporary.index()].load(Ordering::Relaxed), 2 * UNIT);
        guest.end();
    }
}

promise! {
    fn only_pieces_without_a_live_byte_are_given_back() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut allocate = |line: &mut crate::guest::Line| {
            line.tell(&format!("allocate {UNIT}"));
            let lease = manager.hear_lease();
            (manager.grant(&lease).piece, line.hear())
        };
        let (kept, _) = allocate(&mut line);
        let (idle, address) = allocate(&mut line);
        assert_eq!(line.ask(&format!("free {address}")), "ok");
        manager.send(ToShim::Recall { tenant: TENANT }, &[]);
        assert_eq!(manager.hear(), FromShim::Return { tenant: TENANT, pieces: vec![idle], unused: Units(0), recalled: true });
        manager.send(ToShim::Recall { tenant: TENANT }, &[]);
        assert_eq!(manager.hear(), FromShim::Return { tenant: TENANT, pieces: vec![], unused: Units(0), recalled: true });
        line.tell(&format!("allocate {UNIT}"));
        let lease = manager.hear_lease();
        let fresh = manager.grant(&lease);
        let again = line.hear();
        assert_eq!(again, address, "addresses are used again");
        assert_eq!(line.ask(&format!("fill {again} {UNIT} 5")), "ok");
        let first_bytes = [kept, idle, fresh.piece].map(|piece| manager.load(piece)[0]);
        assert_eq!(first_bytes, [0, 0, 5]);
        guest.end();
    }
}

promise! {
    fn what_was_allocated_in_a_context_ends_with_it() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        manager.allocate(&mut line, 5000);
        assert_eq!(line.ask("release"), "ok");
        assert_eq!(manager.close(0, 0).1, []);
        manager.open();
        guest.end();
    }
}

promise! {
    fn several_threads_that_allocate_at_once_use_the_rest_of_each_others_pieces() {
        let mut manager = Manager::start();
        let (guest, _first) = manager.guest_with_context();
        let mut lines: Vec<_> = (0..8).map(|_| guest.line()).collect();
        for line in &mut lines {
            assert_eq!(line.ask("context"), "ok");
            line.tell("allocate 70000");
        }
        let mut units = 0;
        for _ in 0..8 {
            let lease = manager.hear_lease();
            units += u64::from(lease.units.0);
            manager.grant(&lease);
        }
        assert_eq!(units, (8 * 70000_u64).div_ceil(UNIT), "not two for each");
        let mut addresses: Vec<u64> = lines.iter_mut().map(|line| line.hear().parse().unwrap()).collect();
        for (value, (line, address)) in lines.iter_mut().zip(&addresses).enumerate() {
            assert_eq!(line.ask(&format!("fill {address} 70000 {value}")), "ok");
        }
        for (value, (line, address)) in lines.iter_mut().zip(&addresses).enumerate() {
            assert_eq!(line.ask(&format!("read {address} 70000")), format!("{value} {value}"));
        }
        addresses.sort();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 70000));
        guest.end();
    }
}

promise! {
    fn what_is_held_is_named_until_nothing_in_its_pieces_is_held() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (Placed { piece, .. }, first) = manager.allocate(&mut line, 1000);
        let second = line.ask("allocate 1000");
        let other = line.ask("allocate 1000");
        assert_eq!(line.ask("hold 4096"), "0");
        line.tell(&format!("hold {first}"));
        manager.grant_hold(&[piece]);
        assert_eq!(line.hear(), "0");
        assert_eq!(line.ask(&format!("hold {first}")), "0", "it is already");
        line.tell(&format!("hold {}", second.parse::<u64>().unwrap() + 999));
        manager.grant_hold(&[piece]);
        assert_eq!(line.hear(), "0");
        assert_eq!(line.ask(&format!("free {other}")), "ok");
        assert_eq!(line.ask(&format!("free {first}")), "ok");
        assert_eq!(manager.hear(), FromShim::LetGo { tenant: TENANT, pieces: vec![] });
        assert_eq!(line.ask(&format!("free {second}")), "ok");
        assert_eq!(manager.hear(), FromShim::LetGo { tenant: TENANT, pieces: vec![piece] });
        guest.end();
    }
}

promise! {
    fn nothing_is_held_while_the_gate_is_closed() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (placed, address) = manager.allocate(&mut line, 1000);
        manager.close(0, 0);
        manager.unmap(&[placed]);
        line.tell(&format!("hold {address}"));
        assert_eq!(manager.hear(), FromShim::Waiting);
        assert!(line.is_silent());
        manager.map(&[placed]);
        manager.open();
        manager.grant_hold(&[placed.piece]);
        assert_eq!(line.hear(), "0");
        guest.end();
    }
}

promise! {
    fn what_may_not_be_held_is_as_it_was_and_may_be_asked_for_again() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (Placed { piece, .. }, address) = manager.allocate(&mut line, 1000);
        for refused in [true, true, false] {
            line.tell(&format!("hold {address}"));
            let step = manager.hear_hold(&[piece]);
            if refused {
                manager.send(ToShim::LeaseRefused { step, reason: "another would have no room".into() }, &[]);
            } else {
                manager.send(ToShim::Held { step }, &[]);
            }
            assert_eq!(line.hear(), if refused { "2" } else { "0" }, "CUDA_ERROR_OUT_OF_MEMORY");
        }
        guest.end();
    }
}

promise! {
    fn pieces_that_come_without_descriptors_are_asked_for_again() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let mut pieces = Vec::new();
        let mut addresses = Vec::new();
        for value in 0..6 {
            line.tell(&format!("allocate {UNIT}"));
            let lease = manager.hear_lease();
            pieces.push(manager.grant(&lease));
            addresses.push(line.hear());
            assert_eq!(line.ask(&format!("fill {} {UNIT} {value}", addresses[value])), "ok");
        }
        manager.close(0, 0);
        manager.unmap(&pieces);
        let some = |pieces| FromShim::MappedSome { step: Step(101), pieces };
        assert_eq!(manager.try_map(&pieces, 0), some(0));
        // One is mapped at a time, which takes descriptors, too.
        assert_eq!(manager.try_map(&pieces, 1), some(0));
        assert_eq!(manager.try_map(&pieces, 5), some(3));
        manager.map(&pieces[3..]);
        manager.open();
        for (value, address) in addresses.iter().enumerate() {
            assert_eq!(line.ask(&format!("read {address} {UNIT}")), format!("{value} {value}"));
        }
        guest.end();
    }
}
