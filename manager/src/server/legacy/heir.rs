//! How a new manager goes on from what it inherited.
//!
//! - A GPU whose mover did not come is lost.
//! - A process that has died meanwhile ends now; the others are watched by name, and come back over
//!   new connections. Who announced a job counts as long as its process lives.
//! - Nothing is decided before the living have come back, for a moment: what they publish decides
//!   where a gang stops. Who comes later finds its session as it was.
//! - Nobody is late for the time in which there was no manager.

use super::super::client::{Client, ClientId, Role, watch};
use super::super::clock::Clock;
use super::super::eviction::Eviction;
use super::super::gpus::{HeldPiece, MoverLink, Orphaned, Testament};
use super::super::{Input, Server, Setup};
use super::{ClientState, Heritage, State, StateFile};
use crate::process::is_dead;
use crate::scheduler::Event;
use crossbeam_channel::{Receiver, Sender};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SessionId};
use tidegate_ffi::wire::message::ToManager;
use tracing::{info, warn};

/// So long are processes waited for that live and have not come back.
const PATIENCE: Duration = Duration::from_secs(1);

impl Server {
    /// Takes over.
    pub(in super::super) fn inherit(
        setup: &mut Setup,
        heritage: Heritage,
        inputs: &Sender<Input>,
    ) -> anyhow::Result<Self> {
        let Heritage { file, state, history, movers, .. } = heritage;
        let (movers, pieces) = movers_of(setup, &file, &state, movers, inputs)?;
        let mut server = Self::over(state.scheduler.into_owned(), movers, file, setup);
        server.clock = Clock::go_on(state.started);
        (server.pieces, server.making) = (pieces, state.making.into_owned());
        (server.tokens, server.published) = (state.tokens.into_owned(), state.published.into_owned());
        server.former = state.former.into_owned();
        let eviction = |(job, how)| (job, Eviction { how, waiting: BTreeSet::new() });
        server.evictions = state.evictions.into_iter().map(eviction).collect();
        (server.ended, server.draining) = (history, state.draining);
        (server.next_job, server.last_client) = (state.next_job, state.last_client);
        let absence = server.now().saturating_sub(state.written);
        server.scheduler.forgive(absence);
        server.take_in_clients(state.clients, inputs)?;
        let (jobs, movers) = (server.scheduler.jobs().len(), server.movers.len());
        info!(jobs, movers, absence_micros = absence.as_micros() as u64, "a manager has taken over");
        Ok(server)
    }

    /// Parts from who has died while there was no manager.
    pub(in super::super) fn part_from_the_absent(&mut self) {
        let is_absent = |session: &SessionId| !self.clients.contains_key(&ClientId(session.0));
        let ended: Vec<SessionId> = self.scheduler.processes().filter(is_absent).collect();
        ended.into_iter().for_each(|session| self.tell_scheduler(Event::SessionEnded { session }));
        let announced = self.scheduler.jobs().iter().filter(|(_, job)| job.announced).map(|(id, _)| *id);
        let released: Vec<JobId> = announced.filter(|job| !self.announcers.contains_key(job)).collect();
        released.into_iter().for_each(|job| self.tell_scheduler(Event::JobReleased { job }));
        self.give_up_lost();
    }

    /// GPUs whose movers did not come.
    fn give_up_lost(&mut self) {
        let lost: Vec<GpuUuid> =
            self.movers.iter().filter(|(_, mover)| mover.is_lost()).map(|(gpu, _)| *gpu).collect();
        for gpu in lost {
            if self.scheduler.gpus().get(&gpu).is_some_and(|gpu| !gpu.lost) {
                warn!(%gpu, "its mover has died with its manager: this GPU is given up");
            }
            self.give_up(gpu);
        }
    }

