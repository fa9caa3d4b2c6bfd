//! What the scheduler knows of jobs, their processes and their memory.

use super::event::Time;
use super::gang::{Stop, WEIGHT_OF_VAIN};
use super::lease::Run;
use super::outside::{Room, Since};
use super::placements::Placements;
use super::quota::SavedQuota;
use crate::kept::{Keep, Kept};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, Step, TenantId, Tier};
use tidegate_ffi::wire::live::LiveRange;
use tidegate_ffi::wire::message::{JobSpec, LeaseRequest, Move, Need, Placed, SlotRun};

/// Where a job stands (DESIGN §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Its gate is closed and its temporary memory is saved; it waits for its turn.
    Waiting,
    /// Its memory is on the way back.
    Restoring,
    /// Its gate is open.
    Open,
    /// Told to close: on the way to a boundary, then draining.
    Closing,
    /// Drained; its memory is on the way out.
    Leaving,
}

/// Where a job stands among those that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// From 1; 0: it does not wait.
    pub place: u32,
    /// How many wait.
    pub of: u32,
    /// A job in its way that cannot be stopped.
    pub behind: Option<JobId>,
    /// The quota that keeps it from being admitted.
    pub quota: Option<SavedQuota>,
}

/// A job: the scheduler's unit. One grant for all its processes (I5).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Whose it is.
    pub uid: u32,
    /// What it asked for.
    pub spec: JobSpec,
    /// Where it stands.
    pub phase: Phase,
    /// Whoever announced it still lives.
    pub announced: bool,
    /// Its processes.
    pub sessions: BTreeSet<SessionId>,
    /// GPU time so far divided by the weight, without what it has lent, in nanoseconds: the least goes first.
    pub virtual_runtime: u64,
    /// How long it had its turn so far.
    pub runtime: Duration,
    /// Until when it goes before others of its class.
    pub slice_end: Time,
    /// Its drain failed so often.
    pub failed_drains: u32,
    /// Its processes that have memory which no switch can take away, and why.
    pub unmovable: BTreeMap<SessionId, String>,
    /// A process of it has not answered in time, and not yet.
    pub silent: bool,
    /// It was idle when its gate was closed, and has not had its turn since.
    pub lent: bool,
    /// Its slice is over, and a process of it is stopped (SIGSTOP): it uses its turn as little as a job that is idle, but does
    /// not say so.
    pub stopped: bool,
    /// Of the time that it has had more than others, what it did not pay back. What it owes after its next turns is limited the less
    /// for it; that is forgotten by and by, in turns of the usual length.
    pub forgiven: Time,
    /// Not asked to close before this.
    pub not_closed_before: Time,
    /// Not restored before this (an attempt failed).
    pub not_restored_before: Time,
    /// None of its memory is brought back ahead of its turn before this: others need the room, or an attempt failed.
    pub not_prefetched_before: Time,
    /// So many attempts in a row failed.
    pub failed_arrivals: u32,
    /// So many attempts in a row to save its memory failed.
    pub failed_saves: u32,
    /// Its memory is not taken for others before this (an attempt failed).
    pub not_preempted_before: Time,
    /// It could not be drained, or saved, in this closing: it opens again.
    pub reopen: bool,
    /// The closing that is under way, or was the last.
    pub closing: Closing,
    /// Its slice ends by then: somebody waits for all who run to end together.
    pub slice_cap: Option<Time>,
    /// No room was found for it though its group should fit: it runs without the others.
    pub cramped: bool,
    /// The most that a process of it, that has ended, needed on a GPU.
    pub used: Need,
    /// The most units that it had at once of each GPU, in whichever place.
    pub most_units: BTreeMap<GpuUuid, u32>,
    /// Since when it waits for its turn or for memory; none: it does not, or for a reason that ends with another job.
    pub waits_since: Option<Time>,
    /// The last queue place that was told; within: it waited.
    pub told_place: Option<Option<QueuePlace>>,
    /// What its slices and switches have cost.
    pub stats: Stats,
    /// What its last switches have cost.
    pub costs: super::Costs,
    /// The pauses that it makes.
    pub pauses: super::Pauses,
}

