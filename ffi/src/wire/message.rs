//! One enum per direction of the protocol. All sizes are in bytes unless they say units.
//!
//! ```text
//!   shim ──FromShim──► manager ──ToMover──► mover
//!        ◄──ToShim───         ◄──FromMover──
//!   command ──FromCommand──► manager ──ToCommand──► command
//! ```
//! What shims, movers and managers say to each other is numbered and outlives their connections
//! ([`super::line`]): a new one begins with `Resume` or `Orphan`, answered by [`Reunion`].

use super::line::Numbered;
use crate::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Tier, Units};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The first message of a client, whichever it is, and all that follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToManager {
    /// From a process of a job. The answers are `Numbered<ToShim>`.
    Shim(Numbered<FromShim>),
    /// A process of a job whose connection has ended goes on over this one. With one fd: its
    /// control page. Answered by [`Reunion`].
    Resume(Resume),
    /// A mover whose manager has died comes to the next one. With one fd: the state file.
    /// Answered by [`Reunion`]; then it says what it [holds](FromMover::Holds), un-numbered, and from
    /// then on `Numbered<FromMover>`, answered by `Numbered<ToMover>`.
    Orphan(Orphan),
    /// From `tidegate run`, `status` and the like.
    Command(FromCommand),
}

/// By what a manager knows a process again, beside the kernel's word of who it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The process's session.
    pub session: SessionId,
    /// Random; known to the process and to its manager only.
    pub secret: u128,
}

impl fmt::Debug for Ticket {
    /// Messages are logged: the secret is not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("session", &self.session).finish_non_exhaustive()
    }
}

/// The first message of a process on another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// What it was welcomed with.
    pub ticket: Ticket,
    /// The number of the last message that it heard.
    pub heard: u64,
}

/// The first message of a mover to another manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Whose mover it is.
    pub gpu: GpuUuid,
    /// The number of the last message that it heard.
    pub heard: u64,
}

/// The other processes of a job that have memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peers {
    /// There are none.
    None,
    /// There are some. That the work of one waits for another's is not known.
    Apart,
    /// There are some, and in this closing or in one not long ago the work of one was [overdue](FromShim::Stalled).
    Entangled,
}

/// The answer to `Resume` and `Orphan`, not numbered. Then both sides say again what the other one
/// has not heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reunion {
    /// The conversation goes on.
    Resumed {
        /// The number of the last message that the manager heard.
        heard: u64,
    },
    /// It cannot; the connection ends.
    Refused {
        /// Why, in one sentence for the user.
        reason: String,
    },
}

/// What a job asks for, from the command line or the environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// A name, under which the need of the last run is remembered; its first 128 characters count.
    pub name: String,
    /// The strict priority class: higher runs first.
    pub priority: i32,
    /// The share of GPU time within the class; at least 1, 0 is read as 1.
    pub weight: u32,
    /// Never sliced (serving).
    pub resident: bool,
    /// The most memory that a process of the job may hold on one GPU; what it is told as the
    /// GPU's total, if that is not less (R4, quota).
    pub memory: Option<u64>,
    /// What the job says it will need on each GPU (R4.1).
    pub need: Option<Need>,
    /// What it needs beyond a GPU's memory may be host memory (R0.3).
    pub oversubscribe: bool,
    /// The launch that it is a rank of ([`crate::launch`]): all ranks of one user's launch are one job, as the first of
    /// them asked for it.
    pub launch: Option<String>,
}

/// Memory needed on one GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Bytes that survive iterations.
    pub persistent: u64,
    /// The most bytes needed inside one iteration, persistent ones not counted.
    pub temporary: u64,
}

impl Need {
    /// The same, but no more than so many bytes in all: less that is temporary, then less that is persistent.
    pub fn at_most(self, bytes: u64) -> Self {
        let persistent = self.persistent.min(bytes);
        Self { persistent, temporary: self.temporary.min(bytes - persistent) }
    }
}

