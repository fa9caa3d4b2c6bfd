//! The moments at which a test can have the manager die: around each message that it takes in.
//!
//! ```text
//! lease:heard ─ decide ─ lease:decided ─ write ─ lease:written ─ send ─ lease:sent
//! ```

#![forbid(unsafe_code)]

use super::{Input, Server};
use crate::death;
use std::time::Duration;
use tidegate_ffi::wire::message::{FromMover, FromShim, ToManager};

/// How long the last message may take to be sent.
const PATIENCE: Duration = Duration::from_secs(1);

impl Server {
    /// Takes an input in, where the manager may have been told to die.
    pub(super) fn take_in_fatally(&mut self, input: Input) {
        let Some(name) = self.name_of(&input) else { return self.take_in(input) };
        death::point(&format!("{name}:heard"));
        self.digest(input);
        death::point(&format!("{name}:decided"));
        self.write_down();
        death::point(&format!("{name}:written"));
        self.release();
        if death::is_due(&format!("{name}:sent")) {
            self.outboxes().for_each(|outbox| outbox.flush(PATIENCE));
            death::die();
        }
    }

    fn name_of(&self, input: &Input) -> Option<&'static str> {
        match input {
            Input::Said(_, ToManager::Shim(letter), _) => match &letter.message {
                FromShim::Hello(_) => Some("hello"),
                FromShim::Attach { .. } => Some("attach"),
                FromShim::Lease(_) => Some("lease"),
                FromShim::Drained(_) => Some("drained"),
                FromShim::Done { step } => self.scheduler.name_of(*step),
                _ => None,
            },
            Input::MoverSaid(_, letter, _) => match &letter.message {
                FromMover::Made { step } | FromMover::Done { step, .. } => self.scheduler.name_of(*step),
                _ => None,
            },
            _ => None,
        }
    }
}
