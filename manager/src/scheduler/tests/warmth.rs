//! For how many bytes the movers have memory ready.

use super::*;
use tidegate_ffi::wire::message::Need;

/// What the GPU's mover was told last, in units.
fn warm(desk: &Desk) -> u64 {
    let mut told = desk.log.iter().filter_map(|effect| match effect {
        Effect::Mover(GPU, ToMover::Warm { bytes }) => Some(*bytes / UNIT),
        _ => None,
    });
    told.next_back().unwrap_or_default()
}

/// A GPU of 100 units.
fn desk() -> Desk {
    Desk::new(|config| config.tier_bytes[0] = 1000 * UNIT)
}

fn come(desk: &mut Desk, need: Option<u64>) -> SessionId {
    let need = need.map(|units| Need { persistent: 0, temporary: units * UNIT });
    let (_, session) = desk.start(JobSpec { need, ..spec("a") });
    desk.attach(session, GPU);
    session
}

#[test]
fn memory_is_wanted_for_all_that_may_be_saved() {
    let mut desk = desk();
    come(&mut desk, Some(60));
    assert_eq!(warm(&desk), 0, "a job alone is not saved");
    let second = come(&mut desk, Some(60));
    assert_eq!(warm(&desk), 120);
    desk.end(second);
    assert_eq!(warm(&desk), 0);
    come(&mut desk, Some(40));
    assert_eq!(warm(&desk), 0, "they fit together");
}

#[test]
fn who_comes_is_expected_to_grow_but_not_for_ever() {
    let mut desk = desk();
    come(&mut desk, Some(48));
    let second = come(&mut desk, None);
    assert_eq!(warm(&desk), 48);
    desk.pass(Duration::from_secs(11));
    assert_eq!(warm(&desk), 0, "it has stayed small");
    // What it has come to have is known.
    desk.lease(second, Class::Temporary, 0, 40);
    assert_eq!(warm(&desk), 0);
    desk.lease(second, Class::Temporary, 40, 20);
    assert!(warm(&desk) >= 108, "{}", warm(&desk));
}
