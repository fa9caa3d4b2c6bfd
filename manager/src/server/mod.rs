//! The manager's process: carries messages between clients, movers and the scheduler.
//!
//! ```text
//!  clients ═ reader threads ─┐                        ┌─ writer threads ═ clients
//!                            ├─► one queue ─► core ───┤
//!  movers  ═ reader threads ─┘    (server)  scheduler └─ writer threads ═ movers
//! ```
//! The core is one thread: it alone has the state, and never waits for anybody. Who reads too
//! slowly loses the connection (I10). The core decides nothing: it translates messages into the
//! scheduler's events and its effects into messages, and adds the file descriptors.
//!
//! Invariant: nothing leaves the manager before the state from which it follows is written down
//! (`legacy`), so that its successor knows all that anybody has heard (I7).

mod client;
mod clock;
mod conversation;
mod crowd;
mod descriptors;
mod eviction;
mod former;
#[cfg(test)]
mod fuzz;
mod gpus;
mod legacy;
mod outbox;
mod points;
mod reunion;
mod rights;
mod setup;
#[cfg(test)]
mod stage;
pub mod status;
mod stillness;
mod stop;
mod text;

pub use gpus::GpuPlan;
pub use legacy::{CommandLine, ConfigFile, Gathered, Heritage, gather};
#[cfg(test)]
pub(crate) use setup::leave_mover;
pub use setup::{Setup, config_to_take_over, has_died, heirs, last_command, run, stop_signals, will_path};

use crate::brief::Brief;
use crate::death;
use crate::kept::{Keep, Store, StoreError};
use crate::scheduler::{Effect, Event, Job, Pages, QueuePlace, SavedQuota, Scheduler, Session, Time};
use bytesize::ByteSize;
use client::{Brought, Client, ClientId, NoPage, Published, Role, Standing};
use clock::Clock;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use descriptors::Shares;
use eviction::Eviction;
use former::FormerJobs;
use gpus::{HeldPiece, MoverLink};
use legacy::{Record, State, StateFile, WillFile};
use outbox::Outbox;
use rights::Asker;
pub use rights::Permissions;
use status::EndedJob;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SessionId, Step};
use tidegate_ffi::wire::line::Numbered;
use tidegate_ffi::wire::message::{
    Bandwidth, Drained, FromCommand, FromMover, FromShim, JobClaim, JobSpec, Placed, Shortage, ToCommand,
    ToManager, ToMover, ToShim, When,
};
use tidegate_ffi::wire::page::Page;
use tracing::{debug, error, info, warn};

/// Ended jobs that `status` still tells of.
const KEPT_ENDED_JOBS: usize = 64;
/// The most jobs of one user that live, or are announced.
const JOBS_PER_USER: usize = 256;
const TOO_MANY_JOBS: &str = "this user has too many jobs: wait until one has ended";
/// The most processes of one job.
const PROCESSES_PER_JOB: usize = 256;

/// The step of orders that the scheduler does not know of.
const UNASKED: Step = Step(u64::MAX);

/// So many inputs at most are taken in before the state is written down.
const INPUTS_AT_ONCE: usize = 64;

/// A client with no more bytes of messages that wait to be acknowledged is always told more.
const FEW_UNHEARD_BYTES: u64 = 64 << 10;
/// The most bytes of such messages of all clients of a user.
const UNHEARD_BYTES_PER_USER: u64 = 8 << 20;

/// The pieces that a message hands out.
fn placed_in(message: &ToShim) -> &[Placed] {
    match message {
        ToShim::Leased { pieces, .. } | ToShim::Lent { pieces, .. } | ToShim::Map { pieces, .. } => pieces,
        _ => &[],
    }
}

/// What reaches the core.
pub(crate) enum Input {
    /// A client connected.
    Connected(ClientId, Box<Client>),
    /// A client said something.
    Said(ClientId, ToManager, Brought),
    /// Who reads from a client wants to know what has become of all that it said.
    Heard(ClientId, Sender<Standing>),
    /// A client is gone: its process died, or (a command) its connection ended.
    Gone(ClientId),
    /// A mover said something.
    MoverSaid(GpuUuid, Numbered<FromMover>, Vec<OwnedFd>),
    /// What a mover has said, or would say if there were one.
    Mover(GpuUuid, FromMover, Vec<OwnedFd>),
    /// A mover's connection ended.
    MoverGone(GpuUuid, String),
    /// The process was asked to end.
    Stop,
}

impl Input {
    /// A client said something, with files: read as far as its thread can.
    pub(crate) fn said(id: ClientId, message: ToManager, files: Vec<OwnedFd>) -> Self {
        let brought = Brought::with(&message, files);
        Self::Said(id, message, brought)
    }
}

