//! In which parts a tenant's memory comes back (DESIGN §9).
//!
//! ```text
//!          restore 1 ─► map 1, ajar ┬─ described work on part 1 …
//!          restore 2 ───────────────┴► map 2 ─ … on parts 1 and 2 …
//!          restore the rest ───────────────────────────────► map it, open
//! ```
//! Who describes no work gets all at once, and so does a gang: its ranks go on together (I5). Of the parts the first is
//! ordered alone: until it is there, nothing has come, and the job's turn can be put off. It is empty where all that such
//! work is known to use has stayed on the GPU. A later part for which memory is missing is put off, while work goes on.
//!
//! The time until a job is open is not charged to it, though its described work may compute then: a switch takes at most
//! a twentieth of a slice.

use super::{Arrival, Job, MOVES_PER_MESSAGE, Part, Phase, Scheduler, Tenant};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, JobId, PieceId, SessionId, TenantId};
use tidegate_ffi::wire::message::{MAX_USES, Move, Placed, SlotRun};

/// What described work uses comes in at most so many parts: each costs a message to the process and back.
const PARTS: u32 = 64;
/// So often memory may be missing for a part, until the process is ended.
const TRIES: u32 = 8;

impl Scheduler {
    /// A process says what its described work was the first to use, before it drains.
    pub(super) fn note_uses(&mut self, session: SessionId, id: TenantId, slots: Vec<SlotRun>) {
        match self.tenants.get_mut(&id) {
            Some(tenant) if tenant.session == session && slots.len() <= MAX_USES => {
                tenant.used = slots.into()
            }
            _ => self.expel(session, "it said what memory is used that is not its own, or too much of it"),
        }
    }

    /// The parts in which these pieces come.
    pub(super) fn parts(
        &self,
        id: TenantId,
        placed: &[Placed],
        moves: Vec<Move>,
        early: bool,
    ) -> BTreeMap<usize, Part> {
        let tenant = &self.tenants[&id];
        let used: &[SlotRun] = if early || self.is_gang(tenant.job) { &[] } else { &tenant.used };
        cut(placed, moves, used)
    }

    /// Has the job more than one process, or more than one GPU.
    pub(super) fn is_gang(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_none_or(|job| job.sessions.len() > 1) || self.tenants_of(id).len() > 1
    }

    /// Memory was missing for a part: it is tried again after a pause, if others have come and work goes on there. False:
    /// it is not, or was tried often enough.
    pub(super) fn put_off(&mut self, id: TenantId, nth: usize) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else { return false };
        let Some(arrival) = tenant.arrival.as_mut().filter(|arrival| arrival.begun) else { return false };
        let may_again = |part: &&mut Part| part.is_untouched() && part.restoring == 1 && part.tries < TRIES;
        let Some(part) = arrival.parts.get_mut(&nth).filter(may_again) else { return false };
        (part.restoring, part.put_off, part.tries) = (0, true, part.tries + 1);
        let (gpu, now) = (tenant.gpu, self.now);
        // One pause for all that are put off meanwhile.
        if let Some(job) = self.jobs.get_mut(&tenant.job).filter(|job| job.not_restored_before <= now) {
            job.put_off_restoring(now);
        }
        self.destroy_spares(gpu, u32::MAX, &BTreeSet::new());
        self.measure(gpu);
        true
    }

    /// Orders again what was put off, of jobs whose pause is over.
    pub(super) fn go_on_restoring(&mut self) {
        let is_due = |job: &Job| job.phase == Phase::Restoring && job.not_restored_before <= self.now;
        let due = self.tenants.iter().filter(|(_, tenant)| self.jobs.get(&tenant.job).is_some_and(is_due));
        let put_off = |(id, tenant): (&TenantId, &Tenant)| {
            let parts = tenant.arrival.iter().flat_map(Arrival::put_off);
            parts.map(|nth| (*id, nth)).collect::<Vec<_>>()
        };
        for (id, nth) in due.flat_map(put_off).collect::<Vec<_>>() {
            self.restore(id, nth);
        }
    }
}

impl Arrival {
    /// Its parts that wait for memory.
    pub(super) fn put_off(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter(|(_, part)| part.put_off).map(|(nth, _)| *nth)
    }

    /// Has nothing of it come yet.
    pub(super) fn is_untouched(&self) -> bool {
        !self.begun && self.parts.values().next().is_none_or(Part::is_untouched)
    }

    /// The pieces that the process was not told to map yet.
    pub(super) fn unseen(&self) -> impl Iterator<Item = &Placed> {
        self.parts.values().flat_map(|part| &part.placed)
    }
}

impl Part {
    /// Of some of its pieces, those that its copies do not fill.
    pub(super) fn not_filled(&self, unit_bytes: u64, among: impl Fn(&PieceId) -> bool) -> Vec<PieceId> {
        let mut missing: BTreeMap<PieceId, u64> = (self.placed.iter())
            .filter(|placed| among(&placed.piece))
            .map(|placed| (placed.piece, u64::from(placed.units.0) * unit_bytes))
            .collect();
        if !missing.is_empty() {
            for m in &self.moves {
                missing.entry(m.piece).and_modify(|bytes| *bytes = bytes.saturating_sub(m.bytes));
            }
        }
        missing.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(piece, _)| piece).collect()
    }

    /// Has nothing of it come, where one of its orders failed: there was no other that copies.
    fn is_untouched(&self) -> bool {
        self.moves.len() <= MOVES_PER_MESSAGE
    }
}

