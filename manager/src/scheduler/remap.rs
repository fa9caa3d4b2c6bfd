//! Map orders, and their repetition where a process could carry out only a part.
//!
//! A file descriptor comes with each piece. The kernel drops those for which the process has no free number. The process
//! maps the pieces whose descriptors came and reports their count (`MappedSome`). The rest is ordered again: at once after
//! progress; else after a pause, half as many pieces per message, until no piece was mapped for `answer_limit` or `drain_limit`,
//! whichever is shorter.
//!
//! Invariant: the order stays pending until all its pieces are mapped, or the process is expelled.

use super::arrival::RETRY;
use super::{PIECES_PER_MESSAGE, Pending, Scheduler, Time};
use serde::{Deserialize, Serialize};
use tidegate_ffi::units::{SessionId, Step, TenantId};
use tidegate_ffi::wire::message::{Placed, ToShim};

/// The state of a map order of which only a part was carried out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Remap {
    /// The most pieces per message.
    most: usize,
    /// When the rest is ordered again; `None`: it is ordered, and not answered.
    at: Option<Time>,
    /// The next pause without progress.
    pause: Time,
    /// The process is expelled if no piece is mapped until then.
    until: Time,
}

impl Scheduler {
    /// Orders the tenant's process to map pieces.
    pub(super) fn order_map(
        &mut self,
        id: TenantId,
        pieces: &[Placed],
        pending: fn(TenantId, Vec<Placed>) -> Pending,
    ) {
        let Some(session) = self.tenants.get(&id).map(|tenant| tenant.session) else { return };
        for pieces in pieces.chunks(PIECES_PER_MESSAGE) {
            let step = self.step(pending(id, pieces.to_vec()));
            self.tell_to_map(session, step, id, pieces.to_vec());
        }
    }

    fn tell_to_map(&mut self, session: SessionId, step: Step, tenant: TenantId, pieces: Vec<Placed>) {
        self.expect_answer(session, step);
        self.tell(session, ToShim::Map { step, tenant, pieces });
    }

    /// A process has mapped the first `mapped` pieces of an order, and lacked descriptors for the rest.
    pub(super) fn mapped_some(&mut self, session: SessionId, step: Step, mapped: u32) {
        // The jobs that wait for its GPU wait no longer than for a drain.
        let (now, limit) = (self.now, self.config.answer_limit.min(self.config.drain_limit));
        let remap = self.remaps.get(&step).copied();
        let mapped = mapped as usize;
        let left = self.pieces_to_map(session, step).filter(|left| {
            let ordered = remap.map_or(left.len(), |remap| remap.most.min(left.len()));
            remap.is_none_or(|remap| remap.at.is_none()) && mapped < ordered
        });
        let Some(left) = left else {
            return self.expel(session, "it answered a map order that it was not given");
        };
        left.drain(..mapped);
        let begun = |most| Remap { most, at: Some(now), pause: RETRY.min(limit / 8), until: now + limit };
        let remap = remap.unwrap_or(begun(left.len()));
        if mapped == 0 && remap.until <= now {
            self.pending.remove(&step);
            self.remaps.remove(&step);
            return self.expel(session, "it had no file descriptors to map its memory");
        }
        let remap = match mapped {
            0 => Remap {
                most: (remap.most / 2).max(1),
                at: Some(now + remap.pause),
                pause: (remap.pause * 2).min(limit / 4),
                ..remap
            },
            _ => begun(mapped),
        };
        self.remaps.insert(step, remap);
        self.cancel_timeout(step);
    }

    fn pieces_to_map(&mut self, session: SessionId, step: Step) -> Option<&mut Vec<Placed>> {
        let (tenant, left) = self.pending.get_mut(&step)?.pieces_to_map()?;
        (self.tenants.get(&tenant)?.session == session).then_some(left)
    }

    /// A process has carried out a map order. `true`: some of its pieces were not in the message; they are ordered next.
    pub(super) fn has_more_to_map(&mut self, session: SessionId, step: Step) -> bool {
        let Some(remap) = self.remaps.get(&step).copied().filter(|remap| remap.at.is_none()) else {
            return false;
        };
        let Some(left) = self.pieces_to_map(session, step) else { return false };
        left.drain(..remap.most.min(left.len()));
        if left.is_empty() {
            return false;
        }
        let at = Some(self.now);
        self.remaps.insert(step, Remap { at, ..remap });
        self.cancel_timeout(step);
        true
    }

    /// Sends the map orders whose pause is over.
    pub(super) fn repeat_maps(&mut self) {
        let pending = &self.pending;
        self.remaps.retain(|step, _| pending.contains_key(step));
        let is_due = |remap: &Remap| remap.at.is_some_and(|at| at <= self.now);
        let due = self.remaps.iter().filter(|(_, remap)| is_due(remap)).map(|(step, _)| *step);
        for step in due.collect::<Vec<_>>() {
            let Some((id, left)) = self.pending.get_mut(&step).and_then(Pending::pieces_to_map) else {
                continue;
            };
            let Some(remap) = self.remaps.get_mut(&step) else { continue };
            remap.at = None;
            let pieces = left.iter().copied().take(remap.most).collect();
            let Some(session) = self.tenants.get(&id).map(|tenant| tenant.session) else { continue };
            self.tell_to_map(session, step, id, pieces);
        }
    }

    /// When the next pause ends.
    pub(super) fn next_remap(&self) -> Option<Time> {
        self.remaps.values().filter_map(|remap| remap.at).min()
    }
}

impl Pending {
    /// The tenant of a map order, and its pieces that are not mapped yet.
    fn pieces_to_map(&mut self) -> Option<(TenantId, &mut Vec<Placed>)> {
        match self {
            Pending::Map(tenant, left) | Pending::MapBack(tenant, left) => Some((*tenant, left)),
            _ => None,
        }
    }
}
