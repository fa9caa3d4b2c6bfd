//! What `tidegate status` shows. The names are documented in docs/status.md and are stable.

use super::Server;
use super::client::Published;
use super::rights::Asker;
use crate::ledger::Owner;
use crate::planner::shares::TIERS;
use crate::scheduler::{AwayRange, Config, Gpu, Job, Phase, Scheduler, Stats, Tenant, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_ffi::units::{Class, GpuUuid, JobId, Tier};
use tidegate_ffi::wire::message::{LinkRates, ToCommand};
use tidegate_ffi::wire::{Frame, MAX_MESSAGE_BYTES};

/// Everything.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Microseconds since the manager started; all times are on this clock.
    pub now_micros: u64,
    /// Whether the GPUs are software.
    pub software_gpu: bool,
    /// Nobody new is admitted; the manager ends with its last job.
    pub draining: bool,
    /// How often jobs stood still, or waited too long, and were made to go on: an error of the manager's, each time.
    #[serde(default)]
    pub standstills: u64,
    /// The GPUs.
    pub gpus: Vec<GpuStatus>,
    /// Users with a quota of saved bytes whose jobs the asking user may see.
    pub users: Vec<UserStatus>,
    /// The jobs that live, of those that the asking user may see.
    pub jobs: Vec<JobStatus>,
    /// The last jobs that ended, likewise.
    pub ended: Vec<EndedJob>,
    /// The living jobs that the asking user may not see.
    pub others: OthersStatus,
}

/// What a user's jobs have in the tiers, of all GPUs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// Who.
    pub uid: u32,
    /// Bytes in the tiers now, or on the way there.
    pub saved_bytes: u64,
    /// The most that may be.
    pub quota_bytes: u64,
}

/// Jobs of other users, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OthersStatus {
    /// How many.
    pub jobs: u64,
    /// Resident persistent bytes.
    pub persistent_bytes: u64,
    /// Resident temporary bytes.
    pub temporary_bytes: u64,
    /// Bytes in tiers now.
    pub spilled_bytes: u64,
}

/// What processes of a user keep of pieces that were given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakStatus {
    /// The user.
    pub uid: u32,
    /// How much.
    pub bytes: u64,
}

/// One GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Its UUID.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// What the ledger may use.
    pub gpu_memory_bytes: u64,
    /// A unit.
    pub unit_bytes: u64,
    /// The offset between spans.
    pub offset_bytes: u64,
    /// Kept free.
    pub headroom_bytes: u64,
    /// Used by processes outside Tidegate, by the driver's word; absent until measured.
    pub outsider_bytes: Option<u64>,
    /// Free between the regions.
    pub free_bytes: u64,
    /// Scrubbed pieces, ready for the next lease.
    pub spare_bytes: u64,
    /// Given to processes that were expelled and are not dead yet.
    pub retired_bytes: u64,
    /// What users keep of pieces that were given back, of those that the asking user may see.
    pub leaks: Vec<LeakStatus>,
    /// The persistent region.
    pub persistent: RegionStatus,
    /// The temporary region.
    pub temporary: RegionStatus,
    /// Who has what of the persistent region.
    pub spans: Vec<SpanStatus>,
    /// Where spilled bytes lie.
    pub tiers: Vec<TierStatus>,
    /// How fast bytes go between it and the host; absent until measured.
    pub link: Option<LinkStatus>,
    /// The process that moves its memory.
    pub mover: MoverStatus,
}

/// A GPU's mover.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MoverStatus {
    /// Whether there will be none any more: they died again and again, or with their manager.
    pub lost: bool,
    /// How many took over from one that died.
    pub replacements: u64,
    /// From the last one's death until the next one had everything.
    pub last_replacement_micros: Option<u64>,
}

/// One region.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegionStatus {
    /// From the region's end of the GPU to its last unit in use.
    pub extent_bytes: u64,
    /// In pieces.
    pub used_bytes: u64,
}