    fn take_in_clients(
        &mut self,
        clients: Vec<ClientState<'static>>,
        inputs: &Sender<Input>,
    ) -> anyhow::Result<()> {
        for client in clients {
            let (id, role) = (client.id, client.role);
            let Some(process) = client.name.open().map(Arc::new) else { continue };
            watch(id, process.clone(), client.conversation.pid, client.image, inputs.clone())?;
            self.clients.insert(id, Client::inherited(client, process));
            if let Role::Announcer(job) = role {
                self.announcers.entry(job).or_default().insert(id);
            }
        }
        Ok(())
    }

    /// Waits until the processes that live have come back; what else comes is returned.
    pub(in super::super) fn await_return(&mut self, inputs: &Receiver<Input>) -> VecDeque<Input> {
        let end = Instant::now() + PATIENCE;
        let (mut later, mut speakers) = (VecDeque::new(), BTreeSet::new());
        while self.misses_somebody() {
            let Ok(input) = inputs.recv_deadline(end) else { break };
            match &input {
                Input::Connected(..) | Input::Said(_, ToManager::Resume(_), _) => self.take_in(input),
                Input::Heard(id, _) if !speakers.contains(id) => self.take_in(input),
                Input::Said(id, ..) => {
                    speakers.insert(*id);
                    later.push_back(input);
                }
                _ => later.push_back(input),
            }
        }
        later
    }

    /// Whether a process with a session has no connection.
    fn misses_somebody(&self) -> bool {
        let away = |client: &Client| {
            matches!(client.role, Role::Process(_))
                && !client.expelled
                && client.outbox.is_none()
                && !is_dead(&client.process)
        };
        self.clients.values().any(away)
    }
}

/// The movers that came, and those that did not; and the pieces of those that did.
fn movers_of(
    setup: &mut Setup,
    file: &StateFile,
    state: &State<'_>,
    mut orphans: BTreeMap<GpuUuid, Orphaned>,
    inputs: &Sender<Input>,
) -> anyhow::Result<(BTreeMap<GpuUuid, MoverLink>, BTreeMap<PieceId, HeldPiece>)> {
    let testament = setup.testament(file)?;
    let (mut movers, mut pieces) = (BTreeMap::new(), BTreeMap::new());
    for plan in std::mem::take(&mut setup.gpus) {
        let (gpu, mut orphan) = (plan.uuid, orphans.remove(&plan.uuid));
        pieces.extend(orphan.iter_mut().flat_map(|orphan| std::mem::take(&mut orphan.pieces)));
        let mover = state.movers.get(&gpu).map(|mover| mover.clone().into_owned()).unwrap_or_default();
        movers.insert(gpu, MoverLink::inherit(plan, inputs.clone(), mover, testament.clone(), orphan)?);
    }
    // What was made since is told of, with its descriptors, when the conversation goes on.
    let known: BTreeSet<PieceId> = state.pieces.iter().map(|(piece, ..)| *piece).collect();
    pieces.retain(|piece, _| known.contains(piece));
    Ok((movers, pieces))
}

impl Setup {
    /// What movers are told for the time when this manager is dead.
    pub(in super::super) fn testament(&self, file: &StateFile) -> anyhow::Result<Testament> {
        Ok(Testament { will: self.will.clone(), state: Arc::new(file.share()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::stage::{ask, connect, join, server};
    use super::*;
    use tidegate_ffi::wire::message::{FromCommand, JobSpec};

    #[test]
    fn who_has_died_while_there_was_no_manager_is_parted_from() {
        let mut server = server();
        let (_living, _page) = join(&mut server, 1);
        let (_dead, _page) = join(&mut server, 2);
        let _announcer = connect(&mut server, 3);
        ask(&mut server, 3, FromCommand::Register(JobSpec::default()));
        assert_eq!(server.scheduler.jobs().len(), 3);
        for id in [2, 3] {
            server.clients.remove(&ClientId(id));
        }
        server.announcers.clear();
        server.part_from_the_absent();
        assert_eq!(server.scheduler.sessions().keys().copied().collect::<Vec<_>>(), [SessionId(1)]);
        assert_eq!(server.scheduler.jobs().len(), 1);
    }
}
