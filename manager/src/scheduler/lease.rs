//! How an allocation gets its pieces, and what gives way to it.
//!
//! A lease is answered while its job is open (or on the way to its boundary). When no room is
//! left, in this order: spare pieces are destroyed, unused pieces are recalled, closed jobs'
//! persistent pieces are saved; else the lease waits, its job's need has grown, and the group
//! that fits is chosen anew. Only a tenant that could not be served by an empty GPU is refused,
//! and gets host memory ([`hosted`](super::hosted)) if it asks again.

use super::{
    Arrival, Effect, Gpu, NAMES_PER_MESSAGE, Pending, Phase, Recall, Scheduler, Session, Spare, Spares, Stop,
    Tenant,
};
use crate::ledger::{NoRoom, Slack};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::message::{LeaseRequest, Location, Placed, ToMover, ToShim};

/// Pieces that were found for a run of slots.
#[derive(Default)]
pub(super) struct Acquired {
    /// All of them, in slot order.
    pub(super) placed: Vec<Placed>,
    /// Those that must be made first.
    pub(super) new: Vec<PieceId>,
    /// Those that have bytes of their last tenant.
    pub(super) unscrubbed: BTreeSet<PieceId>,
}

/// There is no room for runs of slots.
pub(super) struct Unplaced {
    pub(super) no_room: NoRoom,
    /// Pieces that no tenant uses and that they would get: destroying one of these makes no room for them.
    pub(super) usable: BTreeSet<PieceId>,
}

/// Which pieces will do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Clean {
    /// Scrubbed ones: the process gets them as they are.
    Yes,
    /// Any: what comes back overwrites them, or they are scrubbed before.
    Later,
}

/// A run of slots that needs pieces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) class: Class,
    pub(super) first: u32,
    pub(super) units: u32,
    /// By one piece; else by pieces of any sizes.
    pub(super) whole: bool,
}

/// The most leases of one tenant that are not answered: each is a thread that waits.
const LEASES_PER_TENANT: usize = 256;

pub(super) enum Served {
    Yes,
    Waits,
    Refused(String),
}

/// A piece that no tenant used until now.
struct Adopted {
    piece: PieceId,
    units: u32,
    is_clean: bool,
}

impl From<NoRoom> for Unplaced {
    fn from(no_room: NoRoom) -> Self {
        Self { no_room, usable: BTreeSet::new() }
    }
}

impl Scheduler {
    pub(super) fn ask_lease(&mut self, session: SessionId, request: LeaseRequest) {
        let slots = self.config.range_slots(self.gpu_units(request.tenant));
        let end = u64::from(request.first.0) + u64::from(request.units.0) + u64::from(request.ahead.0);
        match self.tenants.get_mut(&request.tenant) {
            Some(tenant)
                if tenant.session == session
                    && tenant.entering.is_none()
                    && request.units.0 > 0
                    && end <= slots
                    && tenant.may_ask_more(request.step)
                    && tenant.has_nothing_at(request.class, request.first.0, end as u32) =>
            {
                tenant.waiting.push_back(request);
                if let Recall::Asked { again } = &mut tenant.recall {
                    *again = true;
                }
                self.forget_recalls(request.tenant);
                self.note_context(request.tenant);
                // Who asks is not idle, whatever it said before.
                self.set_idle(session, false);
            }
            _ => self.expel(session, "it asked for memory where it may not"),
        }
    }

    /// The job may have freed something since it was asked last: before a new lease is refused, it
    /// is asked again.
    fn forget_recalls(&mut self, id: TenantId) {
        let Some(job) = self.tenants.get(&id).map(|tenant| tenant.job) else { return };
        self.ask_anew(self.tenants_of(job));
    }

    /// The same for all on a GPU.
    pub(super) fn forget_recalls_on(&mut self, gpu: GpuUuid) {
        self.ask_anew(self.tenants_on(gpu).map(|(id, _)| id).collect());
    }

    pub(super) fn ask_anew(&mut self, tenants: Vec<TenantId>) {
        for id in tenants {
            let Some(tenant) = self.tenants.get_mut(&id) else { continue };
            if tenant.recall == Recall::Answered {
                tenant.recall = Recall::Unasked;
            }
        }
    }

    fn gpu_units(&self, tenant: TenantId) -> u32 {
        let gpu = self.tenants.get(&tenant).and_then(|tenant| self.gpus.get(&tenant.gpu));
        gpu.map_or(0, |gpu| gpu.ledger.total())
    }

    /// Takes note of the most that a tenant needs at once.
    fn note_need(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let ledger = &self.gpus[&tenant.gpu].ledger;
        let [persistent, temporary] = Class::ALL.map(|region| ledger.held(id, region));
        tenant.peak_temporary = tenant.peak_temporary.max(temporary.saturating_sub(tenant.ahead));
        tenant.peak_persistent = tenant.peak_persistent.max(persistent);
    }

    /// Answers every lease that can be answered.
    pub(super) fn serve_leases(&mut self) {
        let tenants: Vec<TenantId> = self.tenants.keys().copied().collect();
        for id in tenants {
            while self.serve_first(id) {}
        }
    }