/// Pieces that are used come in that order, in parts of some size; all others are the last part. If something is used,
/// but none of these, the first part is empty.
fn cut(placed: &[Placed], moves: Vec<Move>, used: &[SlotRun]) -> BTreeMap<usize, Part> {
    // There may be a million copies: they are dealt out only where somebody gains by it.
    if used.is_empty() {
        let all = Part { placed: placed.to_vec(), moves, ..Part::default() };
        return (!placed.is_empty()).then_some((0, all)).into_iter().collect();
    }
    let least = placed.iter().map(|placed| placed.units.0).sum::<u32>().div_ceil(PARTS).max(1);
    let mut left: BTreeMap<(Class, u32), Placed> =
        placed.iter().map(|placed| ((placed.class, placed.slot.0), *placed)).collect();
    let ordered: Vec<Placed> = used.iter().flat_map(|run| take_behind(&mut left, run)).collect();
    let mut parts = in_chunks(ordered, least);
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let rest: Vec<Placed> = left.into_values().collect();
    parts.extend((!rest.is_empty()).then_some(rest));
    let part_of: BTreeMap<PieceId, usize> = parts
        .iter()
        .enumerate()
        .flat_map(|(nth, part)| part.iter().map(move |placed| (placed.piece, nth)))
        .collect();
    let part = |placed| Part { placed, ..Part::default() };
    let mut parts: BTreeMap<usize, Part> = parts.into_iter().map(part).enumerate().collect();
    for m in moves {
        if let Some(part) = part_of.get(&m.piece).and_then(|nth| parts.get_mut(nth)) {
            part.moves.push(m);
        }
    }
    parts
}

/// Pieces in their order, in chunks of so many units, as soon as these are reached.
fn in_chunks(pieces: Vec<Placed>, least: u32) -> Vec<Vec<Placed>> {
    let mut chunks: Vec<Vec<Placed>> = Vec::new();
    let mut units = least;
    for placed in pieces {
        if units >= least {
            chunks.push(Vec::new());
            units = 0;
        }
        units += placed.units.0;
        chunks.last_mut().expect("one was begun").push(placed);
    }
    chunks
}

/// Takes out the pieces behind a run of slots.
fn take_behind(left: &mut BTreeMap<(Class, u32), Placed>, run: &SlotRun) -> Vec<Placed> {
    let (first, end) = (run.first.0, run.first.0.saturating_add(run.units.0));
    let before = left.range(..(run.class, first)).next_back();
    let reaches = |placed: &Placed| placed.class == run.class && placed.slot.0 + placed.units.0 > first;
    let start = before.filter(|(_, placed)| reaches(placed)).map_or((run.class, first), |(at, _)| *at);
    let behind: Vec<_> = left.range(start..(run.class, end.max(start.1))).map(|(at, _)| *at).collect();
    behind.iter().filter_map(|at| left.remove(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_ffi::units::{SlotIndex, Units};

    const CLASS: Class = Class::Temporary;

    fn piece(id: u64, slot: u32, units: u32) -> Placed {
        Placed { piece: PieceId(id), class: CLASS, slot: SlotIndex(slot), units: Units(units) }
    }

    fn run(first: u32, units: u32) -> SlotRun {
        SlotRun { class: CLASS, first: SlotIndex(first), units: Units(units) }
    }

    fn names(parts: &BTreeMap<usize, Part>) -> Vec<Vec<u64>> {
        parts.values().map(|part| part.placed.iter().map(|placed| placed.piece.0).collect()).collect()
    }

    /// Four pieces of two slots, from slot 10.
    fn four() -> [Placed; 4] {
        [piece(1, 10, 2), piece(2, 12, 2), piece(3, 14, 2), piece(4, 16, 2)]
    }

    #[test]
    fn pieces_come_as_they_are_used_and_the_others_last() {
        assert_eq!(names(&cut(&four(), Vec::new(), &[])), [vec![1, 2, 3, 4]]);
        assert_eq!(
            names(&cut(&four(), Vec::new(), &[run(15, 1), run(11, 1)])),
            [vec![3], vec![1], vec![2, 4]]
        );
        assert_eq!(names(&cut(&four(), Vec::new(), &[run(13, 4)])), [vec![2], vec![3], vec![4], vec![1]]);
        let all = [run(0, u32::MAX), run(12, 1)];
        assert_eq!(names(&cut(&four(), Vec::new(), &all)), [vec![1], vec![2], vec![3], vec![4]]);
        let elsewhere = SlotRun { class: Class::Persistent, ..run(10, 8) };
        let others = [elsewhere, run(10, 0), run(18, 9)];
        assert_eq!(names(&cut(&four(), Vec::new(), &others)), [vec![], vec![1, 2, 3, 4]]);
        assert_eq!(cut(&[], Vec::new(), &[]).len(), 0);
    }

    #[test]
    fn there_are_not_more_parts_than_are_worth_their_messages() {
        let many: Vec<Placed> = (0..640).map(|nth| piece(nth, nth as u32, 1)).collect();
        let used: Vec<SlotRun> = (0..640).rev().map(|nth| run(nth, 1)).collect();
        let parts = cut(&many, Vec::new(), &used);
        assert_eq!(parts.len(), PARTS as usize);
        assert_eq!(names(&parts)[0], (630..640).rev().collect::<Vec<_>>());
        let parts = cut(&many, Vec::new(), &[run(0, 640)]);
        assert_eq!((parts.len(), &names(&parts)[1]), (PARTS as usize, &(10..20).collect::<Vec<_>>()));
    }

    #[test]
    fn each_copy_goes_with_its_piece() {
        let copy = |piece| Move { piece: PieceId(piece), offset: 0, bytes: 1, class: CLASS, at: 0 };
        let parts = cut(&four(), (1..=4).map(copy).collect(), &[run(14, 1)]);
        let copies: Vec<Vec<u64>> =
            parts.values().map(|part| part.moves.iter().map(|m| m.piece.0).collect()).collect();
        assert_eq!(copies, [vec![3], vec![1, 2, 4]]);
    }
}
