//! The moments at which a test can have somebody die: around each message that the manager takes in.
//!
//! ```text
//! lease:heard ─ decide ─ lease:decided ─ write ─ lease:written ─ send ─ lease:sent
//! ```
//! The point's name alone means the manager itself; `lease:heard movers` its movers, and
//! `lease:heard process of NAME` the process that the message is from or about, if it is that job's.

#![forbid(unsafe_code)]

use super::client::{Client, ClientId, Role};
use super::gpus::MoverLink;
use super::{Input, Server};
use crate::death;
use std::time::Duration;
use tidegate_ffi::wire::message::{FromMover, FromShim, ToManager};

/// How long the last message may take to be sent.
const PATIENCE: Duration = Duration::from_secs(1);

/// A message that is being taken in.
struct Message {
    name: &'static str,
    /// The process, and the name of its job.
    about: Option<(ClientId, String)>,
}

impl Server {
    /// Takes an input in, where somebody may have been told to die.
    pub(super) fn take_in_fatally(&mut self, input: Input) {
        let Some(message) = self.message_of(&input) else { return self.take_in(input) };
        self.reach(&message, "heard");
        self.digest(input);
        self.reach(&message, "decided");
        self.write_down();
        self.reach(&message, "written");
        self.release();
        self.reach(&message, "sent");
    }

    /// Whoever was told to die here does.
    fn reach(&self, message: &Message, moment: &str) {
        let here = format!("{}:{moment}", message.name);
        if death::is_due(&here) {
            self.finish(moment);
            death::die();
        }
        if death::is_due(&format!("{here} movers")) {
            self.finish(moment);
            self.movers.values().for_each(MoverLink::kill);
        }
        if let Some((process, job)) = &message.about
            && death::is_due(&format!("{here} process of {job}"))
        {
            self.finish(moment);
            self.clients.get(process).into_iter().for_each(Client::kill);
        }
    }

    /// What counts as sent is on its way.
    fn finish(&self, moment: &str) {
        if moment == "sent" {
            self.outboxes().for_each(|outbox| outbox.flush(PATIENCE));
        }
    }

    fn message_of(&self, input: &Input) -> Option<Message> {
        let named = |name, process| Some(Message { name, about: self.about(process) });
        let answered = |step| {
            let process = self.scheduler.whose(step).map(|session| ClientId(session.0));
            named(self.scheduler.name_of(step)?, process)
        };
        match input {
            Input::Said(id, ToManager::Shim(letter), _) => match &letter.message {
                FromShim::Hello(_) => named("hello", Some(*id)),
                FromShim::Attach { .. } => named("attach", Some(*id)),
                FromShim::Lease(_) => named("lease", Some(*id)),
                FromShim::Drained(_) => named("drained", Some(*id)),
                FromShim::Done { step } => answered(*step),
                _ => None,
            },
            Input::MoverSaid(_, letter, _) => match &letter.message {
                FromMover::Made { step } | FromMover::Done { step, .. } => answered(*step),
                _ => None,
            },
            _ => None,
        }
    }

    fn about(&self, process: Option<ClientId>) -> Option<(ClientId, String)> {
        let process = process?;
        let Role::Process(job) = self.clients.get(&process)?.role else { return None };
        Some((process, self.scheduler.jobs().get(&job)?.spec.name.clone()))
    }
}
