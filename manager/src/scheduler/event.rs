//! What the scheduler hears and what it orders. It has no clock and does no I/O itself.

use super::job::{Job, QueuePlace};
use super::quota::UserQuotas;
use crate::planner::shares::PerTier;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::live::LiveRange;
use tidegate_ffi::wire::message::{JobSpec, LeaseRequest, LinkRates, Shortage, SlotRun, ToMover, ToShim};

/// A moment: time since the manager started.
pub type Time = Duration;

/// How the manager was told to share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// A unit, in bytes.
    pub unit_bytes: u64,
    /// The largest piece, in units, at least 1.
    pub piece_units: u32,
    /// The offset between spans, in units (R4.5).
    pub offset_units: u32,
    /// Units kept free on every GPU for contexts and modules, at least.
    pub headroom_units: u32,
    /// The shortest time slice.
    pub slice: Duration,
    /// The longest one, where switches do not cost more than a tenth of it.
    pub slice_max: Duration,
    /// What part of a job's time its switches should take at most, in percent.
    pub switch_percent: u32,
    /// How long a closing job may take to reach its next boundary.
    pub boundary_deadline: Duration,
    /// How long submitted work may take to end.
    pub drain_limit: Duration,
    /// How long a process may take to answer an order that needs nothing but itself.
    pub answer_limit: Duration,
    /// What any job needs beyond its GPU's memory may be host memory.
    pub oversubscribe: bool,
    /// Who does not answer in time is expelled, even if others could wait for it.
    pub expel_silent: bool,
    /// Overwrite what is not alive at each switch (a test).
    pub poison: bool,
    /// The manager's user. What others leak is looked for; root's jobs, and this user's, may have what they want.
    pub own_uid: u32,
    /// What users' jobs may have of each GPU.
    pub user_quotas: UserQuotas,
    /// What users' jobs may have in the tiers, of all GPUs together.
    pub saved_quotas: UserQuotas,
    /// What saved bytes may occupy of each tier, in bytes; the GPUs share it (R0.5).
    pub tier_bytes: PerTier,
    /// The CXL tier is a device in parts, one for each GPU: they stay as large as they are.
    pub cxl_is_in_parts: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A GPU is usable.
    GpuAdded {
        /// Which.
        gpu: GpuUuid,
        /// How many units the ledger may use.
        units: u32,
        /// How many more the GPU has (`--gpu-memory`): contexts may have those.
        apart: u32,
        /// The shares of the tiers that its mover was started with, in bytes.
        shares: PerTier,
    },
    /// A GPU's mover is gone for good. Who runs there keeps what it has.
    GpuLost {
        /// Which.
        gpu: GpuUuid,
    },
    /// A job was announced.
    JobArrived {
        /// Its id.
        job: JobId,
        /// Whose it is.
        uid: u32,
        /// What it asks for.
        spec: JobSpec,
    },
    /// Who announced the job is gone; it lives on while it has processes.
    JobReleased {
        /// Which.
        job: JobId,
    },
    /// A process of a job said hello.
    SessionJoined {
        /// The process.
        session: SessionId,
        /// Its job.
        job: JobId,
    },
    /// A process died: nothing of it can reach any memory now.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// A process broke the protocol. It lives, and may still reach the memory that it was given.
    SessionBroke {
        /// Which.
        session: SessionId,
        /// How.
        reason: String,
    },
    /// A process wants its first context on a GPU.
    Attach {
        /// The process.
        session: SessionId,
        /// Repeated by the answer.
        step: Step,
        /// The GPU.
        gpu: GpuUuid,
    },
    /// A process asks for pieces.
    Lease {
        /// The process.
        session: SessionId,
        /// What it asks.
        request: LeaseRequest,
    },
    /// A process wants room for memory outside of pieces.
    MakeRoom {
        /// The process.
        session: SessionId,
        /// Repeated by the answer.
        step: Step,
        /// Where.
        gpu: GpuUuid,
        /// How many units are to be free.
        units: u32,
    },
    /// A process gave pieces back.
    Returned {
        /// The process.
        session: SessionId,
        /// Whose pieces.
        tenant: TenantId,
        /// Which; perhaps none.
        pieces: Vec<PieceId>,
        /// Of the units that it had just before, those that were leased ahead and never used.
        unused: Units,
        /// Whether it was asked for all that it does not use.
        recalled: bool,
    },
    /// A process needs pieces to stay where they are.
    Hold {
        /// The process.
        session: SessionId,
        /// Of the question.
        step: Step,
        /// Whose pieces.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// A process needs another one's pieces.
    Borrow {
        /// Who asks.
        session: SessionId,
        /// Of the question.
        step: Step,
        /// Whose they are.
        tenant: TenantId,
        /// Behind which slots.
        class: Class,
        /// The first of them.
        first: SlotIndex,
        /// How many.
        units: Units,
    },
    /// A process needs them so no more.
    LetGo {
        /// The process.
        session: SessionId,
        /// Whose pieces.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// A process that will be drained says what its described work was the first to use.
    Used {
        /// The process.
        session: SessionId,
        /// Whose memory.
        tenant: TenantId,
        /// Which, first first.
        slots: Vec<SlotRun>,
    },
    /// A process is closed and drained.
    Drained {
        /// The process.
        session: SessionId,
        /// Of the `Close`.
        step: Step,
        /// Closed at a boundary, not by the deadline.
        at_boundary: bool,
        /// How long its last work took.
        drain: Duration,
        /// What is alive, by tenant.
        maps: Vec<(TenantId, Vec<LiveRange>)>,
        /// Leases unanswered when the maps were made.
        outstanding: Vec<Step>,
    },
    /// A process could not be drained; its gate is open again.
    NotDrained {
        /// The process.
        session: SessionId,
        /// Of the `Close`.
        step: Step,
    },
    /// A process had passed the boundary at which it was asked to close, and goes on.
    Passed {
        /// The process.
        session: SessionId,
        /// Of the order.
        step: Step,
        /// The number of the last boundary that it has passed.
        boundary: u64,
    },
    /// The work of a process that was told to close does not end, and may wait for another process of its job.
    Stalled {
        /// The process.
        session: SessionId,
        /// Of the `Close`.
        step: Step,
        /// Nothing was submitted for longer than such work should take.
        is_overdue: bool,
    },
    /// A process has unmapped or mapped.
    ShimDone {
        /// The process.
        session: SessionId,
        /// Of the order.
        step: Step,
    },
    /// A process has mapped the first pieces of an order, and lacked descriptors for the rest.
    MappedSome {
        /// The process.
        session: SessionId,
        /// Of the order.
        step: Step,
        /// How many.
        pieces: u32,
    },
    /// A process could not unmap or map.
    ShimFailed {
        /// The process.
        session: SessionId,
        /// Of the order.
        step: Step,
        /// Why.
        reason: String,
    },
    /// A process has memory that no switch can take away.
    Unsliceable {
        /// Which.
        session: SessionId,
        /// Why, for people.
        reason: String,
    },
    /// A process submits nothing.
    Idle {
        /// Which.
        session: SessionId,
    },
    /// A process wants to submit, at a closed gate.
    Waiting {
        /// Which.
        session: SessionId,
    },
    /// A mover finished an order (`Made` too).
    MoverDone {
        /// Of which GPU.
        gpu: GpuUuid,
        /// Of the order.
        step: Step,
        /// Bytes moved.
        bytes: u64,
    },
    /// A mover could not.
    MoverFailed {
        /// Of which GPU.
        gpu: GpuUuid,
        /// Of the order.
        step: Step,
        /// Why.
        reason: String,
        /// What there was not enough of; `None`: that was not the cause.
        shortage: Option<Shortage>,
    },
    /// A mover has measured.
    Measured {
        /// Of which GPU.
        gpu: GpuUuid,
        /// Of the order.
        step: Step,
        /// Memory in use, by the driver's word.
        used_bytes: u64,
    },
    /// A mover has measured its GPU's link.
    Link {
        /// The GPU.
        gpu: GpuUuid,
        /// How fast it is.
        rates: LinkRates,
    },
    /// Somebody wants to know how the memory is used: GPUs that several share are measured.
    Survey,
    /// Nothing but time has passed.
    Tick,
}

impl Event {
    /// The process that said so.
    pub(super) fn speaker(&self) -> Option<SessionId> {
        match self {
            Event::SessionBroke { session, .. }
            | Event::Attach { session, .. }
            | Event::Lease { session, .. }
            | Event::MakeRoom { session, .. }
            | Event::Returned { session, .. }
            | Event::Hold { session, .. }
            | Event::Borrow { session, .. }
            | Event::LetGo { session, .. }
            | Event::Used { session, .. }
            | Event::Drained { session, .. }
            | Event::NotDrained { session, .. }
            | Event::Passed { session, .. }
            | Event::Stalled { session, .. }
            | Event::ShimDone { session, .. }
            | Event::MappedSome { session, .. }
            | Event::ShimFailed { session, .. }
            | Event::Unsliceable { session, .. }
            | Event::Idle { session }
            | Event::Waiting { session } => Some(*session),
            _ => None,
        }
    }
}

/// What the scheduler orders.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Say something to a process. The fds of pieces are added by who sends it.
    Shim(SessionId, ToShim),
    /// Welcome a process. The ticket is added by who sends it.
    Welcome {
        /// The process.
        session: SessionId,
        /// Its job.
        job: JobId,
        /// Whether its gate starts closed.
        closed: bool,
    },
    /// Order something from a GPU's mover.
    Mover(GpuUuid, ToMover),
    /// End a connection whose process cannot go on. Its job goes on without it, or is over; what
    /// it was given is retired until it is dead.
    Expel(SessionId, String),
    /// Tell whoever announced the job where it stands: 0 is running.
    Queue {
        /// The job.
        job: JobId,
        /// Its place.
        place: QueuePlace,
    },
    /// The pieces are no more: their fds can be closed.
    Destroyed(Vec<PieceId>),
    /// Jobs stood still, or waited too long, and were made to go on: what each waited for. An error of the manager's.
    Standstill(String),
    /// The job is over; this is the last of it.
    JobEnded(JobId, Box<Job>),
}

/// What can be known of the processes without asking them: what they publish on their control
/// pages, and what the kernel says.
pub trait Pages {
    /// The number of the last boundary that a process has told; 0: none.
    fn boundaries(&self, session: SessionId) -> u64;

    /// The same of a process that has told none yet, and is about to learn which they are: the last one that its
    /// job's other processes may have told at this moment of their loop. 0: none is in sight.
    fn learning(&self, session: SessionId) -> u64;

    /// How many collectives a process has begun to launch.
    fn collectives(&self, session: SessionId) -> u64;

    /// Whether a process is stopped (SIGSTOP, Ctrl-Z): until it is continued it hears nothing.
    fn is_stopped(&self, session: SessionId) -> bool;
}