/// How a process names its job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobClaim {
    /// The token that `tidegate run` was given, through `TIDEGATE_JOB`.
    Token(u64),
    /// A job of its own (bare `LD_PRELOAD`).
    Own(JobSpec),
}

/// A shim's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromShim {
    /// The first one, at `cuInit`. With one fd: the control page (sealed memfd, [`super::page::Page`]).
    /// Answered by `Welcome` or `Refused`.
    Hello(JobClaim),
    /// Before the first context on a GPU. Answered by `Attached`, when there is room, or
    /// `AttachRefused`.
    Attach {
        /// Repeated by the answer.
        step: Step,
        /// The GPU.
        gpu: GpuUuid,
    },
    /// A driver call that takes memory outside of pieces (a context, a module, a graph, an array)
    /// found none. Answered by `Room` when there is so much, or all that can be had; the call is then
    /// tried once more. What others use is set free for it in its job's turn. Only for a GPU that
    /// the process is attached to.
    MakeRoom {
        /// Repeated by the answer.
        step: Step,
        /// Where memory is short.
        gpu: GpuUuid,
        /// How much is wanted, as far as anybody knows.
        units: Units,
    },
    /// Asks for pieces behind consecutive slots. Answered by `Leased` (perhaps several) or
    /// `LeaseRefused`; while the job is closed, the answer waits.
    Lease(LeaseRequest),
    /// Pieces that the shim has unmapped and released: nothing of the process can reach them.
    /// Also the answer to `Recall`, then perhaps empty.
    Return {
        /// Whose.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
        /// Of the units that its process had just before, those that were leased ahead and never used.
        unused: Units,
        /// Whether this answers a `Recall`.
        recalled: bool,
    },
    /// These pieces must stay where they are from now on: mapped by this process alone, through all
    /// switches. Only while the gate is open. Answered by `Held` or `LeaseRefused`.
    Hold {
        /// Repeated by the answer.
        step: Step,
        /// Whose.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// Asks for the pieces behind slots of another process of the same job, all of them held.
    /// Answered by `Lent` or `LeaseRefused`.
    Borrow {
        /// Repeated by the answer.
        step: Step,
        /// Whose they are.
        tenant: TenantId,
        /// Which of its two address ranges.
        class: Class,
        /// The first slot there.
        first: SlotIndex,
        /// How many.
        units: Units,
    },
    /// These pieces may go again: nothing in them is held any more.
    LetGo {
        /// Whose.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// Before `Drained`, where the process describes what its work uses: the slots that such work was
    /// the first to use, in this order, the slice that ends now before those before it. So the tenant's
    /// memory comes back. Said when it is not as it was said before. At most [`MAX_USES`] runs; one slot may be named twice.
    Used {
        /// Whose memory.
        tenant: TenantId,
        /// Which, first first.
        slots: Vec<SlotRun>,
    },
    /// The answer to `Close`: no thread is inside a submitting call, all work has ended. With one
    /// fd per tenant, in the order of `tenants`: its live map (sealed memfd, [`super::live`]).
    Drained(Drained),
    /// The other answer to `Close`: the work did not end; the gate is open again.
    NotDrained {
        /// Of the `Close`.
        step: Step,
        /// Why, for people.
        reason: String,
    },
    /// The third answer to `Close`, where it names a boundary: the process had passed that one before it got
    /// the message. Its gate is open.
    Passed {
        /// Of the `Close`.
        step: Step,
        /// The number of the last boundary that it has passed.
        boundary: u64,
    },
    /// Between a `Close` and its answer: work does not end, and may wait for work of another process of the job. May
    /// be said again and again.
    Stalled {
        /// Of the `Close`.
        step: Step,
        /// Nothing was submitted for longer than such work should take.
        is_overdue: bool,
    },
    /// The answer to `Unmap` and `Map`.
    Done {
        /// Of the order.
        step: Step,
    },
    /// The second answer to `Map`: only the first pieces are mapped, because the process lacked file descriptors or host
    /// memory. The manager orders the rest again, with the same step.
    MappedSome {
        /// Of the order.
        step: Step,
        /// The number of mapped pieces, less than those of the order.
        pieces: u32,
    },
    /// The third answer to `Map`, and the other to `Unmap`: a driver call failed.
    Failed {
        /// Of the order.
        step: Step,
        /// Which call, with which error.
        reason: String,
    },
    /// While watched: nothing was submitted for a while and all work has ended.
    Idle,
    /// A thread waits at the closed gate (sent once for each closing); or, at an open one, a process that has said that
    /// it is idle is so no more.
    Waiting,
    /// The process has memory that no switch can take away: from now on its job is not to be stopped.
    /// Said at most once.
    Unsliceable {
        /// Why, for people.
        reason: String,
    },
    /// The job said that its last iteration ended (R4.7).
    JobDone,
    /// Nothing but that the manager's messages were heard ([`super::line::SILENCE`]).
    Heard,
}

/// Asks for pieces to put behind slots `first .. first + units` of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Repeated by the answer.
    pub step: Step,
    /// Who asks.
    pub tenant: TenantId,
    /// Birth class of the memory: which of the tenant's two address ranges the slots are in.
    pub class: Class,
    /// The first slot.
    pub first: SlotIndex,
    /// How many units are needed.
    pub units: Units,
    /// How many more, directly behind, would be welcome if nobody else needs them (R4.4).
    pub ahead: Units,
    /// They are to be one piece, wherever they come from, as long as the process has them: it can
    /// give a descriptor for a piece to others, but not one for several. Nothing is leased ahead.
    pub whole: bool,
}

