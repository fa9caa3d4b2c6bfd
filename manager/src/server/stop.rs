//! The manager's end: at once, or drained, when the jobs that it has have ended.

use super::Server;
use super::client::ClientId;
use super::rights::Asker;
use std::time::Duration;
use tidegate_ffi::wire::message::ToCommand;
use tracing::info;

/// What a newcomer is told while the manager drains.
pub(super) const DRAINS: &str =
    "this manager drains: it admits no new jobs, and ends when its last job has ended";
/// How long who asked for the end may take to read that it has come.
const PATIENCE: Duration = Duration::from_secs(1);

impl Server {
    pub(super) fn stop(&mut self, id: ClientId, drain: bool) {
        if !self.asker(id).is_some_and(Asker::rules) {
            let reason = "only root and the user whose manager this is may stop it".into();
            return self.answer(id, ToCommand::Refused { reason });
        }
        let jobs = self.scheduler.jobs().len() as u32;
        info!(drain, jobs, "the manager is asked to end");
        self.answer(id, ToCommand::Stopping { jobs });
        self.awaiting_stop.insert(id);
        self.draining |= drain;
        self.stopping |= !drain;
        self.stop_if_drained();
    }

    pub(super) fn stop_if_drained(&mut self) {
        self.stopping |= self.draining && self.scheduler.jobs().is_empty();
    }

    /// Tells who waits for the end that it has come.
    pub(super) fn say_stopped(&mut self) {
        for id in std::mem::take(&mut self.awaiting_stop) {
            self.answer(id, ToCommand::Stopped);
            if let Some(outbox) = self.clients.get(&id).and_then(|client| client.outbox.as_ref()) {
                outbox.flush(PATIENCE);
            }
        }
    }
}