/// One extent of a span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpanStatus {
    /// The job.
    pub job: u64,
    /// The first unit.
    pub start_unit: u32,
    /// One past the last.
    pub end_unit: u32,
}

/// One tier's share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TierStatus {
    /// `dram`, `cxl`, `disk`.
    pub tier: String,
    /// This GPU's share.
    pub share_bytes: u64,
    /// In use, by saved bytes and by host memory in the GPU's place.
    pub used_bytes: u64,
    /// How fast bytes are saved there, in GB/s (10⁹ bytes per second); absent until measured.
    pub write_gb_per_s: Option<f64>,
    /// How fast they come back.
    pub read_gb_per_s: Option<f64>,
}

/// Between a GPU and the host's memory, in GB/s (10⁹ bytes per second).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// To the host alone.
    pub to_host_gb_per_s: f64,
    /// To the GPU alone.
    pub to_gpu_gb_per_s: f64,
    /// Both ways at once, added.
    pub both_gb_per_s: f64,
    /// Since when these are the figures, on the clock of `now_micros`.
    pub since_micros: u64,
}

/// One living job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStatus {
    /// queued, waiting, restoring, open, closing or leaving.
    pub state: String,
    /// Its place among those that wait; 0: it does not wait.
    pub queue_place: u32,
    /// The quota of saved bytes that keeps it from being admitted, in words for people.
    pub waits_for_quota: Option<String>,
    /// What it waits for, and which jobs hold that, in words for people.
    pub waits_for: Option<String>,
    /// It is never closed.
    pub unsliceable: bool,
    /// Why that is so, in words for people.
    pub unsliceable_because: Option<String>,
    /// The GPUs it is on.
    pub gpus: Vec<String>,
    /// Process ids.
    pub pids: Vec<i32>,
    /// Resident persistent bytes.
    pub persistent_bytes: u64,
    /// Resident temporary bytes.
    pub temporary_bytes: u64,
    /// Resident bytes that stay where they are, whoever runs: a part of these two.
    pub held_bytes: u64,
    /// Bytes in tiers now.
    pub spilled_bytes: u64,
    /// Host memory in its GPUs' place, of what is more than they have.
    pub hosted_bytes: u64,
    /// The rest, the same words as for an ended job.
    #[serde(flatten)]
    pub figures: EndedJob,
}

/// A job's figures over its life.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndedJob {
    /// Its number.
    pub job: u64,
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// Its priority class.
    pub priority: i32,
    /// Its weight.
    pub weight: u32,
    /// How often its gate was opened.
    pub slices: u64,
    /// How often its memory was taken.
    pub switches: u64,
    /// How many of these were at a boundary.
    pub at_boundary: u64,
    /// How often it was closed in vain: its work did not end within `--drain-limit`.
    #[serde(default)]
    pub failed_drains: u64,
    /// Boundaries of its process that has seen most.
    pub boundaries: u64,
    /// Mean cost of a switch, by part, in microseconds.
    pub switch_micros: SwitchMicros,
    /// The most bytes in allocations that were born persistent, and in others, added.
    pub footprint_bytes: u64,
    /// Most bytes at once in allocations that were born temporary.
    pub peak_temporary_bytes: u64,
    /// Most live bytes at once that were called persistent.
    pub labelled_bytes: u64,
    /// Live bytes in the pieces that were taken, summed over its switches.
    pub live_temporary_bytes: u64,
    /// Bytes saved, summed over its switches.
    pub saved_bytes: u64,
    /// Pieces taken with live bytes in them, summed over its switches.
    pub saved_pieces: u64,
    /// Bytes restored, summed.
    pub restored_bytes: u64,
    /// Persistent bytes saved because others needed the room, summed.
    pub preempted_bytes: u64,
    /// Of the restored bytes, those that came back before its turn, while others ran, summed.
    pub prefetched_bytes: u64,
    /// The most bytes of units that stayed its own at a switch.
    pub kept_bytes: u64,
    /// How often its memory came back in parts, and its described work did not wait for all of it.
    pub ajar: u64,
    /// GPU time.
    pub runtime_micros: u64,
    /// From its first process to its first grant.
    pub first_wait_micros: Option<u64>,
    /// How long its last closings took (at most 64), from the manager's message until all its processes had drained.
    #[serde(default)]
    pub closing_micros: Vec<u64>,
    /// When its gate was open: from, to (null: still).
    pub grants: Vec<(u64, Option<u64>)>,
}

