//! A program without a manager, before CUDA, after a fork.

use crate::manager::Manager;
use tidegate_ffi::wire::message::JobClaim;

promise! {
    fn nothing_happens_before_cuinit() {
        let manager = Manager::start();
        let guest = manager.guest(&[]);
        assert_eq!(guest.line().ask("threads"), "");
        assert!(guest.end().is_empty());
    }
}

promise! {
    fn without_a_manager_a_program_runs_and_is_told_so_once() {
        let manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_SOCKET", "/nowhere/socket")]);
        let mut line = guest.line();
        for _ in 0..2 {
            assert_eq!(line.ask("init"), "ok");
        }
        assert_eq!(line.ask("context"), "ok");
        let address = line.ask("allocate 5000");
        assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        assert_eq!(line.ask("boundary"), "ok");
        assert_eq!(line.ask("threads"), "");
        let said = guest.end();
        assert!(matches!(&said[..], [line] if line.contains("/nowhere/socket")), "{said:?}");
    }
}

promise! {
    fn a_required_manager_that_is_not_there_means_no_cuda() {
        let manager = Manager::start();
        let environment =
            [("TIDEGATE_SOCKET", "/nowhere/socket"), ("TIDEGATE_REQUIRED", "1"), ("TIDEGATE_LOG", "off")];
        let guest = manager.guest(&environment);
        let mut line = guest.line();
        for _ in 0..2 {
            assert_eq!(line.ask("init"), "CUDA_ERROR_SYSTEM_NOT_READY");
        }
        assert!(guest.end().is_empty());
    }
}

promise! {
    fn switched_off_it_does_nothing() {
        let manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_OFF", "1")]);
        let mut line = guest.line();
        assert_eq!(line.ask("init"), "ok");
        assert_eq!(line.ask("context"), "ok");
        let address = line.ask("allocate 5000");
        assert_eq!(line.ask(&format!("free {address}")), "ok");
        assert!(guest.end().is_empty());
    }
}

promise! {
    fn a_job_is_named_by_its_token_or_by_the_environment() {
        let mut manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_JOB", "1234")]);
        let mut line = guest.line();
        line.tell("init");
        assert_eq!(manager.welcome(false), JobClaim::Token(1234));
        assert_eq!(line.hear(), "ok");
        // A thread gives itself its name, a moment after its start.
        while line.ask("threads") != "tidegate-gate tidegate-link" {}
        guest.end();

        let mut manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_NAME", "mine"), ("TIDEGATE_PRIORITY", "-2"), ("TIDEGATE_MEMORY", "1GiB")]);
        let mut line = guest.line();
        line.tell("init");
        let JobClaim::Own(spec) = manager.welcome(false) else { panic!("a token") };
        assert_eq!((&spec.name[..], spec.priority, spec.weight, spec.memory), ("mine", -2, 1, Some(1 << 30)));
        assert_eq!(line.hear(), "ok");
        guest.end();
    }
}

promise! {
    fn a_forked_child_gets_the_drivers_own_answers() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let answer = line.ask("fork");
        assert!(answer.starts_with("true "), "the child died or hung: {answer}");
        line.tell("allocate 5000");
        let lease = manager.hear_lease();
        manager.grant(&lease);
        assert_ne!(line.hear(), "");
        guest.end();
    }
}

promise! {
    fn a_child_forked_before_cuinit_attaches_by_itself() {
        let mut manager = Manager::start();
        let guest = manager.guest(&[("TIDEGATE_JOB", "5")]);
        let mut line = guest.line();
        line.tell("fork-and-init");
        assert_eq!(manager.welcome(false), JobClaim::Token(5));
        assert_eq!(line.hear(), "true 0");
        line.tell("init");
        assert_eq!(manager.welcome(false), JobClaim::Token(5));
        assert_eq!(line.hear(), "ok");
        guest.end();
    }
}

promise! {
    fn when_the_manager_dies_an_open_program_goes_on_with_what_it_has() {
        let mut manager = Manager::start();
        let (guest, mut line) = manager.guest_with_context();
        let (_, address) = manager.allocate(&mut line, 5000);
        line.tell("allocate 500000");
        manager.hear_lease();
        manager.ask_to_close(0, 60_000);
        manager.die();
        assert_eq!(line.hear(), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(line.ask(&format!("fill {address} 5000 3")), "ok");
        assert_eq!(line.ask(&format!("read {address} 5000")), "3 3");
        assert_eq!(line.ask("boundary"), "ok");
        assert_eq!(line.ask("allocate 500000"), "CUDA_ERROR_OUT_OF_MEMORY");
        let said = guest.end();
        assert!(matches!(&said[..], [line] if line.contains("gone")), "{said:?}");
    }
}
