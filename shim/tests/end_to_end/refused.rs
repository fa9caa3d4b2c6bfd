//! Calls that are not supported: the user learns which it was.

use crate::guest::Guest;
use crate::manager::Manager;

const REFUSED: [&str; 4] =
    ["cuMulticastCreate", "cuGraphicsMapResources", "cuImportExternalMemory", "cuMemMapArrayAsync"];

fn a_guest(manager: &mut Manager, environment: &[(&str, &str)]) -> Guest {
    let guest = manager.guest(environment);
    let mut line = guest.line();
    line.tell("init");
    manager.welcome(false);
    assert_eq!(line.hear(), "ok");
    guest
}

/// Calls each function twice.
fn call_all(guest: &Guest) {
    let mut line = guest.line();
    for name in REFUSED.iter().chain(&REFUSED) {
        assert_eq!(line.ask(&format!("call {name}")), "CUDA_ERROR_NOT_SUPPORTED", "{name}");
    }
}

promise! {
    fn by_default_the_first_refused_call_is_named_and_no_other() {
        let mut manager = Manager::start();
        let guest = a_guest(&mut manager, &[]);
        call_all(&guest);
        let said = guest.end();
        assert!(matches!(&said[..], [line] if line.contains(REFUSED[0]) && line.contains("TIDEGATE_LOG=info")), "{said:#?}");
    }
}

promise! {
    fn who_asks_is_told_every_refused_call_once() {
        let mut manager = Manager::start();
        let guest = a_guest(&mut manager, &[("TIDEGATE_LOG", "info")]);
        call_all(&guest);
        let said = guest.end();
        for name in REFUSED {
            let named = said.iter().filter(|line| line.starts_with(&format!("tidegate: {name} ")));
            assert_eq!(named.count(), 1, "{name}: {said:#?}");
        }
    }
}

promise! {
    fn who_wants_no_words_gets_none() {
        let mut manager = Manager::start();
        let guest = a_guest(&mut manager, &[("TIDEGATE_LOG", "off")]);
        call_all(&guest);
        assert!(guest.end().is_empty());
    }
}