/// The parts of a switch.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct SwitchMicros {
    /// From the gate's closing to the end of the last work.
    pub drain: u64,
    /// Unmapping.
    pub unmap: u64,
    /// Saving.
    pub save: u64,
    /// Making pieces and restoring.
    pub restore: u64,
    /// Mapping.
    pub map: u64,
}

impl EndedJob {
    /// A job's figures; `ended` ends the grant that a job had when its last process died.
    pub(super) fn new(id: JobId, job: &Job, published: Published, ended: Option<Time>) -> Self {
        let stats: &Stats = &job.stats;
        let micros = |time: std::time::Duration| time.as_micros() as u64;
        let mean = |time| micros(time) / stats.switches.max(1);
        Self {
            job: id.0,
            name: job.spec.name.clone(),
            uid: job.uid,
            priority: job.spec.priority,
            weight: job.spec.weight,
            slices: stats.slices,
            switches: stats.switches,
            at_boundary: stats.at_boundary,
            failed_drains: stats.failed_drains,
            switch_micros: SwitchMicros {
                drain: mean(stats.drain),
                unmap: mean(stats.unmap),
                save: mean(stats.save),
                restore: mean(stats.restore),
                map: mean(stats.map),
            },
            boundaries: published.boundaries,
            footprint_bytes: published.peak_bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            peak_temporary_bytes: published.peak_bytes[Class::Temporary.index()],
            labelled_bytes: published.labelled_bytes,
            live_temporary_bytes: stats.live_temporary_bytes,
            saved_bytes: stats.saved_bytes,
            saved_pieces: stats.saved_pieces,
            restored_bytes: stats.restored_bytes,
            preempted_bytes: stats.preempted_bytes,
            prefetched_bytes: stats.prefetched_bytes,
            kept_bytes: stats.kept_bytes,
            ajar: stats.ajar,
            runtime_micros: micros(job.runtime),
            first_wait_micros: stats
                .first_open
                .zip(stats.arrived)
                .map(|(open, arrived)| micros(open - arrived)),
            closing_micros: stats.closings.iter().copied().map(micros).collect(),
            grants: stats.grants.iter().map(|(from, to)| (micros(*from), to.or(ended).map(micros))).collect(),
        }
    }
}

/// A part of the text is at most so long: well below what one message can carry.
const PART_BYTES: usize = MAX_MESSAGE_BYTES / 2;

/// What the asker may see of the state as JSON, in messages.
pub(super) fn parts(server: &Server, asker: Asker) -> Arc<[Frame]> {
    let parts = match serde_json::to_vec(&status(server, asker)) {
        Ok(text) => split(&text),
        Err(error) => vec![ToCommand::Refused { reason: format!("the status cannot be written: {error}") }],
    };
    // Each is shorter than the longest message.
    parts.iter().filter_map(|part| Frame::of(part, 0).ok()).collect()
}

fn split(text: &[u8]) -> Vec<ToCommand> {
    let last = text.chunks(PART_BYTES).len() - 1;
    let parts = text.chunks(PART_BYTES).enumerate();
    parts.map(|(index, part)| ToCommand::Status { part: part.to_vec(), more: index < last }).collect()
}

