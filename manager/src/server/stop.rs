//! The manager's end: at once, or drained, when the jobs that it has have ended.
//!
//! It is the end of the memory too, and of what is saved: processes that still live are told, so
//! that none of them waits for a next manager.

use super::Server;
use super::client::{Client, ClientId, Role};
use super::outbox::Outbox;
use super::rights::Asker;
use std::time::{Duration, Instant};
use tidegate_ffi::wire::message::{StopWhen, ToCommand};
use tracing::info;

/// What a newcomer is told while the manager drains.
pub(super) const DRAINS: &str =
    "this manager drains: it admits no new jobs, and ends when its last job has ended";
/// How long who asked for the end may take to read that it has come.
const PATIENCE: Duration = Duration::from_secs(1);
/// What processes are told that live longer than their manager.
const STOPPED: &str = "it was stopped";

impl Server {
    pub(super) fn stop(&mut self, id: ClientId, when: StopWhen) {
        if !self.asker(id).is_some_and(Asker::rules) {
            let reason = "only root and the user whose manager this is may stop it".into();
            return self.answer(id, ToCommand::Refused { reason });
        }
        self.part_from_the_dead();
        let jobs = self.scheduler.jobs().len() as u32;
        info!(?when, jobs, "the manager is asked to end");
        if when == StopWhen::Idle && jobs > 0 {
            let reason = format!(
                "jobs run under it: {jobs}. `--drain` lets them end first; `--now` ends it at once, and jobs that wait for \
                 their turn fail"
            );
            return self.answer(id, ToCommand::Refused { reason });
        }
        self.answer(id, ToCommand::Stopping { jobs });
        self.awaiting_stop.insert(id);
        match when {
            StopWhen::Drained => self.draining = true,
            StopWhen::Idle | StopWhen::Now => self.stopping = true,
        }
        self.stop_if_drained();
    }

    /// Takes in the end of every process that has ended by now: its reader may tell later than a
    /// command asks that was started after it.
    fn part_from_the_dead(&mut self) {
        let dead: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| client.has_ended()).map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|id| self.client_gone(id));
    }

    pub(super) fn stop_if_drained(&mut self) {
        self.stopping |= self.draining && self.scheduler.jobs().is_empty();
    }

    /// Tells all processes that the manager ends.
    pub(super) fn say_goodbye(&mut self) {
        let is_process = |client: &Client| matches!(client.role, Role::Process(_));
        let processes: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| is_process(client)).map(|(id, _)| *id).collect();
        processes.iter().for_each(|id| self.say_last(*id, STOPPED.into()));
        self.release();
        let end = Instant::now() + PATIENCE;
        let outboxes = processes.iter().filter_map(|id| self.clients.get(id)?.outbox.as_ref());
        outboxes.for_each(|outbox: &Outbox| outbox.wait_for_end(end));
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

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::client::ClientId;
    use super::super::stage::{GPU, ask, connect_as, join, server};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::sync::Arc;
    use tidegate_ffi::wire::line::Numbered;
    use tidegate_ffi::wire::message::{FromCommand, StopWhen, ToCommand, ToShim};

    #[test]
    fn processes_that_live_longer_are_told() {
        let mut server = server();
        let (connection, _page) = join(&mut server, 1);
        server.say_goodbye();
        let said = std::iter::from_fn(|| connection.receive::<Numbered<ToShim>>().ok());
        let last = said.last().map(|(letter, _)| letter.message);
        assert!(matches!(last, Some(ToShim::Refused { .. })), "{last:?}");
    }

    #[test]
    fn no_job_is_left_whose_processes_have_ended_when_the_end_is_asked_for() {
        let mut server = server();
        let _job = join(&mut server, 1);
        let asked = connect_as(&mut server, 2, (rustix::process::getuid().as_raw(), 2));
        ask(&mut server, 2, FromCommand::Stop(StopWhen::Idle));
        let refused = asked.receive().unwrap().0;
        assert!(matches!(refused, ToCommand::Refused { .. }), "its process lives: {refused:?}");

        let mut process = std::process::Command::new("true").spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).unwrap();
        process.wait().unwrap();
        server.clients.get_mut(&ClientId(1)).unwrap().process = Arc::new(handle);
        ask(&mut server, 2, FromCommand::Stop(StopWhen::Idle));
        let answer: ToCommand = asked.receive().unwrap().0;
        assert_eq!(answer, ToCommand::Stopping { jobs: 0 });
    }

    #[test]
    fn a_manager_whose_gpus_were_all_given_up_ends_with_its_last_job() {
        let mut server = server();
        assert!(!server.is_useless());
        let _job = join(&mut server, 1);
        server.give_up(GPU);
        assert!(!server.is_useless(), "a job may have memory there");
        let clients: Vec<_> = server.clients.keys().copied().collect();
        clients.into_iter().for_each(|client| server.take_in(Input::Gone(client)));
        assert!(server.is_useless());
    }
}