/// The most runs of slots in one [`FromShim::Used`].
pub const MAX_USES: usize = 1024;

/// Consecutive slots of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRun {
    /// Which of the tenant's two address ranges.
    pub class: Class,
    /// The first slot there.
    pub first: SlotIndex,
    /// How many.
    pub units: Units,
}

/// A piece and where it is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The piece.
    pub piece: PieceId,
    /// Which of the tenant's two address ranges.
    pub class: Class,
    /// Its first slot there.
    pub slot: SlotIndex,
    /// Its length.
    pub units: Units,
}

/// How a closing ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    /// Of the `Close`.
    pub step: Step,
    /// Whether the gate closed at a boundary (else by the deadline).
    pub at_boundary: bool,
    /// From the gate's closing to the end of the last work, in microseconds.
    pub drain_micros: u64,
    /// The process's tenants, one live map (fd) for each, in this order.
    pub tenants: Vec<TenantId>,
    /// Leases that this process had not been answered when it made the maps. They stay asked:
    /// a `Leased` that crosses this message is void on both sides (the shim closes its fds
    /// without mapping them, the manager takes the pieces back and answers again later).
    pub outstanding: Vec<Step>,
    /// Boundaries counted so far.
    pub boundaries: u64,
}

/// A manager's messages to a shim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToShim {
    /// The answer to `Hello`.
    Welcome {
        /// The job the process belongs to.
        job: JobId,
        /// Whether the gate starts closed: the job waits until `Open`.
        closed: bool,
        /// With what the process resumes the conversation if its connection ends.
        ticket: Ticket,
        /// The response timeout (`--answer-limit`), in milliseconds: the process looks for another manager as
        /// long as that when its connection has ended, and then counts the session as over.
        answer_limit_ms: u64,
    },
    /// The other answer to `Hello`. Also said to who breaks the protocol. It is the last message:
    /// the connection ends, and there will be no other.
    Refused {
        /// Why, in one sentence for the user.
        reason: String,
    },
    /// The answer to `Attach`.
    Attached {
        /// Of the `Attach`.
        step: Step,
        /// The process's name on this GPU.
        tenant: TenantId,
        /// How its memory is laid out.
        layout: Layout,
    },
    /// The other answer to `Attach`.
    AttachRefused {
        /// Of the `Attach`.
        step: Step,
        /// Why, in one sentence for the user.
        reason: String,
    },
    /// The answer to `MakeRoom`.
    Room {
        /// Of the `MakeRoom`.
        step: Step,
        /// Whether asking for more could bring more.
        more: bool,
    },
    /// The answer to `Lease`; one fd per piece. Pieces come in slot order and without gaps.
    Leased {
        /// Of the `Lease`.
        step: Step,
        /// The pieces.
        pieces: Vec<Placed>,
        /// More pieces for the same request follow.
        more: bool,
    },
    /// The answer to `Borrow`; one fd per piece, in slot order and without gaps.
    Lent {
        /// Of the `Borrow`.
        step: Step,
        /// The pieces, and where they lie in their tenant's range.
        pieces: Vec<Placed>,
    },
    /// The answer to `Hold`: the pieces stay mapped through all switches.
    Held {
        /// Of the `Hold`.
        step: Step,
    },
    /// The other answer to `Lease` and `Hold` (out of memory) and to `Borrow`.
    LeaseRefused {
        /// Of the question.
        step: Step,
        /// Why, in one sentence.
        reason: String,
    },
    /// Close the gate, drain, report. Answered by `Drained`, `NotDrained` or `Passed`.
    Close {
        /// Repeated by the answer.
        step: Step,
        /// The boundary count at which to close (0: the next boundary, whichever it is).
        boundary: u64,
        /// Whether `boundary` is the number of a launch of a collective instead, before which the process is to stop.
        at_collective: bool,
        /// How long to wait for that boundary, in milliseconds; 0: for none.
        deadline_ms: u64,
        /// How long to wait for a thread that has waited for its GPU, where none is waited for and threads do
        /// that again and again, in milliseconds; 0 closes at once.
        wait_ms: u64,
        /// How long the drain may take, in milliseconds.
        drain_ms: u64,
        /// Not zero: the process has answered before, and another one of its job is [stalled](FromShim::Stalled). Each
        /// thread that waits makes up to so many calls before the process drains anew.
        calls: u32,
        /// Whether what this process's work waits for may be theirs to submit.
        peers: Peers,
    },
    /// Unmap and release pieces; their slots become non-resident. Only while closed.
    Unmap {
        /// Repeated by `Done`.
        step: Step,
        /// Whose.
        tenant: TenantId,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// Import and map pieces; one fd per piece. Only while closed or ajar.
    Map {
        /// Repeated by `Done`.
        step: Step,
        /// Whose.
        tenant: TenantId,
        /// Which and where.
        pieces: Vec<Placed>,
    },
    /// The job runs again, and its memory comes back piece by piece: work whose operands are described, and
    /// resident, may go from now on; all other work waits for `Open`. Only while closed.
    Ajar,
    /// Open the gate.
    Open,
    /// Somebody else needs memory: give back pieces that hold no live byte.
    /// Answered by one `Return`, perhaps empty.
    Recall {
        /// Who is asked.
        tenant: TenantId,
    },
    /// Other jobs wait: say `Idle` when nothing is submitted.
    Watch {
        /// How often to look, microseconds; 0: no longer.
        tick_micros: u32,
    },
    /// Nothing but that the shim's messages were heard ([`super::line::SILENCE`]).
    Heard,
}