fn status(server: &Server, asker: Asker) -> Status {
    let scheduler = &server.scheduler;
    let jobs = scheduler.jobs().iter().map(|(id, job)| job_status(server, *id, job));
    let (jobs, others): (Vec<_>, Vec<_>) = jobs.partition(|job| asker.sees(job.figures.uid));
    let ended = server.ended.iter().filter(|job| asker.sees(job.uid));
    Status {
        now_micros: server.now().as_micros() as u64,
        software_gpu: server.software_gpu.is_some(),
        draining: server.draining,
        standstills: scheduler.standstills(),
        gpus: scheduler.gpus().iter().map(|(id, gpu)| gpu_status(server, asker, *id, gpu)).collect(),
        ended: ended.cloned().collect(),
        others: others.iter().fold(OthersStatus::default(), OthersStatus::and),
        users: users(scheduler, asker),
        jobs,
    }
}

/// The users of living jobs who have a quota of saved bytes.
fn users(scheduler: &Scheduler, asker: Asker) -> Vec<UserStatus> {
    let uids: BTreeSet<u32> = scheduler.jobs().values().map(|job| job.uid).collect();
    let user = |uid: u32| {
        let quota_bytes = scheduler.config().saved_quotas.of(uid)?;
        Some(UserStatus { uid, saved_bytes: scheduler.saved_of_user(uid), quota_bytes })
    };
    uids.into_iter().filter(|uid| asker.sees(*uid)).filter_map(user).collect()
}

impl OthersStatus {
    fn and(self, job: &JobStatus) -> Self {
        Self {
            jobs: self.jobs + 1,
            persistent_bytes: self.persistent_bytes + job.persistent_bytes,
            temporary_bytes: self.temporary_bytes + job.temporary_bytes,
            spilled_bytes: self.spilled_bytes + job.spilled_bytes,
        }
    }
}

/// The tiers that there are, in their order.
fn tiers(config: &Config, gpu: &Gpu, mover: Option<&super::MoverLink>) -> Vec<TierStatus> {
    let (shares, stored) = (gpu.share_bytes(), mover.map_or([0; TIERS], |mover| mover.state().stored));
    let rates = mover.map_or([None; TIERS], |mover| mover.state().bandwidth.tiers);
    let is_there = |tier: &Tier| *tier == Tier::Dram || config.tier_bytes[tier.index()] > 0;
    let status = |tier: Tier| TierStatus {
        tier: tier.to_string(),
        share_bytes: shares[tier.index()],
        used_bytes: stored[tier.index()],
        write_gb_per_s: rates[tier.index()].map(|rates| gigabytes(rates.write)),
        read_gb_per_s: rates[tier.index()].map(|rates| gigabytes(rates.read)),
    };
    Tier::ALL.into_iter().filter(is_there).map(status).collect()
}

fn link(mover: &super::MoverLink) -> Option<LinkStatus> {
    let rates: LinkRates = mover.state().bandwidth.link?;
    Some(LinkStatus {
        to_host_gb_per_s: gigabytes(rates.to_host),
        to_gpu_gb_per_s: gigabytes(rates.to_gpu),
        both_gb_per_s: gigabytes(rates.both),
        since_micros: mover.state().bandwidth_since.as_micros() as u64,
    })
}

/// To a millionth.
fn gigabytes(bytes: u64) -> f64 {
    (bytes / 1000) as f64 / 1e6
}

