//! Held pieces: somebody outside relies on their place, a network card perhaps. No switch takes
//! them and no room is made with them; so they count as persistent. A process may hold only so much that every
//! other job on the GPU still fits with what it has or had ([`promises`](super::promises)).
//!
//! A held piece may be lent to other processes of the job (IPC), who map it too, or exported as a file descriptor. So a
//! piece that was held once is destroyed when its tenant gives it back or is no more, and never reused: the driver keeps
//! the memory for as long as a descriptor or a mapping leads to it.
//!
//! Invariant: a held piece is its tenant's, mapped, until the process lets go of it or is no more.

use super::{PIECES_PER_MESSAGE, Phase, Scheduler, Tenant};
use std::collections::BTreeSet;
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, SessionId, SlotIndex, Step, TenantId, Units};
use tidegate_ffi::wire::message::{Placed, ToShim};

impl Scheduler {
    /// Holds pieces for a process, unless another job would not fit beside held memory any more.
    pub(super) fn hold(&mut self, session: SessionId, step: Step, id: TenantId, pieces: &[PieceId]) {
        let may = self.may_change_pieces(session);
        let tenant = self.tenants.get(&id).filter(|tenant| may && tenant.session == session);
        let Some(tenant) = tenant.filter(|tenant| tenant.has_all(pieces)) else {
            return self.expel(session, "it held memory that it cannot reach");
        };
        let (gpu, job) = (tenant.gpu, tenant.job);
        let more = if self.is_resident(job) { 0 } else { tenant.units_not_held(pieces) };
        if let Some(reason) = self.shut_out_by(gpu, job, more) {
            return self.tell(session, ToShim::LeaseRefused { step, reason });
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.held.extend(pieces);
        }
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            gpu.exposed.extend(pieces);
        }
        self.tell(session, ToShim::Held { step });
    }

    /// Until all processes of a job have drained nothing is taken from any, and one that has may go on for another.
    fn may_change_pieces(&self, id: SessionId) -> bool {
        let job = self.sessions.get(&id).and_then(|session| self.jobs.get(&session.job));
        matches!(job.map(|job| job.phase), Some(Phase::Open | Phase::Closing))
    }

    /// Lends pieces to another process of their job. What is lent is held: it stays its tenant's, where
    /// it is.
    pub(super) fn lend(&mut self, session: SessionId, step: Step, of: TenantId, slots: Slots) {
        match self.lendable(session, of, slots) {
            Ok(pieces) => self.tell(session, ToShim::Lent { step, pieces }),
            Err(reason) => self.tell(session, ToShim::LeaseRefused { step, reason: reason.into() }),
        }
    }

    fn lendable(&self, session: SessionId, of: TenantId, slots: Slots) -> Result<Vec<Placed>, &'static str> {
        let job = self.sessions.get(&session).map(|session| session.job);
        let tenant = self.tenants.get(&of).filter(|tenant| Some(tenant.job) == job);
        let tenant = tenant.ok_or("it is no memory of a process of this job")?;
        let pieces = tenant.pieces_behind(slots);
        let covered: u32 = pieces.iter().map(|piece| piece.units.0).sum();
        if covered < slots.units.0 || !pieces.iter().all(|piece| tenant.held.contains(&piece.piece)) {
            return Err("it is not shared, or not any more");
        }
        if pieces.len() > PIECES_PER_MESSAGE {
            return Err("it lies in too many pieces");
        }
        Ok(pieces)
    }

    pub(super) fn let_go_of_held(&mut self, session: SessionId, id: TenantId, pieces: &[PieceId]) {
        match self.tenants.get_mut(&id).filter(|tenant| tenant.session == session) {
            Some(tenant) => tenant.held.retain(|piece| !pieces.contains(piece)),
            None => self.expel(session, "it let go of memory that is not its own"),
        }
    }

    /// Units of a GPU in a job's held pieces.
    pub(super) fn held_units(&self, gpu: GpuUuid, job: JobId) -> u32 {
        let own = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job == job);
        own.map(|(_, tenant)| tenant.held_units()).sum()
    }
}

/// A run of slots of a tenant's.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub(super) class: Class,
    pub(super) first: SlotIndex,
    pub(super) units: Units,
}

impl Tenant {
    /// The pieces that touch some slots, in slot order.
    fn pieces_behind(&self, slots: Slots) -> Vec<Placed> {
        let Slots { class, first, units } = slots;
        self.pieces.behind(class, first.0, first.0.saturating_add(units.0)).collect()
    }

    fn has_all(&self, pieces: &[PieceId]) -> bool {
        pieces.iter().all(|piece| self.pieces.contains_key(piece))
    }

    /// Units of its held pieces that are GPU memory.
    pub fn held_units(&self) -> u32 {
        self.held.iter().map(|piece| self.units_on_gpu(piece)).sum()
    }

    /// Units of GPU memory in those of `pieces` that are not held yet.
    fn units_not_held(&self, pieces: &[PieceId]) -> u64 {
        let new: BTreeSet<&PieceId> = pieces.iter().filter(|piece| !self.held.contains(piece)).collect();
        new.into_iter().map(|piece| u64::from(self.units_on_gpu(piece))).sum()
    }

    /// Units of GPU memory in one of its pieces; 0 if the piece is host memory.
    fn units_on_gpu(&self, piece: &PieceId) -> u32 {
        let placed = self.pieces.get(piece).filter(|_| !self.hosted.contains_key(piece));
        placed.map_or(0, |placed| placed.units.0)
    }

    /// Its pieces that a switch may take.
    pub(super) fn takeable(&self) -> impl Iterator<Item = PieceId> + '_ {
        let stays = |piece: &PieceId| self.held.contains(piece) || self.hosted.contains_key(piece);
        self.pieces.keys().copied().filter(move |piece| !stays(piece))
    }

    /// Its units of the GPU, wherever they lie now, and those that are made for it.
    pub(super) fn units(&self) -> u32 {
        let pieces = self.pieces.values().map(|placed| placed.units.0);
        let making = self.making.iter().map(|making| making.units.0);
        let away = Class::ALL.map(|region| self.units_away(region));
        pieces.chain(making).chain(away).sum::<u32>() - self.hosted_units()
    }

    /// A piece is its no more.
    pub(super) fn lose(&mut self, piece: &PieceId) -> Option<Placed> {
        self.held.remove(piece);
        self.hosted.remove(piece);
        self.pieces.remove(piece)
    }
}