struct Server {
    clock: Clock,
    /// Away only while it is written.
    file: Option<StateFile>,
    /// The state could not be written down.
    unwritten: bool,
    /// More has ended than is written down.
    history_grew: bool,
    /// The will could not be left.
    intestate: bool,
    shares: Shares,
    scheduler: Scheduler,
    movers: BTreeMap<GpuUuid, MoverLink>,
    clients: HashMap<ClientId, Client>,
    /// The manager's duplicate of every piece.
    pieces: BTreeMap<PieceId, HeldPiece>,
    /// Pieces and their bytes in the order in which their fds will come, by the `Make` that asked
    /// for them.
    making: BTreeMap<Step, Vec<(PieceId, u64)>>,
    tokens: HashMap<u64, (JobId, u32)>,
    /// What tokens named that name no job any more.
    former: FormerJobs,
    /// Each `tidegate run` of each job: of several ranks of a launch, several.
    announcers: BTreeMap<JobId, BTreeSet<ClientId>>,
    /// Peaks of live bytes, by class, of processes that ended.
    published: HashMap<JobId, Published>,
    ended: VecDeque<EndedJob>,
    /// Commands to whom the status is told once no job lives.
    awaiting_idle: BTreeSet<ClientId>,
    /// Jobs whose processes were told to end.
    evictions: BTreeMap<JobId, Eviction>,
    /// The manager's own user.
    user: u32,
    /// What other users may ask for.
    permissions: Permissions,
    /// Nobody new is admitted; the manager ends with the last job.
    draining: bool,
    /// Who is told when the manager ends.
    awaiting_stop: BTreeSet<ClientId>,
    /// Beside which the will lies.
    socket: Option<PathBuf>,
    software_gpu: Option<PathBuf>,
    abandoned: Vec<PathBuf>,
    command: Option<CommandLine>,
    /// The file of options that it read, if any.
    config_file: Option<ConfigFile>,
    idle_exit: Option<Duration>,
    kill_expelled: bool,
    idle_since: Instant,
    next_job: u64,
    /// The highest number of a client so far.
    last_client: u64,
    stopping: bool,
}

struct PublishedPages<'a>(&'a HashMap<ClientId, Client>);

impl PublishedPages<'_> {
    fn page(&self, session: SessionId) -> Option<&Page> {
        self.0.get(&ClientId(session.0)).and_then(|client| client.page.as_deref())
    }
}

impl Pages for PublishedPages<'_> {
    fn boundaries(&self, session: SessionId) -> u64 {
        self.page(session).map_or(0, |page| page.last_boundary.load(Ordering::Relaxed))
    }

    fn learning(&self, session: SessionId) -> u64 {
        self.page(session).map_or(0, |page| page.learning.load(Ordering::Relaxed))
    }

    fn collectives(&self, session: SessionId) -> u64 {
        self.page(session).map_or(0, |page| page.collectives.load(Ordering::Relaxed))
    }

    fn is_stopped(&self, session: SessionId) -> bool {
        self.0.get(&ClientId(session.0)).is_some_and(Client::is_stopped)
    }
}

impl Server {
    fn new(scheduler: Scheduler, movers: BTreeMap<GpuUuid, MoverLink>, file: StateFile) -> Self {
        Self {
            clock: Clock::start(),
            file: Some(file),
            unwritten: false,
            history_grew: false,
            intestate: false,
            shares: Shares::take(),
            scheduler,
            movers,
            clients: HashMap::new(),
            pieces: BTreeMap::new(),
            making: BTreeMap::new(),
            tokens: HashMap::new(),
            former: FormerJobs::default(),
            announcers: BTreeMap::new(),
            published: HashMap::new(),
            ended: VecDeque::new(),
            awaiting_idle: BTreeSet::new(),
            evictions: BTreeMap::new(),
            user: rustix::process::geteuid().as_raw(),
            permissions: Permissions::default(),
            draining: false,
            awaiting_stop: BTreeSet::new(),
            socket: None,
            software_gpu: None,
            abandoned: Vec::new(),
            command: None,
            config_file: None,
            idle_exit: None,
            kill_expelled: false,
            idle_since: Instant::now(),
            next_job: 0,
            last_client: 0,
            stopping: false,
        }
    }