/// Figures of one job, sums over its life.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// How often its gate was opened.
    pub slices: u64,
    /// How often its memory was taken.
    pub switches: u64,
    /// How many of these were at a boundary.
    pub at_boundary: u64,
    /// How its last closing ended.
    pub last_at_boundary: bool,
    /// How often its work did not end in time: it was closed in vain.
    pub failed_drains: u64,
    /// From the gate's closing to the end of the last work.
    pub drain: Duration,
    /// From the order to unmap to its end, also of what others needed the room of.
    pub unmap: Duration,
    /// Saving, the same.
    pub save: Duration,
    /// Restoring, making pieces included.
    pub restore: Duration,
    /// Mapping.
    pub map: Duration,
    /// Live bytes in the pieces that were taken.
    pub live_temporary_bytes: u64,
    /// Bytes saved when its gate was closed.
    pub saved_bytes: u64,
    /// Bytes restored.
    pub restored_bytes: u64,
    /// Pieces taken with live bytes in them.
    pub saved_pieces: u64,
    /// Persistent bytes saved because others needed the room.
    pub preempted_bytes: u64,
    /// Of the restored bytes, those that came back before its turn, while others ran.
    pub prefetched_bytes: u64,
    /// The most bytes of units that stayed its own when its memory was taken.
    pub kept_bytes: u64,
    /// How often its memory came back in parts, and its described work could go before all of it was there.
    pub ajar: u64,
    /// When its gate was opened and closed again (the latest of many).
    #[serde(serialize_with = "latest")]
    pub grants: VecDeque<(Time, Option<Time>)>,
    /// How long its last closings took, until all its processes had drained or one could not be: the latest of many.
    pub closings: VecDeque<Duration>,
    /// The arrival of its first process, for the time to the first grant.
    pub arrived: Option<Time>,
    /// Its first grant.
    pub first_open: Option<Time>,
}

/// How many grants are kept for the timeline.
const KEPT_GRANTS: usize = 4096;
/// So many of them are written down for the next manager: they are written with every event, and
/// nothing but the timeline rests on them.
const INHERITED_GRANTS: usize = 256;
/// Of so many the median is how long the next one is expected to take.
const USUAL_CLOSINGS: usize = 7;
/// How many closings' times are kept.
const KEPT_CLOSINGS: usize = 64;

fn latest<S: Serializer>(grants: &VecDeque<(Time, Option<Time>)>, to: S) -> Result<S::Ok, S::Error> {
    let skipped = grants.len().saturating_sub(INHERITED_GRANTS);
    to.collect_seq(grants.range(skipped..))
}

impl Stats {
    pub(super) fn opened(&mut self, now: Time) {
        self.slices += 1;
        self.first_open.get_or_insert(now);
        self.grants.push_back((now, None));
        if self.grants.len() > KEPT_GRANTS {
            self.grants.pop_front();
        }
    }

    pub(super) fn closed(&mut self, now: Time) {
        if let Some((_, end @ None)) = self.grants.back_mut() {
            *end = Some(now);
        }
    }

    pub(super) fn count_closing(&mut self, took: Duration) {
        self.closings.push_back(took);
        if self.closings.len() > KEPT_CLOSINGS {
            self.closings.pop_front();
        }
    }

    /// How long its closings took of late, until its work had ended: the median.
    pub(super) fn usual_closing(&self) -> Duration {
        let mut last: Vec<Duration> = self.closings.iter().rev().take(USUAL_CLOSINGS).copied().collect();
        last.sort_unstable();
        last.get(last.len() / 2).copied().unwrap_or_default()
    }

    /// What one switch away and back costs on average.
    pub fn mean_switch(&self) -> Duration {
        let sum = self.drain + self.unmap + self.save + self.restore + self.map;
        sum.checked_div(self.switches.max(1) as u32).unwrap_or_default()
    }
}

impl Job {
    pub(super) fn new(uid: u32, spec: JobSpec) -> Self {
        Self {
            uid,
            spec,
            phase: Phase::Waiting,
            announced: true,
            sessions: BTreeSet::new(),
            virtual_runtime: 0,
            runtime: Duration::ZERO,
            slice_end: Time::ZERO,
            failed_drains: 0,
            unmovable: BTreeMap::new(),
            silent: false,
            lent: false,
            stopped: false,
            forgiven: Time::ZERO,
            not_closed_before: Time::ZERO,
            not_restored_before: Time::ZERO,
            not_prefetched_before: Time::ZERO,
            failed_arrivals: 0,
            failed_saves: 0,
            not_preempted_before: Time::ZERO,
            reopen: false,
            closing: Closing::default(),
            slice_cap: None,
            cramped: false,
            used: Need::default(),
            most_units: BTreeMap::new(),
            waits_since: None,
            told_place: None,
            stats: Stats::default(),
            costs: super::Costs::default(),
            pauses: super::Pauses::default(),
        }
    }