/// How a tenant's memory is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// A unit's size: pieces and slots are multiples of it.
    pub unit_bytes: u64,
    /// The largest piece worth asking for.
    pub piece_bytes: u64,
    /// What the job is told as the GPU's total memory (its quota).
    pub total_bytes: u64,
    /// The address range to reserve for each class.
    pub range_bytes: u64,
}

/// A copy between a piece and the tenant's saved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The piece on the GPU.
    pub piece: PieceId,
    /// Where in the piece.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Which of the tenant's address ranges the bytes belong to.
    pub class: Class,
    /// Where in that range: the saved bytes' name.
    pub at: u64,
}

/// Where a piece's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// On the GPU.
    Device,
    /// In the host's memory, which the GPU reaches over its link; it counts to the GPU's share of the DRAM tier.
    Host,
}

/// A manager's orders to a mover. Each is answered by `Failed`, or by `Done` where it does not
/// say otherwise, with its step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToMover {
    /// Make pieces. `Made` brings one fd for each.
    Make {
        /// Repeated by the answer.
        step: Step,
        /// Names and sizes in bytes; at most [`super::MAX_FDS`].
        pieces: Vec<(PieceId, u64)>,
        /// Where their memory is.
        location: Location,
    },
    /// Copy live bytes out of pieces into a tier, under the tenant's name. Nothing of a failed
    /// save is kept, and the pieces are untouched.
    Save {
        /// Repeated by the answer.
        step: Step,
        /// Whose bytes.
        tenant: TenantId,
        /// From where.
        moves: Vec<Move>,
        /// So many bytes of the first tier are left to jobs of higher priority, if there is room in another (R0.4).
        spared: u64,
    },
    /// Copy saved bytes back into pieces, then forget the saved copy. If the mover dies before it
    /// has answered, the copy is still there for the next one.
    Restore {
        /// Repeated by the answer.
        step: Step,
        /// Whose bytes.
        tenant: TenantId,
        /// To where. Every moved byte must have been saved.
        moves: Vec<Move>,
        /// Pieces that are filled with 0xFF before (the poison test).
        poison: Vec<PieceId>,
    },
    /// Overwrite pieces with zeroes, before they pass to another job of the same user.
    Scrub {
        /// Repeated by the answer.
        step: Step,
        /// Which.
        pieces: Vec<PieceId>,
    },
    /// Release pieces: their memory goes back to the GPU. What is unknown is gone already.
    Destroy {
        /// Repeated by the answer.
        step: Step,
        /// Which.
        pieces: Vec<PieceId>,
        /// The answer says how many bytes did not come free, by the driver's word: a process still uses them. Else it says
        /// how many bytes of the GPU they had.
        watched_for_leaks: bool,
    },
    /// A tenant is gone: forget its saved bytes. Not answered.
    Forget {
        /// Who.
        tenant: TenantId,
    },
    /// The first orders, of which the last brings the index: take over what the mover before held.
    /// With the descriptors of the pieces, of the slabs, and of the index, in this order. Not
    /// answered by `Done` but, after the last, by `Index` and `Adopted`, or by `Unusable`.
    Adopt {
        /// Names and sizes in bytes.
        pieces: Vec<(PieceId, u64)>,
        /// Names of the slabs of saved bytes.
        slabs: Vec<u32>,
        /// Brings no index yet, or the last part; with it the orders that were not answered: they
        /// follow, and whatever was done for them counts as not done.
        again: Option<Vec<Step>>,
    },
    /// Ask the driver what is free. Answered by `Measured`.
    Measure {
        /// Repeated by the answer.
        step: Step,
    },
    /// The GPU's share of a tier has changed. The answer says how large it is now: no smaller than what holds
    /// saved bytes.
    Share {
        /// Repeated by the answer.
        step: Step,
        /// Of which tier.
        tier: Tier,
        /// In bytes.
        bytes: u64,
    },
    /// So many bytes may have to be saved of this GPU: memory for them is got ahead of need, as far as its shares reach,
    /// while no order waits, and kept. Not answered.
    Warm {
        /// In bytes, of DRAM and CXL memory together.
        bytes: u64,
    },
    /// What to do if the manager dies. With one descriptor: the state file, which the mover keeps
    /// for the next manager. Not answered.
    Will(Will),
    /// Nothing but that the mover's messages were heard ([`super::line::SILENCE`]).
    Heard,
    /// The manager ends in order, and the mover with it. It is the last message. Where a
    /// connection ends without it, the manager has died.
    End,
}