fn gpu_status(server: &Server, asker: Asker, id: GpuUuid, gpu: &Gpu) -> GpuStatus {
    let config = server.scheduler.config();
    let bytes = |units: u32| u64::from(units) * config.unit_bytes;
    let sum = |region: Class, spare: bool| -> u64 {
        let of_region = gpu.ledger.pieces().filter(|(_, record)| record.region == region);
        of_region
            .filter(|(_, record)| (record.owner == Owner::Spare) == spare)
            .map(|(_, r)| bytes(r.units))
            .sum()
    };
    let mover = server.movers.get(&id);
    GpuStatus {
        uuid: id.to_string(),
        name: mover.map(|mover| mover.state().name.clone()).unwrap_or_default(),
        gpu_memory_bytes: bytes(gpu.ledger.total()),
        unit_bytes: config.unit_bytes,
        offset_bytes: bytes(gpu.ledger.offset()),
        headroom_bytes: bytes(gpu.ledger.headroom()),
        outsider_bytes: gpu.outside.units.map(bytes),
        free_bytes: bytes(gpu.ledger.free()),
        spare_bytes: sum(Class::Temporary, true),
        retired_bytes: bytes(gpu.ledger.retired()),
        leaks: {
            let seen = gpu.leaks.by_user().filter(|(uid, _)| asker.sees(*uid));
            seen.map(|(uid, units)| LeakStatus { uid, bytes: bytes(units) }).collect()
        },
        persistent: RegionStatus {
            extent_bytes: bytes(gpu.ledger.persistent_top()),
            used_bytes: sum(Class::Persistent, false),
        },
        temporary: RegionStatus {
            extent_bytes: bytes(gpu.ledger.temporary_units()),
            used_bytes: sum(Class::Temporary, false),
        },
        spans: spans(server, asker, gpu),
        tiers: tiers(config, gpu, mover),
        link: mover.and_then(link),
        mover: mover_status(mover),
    }
}

fn mover_status(mover: Option<&super::MoverLink>) -> MoverStatus {
    let replacements = mover.map(|mover| &mover.state().replacements);
    MoverStatus {
        lost: replacements.is_some_and(|r| r.lost),
        replacements: replacements.map_or(0, |r| r.count),
        last_replacement_micros: replacements.and_then(|r| r.last).map(|time| time.as_micros() as u64),
    }
}

fn spans(server: &Server, asker: Asker, gpu: &Gpu) -> Vec<SpanStatus> {
    let scheduler = &server.scheduler;
    let job_of = |tenant| {
        let job = scheduler.tenants().get(&tenant)?.job;
        Some((job, scheduler.jobs().get(&job)?))
    };
    let spans = gpu.ledger.spans().filter_map(|span| {
        let (job, owner) = job_of(span.tenant)?;
        asker.sees(owner.uid).then_some(SpanStatus { job: job.0, start_unit: span.start, end_unit: span.end })
    });
    spans.collect()
}

fn spilled(tenant: &Tenant) -> u64 {
    tenant.saved.iter().map(|range: &AwayRange| range.bytes).sum()
}

fn job_status(server: &Server, id: JobId, job: &Job) -> JobStatus {
    let scheduler = &server.scheduler;
    let tenants: Vec<&Tenant> = scheduler.tenants().values().filter(|tenant| tenant.job == id).collect();
    let clients =
        || job.sessions.iter().filter_map(|session| server.clients.get(&super::ClientId(session.0)));
    let mut published = server.published.get(&id).copied().unwrap_or_default();
    clients().for_each(|client| client.add_published(&mut published));
    let queue = scheduler.queue();
    let bytes = |units: fn(&Tenant) -> u32| {
        tenants.iter().map(|tenant| u64::from(units(tenant))).sum::<u64>() * scheduler.config().unit_bytes
    };
    JobStatus {
        state: state(job, tenants.is_empty()).into(),
        queue_place: queue.iter().position(|waiting| *waiting == id).map_or(0, |index| index as u32 + 1),
        waits_for_quota: scheduler.quota_in_its_way(id).map(|quota| server.words_for_quota(quota, id)),
        waits_for: scheduler.waits_of(id).first().map(ToString::to_string),
        unsliceable: job.unsliceable(),
        unsliceable_because: job.why_unsliceable().map(Into::into),
        gpus: tenants.iter().map(|tenant| tenant.gpu.to_string()).collect(),
        pids: clients().map(|client| client.conversation.pid).collect(),
        persistent_bytes: scheduler.resident_bytes(id, Class::Persistent),
        temporary_bytes: scheduler.resident_bytes(id, Class::Temporary),
        held_bytes: bytes(Tenant::held_units),
        spilled_bytes: tenants.iter().map(|tenant| spilled(tenant)).sum(),
        hosted_bytes: bytes(Tenant::hosted_units),
        figures: EndedJob::new(id, job, published, None),
    }
}