    /// May it never be closed: it serves, or it cannot be stopped.
    pub fn unsliceable(&self) -> bool {
        self.is_never_closed() || self.is_endless()
    }

    /// May it never be closed, now and later. One whose work does not end is closed seldom.
    pub(super) fn is_never_closed(&self) -> bool {
        self.spec.resident || self.has_unmovable_memory() || self.is_stuck()
    }

    /// Why it is never closed, for people.
    pub fn why_unsliceable(&self) -> Option<&str> {
        if let Some(reason) = self.unmovable.values().next() {
            Some(reason)
        } else if self.is_endless() {
            Some("its work does not end")
        } else if self.is_stuck() {
            Some("it does not answer")
        } else {
            self.spec.resident.then_some("it is resident")
        }
    }

    /// Can it not be closed, though it did not ask for that. Closings of several processes are tried again at once; the jobs
    /// that wait are told after as many failures.
    pub(super) fn cannot_be_stopped(&self) -> bool {
        let fails_apart = self.closing.failed_apart >= super::DRAINS_BEFORE_UNSLICEABLE;
        self.has_unmovable_memory() || self.is_endless() || self.is_stuck() || fails_apart
    }

    /// Has it memory that no switch can take away.
    pub(super) fn has_unmovable_memory(&self) -> bool {
        !self.unmovable.is_empty()
    }

    /// Could it not be drained, however often that was tried.
    pub(super) fn is_endless(&self) -> bool {
        self.failed_drains >= super::DRAINS_BEFORE_UNSLICEABLE
    }

    /// Does it hold a grant, or is it about to.
    pub fn running(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Restoring)
    }

    /// An attempt to restore it, or a part of it, has failed: the next one waits, longer each time.
    pub(super) fn put_off_restoring(&mut self, now: Time) {
        self.failed_arrivals += 1;
        let pause = super::arrival::RETRY * 2u32.saturating_pow(self.failed_arrivals.min(8) - 1);
        self.not_restored_before = now + pause;
    }

    pub(super) fn charge(&mut self, time: Duration) {
        self.virtual_runtime += self.virtual_time(time);
    }

    /// The time that is so much virtual time.
    pub(super) fn time_of(&self, virtual_time: u64) -> Duration {
        Duration::from_nanos(virtual_time.saturating_mul(self.spec.weight.max(1).into()))
    }

    /// So much time divided by the weight, in nanoseconds.
    pub(super) fn virtual_time(&self, time: Duration) -> u64 {
        time.as_nanos() as u64 / u64::from(self.spec.weight.max(1))
    }
}

/// A job's closing.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Closing {
    /// When it began.
    pub since: Time,
    /// Until when its processes may go on to a boundary.
    pub until: Time,
    /// The last boundary that one of them had passed before it was asked to stop there.
    pub passed: Option<u64>,
    /// So often that was so, and all were asked again.
    pub repeats: u32,
    /// So many boundaries all its processes together had passed when it began.
    pub boundaries: u64,
    /// In so many turns in a row they had passed none.
    pub turns_without: u32,
    /// Its processes were waited for in vain while they learnt their boundaries.
    pub in_vain: bool,
    /// So often in a row its processes could not be drained where they were stopped without a common boundary: one
    /// may have waited for another's work.
    pub failed_apart: u32,
    /// Those that are to stop together do so before a collective, not at a boundary.
    pub at_collective: bool,
    /// Those that are to stop together are far apart from each other.
    pub is_far: bool,
    /// How much it weighs that such processes did not ([`WEIGHT_OF_VAIN`](super::gang::WEIGHT_OF_VAIN)).
    pub far_in_vain: u32,
    /// When the work of one of its processes was first said not to end.
    pub stalled_at: Option<Time>,
    /// The same, and to be overdue.
    pub overdue_at: Option<Time>,
    /// In so many closings, with this one, the work of its processes is thought to wait for each other's.
    pub entangled: u32,
    /// So often that was seen.
    pub seen_entangled: u32,
}

/// After the work of one process was overdue it is thought in so many closings to wait for another's; in twice as many each
/// time, so often at most.
const ENTANGLED: u32 = 8;
const MOST_DOUBLED: u32 = 6;

