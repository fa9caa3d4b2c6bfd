//! Held pieces: somebody outside relies on their place, a network card perhaps. No switch takes
//! them and no room is made with them; so they count as persistent, and who needs their room waits.
//!
//! Invariant: a held piece is its tenant's, mapped, until the process lets go of it or is no more.

use super::{Phase, Scheduler, Tenant};
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, SessionId, TenantId};
use tidegate_ffi::wire::message::Placed;

impl Scheduler {
    pub(super) fn hold(&mut self, session: SessionId, id: TenantId, pieces: Vec<PieceId>) {
        let may = self.may_change_pieces(session);
        match self.tenants.get_mut(&id) {
            Some(tenant) if may && tenant.session == session && tenant.has_all(&pieces) => {
                tenant.held.extend(pieces);
            }
            _ => self.expel(session, "it held memory that it cannot reach"),
        }
    }

    /// Has the process not said yet what is alive: until then all its pieces are mapped.
    fn may_change_pieces(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        match self.jobs.get(&session.job).map(|job| job.phase) {
            Some(Phase::Open) => true,
            Some(Phase::Closing) => session.closing.is_some(),
            _ => false,
        }
    }

    pub(super) fn let_go_of_held(&mut self, session: SessionId, id: TenantId, pieces: &[PieceId]) {
        match self.tenants.get_mut(&id).filter(|tenant| tenant.session == session) {
            Some(tenant) => tenant.held.retain(|piece| !pieces.contains(piece)),
            None => self.expel(session, "it let go of memory that is not its own"),
        }
    }

    /// Units of other jobs' held pieces.
    pub(super) fn units_held_by_others(&self, gpu: GpuUuid, job: JobId) -> u32 {
        let others = self.tenants_on(gpu).filter(|(_, tenant)| tenant.job != job);
        others.map(|(_, tenant)| tenant.held_units()).sum()
    }
}

impl Tenant {
    fn has_all(&self, pieces: &[PieceId]) -> bool {
        pieces.iter().all(|piece| self.pieces.contains_key(piece))
    }

    /// Units of its held pieces.
    pub fn held_units(&self) -> u32 {
        self.held.iter().filter_map(|piece| self.pieces.get(piece)).map(|placed| placed.units.0).sum()
    }

    /// Has it a piece that may be taken.
    pub(super) fn has_takeable(&self) -> bool {
        self.pieces.keys().any(|piece| !self.held.contains(piece))
    }

    /// A piece is its no more.
    pub(super) fn lose(&mut self, piece: &PieceId) -> Option<Placed> {
        self.held.remove(piece);
        self.pieces.remove(piece)
    }
}