    fn serve_first(&mut self, id: TenantId) -> bool {
        let Some(tenant) = self.tenants.get(&id) else { return false };
        let Some(&request) = tenant.waiting.front() else { return false };
        // One at a time: the parts of an answer come in order.
        let deceived = (tenant.deceived.is_some() || tenant.doubted) && self.is_measuring(tenant.gpu);
        if tenant.making.is_some() || deceived || !self.may_lease(tenant) {
            return false;
        }
        match self.serve(id, request) {
            Served::Yes => true,
            Served::Waits => false,
            Served::Refused(reason) => {
                self.refuse(id, request, reason);
                true
            }
        }
    }

    fn may_lease(&self, tenant: &Tenant) -> bool {
        // On the way to its boundary a process may need memory to get there; and one that goes on for others of its job.
        let goes_on = |session: &Session| {
            session.closing.is_some() || matches!(session.stop, Stop::Resumed | Stop::Later)
        };
        match self.phase_of(tenant) {
            Phase::Open => true,
            Phase::Closing => self.sessions.get(&tenant.session).is_some_and(goes_on),
            _ => false,
        }
    }

    pub(super) fn refuse(&mut self, id: TenantId, request: LeaseRequest, reason: String) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.waiting.pop_front();
            (tenant.doubted, tenant.deceived) = (false, None);
            (tenant.claim, tenant.growth) = (0, 0);
            let session = tenant.session;
            self.tell(session, ToShim::LeaseRefused { step: request.step, reason });
        }
        // What it had found for this lease is unused now.
        self.forget_recalls(id);
    }

    fn serve(&mut self, id: TenantId, request: LeaseRequest) -> Served {
        if let Some(served) = self.over_quota(id, request) {
            return served;
        }
        if let Some(served) = self.without_place(id, request) {
            return served;
        }
        let ahead = self.ahead(id, request);
        let attempt = self.attempt(id, request, ahead, Slack::Kept);
        let attempt =
            if attempt.is_err() && ahead > 0 { self.attempt(id, request, 0, Slack::Kept) } else { attempt };
        match attempt {
            Ok(()) => Served::Yes,
            Err(unplaced) => self.make_room_for_lease(id, request, &unplaced),
        }
    }

    /// Units leased ahead: only where nobody else could want them (R4.4).
    fn ahead(&self, id: TenantId, request: LeaseRequest) -> u32 {
        let Some(tenant) = self.tenants.get(&id) else { return 0 };
        if self.quota(id).is_some() || !self.is_alone(tenant.gpu, tenant.job) {
            return 0;
        }
        let free = self.gpus[&tenant.gpu].ledger.free();
        request.ahead.0.min(free.saturating_sub(request.units.0) / 2)
    }

    pub(super) fn is_alone(&self, gpu: GpuUuid, job: JobId) -> bool {
        self.tenants_on(gpu).all(|(_, tenant)| tenant.job == job)
    }

    fn attempt(
        &mut self,
        id: TenantId,
        request: LeaseRequest,
        ahead: u32,
        slack: Slack,
    ) -> Result<(), Unplaced> {
        self.all_fits(id, request, slack)?;
        let run = self.config.run_at_once(request, ahead);
        let acquired = self.acquire(id, request.class, &[run], slack, Clean::Yes)?;
        self.answer(id, request, acquired, Location::Device);
        Ok(())
    }

    /// A lease of several messages is begun only if all of it has room.
    fn all_fits(&self, id: TenantId, request: LeaseRequest, slack: Slack) -> Result<(), Unplaced> {
        let most = self.config.units_at_once();
        let gpu = self.tenants.get(&id).and_then(|tenant| self.gpus.get(&tenant.gpu));
        let room = gpu.map_or(0, |gpu| gpu.ledger.room(slack));
        if request.units.0 > most && request.units.0 > room {
            return Err(NoRoom { short: request.units.0 - room }.into());
        }
        Ok(())
    }

    /// Takes the pieces of a lease; they are answered when the mover has made the new ones.
    pub(super) fn answer(
        &mut self,
        id: TenantId,
        request: LeaseRequest,
        acquired: Acquired,
        location: Location,
    ) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        tenant.waiting.pop_front();
        (tenant.claim, tenant.growth) = (0, 0);
        let got: u32 = acquired.placed.iter().map(|placed| placed.units.0).sum();
        let served = LeaseRequest { units: Units(got.min(request.units.0)), ahead: Units(0), ..request };
        tenant.ahead += got - served.units.0;
        if got < request.units.0 {
            let (first, units) = (SlotIndex(request.first.0 + got), Units(request.units.0 - got));
            tenant.waiting.push_front(LeaseRequest { first, units, ..request });
        }
        tenant.recall = Recall::Unasked;
        let (gpu, job) = (tenant.gpu, tenant.job);
        let extent = LeaseRequest { units: Units(got), ahead: Units(0), ..request };
        tenant.making = (!acquired.new.is_empty()).then_some(extent);
        self.note_need(id);
        self.note_promise(id);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.cramped = false;
        }
        if acquired.new.is_empty() {
            return self.made_lease(id, served, acquired.placed);
        }
        let pieces = self.sizes(&acquired.new, id);
        let step = self.step(Pending::MakeForLease(id, served, acquired.placed, acquired.new));
        self.effects.push(Effect::Mover(gpu, ToMover::Make { step, pieces, location }));
    }

    /// Names and sizes in bytes.
    pub(super) fn sizes(&self, pieces: &[PieceId], of: TenantId) -> Vec<(PieceId, u64)> {
        let Some(tenant) = self.tenants.get(&of) else { return Vec::new() };
        let ledger = &self.gpus[&tenant.gpu].ledger;
        let in_ledger = |piece: &PieceId| ledger.piece(*piece).map_or(0, |record| record.units);
        let units = |piece: &PieceId| tenant.hosted.get(piece).copied().unwrap_or_else(|| in_ledger(piece));
        pieces.iter().map(|piece| (*piece, u64::from(units(piece)) * self.config.unit_bytes)).collect()
    }

    /// Finds pieces for runs of slots, for a region of the tenant's: all or none. First the user's
    /// pieces that no tenant uses, the largest first, then new ones.
    pub(super) fn acquire(
        &mut self,
        id: TenantId,
        region: Class,
        runs: &[Run],
        slack: Slack,
        clean: Clean,
    ) -> Result<Acquired, Unplaced> {
        let tenant = self.tenants.get(&id).ok_or(NoRoom { short: 1 })?;
        let (gpu_id, uid) = (tenant.gpu, self.jobs.get(&tenant.job).map_or(0, |job| job.uid));
        let mut acquired = Acquired::default();
        let mut wanted = Vec::new();
        for run in runs {
            let (mut slot, end) = (run.first, run.first + run.units);
            let largest = self.config.largest_piece(*run);
            while slot < end {
                let least = if run.whole { run.units } else { 0 };
                let adopted = self.adopt(gpu_id, id, region, uid, least..=end - slot, slack, clean);
                let (piece, units) = match adopted {
                    Some(Adopted { piece, units, is_clean }) => {
                        acquired.unscrubbed.extend((!is_clean).then_some(piece));
                        (piece, units)
                    }
                    None => {
                        let new = (self.new_piece(), (end - slot).min(largest));
                        wanted.push((new.0, Units(new.1)));
                        new
                    }
                };
                let (class, units) = (run.class, Units(units));
                acquired.placed.push(Placed { piece, class, slot: SlotIndex(slot), units });
                slot += units.0;
            }
        }
        acquired.new = wanted.iter().map(|(piece, _)| *piece).collect();
        let gpu = self.gpus.get_mut(&gpu_id).ok_or(NoRoom { short: 1 })?;
        match gpu.ledger.lease(id, region, &wanted, slack) {
            Ok(()) => Ok(acquired),
            Err(no_room) => Err(Unplaced { no_room, usable: self.relinquish(gpu_id, uid, &acquired) }),
        }
    }

    /// Gives pieces back that were found, and are not used; those that were not to be made.
    pub(super) fn relinquish(&mut self, gpu_id: GpuUuid, uid: u32, acquired: &Acquired) -> BTreeSet<PieceId> {
        let (mut adopted, new) = (BTreeSet::new(), BTreeSet::from_iter(&acquired.new));
        for placed in &acquired.placed {
            if new.contains(&placed.piece) {
                if let Some(gpu) = self.gpus.get_mut(&gpu_id) {
                    gpu.ledger.release(placed.piece);
                }
                continue;
            }
            adopted.insert(placed.piece);
            match acquired.unscrubbed.contains(&placed.piece) {
                true => self.leave_unscrubbed(gpu_id, placed.piece, uid),
                false => self.back_to_spares(gpu_id, placed.piece, uid),
            }
        }
        adopted
    }

    /// The user's largest piece of so many units that no tenant uses, now the tenant's.
    #[allow(clippy::too_many_arguments, reason = "each says what will do")]
    fn adopt(
        &mut self,
        gpu: GpuUuid,
        tenant: TenantId,
        region: Class,
        uid: u32,
        units: RangeInclusive<u32>,
        slack: Slack,
        clean: Clean,
    ) -> Option<Adopted> {
        let gpu = self.gpus.get_mut(&gpu)?;
        let most = Units(*units.end());
        let spare = gpu.spares.largest(uid, units.clone()).map(|(piece, units)| (units, false, piece));
        let unscrubbed = gpu.unscrubbed.largest(uid, units).filter(|_| clean == Clean::Later);
        let unscrubbed = unscrubbed.map(|(piece, units)| (units, true, piece));
        let (units, is_unscrubbed, piece) = spare.max(unscrubbed)?;
        gpu.ledger.adopt(piece, tenant, region, most, slack).ok()?;
        match is_unscrubbed {
            true => gpu.unscrubbed.remove(piece),
            false => gpu.spares.remove(piece),
        };
        Some(Adopted { piece, units, is_clean: !is_unscrubbed })
    }

    /// Keeps a clean piece for the user's next lease; where its number cannot move to the
    /// temporary region, it is destroyed.
    pub(super) fn back_to_spares(&mut self, gpu: GpuUuid, piece: PieceId, uid: u32) {
        self.keep_for(gpu, piece, uid, |gpu| &mut gpu.spares);
    }

    /// The same of a piece with its last tenant's bytes.
    fn leave_unscrubbed(&mut self, gpu: GpuUuid, piece: PieceId, uid: u32) {
        self.keep_for(gpu, piece, uid, |gpu| &mut gpu.unscrubbed);
    }

    fn keep_for(&mut self, id: GpuUuid, piece: PieceId, uid: u32, among: fn(&mut Gpu) -> &mut Spares) {
        let Some(gpu) = self.gpus.get_mut(&id) else { return };
        match gpu.ledger.piece(piece).map(|record| (record.units, gpu.ledger.spare(piece))) {
            Some((units, Ok(()))) => among(gpu).insert(piece, Spare { uid, units }),
            // Host memory is nobody's spare.
            None | Some((_, Err(NoRoom { .. }))) => self.destroy(id, vec![piece], Some(uid)),
        }
    }

    pub(super) fn all_back_to_spares(&mut self, gpu: GpuUuid, pieces: &[PieceId], uid: u32) {
        for piece in pieces {
            self.back_to_spares(gpu, *piece, uid);
        }
    }

    pub(super) fn made_lease(&mut self, id: TenantId, request: LeaseRequest, placed: Vec<Placed>) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        tenant.making = None;
        (tenant.doubted, tenant.deceived) = (false, None);
        tenant.pieces.extend(placed.iter().copied());
        tenant.peak_hosted = tenant.peak_hosted.max(tenant.hosted_units());
        if request.whole {
            tenant.whole.insert((request.class, request.first.0), request.units.0);
        }
        let more = tenant.waiting.front().is_some_and(|rest| rest.step == request.step);
        tenant.answered.push((request, placed.iter().map(|placed| placed.piece).collect()));
        let session = tenant.session;
        self.note_promise(id);
        // While it waited for this, it may have called itself idle.
        self.set_active(session);
        let closing = self.sessions.get(&session).is_some_and(|session| session.closing.is_some());
        if let Some(tenant) = self.tenants.get_mut(&id).filter(|_| !more && !closing) {
            tenant.answered.retain(|(answered, _)| answered.step != request.step);
        }
        self.tell(session, ToShim::Leased { step: request.step, pieces: placed, more });
    }

    /// The process has drained, or is dead, before its lease was answered: what is made for it
    /// will be spare, and the lease stays asked.
    pub(super) fn void_making(&mut self, id: TenantId) {
        let of_tenant =
            |pending: &&mut Pending| matches!(pending, Pending::MakeForLease(of, ..) if *of == id);
        let Some(pending) = self.pending.values_mut().find(of_tenant) else { return };
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let uid = self.jobs.get(&tenant.job).map_or(0, |job| job.uid);
        let nobody = Pending::MakeForNobody(tenant.gpu, uid, Vec::new(), Vec::new());
        let Pending::MakeForLease(_, request, placed, new) = std::mem::replace(pending, nobody) else {
            return;
        };
        let pieces: Vec<PieceId> = placed.iter().map(|placed| placed.piece).collect();
        *pending = Pending::MakeForNobody(tenant.gpu, uid, pieces, new);
        tenant.making = None;
        tenant.hosted.retain(|piece, _| tenant.pieces.contains_key(piece));
        tenant.ask_again(request, placed.iter().map(|placed| placed.units.0).sum());
    }

    /// The leases that crossed a `Drained` are void on both sides: asked again.
    pub(super) fn void_answers(&mut self, id: TenantId, outstanding: &[Step]) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (gpu, job) = (tenant.gpu, tenant.job);
        let uid = self.jobs.get(&job).map_or(0, |job| job.uid);
        let mut void = Vec::new();
        // The last one first: each is put in front of what was asked after it.
        for (request, pieces) in std::mem::take(&mut tenant.answered).into_iter().rev() {
            if outstanding.contains(&request.step) {
                // What it has given back since is somebody else's already.
                let held: Vec<_> = pieces.iter().filter_map(|piece| tenant.lose(piece)).collect();
                tenant.ask_again(request, held.iter().map(|placed| placed.units.0).sum());
                void.extend(held.iter().map(|placed| placed.piece));
            }
        }
        self.all_back_to_spares(gpu, &void, uid);
    }

    /// The GPU has less room than the ledger thinks (outsiders): what was not made is released.
    /// After a measurement the lease is tried once more, as long as measurements find more memory in use outside.
    pub(super) fn make_failed_for_lease(
        &mut self,
        id: TenantId,
        request: LeaseRequest,
        placed: &[Placed],
        new: Vec<PieceId>,
        reason: &str,
        out_of_memory: bool,
    ) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (session, gpu, job) = (tenant.session, tenant.gpu, tenant.job);
        let adopted: Vec<PieceId> =
            placed.iter().map(|placed| placed.piece).filter(|piece| !new.contains(piece)).collect();
        tenant.making = None;
        tenant.hosted.retain(|piece, _| tenant.pieces.contains_key(piece));
        // Memory outside of pieces may have grown again since it was measured.
        let known = self.gpus[&gpu].ledger.outside();
        let is_news = tenant.deceived.replace(known) != Some(known);
        let again = out_of_memory && (is_news || self.waits_for_the_dead(gpu));
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        if again {
            tenant.ask_again(request, placed.iter().map(|placed| placed.units.0).sum());
        } else {
            (tenant.doubted, tenant.deceived) = (false, None);
            tenant.waiting.retain(|rest| rest.step != request.step);
        }
        let uid = self.jobs.get(&job).map_or(0, |job| job.uid);
        self.all_back_to_spares(gpu, &adopted, uid);
        self.destroyed(new);
        if again {
            self.measure(gpu);
        } else {
            self.tell(session, ToShim::LeaseRefused { step: request.step, reason: reason.into() });
        }
    }

    /// A process gave pieces back: unmapped, its bytes still in them. All that it does not use, if it was `recalled`.
    pub(super) fn take_back(
        &mut self,
        session: SessionId,
        id: TenantId,
        pieces: &[PieceId],
        unused: Units,
        recalled: bool,
    ) {
        let Some(tenant) = self.tenants.get_mut(&id).filter(|tenant| tenant.session == session) else {
            return self.expel(session, "it gave back memory that is not its own");
        };
        let (gpu, job) = (tenant.gpu, tenant.job);
        // What is on its way would be somebody else's before it is saved, or restored.
        let unmapping = self.pending.values().any(|p| matches!(p, Pending::Unmap(of) if *of == id));
        let out_of_reach = tenant.out_of_reach(unmapping);
        if pieces.iter().any(|piece| out_of_reach.contains(piece)) {
            return self.expel(session, "it gave back memory that it cannot reach");
        }
        // Of what it was leased ahead it has used the rest, whether that goes back now or not.
        tenant.ahead = tenant.ahead.min(unused.0);
        self.note_need(id);
        self.note_promise(id);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let taken: Vec<_> = pieces.iter().filter_map(|piece| tenant.lose(piece)).collect();
        for placed in &taken {
            tenant.whole.remove(&(placed.class, placed.slot.0));
        }
        let units: u32 = taken.iter().map(|placed| placed.units.0).sum();
        tenant.ahead = tenant.ahead.saturating_sub(units);
        if recalled {
            let again = tenant.recall == Recall::Asked { again: true };
            tenant.recall = if again { Recall::Unasked } else { Recall::Answered };
        }
        if taken.len() != pieces.len() {
            self.expel(session, "it gave back memory that it does not have");
        }
        let pieces = taken.into_iter().map(|placed| placed.piece);
        self.dispose(gpu, job, pieces.collect());
        self.note_need(id);
    }

    /// Whether a job closes, and work of a process of it has not ended for long.
    pub(super) fn has_stalled(&self, job: JobId) -> bool {
        let Some(job) = self.jobs.get(&job).filter(|job| job.phase == Phase::Closing) else { return false };
        let mut sessions = job.sessions.iter().filter_map(|session| self.sessions.get(session));
        sessions.any(|session| session.closing.is_some() && session.stalls > 0)
    }

    /// What to do when a lease finds no room.
    fn make_room_for_lease(&mut self, id: TenantId, request: LeaseRequest, unplaced: &Unplaced) -> Served {
        let Some(tenant) = self.tenants.get(&id) else { return Served::Waits };
        let Unplaced { no_room, usable } = unplaced;
        let (gpu, job) = (tenant.gpu, tenant.job);
        if self.phase_of(tenant) != Phase::Open {
            // On its way to the boundary it gets what is there; the deadline ends the waiting. But work of others of the job
            // that does not end may wait for the thread that asks: no closing would ever come to an end.
            match self.has_stalled(job) {
                true => self.make_room(gpu, no_room.short, usable, job),
                false => self.destroy_spares(gpu, no_room.short, usable),
            };
            return Served::Waits;
        }
        let own = self.units_of_job(gpu, job);
        let ledger = &self.gpus[&gpu].ledger;
        let missing = (own + request.units.0 + ledger.reserved()).saturating_sub(ledger.total());
        // If it would not fit though nothing lay outside, it is not waited for that less does.
        let is_too_large = own + request.units.0 > ledger.total();
        if missing > 0 && (is_too_large || !self.doubts(id)) && !self.recall_unused(gpu, Some(job)) {
            return match self.may_oversubscribe(job) {
                true => self.host(id, request, missing),
                false => Served::Refused(format!("{gpu} is {missing} units too small for it")),
            };
        }
        if missing > 0 || self.make_room(gpu, no_room.short, usable, job) {
            return Served::Waits;
        }
        if self.attempt(id, request, 0, Slack::Offsets).is_ok() {
            return Served::Yes;
        }
        if !self.others_hold_any(gpu, job) {
            return Served::Refused(format!(
                "no room on {gpu}: {} units short with nobody else on it",
                no_room.short
            ));
        }
        if self.must_yield(job) {
            // What was learnt of the tiers from few saves is doubted first.
            if self.doubts_limit(gpu) && self.make_room(gpu, no_room.short, usable, job) {
                return Served::Waits;
            }
            return Served::Refused(format!(
                "no room on {gpu}: jobs that cannot be closed wait for each other"
            ));
        }
        match self.is_all_kept_by_closed(gpu, job, no_room.short) {
            Some(true) => {
                return Served::Refused(format!(
                    "no room on {gpu}: the tiers have none for what other jobs have there"
                ));
            }
            Some(false) => return Served::Waits,
            None => {}
        }
        self.cramp(job);
        Served::Waits
    }

    /// `Some(true)`: all other jobs of the GPU are closed, and what they have there has no place to go. `Some(false)`: they
    /// are, and it goes after all, as what was known of the tiers was doubted.
    pub(super) fn is_all_kept_by_closed(&mut self, gpu: GpuUuid, job: JobId, short: u32) -> Option<bool> {
        let is_closed =
            |(_, tenant): (TenantId, &Tenant)| tenant.job == job || self.phase_of(tenant) == Phase::Waiting;
        if !self.tenants_on(gpu).all(is_closed) || !self.waits_for_tiers(gpu, job) {
            return None;
        }
        Some(!(self.doubts_limit(gpu) && self.make_room(gpu, short, &BTreeSet::new(), job)))
    }

    pub(super) fn others_hold_any(&self, gpu: GpuUuid, job: JobId) -> bool {
        self.tenants_on(gpu).any(|(_, tenant)| tenant.job != job && tenant.holds_any())
    }

    /// Units of a GPU that a job has, wherever they lie now, or that are made for it: not what it has
    /// given back, though that may have to be scrubbed yet, nor what is host memory for good.
    pub(super) fn units_of_job(&self, gpu: GpuUuid, job: JobId) -> u32 {
        let own = self.tenants_on(gpu).map(|(_, tenant)| tenant).filter(|tenant| tenant.job == job);
        own.map(Tenant::units).sum()
    }

    /// Nothing can be set free for it while the others run: it gets its turn alone.
    pub(super) fn cramp(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.cramped = true;
        }
    }

    /// Sets something free on a GPU, or sees that something is being set free. `false`: there is
    /// nothing that could be.
    pub(super) fn make_room(
        &mut self,
        gpu: GpuUuid,
        short: u32,
        usable: &BTreeSet<PieceId>,
        asker: JobId,
    ) -> bool {
        // What comes may be all that is missing, and another lease may want the spares.
        self.units_are_coming(gpu, usable)
            || self.destroy_spares(gpu, short, usable)
            || self.recall_unused(gpu, None)
            || self.somebody_leaves(gpu, asker)
            || self.is_prefetching(gpu)
            || self.preempt(gpu, short, asker)
    }

    /// Is a job on its way out: then nobody's persistent memory needs to go (R4.6).
    fn somebody_leaves(&self, gpu: GpuUuid, asker: JobId) -> bool {
        let selection = self.selection();
        self.tenants_on(gpu).any(|(_, tenant)| {
            let leaves = match self.phase_of(tenant) {
                Phase::Closing | Phase::Leaving => true,
                Phase::Restoring => !selection.contains(&tenant.job),
                Phase::Open => !selection.contains(&tenant.job) && self.may_close(tenant.job),
                Phase::Waiting => false,
            };
            leaves && !self.is_silent(tenant.job) && tenant.holds_any() && tenant.job != asker
        })
    }

    /// Destroys pieces that no tenant uses, of so many units, or all, but for those that are usable. `false`: there are none.
    pub(super) fn destroy_spares(&mut self, gpu_id: GpuUuid, short: u32, usable: &BTreeSet<PieceId>) -> bool {
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else { return false };
        let mut chosen = gpu.spares.take(short, usable);
        if chosen.is_empty() {
            chosen = gpu.unscrubbed.take(short, usable);
        }
        let any = !chosen.is_empty();
        for (uid, pieces) in chosen {
            self.destroy(gpu_id, pieces, Some(uid));
        }
        any
    }

    /// Whether units are being set free, or pieces will be spare, that are not usable as they are.
    pub(super) fn units_are_coming(&self, gpu: GpuUuid, usable: &BTreeSet<PieceId>) -> bool {
        let is_unscrubbed = |gpu: &Gpu| gpu.unscrubbed.keys().any(|piece| !usable.contains(piece));
        let of_tenant = |id: &TenantId| {
            let tenant = self.tenants.get(id).filter(|tenant| tenant.gpu == gpu);
            tenant.is_some_and(|tenant| !self.is_silent(tenant.job))
        };
        let is_pending = self.pending.values().any(|pending| match pending {
            Pending::Unmap(tenant) | Pending::Save(tenant, _) | Pending::Unsave(tenant) => of_tenant(tenant),
            Pending::Scrub(on, ..) | Pending::Destroy(on, ..) | Pending::MakeForNobody(on, ..) => *on == gpu,
            _ => false,
        });
        is_pending || self.gpus.get(&gpu).is_some_and(is_unscrubbed)
    }

    /// Asks for unused pieces, of one job or of all; `true` while an answer is outstanding.
    pub(super) fn recall_unused(&mut self, gpu: GpuUuid, of: Option<JobId>) -> bool {
        for id in self.recallable(gpu, of) {
            self.recall(id);
        }
        let mut others = self.tenants_on(gpu).map(|(_, tenant)| tenant);
        others.any(|tenant| tenant.recall.is_asked() && of.is_none_or(|job| job == tenant.job))
    }

    /// Does a job close whose processes may have pieces that they do not use: they are asked when it runs again. Where
    /// work of one does not end, another's allocation may be what it waits for: then nothing is waited for.
    pub(super) fn is_asked_later(&self, gpu: GpuUuid, job: JobId) -> bool {
        let closes = self.jobs.get(&job).is_some_and(|job| job.phase == Phase::Closing);
        let mut own = self.tenants_on(gpu).map(|(_, tenant)| tenant).filter(|tenant| tenant.job == job);
        closes && !self.has_stalled(job) && own.any(Tenant::may_have_unused)
    }

    /// Has somebody on a GPU not answered yet what it does not use.
    pub(super) fn is_recalling(&self, gpu: GpuUuid) -> bool {
        self.tenants_on(gpu).any(|(_, tenant)| tenant.recall.is_asked())
    }

    fn recallable(&self, gpu: GpuUuid, of: Option<JobId>) -> Vec<TenantId> {
        let open = |tenant: &Tenant| self.phase_of(tenant) == Phase::Open;
        self.tenants_on(gpu)
            .filter(|(_, tenant)| of.is_none_or(|job| job == tenant.job))
            .filter(|(_, tenant)| tenant.may_have_unused() && open(tenant))
            .map(|(id, _)| id)
            .collect()
    }

    fn recall(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        tenant.recall = Recall::Asked { again: false };
        let session = tenant.session;
        self.expect_return(session, id);
        self.tell(session, ToShim::Recall { tenant: id });
    }

    /// Somebody comes: what was leased ahead is recalled first.
    pub(super) fn recall_cached(&mut self, gpu: GpuUuid) {
        for id in self.recallable(gpu, None) {
            self.recall(id);
        }
    }

    /// Gives pieces with a job's bytes in them back: kept for the same user's next job, which overwrites them or gets them
    /// scrubbed; destroyed where another user shares the GPU, or where the piece may still be used outside of its process (I8).
    pub(super) fn dispose(&mut self, gpu: GpuUuid, job: JobId, pieces: Vec<PieceId>) {
        let on = self.gpus.get(&gpu);
        let is_reusable = |piece: &PieceId| {
            on.is_some_and(|gpu| gpu.ledger.piece(*piece).is_some() && !gpu.exposed.contains(piece))
        };
        let (pieces, others) = pieces.into_iter().partition(is_reusable);
        let uid = self.jobs.get(&job).map(|job| job.uid);
        self.destroy(gpu, others, uid);
        let same_user = self.tenants_on(gpu).all(|(_, t)| self.jobs.get(&t.job).map(|job| job.uid) == uid);
        match uid {
            Some(uid) if same_user => {
                pieces.into_iter().for_each(|piece| self.leave_unscrubbed(gpu, piece, uid))
            }
            _ => self.destroy(gpu, pieces, uid),
        }
    }

    /// Scrubs what no tenant uses, but for what memory will overwrite that comes back as soon as room has been made for it.
    pub(super) fn scrub_the_unscrubbed(&mut self) {
        let any = |(id, gpu): &(&GpuUuid, &Gpu)| !gpu.unscrubbed.is_empty() && !self.is_about_to_come(**id);
        let gpus: Vec<GpuUuid> = self.gpus.iter().filter(any).map(|(id, _)| *id).collect();
        for id in gpus {
            let Some(gpu) = self.gpus.get_mut(&id) else { continue };
            for (uid, pieces) in gpu.unscrubbed.take_all() {
                self.scrub(id, pieces, uid);
            }
        }
    }

    /// Whether a job waits on a GPU for memory that is on its way out, and then comes back.
    fn is_about_to_come(&self, gpu: GpuUuid) -> bool {
        let leaves =
            |(_, tenant): (TenantId, &Tenant)| tenant.departure.is_some() && !self.is_silent(tenant.job);
        let is_away = |(_, tenant): (TenantId, &Tenant)| {
            (tenant.is_away() && self.phase_of(tenant) == Phase::Waiting).then_some(tenant.job)
        };
        let is_destroyed =
            || self.pending.values().any(|order| matches!(order, Pending::Destroy(on, ..) if *on == gpu));
        (self.tenants_on(gpu).any(leaves) || is_destroyed())
            && !self.tenants_on(gpu).any(|(_, tenant)| self.waits_for_room(tenant))
            && {
                let selection = self.selection();
                self.tenants_on(gpu).filter_map(is_away).any(|job| selection.contains(&job))
            }
    }

    fn scrub(&mut self, gpu: GpuUuid, pieces: Vec<PieceId>, uid: u32) {
        for pieces in pieces.chunks(NAMES_PER_MESSAGE) {
            let step = self.step(Pending::Scrub(gpu, pieces.to_vec(), uid));
            self.effects.push(Effect::Mover(gpu, ToMover::Scrub { step, pieces: pieces.to_vec() }));
        }
    }

    /// Destroys pieces, which jobs of a user had last.
    pub(super) fn destroy(&mut self, gpu: GpuUuid, pieces: Vec<PieceId>, uid: Option<u32>) {
        let watched = uid.filter(|uid| self.is_watched(*uid));
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            pieces.iter().for_each(|piece| _ = gpu.exposed.remove(piece));
        }
        for pieces in pieces.chunks(NAMES_PER_MESSAGE) {
            // The manager's own duplicates go first: memory returns when the last one is closed.
            self.effects.push(Effect::Destroyed(pieces.to_vec()));
            let (pieces, watched_for_leaks) = (pieces.to_vec(), watched.is_some());
            let step = self.step(Pending::Destroy(gpu, pieces.clone(), watched));
            self.effects.push(Effect::Mover(gpu, ToMover::Destroy { step, pieces, watched_for_leaks }));
        }
    }

    /// Destroys those of the pieces that are still in the ledger, so that one which the mover
    /// does not know cannot keep the others.
    pub(super) fn destroy_one_by_one(&mut self, gpu: GpuUuid, pieces: Vec<PieceId>, uid: Option<u32>) {
        for piece in pieces {
            if self.gpus.get(&gpu).is_some_and(|gpu| gpu.ledger.piece(piece).is_some()) {
                self.destroy(gpu, vec![piece], uid);
            }
        }
    }

    pub(super) fn destroyed(&mut self, pieces: Vec<PieceId>) {
        for piece in &pieces {
            for gpu in self.gpus.values_mut() {
                gpu.ledger.release(*piece);
            }
        }
        self.effects.push(Effect::Destroyed(pieces));
    }
}