    /// Until it is asked to end. An error: there is nothing left that it could share.
    fn serve(&mut self, inputs: &Receiver<Input>, held_back: VecDeque<Input>) -> anyhow::Result<()> {
        for input in held_back {
            self.take_in(input);
        }
        while !self.stopping && !self.idle_too_long() && !self.is_useless() {
            self.replace_movers();
            let limit = self.scheduler.config().answer_limit;
            self.movers.values_mut().for_each(|mover| mover.kill_if_still(limit));
            if self.intestate {
                self.leave_will();
            }
            match self.next_input(inputs) {
                Ok(input) if death::is_possible() => self.take_in_fatally(input),
                Ok(input) => self.take_in_with(input, inputs),
                Err(RecvTimeoutError::Timeout) => {
                    self.tell_scheduler(Event::Tick);
                    self.settle();
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        info!("the manager ends");
        self.say_goodbye();
        self.say_stopped();
        if self.is_useless() && !self.stopping {
            // The next `tidegate run` starts a manager with the same options.
            self.socket = None;
            anyhow::bail!("all of its GPUs were given up, and its last job has ended: start it again");
        }
        Ok(())
    }

    /// Whether all its GPUs were given up, and no job is left that has memory there.
    fn is_useless(&self) -> bool {
        let gpus = self.scheduler.gpus();
        !gpus.is_empty() && gpus.values().all(|gpu| gpu.lost) && self.scheduler.jobs().is_empty()
    }

    fn next_input(&self, inputs: &Receiver<Input>) -> Result<Input, RecvTimeoutError> {
        let wakeup = self.scheduler.next_wakeup().map(|due| due.saturating_sub(self.now()));
        let idle = self.idle_exit.filter(|_| self.clients.is_empty());
        let idle = idle.map(|limit| limit.saturating_sub(self.idle_since.elapsed()));
        let mover = self.movers.values().filter_map(MoverLink::due).min();
        let mover = mover.map(|due| due.saturating_sub(self.now()));
        let limit = self.scheduler.config().answer_limit;
        let look = self.movers.values().filter_map(|mover| mover.next_look(limit)).min();
        let look = look.map(|due| due.saturating_duration_since(Instant::now()));
        match wakeup.into_iter().chain(idle).chain(mover).chain(look).min() {
            Some(wait) => inputs.recv_timeout(wait),
            None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn idle_too_long(&self) -> bool {
        let long = |limit| self.clients.is_empty() && self.idle_since.elapsed() >= limit;
        self.idle_exit.is_some_and(long)
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn take_in(&mut self, input: Input) {
        self.digest(input);
        self.settle();
    }

    /// Takes in what has come too, before it writes anything down.
    fn take_in_with(&mut self, first: Input, inputs: &Receiver<Input>) {
        self.digest(first);
        inputs.try_iter().take(INPUTS_AT_ONCE - 1).for_each(|input| self.digest(input));
        self.settle();
    }

    /// Writes everything down, then sends what follows from it.
    fn settle(&mut self) {
        self.write_down();
        self.release();
    }

    fn release(&self) {
        self.outboxes().for_each(Outbox::release);
    }

    fn outboxes(&self) -> impl Iterator<Item = &Outbox> {
        let of_clients = self.clients.values().filter_map(|client| client.outbox.as_ref());
        of_clients.chain(self.movers.values().filter_map(MoverLink::outbox))
    }

    fn keep_long_parts(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        self.scheduler.keep(store)?;
        self.clients.values_mut().try_for_each(|client| client.conversation.keep(store))
    }

    fn write_down(&mut self) {
        let Some(mut file) = self.file.take() else { return };
        let kept = file.keep(|store| self.keep_long_parts(store));
        let history = kept
            .and_then(|()| if self.history_grew { file.write(Record::History, &self.ended) } else { Ok(0) });
        let written = history.and_then(|_| file.write(Record::State, &State::of(self)));
        match written {
            Ok(_) => {
                if std::mem::take(&mut self.unwritten) {
                    info!("another manager could take over again");
                }
            }
            Err(error) if !self.unwritten => {
                self.unwritten = true;
                error!(%error, "if the manager dies now, no other can take over");
            }
            Err(_) => {}
        }
        // The whole file is void then.
        self.history_grew = self.unwritten;
        self.file = Some(file);
    }

    fn digest(&mut self, input: Input) {
        match input {
            Input::Connected(id, client) => {
                self.last_client = self.last_client.max(id.0);
                self.clients.insert(id, *client);
            }
            Input::Said(id, ..) if self.clients.get(&id).is_none_or(|client| client.expelled) => {}
            Input::Heard(id, reader) => {
                // A reader waits for it, and there is room for one.
                let _ = reader.try_send(self.standing(id));
            }
            Input::Said(id, ToManager::Shim(letter), brought) => self.hear_letter(id, letter, brought),
            Input::Said(id, ToManager::Resume(resume), brought) => self.take_up(id, &resume, &brought.files),
            Input::Said(id, ToManager::Orphan(_), _) => {
                self.expel(id, "it is no mover of this manager");
            }
            Input::Said(id, ToManager::Command(message), _) => self.hear_command(id, message),
            Input::Gone(id) => self.client_gone(id),
            Input::MoverSaid(gpu, letter, fds) => {
                if let Some(message) = self.movers.get_mut(&gpu).and_then(|mover| mover.hear(letter)) {
                    self.hear_mover(gpu, message, fds);
                }
            }
            Input::Mover(gpu, message, fds) => self.hear_mover(gpu, message, fds),
            Input::MoverGone(gpu, why) => self.mover_gone(gpu, &why),
            Input::Stop => self.stopping = true,
        }
    }

    fn standing(&self, connection: ClientId) -> Standing {
        let id = self.speaker(connection);
        let client = self.clients.get(&id);
        Standing {
            id,
            process: client.is_some_and(|client| matches!(client.role, Role::Process(_))),
            expelled: client.is_none_or(|client| client.expelled),
        }
    }

    fn client_gone(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.awaiting_idle.remove(&id);
        self.forget_evictor(id);
        self.awaiting_stop.remove(&id);
        self.idle_since = Instant::now();
        match client.role {
            Role::Process(job) => {
                // What one that was expelled has published is noted already.
                if self.scheduler.sessions().contains_key(&SessionId(id.0)) {
                    client.add_published(self.published.entry(job).or_default());
                }
                self.tell_scheduler(Event::SessionEnded { session: SessionId(id.0) });
            }
            Role::Announcer(job) => {
                let left = self.announcers.get_mut(&job).map_or(0, |announcers| {
                    announcers.remove(&id);
                    announcers.len()
                });
                if left == 0 {
                    self.announcers.remove(&job);
                    self.tell_scheduler(Event::JobReleased { job });
                }
            }
            Role::Unknown => {}
        }
    }

    /// Hears a message, unless it was heard before.
    fn hear_letter(&mut self, id: ClientId, letter: Numbered<FromShim>, brought: Brought) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match client.conversation.hear(letter) {
            Ok(Some(message)) => self.hear_shim(id, message, brought),
            Ok(None) => {}
            Err(error) => self.expel(id, &error.to_string()),
        }
        if self.clients.get(&id).is_some_and(|client| client.conversation.owes_a_word()) {
            self.say(id, ToShim::Heard);
        }
    }

    fn hear_shim(&mut self, id: ClientId, message: FromShim, brought: Brought) {
        let session = SessionId(id.0);
        let event = match message {
            FromShim::Hello(claim) => return self.hello(id, claim, &brought.files),
            _ if !self.clients.get(&id).is_some_and(|client| matches!(client.role, Role::Process(_))) => {
                return self.expel(id, "it spoke before it said hello");
            }
            FromShim::Attach { step, gpu } => Event::Attach { session, step, gpu },
            FromShim::Lease(request) => Event::Lease { session, request },
            FromShim::Return { tenant, pieces, unused, recalled } => {
                Event::Returned { session, tenant, pieces, unused, recalled }
            }
            FromShim::Hold { step, tenant, pieces } => Event::Hold { session, step, tenant, pieces },
            FromShim::Borrow { step, tenant, class, first, units } => {
                Event::Borrow { session, step, tenant, class, first, units }
            }
            FromShim::LetGo { tenant, pieces } => Event::LetGo { session, tenant, pieces },
            FromShim::Used { tenant, slots } => Event::Used { session, tenant, slots },
            FromShim::Drained(drained) if !self.is_expected(session, &drained) => {
                return self.expel(id, "it reported a closing that it was not asked for, or not for its own");
            }
            FromShim::Drained(drained) => {
                let maps: Result<Vec<_>, _> = brought.live_maps.into_iter().collect();
                match maps {
                    Ok(maps) if maps.len() == drained.tenants.len() => Event::Drained {
                        session,
                        step: drained.step,
                        at_boundary: drained.at_boundary,
                        drain: Duration::from_micros(drained.drain_micros),
                        maps: drained.tenants.into_iter().zip(maps).collect(),
                        outstanding: drained.outstanding,
                    },
                    Ok(_) => return self.expel(id, "it sent another number of live maps than tenants"),
                    Err(error) => return self.expel(id, &error.to_string()),
                }
            }
            FromShim::NotDrained { step, reason } => {
                info!(%session, reason = text::clean(&reason), "could not be drained");
                Event::NotDrained { session, step }
            }
            FromShim::Passed { step, boundary } => Event::Passed { session, step, boundary },
            FromShim::Stalled { step, is_overdue } => Event::Stalled { session, step, is_overdue },
            FromShim::Done { step } => Event::ShimDone { session, step },
            FromShim::MappedSome { step, pieces } => {
                info!(%session, pieces, "it has no descriptors to map more of its memory just now");
                Event::MappedSome { session, step, pieces }
            }
            FromShim::Failed { step, reason } => {
                Event::ShimFailed { session, step, reason: text::clean(&reason) }
            }
            FromShim::Unsliceable { reason } => Event::Unsliceable { session, reason: text::clean(&reason) },
            FromShim::Idle => Event::Idle { session },
            FromShim::Waiting => Event::Waiting { session },
            FromShim::MakeRoom { step, gpu, units } => Event::MakeRoom { session, step, gpu, units: units.0 },
            FromShim::JobDone => return debug!(%session, "the job says it is done"),
            FromShim::Heard => return,
        };
        self.tell_scheduler(event);
    }

    /// Was the process asked to close, and does it tell of its own tenants.
    fn is_expected(&self, session: SessionId, drained: &Drained) -> bool {
        let own = |asked: &Session| {
            drained.tenants.len() <= asked.tenants.len()
                && drained.tenants.iter().all(|tenant| asked.tenants.contains(tenant))
        };
        let asked = self.scheduler.sessions().get(&session);
        asked.is_some_and(|asked| asked.closing == Some(drained.step) && own(asked))
    }

    fn hello(&mut self, id: ClientId, claim: JobClaim, files: &[OwnedFd]) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.role != Role::Unknown {
            return self.expel(id, "it said hello in the middle of a conversation");
        }
        let [page] = files else {
            return self.refuse(id, "it said hello without a control page".into());
        };
        match client.open_page(page) {
            Ok(()) => {}
            Err(error @ NoPage::NotNow(_)) => {
                warn!(client = id.0, %error, "a process is to come again");
                return client.disconnect();
            }
            Err(wrong) => return self.refuse(id, wrong.to_string()),
        }
        let uid = client.conversation.uid;
        self.forget_replaced(id);
        let job = match claim {
            JobClaim::Token(token) => self.job_of(token, uid),
            JobClaim::Own(spec) => self.own_job(uid, spec),
        };
        let job = match job {
            Ok(job) => job,
            Err(reason) => return self.refuse(id, reason),
        };
        self.forget_unheard(id);
        let processes = self.scheduler.jobs().get(&job).map_or(0, |job| job.sessions.len());
        if processes >= PROCESSES_PER_JOB {
            return self.refuse(id, format!("its job has {PROCESSES_PER_JOB} processes already"));
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.role = Role::Process(job);
        }
        self.end_latecomer(id, job);
        self.tell_scheduler(Event::SessionJoined { session: SessionId(id.0), job });
        if !self.announcers.contains_key(&job) {
            // Nobody announced it: it lives as long as its processes.
            self.tell_scheduler(Event::JobReleased { job });
        }
    }

    /// The job that a user's token names; if it is over, another one that is as it was.
    fn job_of(&mut self, token: u64, uid: u32) -> Result<JobId, String> {
        if let Some((job, _)) = self.tokens.get(&token).filter(|(_, owner)| *owner == uid) {
            return Ok(*job);
        }
        let spec =
            self.former.recall(token, uid).ok_or("TIDEGATE_JOB names no job of this user".to_string())?;
        let job = self.own_job(uid, spec)?;
        self.tokens.insert(token, (job, uid));
        Ok(job)
    }

    fn own_job(&mut self, uid: u32, spec: JobSpec) -> Result<JobId, String> {
        if let Some((job, _)) = self.job_of_launch(uid, &spec) {
            return Ok(job);
        }
        match self.not_permitted(uid, &spec) {
            _ if self.draining => Err(stop::DRAINS.into()),
            _ if self.has_too_many_jobs(uid) => Err(TOO_MANY_JOBS.into()),
            Some(reason) => Err(reason),
            None => Ok(self.new_job(uid, spec)),
        }
    }

    /// The job of a user's launch that another rank has begun, and that lives: the user's ranks wait for each other, so
    /// they run together or not at all.
    fn job_of_launch(&self, uid: u32, spec: &JobSpec) -> Option<(JobId, JobSpec)> {
        let launch = text::clean(spec.launch.as_ref()?);
        let is_its = |(id, job): &(&JobId, &Job)| {
            job.uid == uid && job.spec.launch.as_ref() == Some(&launch) && !self.evictions.contains_key(id)
        };
        self.scheduler.jobs().iter().find(is_its).map(|(id, job)| (*id, job.spec.clone()))
    }

    /// A process that has become another program begins anew: what it was had the memory, and is gone.
    fn forget_replaced(&mut self, id: ClientId) {
        let own = self.clients.get(&id).and_then(|client| client.name);
        let was_its = |client: &Client| {
            own.is_some()
                && client.name == own
                && matches!(client.role, Role::Process(_))
                && client.is_replaced()
        };
        let replaced: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(of, client)| **of != id && was_its(client))
            .map(|(of, _)| *of)
            .collect();
        replaced.into_iter().for_each(|id| self.client_gone(id));
    }

    /// A process whose welcome was lost with its connection begins anew: it has nothing that its
    /// first session could have given it.
    fn forget_unheard(&mut self, id: ClientId) {
        let own = self.clients.get(&id).and_then(|client| client.name);
        let is_its = |client: &Client| {
            own.is_some() && client.name == own && client.conversation.is_unheard() && !client.is_connected()
        };
        let forgotten = |(of, client): (&ClientId, &Client)| {
            (*of != id && matches!(client.role, Role::Process(_)) && is_its(client)).then_some(*of)
        };
        let forgotten: Vec<ClientId> = self.clients.iter().filter_map(forgotten).collect();
        forgotten.into_iter().for_each(|id| self.client_gone(id));
    }

    fn has_too_many_jobs(&self, uid: u32) -> bool {
        self.scheduler.jobs().values().filter(|job| job.uid == uid).count() >= JOBS_PER_USER
    }

    /// Why a user may not start such a job, if that is so.
    fn not_permitted(&self, uid: u32, spec: &JobSpec) -> Option<String> {
        self.permissions.against(Asker { uid, manager: self.user }, spec)
    }

    fn new_job(&mut self, uid: u32, mut spec: JobSpec) -> JobId {
        spec.weight = spec.weight.max(1);
        spec.name = text::clean(&spec.name);
        spec.launch = spec.launch.map(|launch| text::clean(&launch));
        self.next_job += 1;
        let job = JobId(self.next_job);
        self.tell_scheduler(Event::JobArrived { job, uid, spec });
        job
    }

    fn hear_command(&mut self, id: ClientId, message: FromCommand) {
        let role = self.clients.get(&id).map(|client| client.role);
        match (role, &message) {
            (Some(Role::Process(_)), _) => return self.expel(id, "a process of a job gave a command"),
            (Some(Role::Announcer(_)), FromCommand::Register(_)) => {
                return self.expel_command(id, "it announced two jobs over one connection");
            }
            _ => {}
        }
        match message {
            FromCommand::Register(spec) => self.register(id, spec),
            FromCommand::Status { when: When::Idle } if !self.scheduler.jobs().is_empty() => {
                self.awaiting_idle.insert(id);
            }
            FromCommand::Status { .. } => self.tell_status(id),
            FromCommand::Evict { job, how } => self.evict(id, &job, how),
            FromCommand::Stop(when) => self.stop(id, when),
        }
    }

    /// Who a client is, for what it may see and do.
    fn asker(&self, id: ClientId) -> Option<Asker> {
        self.clients.get(&id).map(|client| Asker { uid: client.conversation.uid, manager: self.user })
    }

    fn tell_status(&mut self, id: ClientId) {
        // Times are of this moment, not of the last message; what is measured now is shown next
        // time.
        self.tell_scheduler(Event::Survey);
        let Some(asker) = self.asker(id) else { return };
        let parts = status::parts(self, asker);
        if let Some(outbox) = self.clients.get(&id).and_then(|client| client.outbox.as_ref()) {
            outbox.send_all(parts);
        }
    }

    /// Answers those who asked for the status of the idle manager.
    fn tell_idle(&mut self) {
        if self.scheduler.jobs().is_empty() {
            for id in std::mem::take(&mut self.awaiting_idle) {
                self.tell_status(id);
            }
        }
    }

    fn register(&mut self, id: ClientId, spec: JobSpec) {
        let Some(client) = self.clients.get(&id) else { return };
        let uid = client.conversation.uid;
        let joined = self.job_of_launch(uid, &spec);
        if self.draining && joined.is_none() {
            return self.answer(id, ToCommand::Refused { reason: stop::DRAINS.into() });
        }
        if joined.is_none() && self.has_too_many_jobs(uid) {
            return self.expel_command(id, TOO_MANY_JOBS);
        }
        if let Some(reason) = self.not_permitted(uid, &spec).filter(|_| joined.is_none()) {
            return self.answer(id, ToCommand::Refused { reason });
        }
        let mut token = [0; 8];
        if let Err(error) = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()) {
            return self.answer(id, ToCommand::Refused { reason: format!("no random numbers: {error}") });
        }
        let token = u64::from_le_bytes(token);
        let (job, joined) = match joined {
            Some((job, spec)) => (job, Some(spec)),
            None => (self.new_job(uid, spec), None),
        };
        self.tokens.insert(token, (job, uid));
        self.announcers.entry(job).or_default().insert(id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.role = Role::Announcer(job);
        }
        let software_gpu = self.software_gpu.as_ref().map(|path| path.display().to_string());
        self.answer(id, ToCommand::Registered { job, token, software_gpu, joined });
    }

    fn answer(&mut self, id: ClientId, message: ToCommand) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.send(&message, Vec::new());
        }
    }

