//! The gate and the link under every schedule.
//!
//! The files of the shim that threads meet in are compiled here once more, as they are, over a
//! [`sync`] of `loom`'s types. Each test is a model: a few threads, which `loom` runs again and
//! again, each time with the turns of the threads, or with what a load sees, chosen otherwise, until
//! it has tried all choices with at most so many preemptions. It finds threads that wait for
//! ever, memory that is touched by two at once, and what the models assert.
//!
//! What is not modelled: time (a deadline is over or never comes), the socket (`reunion` has a
//! stand-in, in whose queue the manager's end is part of the model), the thread's word in machine code,
//! and the instructions that a compiler makes of all this (`gate_tests` looks at those, on the
//! processor at hand).

mod alone;
mod gate_models;
mod link_models;
mod reunion;
mod sync;

#[allow(dead_code)]
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
}