impl ToMover {
    /// What the answer will repeat; `None`: there is no such answer.
    pub fn step(&self) -> Option<Step> {
        match self {
            ToMover::Make { step, .. }
            | ToMover::Save { step, .. }
            | ToMover::Restore { step, .. }
            | ToMover::Scrub { step, .. }
            | ToMover::Destroy { step, .. }
            | ToMover::Share { step, .. }
            | ToMover::Measure { step } => Some(*step),
            ToMover::Forget { .. }
            | ToMover::Adopt { .. }
            | ToMover::Warm { .. }
            | ToMover::Will(_)
            | ToMover::Heard
            | ToMover::End => None,
        }
    }

    /// The bytes that the order moves or makes, as far as it says.
    pub fn bytes(&self) -> u64 {
        match self {
            ToMover::Make { pieces, .. } => pieces.iter().map(|(_, bytes)| bytes).sum(),
            ToMover::Save { moves, .. } | ToMover::Restore { moves, .. } => {
                moves.iter().map(|m| m.bytes).sum()
            }
            _ => 0,
        }
    }
}

/// How a mover finds the next manager when its own has died. Paths and words are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Will {
    /// The socket on which it will listen.
    pub socket: Vec<u8>,
    /// The words of the command line with which a mover starts it; `None`: somebody else does.
    pub start: Option<Vec<Vec<u8>>>,
}

