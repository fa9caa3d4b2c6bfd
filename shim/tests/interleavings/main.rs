//! The gate and the link under every schedule.
//!
//! The files of the shim in which threads meet are compiled here once more, as they are, over a
//! [`sync`] of `loom`'s types. Each test is a model: a few threads, which `loom` runs again and
//! again, each time with another choice of whose turn it is and of what a load sees, until it has
//! tried all choices with no more than so many preemptions. A model fails where threads wait for
//! each other for ever, where two use at once what only one may, and where it says so itself.
//!
//! Modelled are the memory order of each atomic, `membarrier(2)` ([`sync::membarrier`]) and
//! `futex(2)` ([`sync::futex`]). Not modelled are
//! - time: a deadline is over or never comes; nobody wakes up for no reason;
//! - the socket: a connection is two queues ([`reunion`]), and the model itself plays the manager;
//! - the driver, and what threads do with pieces beyond counting them;
//! - the code that a compiler makes of all this: `gate_tests` runs that, on the processor at hand.

mod alone;
mod gate_models;
mod link_models;
mod reunion;
mod sync;

// What the rest of the shim uses is not used here.
#[allow(dead_code, unused_imports)]
#[path = "../../src/gate/mod.rs"]
mod gate;

#[allow(dead_code)]
#[path = "../../src/link.rs"]
mod link;

#[allow(dead_code, unused_imports)]
#[path = "../../src/log.rs"]
mod log;

#[allow(dead_code)]
#[path = "../../src/outgoing.rs"]
mod outgoing;

/// Nothing is said to the user.
mod settings {
    pub fn log_level() -> crate::log::Level {
        crate::log::Level::Off
    }
}

/// What the gate knows of the process.
mod process {
    /// The manager would be told.
    pub fn say_that_a_thread_waits() {}
    /// In no model work is far ahead.
    pub fn may_go_ahead(_stream: usize, _calls: u64) -> bool {
        true
    }
    /// No model asks for that.
    pub fn say_that_a_call_has_returned() {}
}