fn state(job: &Job, unattached: bool) -> &'static str {
    match job.phase {
        _ if unattached => "queued",
        Phase::Waiting => "waiting",
        Phase::Restoring => "restoring",
        Phase::Open => "open",
        Phase::Closing => "closing",
        Phase::Leaving => "leaving",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::client::ClientId;
    use super::super::stage::{ask, connect, join, server};
    use super::*;
    use tidegate_ffi::wire::Connection;
    use tidegate_ffi::wire::message::{FromCommand, JobSpec, When};

    const ROOT: Asker = Asker { uid: 0, manager: 0 };

    /// The status that was sent to a command.
    fn told(connection: &Connection) -> Status {
        let mut text = Vec::new();
        loop {
            match connection.receive::<ToCommand>().unwrap().0 {
                ToCommand::Status { part, more } => {
                    text.extend(part);
                    if !more {
                        return serde_json::from_slice(&text).unwrap();
                    }
                }
                other => panic!("{other:?} is no status"),
            }
        }
    }

    #[test]
    fn the_idle_status_waits_for_the_last_job() {
        let mut server = server();
        let (_run, idle, now) = (connect(&mut server, 1), connect(&mut server, 2), connect(&mut server, 3));
        ask(&mut server, 1, FromCommand::Register(JobSpec::default()));
        ask(&mut server, 2, FromCommand::Status { when: When::Idle });
        ask(&mut server, 3, FromCommand::Status { when: When::Now });
        assert_eq!(told(&now).jobs.len(), 1);
        server.take_in(Input::Gone(ClientId(1)));
        let status = told(&idle);
        assert_eq!((status.jobs.len(), status.ended.len()), (0, 1));
        ask(&mut server, 2, FromCommand::Status { when: When::Idle });
        assert_eq!(told(&idle).ended.len(), 1, "nobody is left to wait for");
    }

    #[test]
    fn who_left_is_not_answered() {
        let mut server = server();
        let (_run, _idle) = (connect(&mut server, 1), connect(&mut server, 2));
        ask(&mut server, 1, FromCommand::Register(JobSpec::default()));
        ask(&mut server, 2, FromCommand::Status { when: When::Idle });
        server.take_in(Input::Gone(ClientId(2)));
        assert!(server.awaiting_idle.is_empty());
    }

    #[test]
    fn the_last_grant_of_a_job_ends_with_it() {
        let mut server = server();
        let (_process, page) = join(&mut server, 1);
        page.tenants[0].publish_live(Class::Persistent, 5, 5);
        page.tenants[0].publish_live(Class::Temporary, 3, 3);
        let living = status(&server, ROOT).jobs.remove(0).figures;
        assert!(matches!(living.grants.as_slice(), [(_, None)]), "{living:?}");
        assert_eq!((living.footprint_bytes, living.peak_temporary_bytes), (8, 3));
        server.take_in(Input::Gone(ClientId(1)));
        let ended = status(&server, ROOT).ended.remove(0);
        assert!(matches!(ended.grants.as_slice(), [(from, Some(to))] if from <= to), "{ended:?}");
        assert_eq!((ended.footprint_bytes, ended.peak_temporary_bytes), (8, 3));
    }

    #[test]
    fn a_long_history_still_travels() {
        let mut server = server();
        join(&mut server, 1);
        server.take_in(Input::Gone(ClientId(1)));
        let mut job = server.ended[0].clone();
        job.name = "ü".repeat(100);
        job.grants = (0..4096).map(|n| (10_000_000_000 + n, Some(10_000_000_001 + n))).collect();
        server.ended = std::iter::repeat_n(job, 64).collect();
        let command = connect(&mut server, 2);
        ask(&mut server, 2, FromCommand::Status { when: When::Now });
        assert_eq!(told(&command).ended.len(), 64);
    }
}