/// How fast a mover moves bytes; what was not measured is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Between the GPU and the host's memory.
    pub link: Option<LinkRates>,
    /// Of the tiers: DRAM, CXL memory, disk.
    pub tiers: [Option<TierRates>; 3],
}

/// A GPU's link, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRates {
    /// To the host alone.
    pub to_host: u64,
    /// To the GPU alone.
    pub to_gpu: u64,
    /// To the host and to the GPU at once, added.
    pub both: u64,
}

/// A tier, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRates {
    /// What is saved there: of memory, from the GPU; of a disk, from memory.
    pub write: u64,
    /// What comes back from there.
    pub read: u64,
}

/// A mover's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromMover {
    /// The first message: the GPU is usable. With one fd: the page that shows how far the mover has come.
    Ready {
        /// Its name.
        name: String,
        /// Total memory.
        total_bytes: u64,
        /// The smallest size of a piece; pieces are multiples of it.
        granularity_bytes: u64,
    },
    /// The other first message: it is not. Also the other answer to `Adopt`. The mover ends.
    Unusable {
        /// Why, in one sentence.
        reason: String,
    },
    /// The answer to `Make`: one fd per piece, in order.
    Made {
        /// Of the order.
        step: Step,
    },
    /// The answer to the other orders.
    Done {
        /// Of the order.
        step: Step,
        /// Bytes moved.
        bytes: u64,
        /// How long it took, in microseconds.
        micros: u64,
    },
    /// The order failed and changed nothing.
    Failed {
        /// Of the order.
        step: Step,
        /// Why, for people.
        reason: String,
        /// What there was not enough of; `None`: that was not the cause.
        shortage: Option<Shortage>,
    },
    /// A slab of memory for saved bytes was made (or the file of those on disk). With its descriptor (a
    /// sealed memfd, a device of memory, or a file without a name): the manager keeps it for the next mover.
    Slab {
        /// Its name.
        slab: u32,
    },
    /// A slab was given back to the system: the manager closes its descriptor.
    SlabGone {
        /// Its name.
        slab: u32,
    },
    /// How many bytes lie in each tier (DRAM, CXL memory, disk), whenever that has changed.
    Stored {
        /// In the order of the tiers.
        bytes: [u64; 3],
    },
    /// What it has measured, once it was asked to [measure](ToMover::Measure).
    Bandwidth(Bandwidth),
    /// From now on the save index lies here. With one descriptor (memfd, sealed against
    /// shrinking), which takes the place of the one before.
    Index,
    /// The answer to `Adopt`: all is there as it was.
    Adopted {
        /// How long it took, in microseconds.
        micros: u64,
    },
    /// The answer to `Measure`.
    Measured {
        /// Of the order.
        step: Step,
        /// Free memory by the driver's word.
        free_bytes: u64,
        /// Total memory by the driver's word.
        total_bytes: u64,
        /// Bytes of saved data in the DRAM tier.
        saved_bytes: u64,
    },
    /// After an `Orphan` was taken: what the mover has. With the descriptors of the pieces and of
    /// the slabs, in this order; the last message with those of the index and of the page of the
    /// first message behind them.
    Holds {
        /// Names and sizes in bytes.
        pieces: Vec<(PieceId, u64)>,
        /// Names of the slabs of saved bytes.
        slabs: Vec<u32>,
        /// More follows.
        more: bool,
        /// The number of the last message that the mover has said to any manager: what the manager has not heard
        /// of them follows the last of these, before the manager takes the mover for found.
        said: u64,
    },
    /// Nothing but that the manager's messages were heard ([`super::line::SILENCE`]).
    Heard,
}

