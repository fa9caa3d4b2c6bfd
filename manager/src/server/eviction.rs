//! Ending a job from outside: its processes are asked to end, or killed, and who wanted that is
//! told when the job is over.
//!
//! Signals go through the pidfds that were opened when the processes connected: a number that
//! the kernel has given to somebody else since is never signalled.

use super::Server;
use super::client::{Client, ClientId, Role};
use crate::process::is_dead;
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::JobId;
use tidegate_ffi::wire::message::{Ending, ToCommand};
use tracing::{info, warn};

/// A job that is being ended.
#[derive(Debug)]
pub(super) struct Eviction {
    pub(super) how: Ending,
    /// Who waits for the job's end.
    pub(super) waiting: BTreeSet<ClientId>,
}

impl Server {
    pub(super) fn evict(&mut self, id: ClientId, wanted: &str, how: Ending) {
        match self.find_evictable(id, wanted).and_then(|job| Ok((job, self.end_processes(job, how)?))) {
            Ok((job, processes)) => {
                info!(%job, processes, ?how, "a job is evicted");
                let eviction =
                    self.evictions.entry(job).or_insert(Eviction { how, waiting: BTreeSet::new() });
                eviction.how = how;
                eviction.waiting.insert(id);
                self.answer(id, ToCommand::Evicting { job, processes });
            }
            Err(reason) => self.answer(id, ToCommand::Refused { reason }),
        }
    }

    /// The job of that number or name. Other users' jobs do not exist for who may not end them.
    fn find_evictable(&self, id: ClientId, wanted: &str) -> Result<JobId, String> {
        let asker = self.asker(id);
        let owned = |uid| asker.is_some_and(|asker| asker.may_end(uid));
        let jobs = || self.scheduler.jobs().iter().filter(|(_, job)| owned(job.uid));
        let number = wanted.parse().ok().map(JobId);
        if let Some((job, _)) = jobs().find(|(job, _)| Some(**job) == number) {
            return Ok(*job);
        }
        let wanted = super::text::clean(wanted);
        let named: Vec<JobId> =
            jobs().filter(|(_, job)| job.spec.name == wanted).map(|(id, _)| *id).collect();
        match named.as_slice() {
            [job] => Ok(*job),
            [] => Err(format!(
                "no job that this user may end has the name or number {wanted:?}; `tidegate status` lists the jobs"
            )),
            several => {
                let numbers: Vec<_> = several.iter().map(|job| job.0.to_string()).collect();
                Err(format!(
                    "several jobs are called {wanted:?}: say which by its number, {}",
                    numbers.join(" or ")
                ))
            }
        }
    }

    /// Signals each process of a job that is known; how many these are.
    fn end_processes(&self, job: JobId, how: Ending) -> Result<u32, String> {
        let clients = self.clients.values();
        let of_job = clients
            .filter(|client| matches!(client.role, Role::Process(of) | Role::Announcer(of) if of == job));
        // The program that `tidegate run` became is one process, with two connections.
        let processes: BTreeMap<i32, &Client> =
            of_job.map(|client| (client.conversation.pid, client)).collect();
        for process in processes.values() {
            end(process, how)?;
        }
        Ok(processes.len() as u32)
    }

    /// A process that joins a job which is being ended is ended too.
    pub(super) fn end_latecomer(&self, id: ClientId, job: JobId) {
        let Some(eviction) = self.evictions.get(&job) else { return };
        if let Some(Err(reason)) = self.clients.get(&id).map(|client| end(client, eviction.how)) {
            warn!(%job, reason, "a process that joins an evicted job goes on");
        }
    }

    pub(super) fn forget_evictor(&mut self, id: ClientId) {
        for eviction in self.evictions.values_mut() {
            eviction.waiting.remove(&id);
        }
    }

    pub(super) fn tell_evicted(&mut self, job: JobId) {
        for id in self.evictions.remove(&job).into_iter().flat_map(|eviction| eviction.waiting) {
            self.answer(id, ToCommand::Evicted { job });
        }
    }
}

fn end(client: &Client, how: Ending) -> Result<(), String> {
    if !client.is_of_its_user() {
        return match is_dead(&client.process) {
            true => Ok(()),
            false => Err(format!(
                "process {} does not belong to uid {} any more",
                client.conversation.pid, client.conversation.uid
            )),
        };
    }
    match how {
        // Who is stopped hears nothing until it goes on.
        Ending::Ask => signal(client, Signal::TERM).and_then(|()| signal(client, Signal::CONT)),
        Ending::Kill => signal(client, Signal::KILL),
    }
}

fn signal(client: &Client, signal: Signal) -> Result<(), String> {
    match pidfd_send_signal(&client.process, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(format!(
            "this manager cannot end process {} of uid {}: {error}",
            client.conversation.pid, client.conversation.uid
        )),
    }
}