impl Tenant {
    /// May it have pieces that its process does not use, and was not asked for.
    fn may_have_unused(&self) -> bool {
        self.recall == Recall::Unasked && !self.pieces.is_empty()
    }

    /// Are the slots `first .. end` without a piece, saved bytes or another lease.
    fn has_nothing_at(&self, class: Class, first: u32, end: u32) -> bool {
        let apart = |at: u32, units: u32| at >= end || at + units <= first;
        let of_leases =
            self.waiting.iter().chain(&self.making).map(|r| (r.class, r.first.0, r.units.0 + r.ahead.0));
        let of_saved = self.runs.iter().flatten().map(|run| (run.class, run.first, run.units));
        self.pieces.behind(class, first, end).next().is_none()
            && of_leases.chain(of_saved).all(|(of, at, units)| of != class || apart(at, units))
    }

    /// The runs of slots that have a piece, or will, or saved bytes: class, first, and how many. They
    /// may overlap.
    pub(super) fn taken_slots(&self) -> impl Iterator<Item = (Class, u32, u32)> + '_ {
        let of_pieces = self.pieces.values().map(|placed| (placed.class, placed.slot.0, placed.units.0));
        let of_saved = self.runs.iter().flatten().map(|run| (run.class, run.first, run.units));
        let of_making = self.making.iter().map(|r| (r.class, r.first.0, r.units.0 + r.ahead.0));
        of_pieces.chain(of_saved).chain(of_making)
    }

    /// Has it few unanswered leases, and none of this name.
    fn may_ask_more(&self, step: Step) -> bool {
        let mut unanswered = self.waiting.iter().chain(&self.making);
        self.waiting.len() < LEASES_PER_TENANT && unanswered.all(|request| request.step != step)
    }

    /// The pieces that its process has unmapped, or was not told yet to map.
    fn out_of_reach(&self, unmapping: bool) -> BTreeSet<PieceId> {
        let going = self.departure.iter().filter(|_| !unmapping);
        let coming = self.arrival.iter().flat_map(Arrival::unseen).map(|placed| placed.piece);
        going.flat_map(|departure| departure.pieces.iter().copied()).chain(coming).collect()
    }

    /// Puts a lease whose answer is void in front again; of what was answered of it, `units`
    /// were more than it needed.
    fn ask_again(&mut self, request: LeaseRequest, units: u32) {
        self.ahead = self.ahead.saturating_sub(units.saturating_sub(request.units.0));
        match self.waiting.front_mut() {
            Some(rest) if rest.step == request.step => {
                rest.first = request.first;
                rest.units.0 += request.units.0;
            }
            _ => self.waiting.push_front(request),
        }
    }

    /// Has it memory of its GPU, or will it.
    pub(super) fn holds_any(&self) -> bool {
        self.pieces.keys().any(|piece| !self.hosted.contains_key(piece)) || self.making.is_some()
    }
}

impl super::Config {
    /// Units that one message can carry, where they are not to be one piece.
    fn units_at_once(&self) -> u32 {
        super::PIECES_PER_MESSAGE as u32 * self.piece_units
    }

    /// One message's worth of a lease and of what is leased ahead with it; the rest stays the tenant's first lease.
    pub(super) fn run_at_once(&self, request: LeaseRequest, ahead: u32) -> Run {
        let LeaseRequest { class, first, units, whole, .. } = request;
        let units = if whole { units.0 } else { (units.0 + ahead).min(self.units_at_once()) };
        Run { class, first: first.0, units, whole }
    }

    /// The units of the largest piece of a run.
    pub(super) fn largest_piece(&self, run: Run) -> u32 {
        if run.whole { run.units } else { self.piece_units }
    }

    /// Slots of one address range: four times the GPU.
    fn range_slots(&self, units: u32) -> u64 {
        u64::from(units) * 4
    }
}