impl FromMover {
    /// The order that this answers, if it answers one.
    pub fn step(&self) -> Option<Step> {
        match self {
            FromMover::Made { step }
            | FromMover::Done { step, .. }
            | FromMover::Failed { step, .. }
            | FromMover::Measured { step, .. } => Some(*step),
            _ => None,
        }
    }
}

/// What there was not enough of for an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// Memory of the GPU or of the machine: some may become free at any moment.
    Memory,
    /// The GPU's share of the tiers: it has no room before something is restored, or the share grows.
    Tiers,
}

/// A command's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromCommand {
    /// `tidegate run`: a job is about to start. The job lives as long as this connection or any
    /// of its processes. Answered by `Registered` or `Refused`, then by a `Queue` whenever the
    /// job's place changes.
    Register(JobSpec),
    /// `tidegate status`. Answered by `Status`.
    Status {
        /// The moment that the answer waits for and tells of.
        when: When,
    },
    /// `tidegate evict`. Answered by `Evicting` or `Refused`, then by `Evicted`.
    Evict {
        /// The job's number, or its name.
        job: String,
        /// How its processes are ended.
        how: Ending,
    },
    /// `tidegate manager stop`. Answered by `Stopping` or `Refused`, then by `Stopped`.
    Stop(StopWhen),
}

/// When a manager that was asked to stop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopWhen {
    /// At once if it has no jobs; else the request is refused.
    Idle,
    /// When its last job has ended. It admits no new jobs.
    Drained,
    /// At once. Jobs that wait for their turn lose their memory, and fail.
    Now,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It is asked to end (SIGTERM).
    Ask,
    /// It is killed (SIGKILL).
    Kill,
}

/// A moment in a manager's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// That of the question.
    Now,
    /// No job lives: none is announced, and no process of any is left.
    Idle,
}

/// A manager's messages to a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCommand {
    /// The answer to `Register`.
    Registered {
        /// The job.
        job: JobId,
        /// The token for `TIDEGATE_JOB`.
        token: u64,
        /// The directory of the software GPUs, when the manager runs on those.
        software_gpu: Option<String>,
        /// What the job asked for that another rank of the same launch had registered, if this one has joined it.
        joined: Option<JobSpec>,
    },
    /// Where the registered job stands.
    Queue {
        /// Its place among the jobs that wait for a GPU, from 1; 0: it does not wait.
        place: u32,
        /// How many wait.
        of: u32,
        /// The name of a job in its way that cannot be stopped: its work does not end.
        behind: Option<String>,
        /// The quota that keeps it from being admitted, in words for people.
        quota: Option<String>,
    },
    /// The answer to `Status`: a part of a JSON text with the names that docs/status.md
    /// documents. The text is as long as the jobs' histories: it comes in as many parts as it
    /// takes ([`super::MAX_MESSAGE_BYTES`]).
    Status {
        /// The next bytes of the text (UTF-8, perhaps cut inside a character).
        part: Vec<u8>,
        /// More parts follow.
        more: bool,
    },
    /// The other answer to `Register`, `Evict` and `Stop`, and to `Status` where there is none.
    Refused {
        /// Why, in one sentence.
        reason: String,
    },
    /// The answer to `Evict`: the job's processes were asked to end, or killed.
    Evicting {
        /// The job that was meant.
        job: JobId,
        /// How many processes of it are known.
        processes: u32,
    },
    /// An evicted job is over: none of its processes is left.
    Evicted {
        /// Which.
        job: JobId,
    },
    /// The answer to `Stop`: the manager will end.
    Stopping {
        /// How many jobs live.
        jobs: u32,
    },
    /// The last word of a manager that ends in order to who asked it to.
    Stopped,
}
