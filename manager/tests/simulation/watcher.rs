//! Watches the manager's orders from outside: who was told what, in which order (I5, I9).

use super::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{GpuUuid, JobId, SessionId};
use tidegate_ffi::wire::message::{ToMover, ToShim};
use tidegate_manager::scheduler::{Effect, Event, Job, Scheduler};

/// What a process's gate is, by the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    Open,
    Closing,
    Closed,
    /// Closed but for work on memory that is there already.
    Ajar,
}

impl Grant {
    /// Whether memory may be taken from it, or may come back to it.
    fn is_closed(self, comes: bool) -> bool {
        self == Grant::Closed || comes && self == Grant::Ajar
    }
}

/// The memory of what was said.
#[derive(Default)]
pub struct Watcher {
    grants: BTreeMap<SessionId, (JobId, Grant)>,
}

impl Watcher {
    /// A message on its way into the scheduler.
    pub fn hear(&mut self, event: &Event, _scheduler: &Scheduler) -> Result<(), String> {
        match event {
            Event::SessionEnded { session } => {
                self.grants.remove(session);
            }
            Event::Drained { session, .. } => self.set(*session, Grant::Closed),
            Event::NotDrained { session, .. } | Event::Passed { session, .. } => {
                self.set(*session, Grant::Open);
            }
            _ => {}
        }
        Ok(())
    }

    fn set(&mut self, session: SessionId, grant: Grant) {
        if let Some((_, known)) = self.grants.get_mut(&session) {
            *known = grant;
        }
    }

    fn of(&self, job: JobId) -> impl Iterator<Item = Grant> + '_ {
        self.grants.values().filter(move |(of, _)| *of == job).map(|(_, grant)| *grant)
    }

    /// Each order comes at a time at which it may.
    pub fn check_effects(
        &mut self,
        effects: &[Effect],
        scheduler: &Scheduler,
        _plan: &Plan,
    ) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Standstill(report) => return Err(format!("{report} (I11)")),
                Effect::Expel(session, _) => {
                    self.grants.remove(session);
                }
                Effect::Welcome { session, job, closed } => {
                    let grant = if *closed { Grant::Closed } else { Grant::Open };
                    self.grants.insert(*session, (*job, grant));
                }
                Effect::Shim(session, message) => self.check_message(*session, message, scheduler)?,
                Effect::Mover(
                    gpu,
                    order @ (ToMover::Save { tenant, .. } | ToMover::Restore { tenant, .. }),
                ) => {
                    let comes = matches!(order, ToMover::Restore { .. });
                    let Some(job) = scheduler.tenants().get(tenant).map(|tenant| tenant.job) else {
                        continue;
                    };
                    if !self.of(job).all(|grant| grant.is_closed(comes)) {
                        return Err(format!("{tenant} on {gpu} is moved while {job} is not all closed (I5)"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_message(
        &mut self,
        session: SessionId,
        message: &ToShim,
        scheduler: &Scheduler,
    ) -> Result<(), String> {
        let Some((job, _)) = self.grants.get(&session) else { return Ok(()) };
        let job = *job;
        match message {
            ToShim::Close { .. } => {
                self.set(session, Grant::Closing);
                let gpus = gpus_of(scheduler, job);
                let shared = scheduler.tenants().values().any(|t| t.job != job && gpus.contains(&t.gpu));
                if !shared {
                    return Err(format!("{job} is closed though it is alone on its GPUs (I9)"));
                }
                let stays = |job: &Job| job.spec.resident || !job.unmovable.is_empty();
                if scheduler.jobs().get(&job).is_some_and(stays) {
                    return Err(format!("{job} is never to be closed, and is"));
                }
            }
            ToShim::Open => self.set(session, Grant::Open),
            ToShim::Ajar if gpus_of(scheduler, job).len() > 1 || self.of(job).count() > 1 => {
                return Err(format!("{session} of {job} is ajar, and the others of its gang are not (I5)"));
            }
            ToShim::Ajar => self.set(session, Grant::Ajar),
            ToShim::Unmap { .. } | ToShim::Map { .. } => {
                let comes = matches!(message, ToShim::Map { .. });
                if !self.of(job).all(|grant| grant.is_closed(comes)) {
                    return Err(format!("{session}: {message:?} while {job} is not all closed (I5)"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The processes of a job are open together, or not at all.
    pub fn check_grants(&self, scheduler: &Scheduler) -> Result<(), String> {
        for job in scheduler.jobs().keys() {
            let grants: Vec<Grant> = self.of(*job).collect();
            let closing = grants.contains(&Grant::Closing);
            if grants.contains(&Grant::Open) && grants.contains(&Grant::Closed) && !closing {
                return Err(format!("{job} is open in part: {grants:?} (I5)"));
            }
        }
        Ok(())
    }
}

fn gpus_of(scheduler: &Scheduler, job: JobId) -> BTreeSet<GpuUuid> {
    scheduler.tenants().values().filter(|tenant| tenant.job == job).map(|tenant| tenant.gpu).collect()
}