    fn refuse(&mut self, id: ClientId, reason: String) {
        info!(client = id.0, reason, "a process is refused");
        self.say_last(id, reason);
    }

    /// A client broke the protocol.
    fn expel(&mut self, id: ClientId, reason: &str) {
        match self.clients.get(&id).map(|client| client.role) {
            Some(Role::Process(_)) => {
                let (session, reason) = (SessionId(id.0), reason.into());
                self.tell_scheduler(Event::SessionBroke { session, reason });
            }
            _ => self.cut_off(id, reason),
        }
    }

    /// Ends a connection. A process is dead only when it is dead: until then it may still have its
    /// pieces mapped.
    fn cut_off(&mut self, id: ClientId, reason: &str) {
        warn!(client = id.0, reason, "a client is expelled");
        self.say_last(id, reason.into());
        let Some(client) = self.clients.get(&id) else { return };
        if let Role::Process(job) = client.role {
            client.add_published(self.published.entry(job).or_default());
            if self.kill_expelled {
                client.kill();
            }
        }
    }

    /// The same for a command.
    fn expel_command(&mut self, id: ClientId, reason: &str) {
        info!(client = id.0, reason, "a command is refused");
        if let Some(client) = self.clients.get_mut(&id).filter(|client| !client.expelled) {
            client.send(&ToCommand::Refused { reason: reason.into() }, Vec::new());
            client.expel();
        }
    }