impl Closing {
    /// The work of a process is overdue.
    pub(super) fn note_overdue(&mut self, now: Time) {
        if self.overdue_at.is_some() {
            return;
        }
        self.overdue_at = Some(now);
        self.entangled = ENTANGLED << self.seen_entangled.min(MOST_DOUBLED);
        self.seen_entangled = self.seen_entangled.saturating_add(1);
    }

    /// Whether the work of one process is thought to wait for another's.
    pub(super) fn is_entangled(&self) -> bool {
        self.entangled > 0
    }

    /// A process that was to stop with others has come too late, or does not drain.
    pub(super) fn note_late(&mut self) {
        if std::mem::take(&mut self.is_far) {
            self.far_in_vain = self.far_in_vain.min(WEIGHT_OF_VAIN) + WEIGHT_OF_VAIN;
        }
    }

    /// All processes have drained.
    pub(super) fn note_end(&mut self) {
        self.failed_apart = 0;
        self.far_in_vain = if self.is_far { 0 } else { self.far_in_vain.saturating_sub(1) };
    }
}

/// A process of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// Its job.
    pub job: JobId,
    /// The `Close` it has not answered.
    pub closing: Option<Step>,
    /// When it was told its last `Close`.
    pub closing_since: Time,
    /// So often it has said since then that its work does not end.
    pub stalls: u32,
    /// How it stops in the closing that is under way, or was the last.
    pub stop: Stop,
    /// Submits nothing.
    pub idle: bool,
    /// Told to say when it is idle, and to look so often, microseconds; 0: it was not.
    pub tick_micros: u32,
    /// Its tenants, in the order of attaching.
    pub tenants: Vec<TenantId>,
}

/// A process of a job on one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tenant {
    /// Its process.
    pub session: SessionId,
    /// Its job.
    pub job: JobId,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The pieces it has: mapped, or on their way in or out.
    pub pieces: Placements,
    /// Those of its pieces that stay where they are, whoever runs.
    pub held: BTreeSet<PieceId>,
    /// Those of its pieces, and of those being made, that are host memory; units.
    pub hosted: BTreeMap<PieceId, u32>,
    /// The most units of host memory it had at once: kept for it.
    pub peak_hosted: u32,
    /// It was told that its GPU is too small.
    pub warned: bool,
    /// Bytes of host memory that its first lease waits for: a share is to grow for it.
    pub claim: u64,
    /// Bytes of the tiers that its first lease waits for: shares are to grow for it.
    pub growth: u64,
    /// What was alive at the last closing.
    pub live: Kept<Vec<LiveRange>>,
    /// The slots that its described work was the first to use, in this order.
    pub used: Kept<Vec<SlotRun>>,
    /// What lies in a tier, sorted by class and place.
    pub saved: Kept<Vec<AwayRange>>,
    /// What has to be there again, with any bytes, in the same order.
    pub blank: Kept<Vec<AwayRange>>,
    /// The runs of slots that `saved` and `blank` need, by region.
    pub(super) runs: [Vec<Run>; 2],
    /// Leases not answered yet, in order.
    pub waiting: VecDeque<LeaseRequest>,
    /// The lease whose pieces are being made; its pieces are not among `pieces` yet.
    pub making: Option<LeaseRequest>,
    /// Answers that the process may not have when it drains: those of leases that are answered
    /// in part, and those given while it closes.
    pub answered: Vec<(LeaseRequest, Vec<PieceId>)>,
    /// The most units of temporary memory it needed at once.
    pub peak_temporary: u32,
    /// The most units of persistent memory it had at once.
    pub peak_persistent: u32,
    /// The most units that it had at once, in whichever place.
    pub most_units: u32,
    /// Units it has only because nobody else needed them.
    pub ahead: u32,
    /// The runs of slots, by class and first slot, that have one piece each; units.
    pub whole: BTreeMap<(Class, u32), u32>,
    /// Whether it was asked to give unused pieces back.
    pub recall: Recall,
    /// Its calls that wait for memory outside of pieces, in order.
    pub rooms: VecDeque<Room>,
    /// The `Attach` that is not answered: its context has no room yet.
    pub entering: Option<Step>,
    /// Its contexts are among what was measured.
    pub measured: bool,
    /// For its first lease it was measured whether the GPU has more room than the ledger thinks.
    pub doubted: bool,
    /// Making pieces for its first lease failed for lack of GPU memory: the units outside of pieces that the ledger knew of
    /// at that time.
    pub deceived: Option<u32>,
    /// Units that its context took, once that is known.
    pub(super) context: Option<u32>,
    /// Its memory's way back, while it is under way.
    pub arrival: Option<Arrival>,
    /// Its memory's way out, while it is under way.
    pub departure: Option<Departure>,
}

