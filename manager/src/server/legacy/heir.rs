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
use super::super::gpus::{HeldPiece, MoverLink, Testament};
use super::super::{Input, Server, Setup};
use super::{ClientState, Heritage};
use crate::scheduler::Event;
use crossbeam_channel::{Receiver, Sender};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{GpuUuid, PieceId, SessionId};
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
        let testament = setup.testament(&file)?;
        let mut pieces: BTreeMap<_, HeldPiece> = BTreeMap::new();
        let mut links = BTreeMap::new();
        let mut orphans = movers;
        for plan in std::mem::take(&mut setup.gpus) {
            let (gpu, mut orphan) = (plan.uuid, orphans.remove(&plan.uuid));
            pieces.extend(orphan.iter_mut().flat_map(|orphan| std::mem::take(&mut orphan.pieces)));
            let mover = state.movers.get(&gpu).map(|mover| mover.clone().into_owned()).unwrap_or_default();
            links.insert(gpu, MoverLink::inherit(plan, inputs.clone(), mover, testament.clone(), orphan)?);
        }
        // What was made since is told of, with its descriptors, when the conversation goes on.
        let known: BTreeSet<PieceId> = state.pieces.iter().map(|(piece, ..)| *piece).collect();
        pieces.retain(|piece, _| known.contains(piece));
        let mut server = Self::over(state.scheduler.into_owned(), links, file, setup);
        server.clock = Clock::go_on(state.started);
        (server.pieces, server.making) = (pieces, state.making.into_owned());
        (server.tokens, server.peaks) = (state.tokens.into_owned(), state.peaks.into_owned());
        server.evictions = state
            .evictions
            .into_iter()
            .map(|(job, how)| (job, Eviction { how, waiting: BTreeSet::new() }))
            .collect();
        (server.ended, server.draining) = (history, state.draining);
        (server.next_job, server.last_client) = (state.next_job, state.last_client);
        let absence = server.now().saturating_sub(state.written);
        server.scheduler.forgive(absence);
        // Before anything is decided: who is expelled by it must be known.
        server.take_in_clients(state.clients, inputs)?;
        server.give_up_lost();
        let (jobs, movers) = (server.scheduler.jobs().len(), server.movers.len());
        info!(jobs, movers, absence_micros = absence.as_micros() as u64, "a manager has taken over");
        Ok(server)
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
        let mut dead = Vec::new();
        for client in clients {
            let (id, role) = (client.id, client.role);
            if let Role::Announcer(job) = role {
                self.announcers.insert(job, id);
            }
            match client.name.open().map(Arc::new) {
                Some(process) => {
                    watch(id, process.clone(), inputs.clone())?;
                    self.clients.insert(id, Client::inherited(client, process));
                }
                None => dead.push((id, role)),
            }
        }
        dead.into_iter().for_each(|(id, role)| self.bury(id, role));
        Ok(())
    }

    /// A client has died while there was no manager.
    fn bury(&mut self, id: ClientId, role: Role) {
        match role {
            Role::Process(_) => self.tell_scheduler(Event::SessionEnded { session: SessionId(id.0) }),
            Role::Announcer(job) => {
                self.announcers.remove(&job);
                self.tell_scheduler(Event::JobReleased { job });
            }
            Role::Unknown => {}
        }
    }

    /// Waits until the processes that live have come back; what else comes is returned.
    pub(in super::super) fn await_return(&mut self, inputs: &Receiver<Input>) -> VecDeque<Input> {
        let end = Instant::now() + PATIENCE;
        let (mut later, mut speakers) = (VecDeque::new(), BTreeSet::new());
        while self.misses_somebody() {
            let Ok(input) = inputs.recv_deadline(end) else { break };
            match &input {
                Input::Connected(..) | Input::Gone(_) | Input::Said(_, ToManager::Resume(_), _) => {
                    self.take_in(input)
                }
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
            matches!(client.role, Role::Process(_)) && !client.expelled && client.outbox.is_none()
        };
        self.clients.values().any(away)
    }
}

impl Setup {
    /// What movers are told for the time when this manager is dead.
    pub(in super::super) fn testament(&self, file: &super::StateFile) -> anyhow::Result<Testament> {
        Ok(Testament { will: self.will.clone(), state: Arc::new(file.share()?) })
    }
}