    /// Says the last word to a process.
    fn say_last(&mut self, id: ClientId, reason: String) {
        if let Some(client) = self.clients.get_mut(&id).filter(|client| !client.expelled) {
            client.say(ToShim::Refused { reason }, Vec::new());
            client.expel();
        }
    }

    fn hear_mover(&mut self, gpu: GpuUuid, message: FromMover, fds: Vec<OwnedFd>) {
        if let Some(mover) = self.movers.get_mut(&gpu) {
            mover.answered(&message);
        }
        let event = match message {
            FromMover::Made { step } => {
                let pieces = self.making.remove(&step).unwrap_or_default();
                if fds.len() < pieces.len() || self.pieces.len() + fds.len() > self.shares.pieces {
                    return self.made_in_vain(gpu, step, &pieces);
                }
                for ((piece, bytes), fd) in pieces.into_iter().zip(fds) {
                    self.pieces.insert(piece, HeldPiece { gpu, bytes, fd: Arc::new(fd) });
                }
                Event::MoverDone { gpu, step, bytes: 0 }
            }
            FromMover::Done { step, bytes, .. } => Event::MoverDone { gpu, step, bytes },
            FromMover::Failed { step, reason, shortage } => {
                // The mover has said it already, at the level it deserves.
                debug!(%gpu, reason, "a mover could not");
                self.making.remove(&step);
                Event::MoverFailed { gpu, step, reason, shortage }
            }
            FromMover::Measured { step, free_bytes, total_bytes, .. } => {
                let used_bytes = total_bytes.saturating_sub(free_bytes);
                Event::Measured { gpu, step, used_bytes }
            }
            FromMover::Ready { .. }
            | FromMover::Unusable { .. }
            | FromMover::Slab { .. }
            | FromMover::SlabGone { .. }
            | FromMover::Stored { .. }
            | FromMover::Bandwidth(_)
            | FromMover::Index
            | FromMover::Adopted { .. }
            | FromMover::Holds { .. }
            | FromMover::Heard => {
                let now = self.now();
                if let Some(mover) = self.movers.get_mut(&gpu) {
                    mover.note(now, &message, fds);
                }
                let FromMover::Bandwidth(Bandwidth { link: Some(rates), .. }) = message else { return };
                Event::Link { gpu, rates }
            }
        };
        self.tell_scheduler(event);
    }