/// Where a recall of unused pieces stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recall {
    /// It may have unused pieces.
    Unasked,
    /// Asked, not answered.
    Asked {
        /// It has asked for memory since, and may have freed some before that: it is asked once more.
        again: bool,
    },
    /// Not answered in time: nobody waits for it.
    Overdue,
    /// Answered; it has got no new pieces since.
    Answered,
}

impl Recall {
    /// Is an answer outstanding that is waited for.
    pub fn is_asked(self) -> bool {
        matches!(self, Recall::Asked { .. })
    }
}

/// A range of a tenant's addresses whose memory was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayRange {
    /// Which address range of the tenant.
    pub class: Class,
    /// Where in it.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The region its piece lay in.
    pub region: Class,
}

/// A tenant's memory on its way back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// The pieces and their places.
    pub placed: Vec<Placed>,
    /// Those of the pieces that have bytes of their last tenant.
    pub unscrubbed: BTreeSet<PieceId>,
    /// What the process was not told to map yet, in the order in which it comes.
    pub parts: BTreeMap<usize, Part>,
    /// The process was told to map some of it.
    pub begun: bool,
    /// Orders to make pieces that are not answered yet.
    pub making: usize,
    /// Orders to map that are not answered yet.
    pub mapping: usize,
    /// A piece could not be made.
    pub failed: bool,
    /// It comes ahead of its job's turn: persistent memory, perhaps not all of it.
    pub early: bool,
    /// Units by region that are on their way, and away no more.
    pub coming: [u32; 2],
    /// When the present part began.
    pub since: Time,
}

/// What of an arrival is restored, and then mapped, at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// The pieces and their places.
    pub placed: Vec<Placed>,
    /// The copies.
    pub moves: Vec<Move>,
    /// Orders to restore that are not answered yet.
    pub restoring: usize,
    /// Memory was missing for it: it is ordered again after a pause.
    pub put_off: bool,
    /// So often it was.
    pub tries: u32,
}

/// A tenant's memory on its way out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Departure {
    /// All pieces to be taken.
    pub pieces: Vec<PieceId>,
    /// The copies.
    pub moves: Vec<Move>,
    /// What will be saved.
    pub saved: Vec<AwayRange>,
    /// What will have to be there again, with any bytes, and the pieces that it is in.
    pub blank: Vec<(PieceId, AwayRange)>,
    /// When the present part began.
    pub since: Time,
    /// Taken because others needed the room, not by a switch.
    pub preempted: bool,
    /// Bytes that were ordered to be saved.
    pub saving_bytes: u64,
    /// Orders of the present part that are not answered yet.
    pub waiting: usize,
    /// The parts of `moves` that are saved.
    pub kept: Vec<Range<usize>>,
    /// A part could not be saved: nothing goes.
    pub failed: bool,
}

/// An order that was given and not answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Pending {
    /// A process unmaps.
    Unmap(TenantId),
    /// A mover saves a part of the moves.
    Save(TenantId, Range<usize>),
    /// A mover forgets a part that it saved: another part could not be.
    Unsave(TenantId),
    /// A process maps again what could not be saved.
    MapBack(TenantId, Vec<Placed>),
    /// A mover makes pieces for a lease.
    MakeForLease(TenantId, LeaseRequest, Vec<Placed>, Vec<PieceId>),
    /// A mover makes pieces (the last list) whose lease is void: all listed become spare.
    MakeForNobody(GpuUuid, u32, Vec<PieceId>, Vec<PieceId>),
    /// A mover makes pieces for a tenant that comes back.
    MakeForArrival(TenantId, Vec<PieceId>),
    /// A mover restores a part of an arrival.
    Restore(TenantId, usize),
    /// A mover scrubs pieces which a part of an arrival does not fill.
    ScrubForArrival(TenantId, usize),
    /// A process maps.
    Map(TenantId, Vec<Placed>),
    /// A mover scrubs pieces that will be spare.
    Scrub(GpuUuid, Vec<PieceId>, u32),
    /// A mover destroys pieces, which a user had last whose leaks are looked for.
    Destroy(GpuUuid, Vec<PieceId>, Option<u32>),
    /// A mover destroys pieces that somebody keeps.
    Retire(GpuUuid, Vec<PieceId>),
    /// A mover measures the GPU's memory, of which so many units should be in pieces.
    Measure(GpuUuid, u32, Since),
    /// A mover changes its share of a tier.
    Share(GpuUuid, Tier),
}