    /// Pieces are made that the manager cannot hold: it has no descriptors for them. What it does not
    /// hold would be lost with the mover, so nobody gets it.
    fn made_in_vain(&mut self, gpu: GpuUuid, step: Step, pieces: &[(PieceId, u64)]) {
        let reason = "the manager has no file descriptors left (ulimit -n)";
        warn!(%gpu, pieces = pieces.len(), "{reason}: new pieces are destroyed");
        // Before it is said that they are not there: no order can come between.
        let pieces = pieces.iter().map(|(piece, _)| *piece).collect();
        self.send_to_mover(gpu, &ToMover::Destroy { step: UNASKED, pieces, watched_for_leaks: false });
        self.tell_scheduler(Event::MoverFailed {
            gpu,
            step,
            reason: reason.into(),
            shortage: Some(Shortage::Memory),
        });
    }

    fn mover_gone(&mut self, gpu: GpuUuid, why: &str) {
        let now = self.now();
        if self.movers.get_mut(&gpu).is_some_and(|mover| mover.gone(now, why)) {
            self.give_up(gpu);
        }
    }

    /// Starts the movers whose time has come, in the places of those that died.
    fn replace_movers(&mut self) {
        let now = self.now();
        let due = |mover: &MoverLink| mover.due().is_some_and(|due| due <= now);
        let due: Vec<GpuUuid> =
            self.movers.iter().filter(|(_, mover)| due(mover)).map(|(gpu, _)| *gpu).collect();
        for gpu in due {
            let pieces = self.pieces.iter().filter(|(_, piece)| piece.gpu == gpu);
            let pieces: Vec<_> = pieces.map(|(id, piece)| (*id, piece.clone())).collect();
            if self.movers.get_mut(&gpu).is_some_and(|mover| mover.replace(now, &pieces)) {
                self.give_up(gpu);
            }
            self.leave_will();
            self.settle();
        }
    }

    /// Tells the next manager whom to wait for.
    fn leave_will(&mut self) {
        let Some(socket) = &self.socket else { return };
        let named = |(gpu, mover): (&GpuUuid, &MoverLink)| Some((*gpu, mover.state().process()?));
        let movers = self.movers.iter().filter_map(named).collect();
        let mut will = WillFile::new(movers, self.software_gpu.clone());
        (will.abandoned, will.command) = (self.abandoned.clone(), self.command.clone());
        will.config.clone_from(&self.config_file);
        let left = will.write(socket);
        if let Err(error) = &left
            && !self.intestate
        {
            error!("if the manager dies now, no other can take over: {error:#}");
        }
        self.intestate = left.is_err();
    }

    /// There will be no mover for this GPU any more; the others go on.
    fn give_up(&mut self, gpu: GpuUuid) {
        self.tell_scheduler(Event::GpuLost { gpu });
        if let Some(mover) = self.movers.get_mut(&gpu) {
            mover.give_up();
        }
    }

    fn tell_scheduler(&mut self, event: Event) {
        let now = self.now();
        debug!(event = %Brief(&event), "event");
        let effects = self.scheduler.handle(now, event, &PublishedPages(&self.clients));
        for effect in effects {
            self.carry_out(effect);
        }
        debug_assert_eq!(self.scheduler.check(), Ok(()));
        self.tell_idle();
        self.stop_if_drained();
    }

    fn carry_out(&mut self, effect: Effect) {
        debug!(effect = %Brief(&effect), "effect");
        self.tell_turn(&effect);
        match effect {
            Effect::Shim(session, message) => self.say(ClientId(session.0), message),
            Effect::Welcome { session, job, closed } => self.welcome(ClientId(session.0), job, closed),
            Effect::Mover(gpu, message) => self.send_to_mover(gpu, &message),
            Effect::Expel(session, reason) => self.cut_off(ClientId(session.0), &reason),
            Effect::Queue { job, place } => self.tell_place(job, place),
            Effect::Destroyed(pieces) => {
                for piece in pieces {
                    self.pieces.remove(&piece);
                }
            }
            Effect::Standstill(report) => error!(%report, "jobs stood still and were made to go on"),
            Effect::JobEnded(id, job) => self.job_ended(id, &job),
        }
    }