impl Pending {
    /// The tenant whose switch this is a part of.
    pub(super) fn moves(&self) -> Option<TenantId> {
        match self {
            Pending::Unmap(tenant)
            | Pending::Save(tenant, _)
            | Pending::Unsave(tenant)
            | Pending::MapBack(tenant, _)
            | Pending::MakeForArrival(tenant, _)
            | Pending::Restore(tenant, _)
            | Pending::ScrubForArrival(tenant, _)
            | Pending::Map(tenant, _) => Some(*tenant),
            _ => None,
        }
    }

    /// What is done, in one word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Pending::Unmap(_) => "unmap",
            Pending::Save(..) => "save",
            Pending::Unsave(_) => "unsave",
            Pending::MapBack(..) => "map back",
            Pending::MakeForLease(..) | Pending::MakeForNobody(..) | Pending::MakeForArrival(..) => "make",
            Pending::Restore(..) => "restore",
            Pending::Map(..) => "map",
            Pending::Scrub(..) | Pending::ScrubForArrival(..) => "scrub",
            Pending::Destroy(..) | Pending::Retire(..) => "destroy",
            Pending::Measure(..) => "measure",
            Pending::Share(..) => "share",
        }
    }

    /// The tenant for which this is done.
    pub(super) fn tenant(&self) -> Option<TenantId> {
        match self {
            Pending::MakeForLease(tenant, ..) => Some(*tenant),
            other => other.moves(),
        }
    }

    /// The tenant whose process carries this out.
    pub(super) fn of_process(&self) -> Option<TenantId> {
        match self {
            Pending::Unmap(tenant) | Pending::MapBack(tenant, _) | Pending::Map(tenant, _) => Some(*tenant),
            _ => None,
        }
    }
}

impl Tenant {
    pub(super) fn new(session: SessionId, job: JobId, gpu: GpuUuid) -> Self {
        Self {
            session,
            job,
            gpu,
            pieces: Placements::default(),
            held: BTreeSet::new(),
            hosted: BTreeMap::new(),
            peak_hosted: 0,
            warned: false,
            claim: 0,
            growth: 0,
            live: Kept::default(),
            used: Kept::default(),
            saved: Kept::default(),
            blank: Kept::default(),
            runs: [Vec::new(), Vec::new()],
            waiting: VecDeque::new(),
            making: None,
            answered: Vec::new(),
            peak_temporary: 0,
            peak_persistent: 0,
            most_units: 0,
            ahead: 0,
            recall: Recall::Unasked,
            rooms: VecDeque::new(),
            entering: None,
            measured: false,
            doubted: false,
            deceived: None,
            context: None,
            whole: BTreeMap::new(),
            arrival: None,
            departure: None,
        }
    }

    /// What is written down once.
    pub(super) fn long_parts(&mut self) -> [&mut dyn Keep; 4] {
        [&mut self.live, &mut self.used, &mut self.saved, &mut self.blank]
    }

    /// Is a lease of it not answered, or room that it wants.
    pub(super) fn asks(&self) -> bool {
        !self.waiting.is_empty() || self.making.is_some() || !self.rooms.is_empty()
    }

    /// Units outside of pieces that its calls wait for.
    pub(super) fn asked_outside(&self) -> u32 {
        self.rooms.iter().map(|room| room.units).fold(0, u32::saturating_add)
    }

    /// Units that it asks for, in pieces and outside of them.
    pub(super) fn asked_units(&self) -> u32 {
        let of_class = Class::ALL.map(|class| self.asked(class)).into_iter();
        of_class.fold(self.asked_outside(), u32::saturating_add)
    }

    /// Units of unanswered leases of a class.
    pub(super) fn asked(&self, class: Class) -> u32 {
        self.waiting
            .iter()
            .filter(|request| request.class == class)
            .map(|request| request.units.0)
            .fold(0, u32::saturating_add)
    }
}