    /// What was decided: which job has its turn, and until when.
    fn tell_turn(&self, effect: &Effect) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let Effect::Shim(session, message @ (ToShim::Open | ToShim::Close { .. })) = effect else { return };
        let Some(id) = self.scheduler.sessions().get(session).map(|session| session.job) else { return };
        let Some(job) = self.scheduler.jobs().get(&id) else { return };
        let (slice, cost) = (job.slice_end.saturating_sub(self.now()), job.costs.next());
        let (name, used) = (&job.spec.name, job.runtime);
        match message {
            ToShim::Open => debug!(%id, name, ?slice, ?cost, ?used, "its turn begins"),
            _ => {
                debug!(%id, name, ?used, waits = self.scheduler.queue().len(), "its turn ends, for others wait")
            }
        }
    }

    fn welcome(&mut self, id: ClientId, job: JobId, closed: bool) {
        if let Some(ticket) = self.clients.get(&id).map(|client| client.conversation.ticket()) {
            let limit = self.scheduler.config().answer_limit.as_millis();
            let answer_limit_ms = u64::try_from(limit).unwrap_or(u64::MAX);
            self.say(id, ToShim::Welcome { job, closed, ticket, answer_limit_ms });
        }
    }

    fn say(&mut self, id: ClientId, message: ToShim) {
        let fds = self.handles_of(&message);
        let is_over_budget = self.is_over_budget(id);
        let Some(client) = self.clients.get_mut(&id) else { return };
        match is_over_budget {
            false => client.say(message, fds),
            true => client.part("too many messages wait for its user's processes"),
        }
    }

    /// Whether too many messages wait to be acknowledged by a client and the others of its user. Each is written down with the
    /// state at each event.
    fn is_over_budget(&self, id: ClientId) -> bool {
        let bytes = |client: &Client| client.conversation.unheard_bytes();
        let Some(client) = self.clients.get(&id).filter(|client| bytes(client) > FEW_UNHEARD_BYTES) else {
            return false;
        };
        let uid = client.conversation.uid;
        let theirs = self.clients.values().filter(|client| client.conversation.uid == uid);
        theirs.map(bytes).sum::<u64>() > UNHEARD_BYTES_PER_USER
    }

    /// The file descriptors that go with a message.
    fn handles_of(&self, message: &ToShim) -> Vec<Arc<OwnedFd>> {
        let placed = placed_in(message);
        let fds: Vec<_> =
            placed.iter().filter_map(|placed| Some(self.pieces.get(&placed.piece)?.fd.clone())).collect();
        if fds.len() != placed.len() {
            warn!(message = %Brief(message), "a piece has no file descriptor");
        }
        fds
    }

    fn send_to_mover(&mut self, gpu: GpuUuid, message: &ToMover) {
        if let ToMover::Make { step, pieces, .. } = message {
            self.making.insert(*step, pieces.clone());
        }
        if let Some(mover) = self.movers.get_mut(&gpu) {
            mover.order(message);
        }
    }

    fn tell_place(&mut self, job: JobId, place: QueuePlace) {
        // One line is enough: the first says it for all ranks.
        let Some(id) = self.announcers.get(&job).and_then(|announcers| announcers.first().copied()) else {
            return;
        };
        let QueuePlace { place, of, behind, quota } = place;
        let behind = behind.map(|other| self.name_for(other, job));
        let quota = quota.map(|quota| self.words_for_quota(quota, job));
        self.answer(id, ToCommand::Queue { place, of, behind, quota });
    }

    /// A quota that keeps a job waiting, as the job's user may know it.
    fn words_for_quota(&self, quota: SavedQuota, job: JobId) -> String {
        let is_own = self.scheduler.jobs().get(&job).is_some_and(|job| job.uid == quota.uid);
        match is_own {
            true => format!(
                "what its user may have in the tiers (--quota), {}, does not do for this job beside the others",
                ByteSize(quota.bytes).display().iec()
            ),
            false => "another user's job may not be saved to make room for it (--quota)".into(),
        }
    }

    /// A job's name, as another job's user may know it.
    fn name_for(&self, job: JobId, reader: JobId) -> String {
        let jobs = self.scheduler.jobs();
        match (jobs.get(&job), jobs.get(&reader)) {
            (Some(job), Some(reader)) if job.uid == reader.uid => job.spec.name.clone(),
            _ => "another user's job".into(),
        }
    }

    fn job_ended(&mut self, id: JobId, job: &Job) {
        let tokens: Vec<u64> =
            self.tokens.extract_if(|_, (of, _)| *of == id).map(|(token, _)| token).collect();
        // Who is evicted does not come again.
        if !self.evictions.contains_key(&id) {
            tokens.into_iter().for_each(|token| self.former.remember(token, job.uid, job.spec.clone()));
        }
        let published = self.published.remove(&id).unwrap_or_default();
        self.ended.push_back(EndedJob::new(id, job, published, Some(self.now())));
        self.history_grew = true;
        while self.ended.len() > KEPT_ENDED_JOBS {
            self.ended.pop_front();
        }
        self.tell_evicted(id);
    }
}

/// In order or not at all: whoever dies leaves its will behind.
impl Drop for Server {
    fn drop(&mut self) {
        self.socket.iter().for_each(|socket| WillFile::remove(socket));
    }
}
