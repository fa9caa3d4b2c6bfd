//! The second half of a switch: make pieces, restore, map, open (R4.6).
//!
//! Saved bytes are named by their place in the tenant's address range, not by the piece they
//! came from: they come back behind the same slots (I3), in whatever pieces there are. What is restored and mapped at once
//! is a part ([`super::parts`]).

use super::departure::since;
use super::lease::{Acquired, Clean, Run, Unplaced};
use super::{
    Arrival, AwayRange, Effect, MOVES_PER_MESSAGE, NAMES_PER_MESSAGE, PIECES_PER_MESSAGE, Pending, Phase,
    Scheduler, Tenant, Time,
};
use crate::kept::Kept;
use crate::ledger::Slack;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, GpuUuid, JobId, PieceId, TenantId};
use tidegate_ffi::wire::message::{Location, Move, Placed, ToMover, ToShim};

/// After a failed attempt to bring a job back, the next one waits so long; twice as long after
/// each that follows. Meanwhile others run.
pub(super) const RETRY: Time = Time::from_millis(50);
/// For so many slices nothing is brought back ahead of its turn after that has failed.
const SLICES_AFTER_FAILURE: u32 = 8;

impl Scheduler {
    /// Starts bringing back a job that should run, if it waits and there is room.
    pub(super) fn bring_back(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let not_yet = job.phase != Phase::Waiting || self.now < job.not_restored_before;
        if not_yet || self.is_moving(id) || self.is_stranded(id) {
            return;
        }
        let away: Vec<TenantId> =
            self.tenants_of(id).into_iter().filter(|tenant| self.tenants[tenant].is_away()).collect();
        for slack in [Slack::Kept, Slack::Offsets, Slack::Headroom] {
            match self.acquire_all(&away, slack) {
                Ok(arrivals) => return self.start_arrivals(id, arrivals),
                Err((gpu, Unplaced { no_room, usable })) => {
                    if self.make_room(gpu, no_room.short, &usable, id) {
                        return;
                    }
                }
            }
        }
        if self.is_shut_out(id) {
            return self.pause(id);
        }
        let full: Vec<GpuUuid> =
            self.gpus_of(id).into_iter().filter(|gpu| self.waits_for_tiers(*gpu, id)).collect();
        if full.is_empty() {
            return self.cramp(id);
        }
        // The tiers are full: what comes back leaves room there for what has to go.
        let any = away.into_iter().filter(|tenant| self.bring_part_back(*tenant)).count();
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| any == 0) {
            job.put_off_restoring(self.now);
            full.into_iter().for_each(|gpu| self.try_more_of_tiers(gpu));
        }
    }

    /// Brings back as much of a tenant's memory as there is room for, ahead of the rest. `false`: there is none.
    fn bring_part_back(&mut self, id: TenantId) -> bool {
        let tenant = &self.tenants[&id];
        let is_due = self.jobs.get(&tenant.job).is_some_and(|job| job.not_prefetched_before <= self.now);
        // It is memory that was here before.
        let slack = Slack::Headroom;
        let uid = self.jobs.get(&tenant.job).map_or(0, |job| job.uid);
        let (gpu, on) = (tenant.gpu, &self.gpus[&tenant.gpu]);
        let room = on.ledger.room(slack) + on.spares.units_of(uid) + on.unscrubbed.units_of(uid);
        Class::ALL.into_iter().filter(|_| is_due).any(|region| {
            let runs = cut_to(&self.tenants[&id].runs[region.index()], room, room);
            match self.acquire(id, region, &runs, slack, Clean::Later) {
                Ok(acquired) => {
                    let comes = !acquired.placed.is_empty();
                    if comes {
                        self.start_arrival(id, acquired, Some(region));
                    }
                    comes
                }
                // Pieces that no tenant uses are in the way: each is larger than what is missing.
                Err(Unplaced { no_room, usable }) => self.destroy_spares(gpu, no_room.short, &usable),
            }
        })
    }

    /// It cannot run now, whoever gives way: others run meanwhile, until contexts are gone.
    fn pause(&mut self, id: JobId) {
        let until = self.now + self.config.slice * super::outside::SLICES_BETWEEN_LOOKS;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.not_restored_before = until;
        }
        self.gpus_of(id).into_iter().for_each(|gpu| self.measure(gpu));
    }

    /// Pieces for all tenants of a job, or for none (I5).
    fn acquire_all(
        &mut self,
        tenants: &[TenantId],
        slack: Slack,
    ) -> Result<Vec<(TenantId, Acquired)>, (GpuUuid, Unplaced)> {
        let mut all: Vec<(TenantId, Acquired)> = Vec::new();
        for &id in tenants {
            for region in Class::ALL {
                let runs = self.tenants[&id].runs[region.index()].clone();
                match self.acquire(id, region, &runs, slack, Clean::Later) {
                    Ok(acquired) => all.push((id, acquired)),
                    Err(mut unplaced) => {
                        unplaced.usable.extend(self.relinquish_all(all));
                        return Err((self.tenants[&id].gpu, unplaced));
                    }
                }
            }
        }
        Ok(all)
    }

    fn relinquish_all(&mut self, all: Vec<(TenantId, Acquired)>) -> BTreeSet<PieceId> {
        let relinquish = |(id, acquired): (TenantId, Acquired)| {
            let tenant = &self.tenants[&id];
            let (gpu, uid) = (tenant.gpu, self.jobs.get(&tenant.job).map_or(0, |job| job.uid));
            self.relinquish(gpu, uid, &acquired)
        };
        all.into_iter().flat_map(relinquish).collect()
    }

    fn start_arrivals(&mut self, id: JobId, all: Vec<(TenantId, Acquired)>) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = Phase::Restoring;
        }
        let mut merged: BTreeMap<TenantId, Acquired> = BTreeMap::new();
        for (tenant, acquired) in all {
            let entry = merged.entry(tenant).or_default();
            entry.placed.extend(acquired.placed);
            entry.new.extend(acquired.new);
            entry.unscrubbed.extend(acquired.unscrubbed);
        }
        for (tenant, acquired) in merged {
            self.start_arrival(tenant, acquired, None);
        }
        self.finish_moving(id);
    }

    /// Orders what brings these pieces back: all that the tenant needs, or a part of one region ahead of the rest.
    pub(super) fn start_arrival(&mut self, id: TenantId, acquired: Acquired, part: Option<Class>) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let early = part.is_some();
        let moves = moves(&tenant.saved, &acquired.placed, self.config.unit_bytes);
        let parts = self.parts(id, &acquired.placed, moves, early);
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let gpu = tenant.gpu;
        let making = acquired.new.len().div_ceil(PIECES_PER_MESSAGE);
        let (placed, unscrubbed, since) = (acquired.placed, acquired.unscrubbed, self.now);
        let coming = Class::ALL.map(|region| match part {
            None => tenant.units_of_runs(region),
            Some(part) if part == region => placed.iter().map(|placed| placed.units.0).sum(),
            Some(_) => 0,
        });
        tenant.pieces.extend(placed.iter().copied());
        let (begun, mapping, failed) = (false, 0, false);
        tenant.arrival =
            Some(Arrival { placed, unscrubbed, parts, begun, making, mapping, failed, early, coming, since });
        for new in acquired.new.chunks(PIECES_PER_MESSAGE) {
            let (pieces, location) = (self.sizes(new, id), Location::Device);
            let step = self.step(Pending::MakeForArrival(id, new.to_vec()));
            self.effects.push(Effect::Mover(gpu, ToMover::Make { step, pieces, location }));
        }
        if making == 0 {
            self.restore(id, 0);
        }
    }

    pub(super) fn made_arrival(&mut self, id: TenantId) {
        if let Some(arrival) = self.tenants.get_mut(&id).and_then(|tenant| tenant.arrival.as_mut()) {
            arrival.making -= 1;
            self.finish_making(id);
        }
    }

    pub(super) fn make_failed_for_arrival(&mut self, id: TenantId, pieces: Vec<PieceId>) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            for piece in &pieces {
                tenant.pieces.remove(piece);
            }
        }
        self.destroyed(pieces);
        if let Some(arrival) = self.tenants.get_mut(&id).and_then(|tenant| tenant.arrival.as_mut()) {
            arrival.making -= 1;
            arrival.failed = true;
            self.finish_making(id);
        }
    }

    fn finish_making(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        match tenant.arrival.as_ref().map(|arrival| (arrival.making, arrival.failed)) {
            Some((0, false)) => self.restore(id, 0),
            Some((0, true)) => self.give_up_arrival(id),
            _ => {}
        }
    }

    /// The GPU had less room than the ledger thought: what was made goes back, clean; the saved
    /// bytes are where they were.
    fn give_up_arrival(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (gpu, job, arrival) = (tenant.gpu, tenant.job, tenant.arrival.take());
        let is_early = arrival.as_ref().is_some_and(|arrival| arrival.early);
        let uid = self.jobs.get(&job).map_or(0, |job| job.uid);
        let units: u32 =
            arrival.iter().flat_map(|arrival| &arrival.placed).map(|placed| placed.units.0).sum();
        let (arrived, unscrubbed) =
            arrival.map_or_else(Default::default, |arrival| (arrival.placed, arrival.unscrubbed));
        let mut returned = Vec::new();
        for placed in arrived {
            let Some(tenant) = self.tenants.get_mut(&id) else { return };
            if tenant.pieces.remove(&placed.piece).is_some() {
                returned.push(placed);
            }
        }
        let acquired = Acquired { placed: returned, new: Vec::new(), unscrubbed };
        self.relinquish(gpu, uid, &acquired);
        self.destroy_spares(gpu, u32::MAX, &BTreeSet::new());
        match self.jobs.get_mut(&job).filter(|_| is_early) {
            Some(job) => job.not_prefetched_before = self.now + self.config.slice * SLICES_AFTER_FAILURE,
            // Before the next attempt, more is set free than the ledger believes is needed.
            None => drop(self.preempt(gpu, units, job)),
        }
        self.measure(gpu);
        self.finish_moving(job);
    }

    pub(super) fn restore(&mut self, id: TenantId, nth: usize) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(arrival) = tenant.arrival.as_mut() else { return };
        let gpu = tenant.gpu;
        let Some(part) = arrival.parts.get_mut(&nth) else { return self.map(id, nth) };
        let poisoned = part.placed.iter().filter(|_| self.config.poison);
        let poisoned: Vec<PieceId> = poisoned.map(|placed| placed.piece).collect();
        // Poison before bytes: the mover takes its orders in order.
        let poison = poisoned.chunks(NAMES_PER_MESSAGE).map(|pieces| (Vec::new(), pieces.to_vec()));
        let unscrubbed = |piece: &PieceId| arrival.unscrubbed.contains(piece) && !self.config.poison;
        let scrubbed = part.not_filled(self.config.unit_bytes, unscrubbed);
        let scrubs: Vec<Vec<PieceId>> = scrubbed.chunks(NAMES_PER_MESSAGE).map(<[_]>::to_vec).collect();
        let moves = part.moves.chunks(MOVES_PER_MESSAGE).map(|moves| (moves.to_vec(), Vec::new()));
        let orders: Vec<(Vec<Move>, Vec<PieceId>)> = poison.chain(moves).collect();
        (part.restoring, part.put_off) = (scrubs.len() + orders.len(), false);
        if part.restoring == 0 {
            return self.map(id, nth);
        }
        for pieces in scrubs {
            let step = self.step(Pending::ScrubForArrival(id, nth));
            self.effects.push(Effect::Mover(gpu, ToMover::Scrub { step, pieces }));
        }
        for (moves, poison) in orders {
            let step = self.step(Pending::Restore(id, nth));
            self.effects.push(Effect::Mover(gpu, ToMover::Restore { step, tenant: id, moves, poison }));
        }
    }

    pub(super) fn restored(&mut self, id: TenantId, nth: usize, bytes: u64) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(arrival) = tenant.arrival.as_mut() else { return };
        let Some(part) = arrival.parts.get_mut(&nth) else { return };
        part.restoring -= 1;
        let (all, early) = (part.restoring == 0, arrival.early);
        if let Some(job) = self.jobs.get_mut(&tenant.job) {
            job.stats.restored_bytes += bytes;
            job.stats.prefetched_bytes += if early { bytes } else { 0 };
        }
        if all {
            self.map(id, nth);
        }
    }

    /// All bytes of a part are back: the process maps its pieces. After the first part the others are ordered.
    fn map(&mut self, id: TenantId, nth: usize) {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let Some(arrival) = tenant.arrival.as_mut() else { return };
        let part = arrival.parts.remove(&nth).unwrap_or_default();
        let is_first = !std::mem::replace(&mut arrival.begun, true);
        let others: Vec<usize> = arrival.parts.keys().copied().collect();
        let began = std::mem::replace(&mut arrival.since, now);
        let early = arrival.early;
        arrival.mapping += part.placed.len().div_ceil(PIECES_PER_MESSAGE);
        if others.is_empty() {
            arrival.coming = [0; 2];
            let placed = arrival.placed.clone();
            tenant.has_come(&placed, self.config.unit_bytes);
        }
        let (session, job) = (tenant.session, tenant.job);
        if let Some(job) = self.jobs.get_mut(&job).filter(|_| !early) {
            job.stats.restore += since(now, began);
        }
        self.order_map(id, &part.placed, Pending::Map);
        if !is_first || others.is_empty() {
            return;
        }
        // It may have become a gang since it was cut.
        if !self.is_gang(job)
            && let Some(job) = self.jobs.get_mut(&job)
        {
            job.stats.ajar += 1;
            self.tell(session, ToShim::Ajar);
        }
        others.into_iter().for_each(|part| self.restore(id, part));
    }

    /// Its bytes are still in the tier, but cannot be had: others can go on, with the memory that it was about to get.
    /// It cannot, unless nothing but memory was missing, and nothing of it has come yet: then that is tried again.
    pub(super) fn restore_failed(&mut self, id: TenantId, nth: usize, reason: &str, out_of_memory: bool) {
        if out_of_memory && self.put_off(id, nth) {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (session, gpu, job, arrival) = (tenant.session, tenant.gpu, tenant.job, tenant.arrival.take());
        let untouched = arrival.as_ref().is_some_and(Arrival::is_untouched);
        let is_early = arrival.as_ref().is_some_and(|arrival| arrival.early);
        let unseen = arrival.iter().flat_map(Arrival::unseen);
        let unseen = unseen.filter_map(|placed| tenant.pieces.remove(&placed.piece));
        let unseen = unseen.map(|placed| placed.piece).collect();
        self.dispose(gpu, job, unseen);
        if !(out_of_memory && untouched) {
            return self.expel(session, &format!("its memory could not be restored: {reason}"));
        }
        if let Some(job) = self.jobs.get_mut(&job).filter(|_| is_early) {
            job.not_prefetched_before = self.now + self.config.slice * SLICES_AFTER_FAILURE;
        }
        self.finish_moving(job);
    }

    pub(super) fn mapped(&mut self, id: TenantId) {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let job = tenant.job;
        let Some(arrival) = tenant.arrival.as_mut() else { return };
        arrival.mapping -= 1;
        if arrival.mapping > 0 || !arrival.parts.is_empty() {
            return;
        }
        let (began, early) = (arrival.since, arrival.early);
        tenant.arrival = None;
        if let Some(job) = self.jobs.get_mut(&job).filter(|_| !early) {
            job.stats.map += since(now, began);
        }
        self.finish_moving(job);
    }
}

impl AwayRange {
    /// The slots it touches: first, and one past the last.
    fn slots(&self, unit: u64) -> (u32, u32) {
        ((self.at / unit) as u32, (self.at + self.bytes).div_ceil(unit) as u32)
    }

    /// What is left of it when its first bytes, or all, lie behind slots.
    fn not_behind(&self, slots: &Slots) -> Option<Self> {
        let (mut at, end) = (self.at, self.at + self.bytes);
        while let Some((.., stop)) = slots.behind(self.class, at).filter(|_| at < end) {
            at = stop.min(end);
        }
        (at < end).then_some(Self { at, bytes: end - at, ..*self })
    }
}

impl Tenant {
    /// Takes note of what lies in a tier besides, of what has to be there again with any bytes, and of
    /// the runs of slots that all of it needs.
    pub(super) fn add_away(
        &mut self,
        saved: &[AwayRange],
        blank: impl Iterator<Item = AwayRange>,
        unit: u64,
    ) {
        let place = |range: &AwayRange| (range.class, range.at);
        self.saved.extend(saved);
        self.saved.sort_unstable_by_key(place);
        self.blank.extend(blank);
        self.blank.sort_unstable_by_key(place);
        let mut all: Vec<&AwayRange> = self.saved.iter().chain(self.blank.iter()).collect();
        all.sort_unstable_by_key(|range| place(range));
        self.runs = Class::ALL.map(|region| {
            let runs = runs(all.iter().copied().filter(|range| range.region == region), unit);
            runs.into_iter().flat_map(|run| self.cut(run)).collect()
        });
    }

    /// What lies behind these slots is back; all of it, or of each run the first slots.
    fn has_come(&mut self, placed: &[Placed], unit: u64) {
        let slots = Slots::of(placed, unit);
        let rest = |range: &AwayRange| range.not_behind(&slots);
        self.saved = Kept::new(self.saved.iter().filter_map(rest).collect());
        self.blank = Kept::new(self.blank.iter().filter_map(rest).collect());
        self.add_away(&[], std::iter::empty(), unit);
    }

    /// Cuts a run of slots where something in it is to be one piece. What does not lie in the run with
    /// all of its slots is whole no more: some of it was not worth saving.
    fn cut(&self, run: Run) -> Vec<Run> {
        let (mut first, end) = (run.first, run.first + run.units);
        let mut cut = Vec::new();
        for (&(class, start), &units) in self.whole.range((run.class, first)..(run.class, end)) {
            if start + units <= end {
                cut.push(Run { first, units: start - first, ..run });
                cut.push(Run { class, first: start, units, whole: true });
                first = start + units;
            }
        }
        cut.push(Run { first, units: end - first, ..run });
        cut.retain(|run| run.units > 0);
        cut
    }

    /// Units of a region that it has in a tier, and that are not on their way back.
    pub(super) fn units_away(&self, region: Class) -> u32 {
        let coming = self.arrival.as_ref().map_or(0, |arrival| arrival.coming[region.index()]);
        self.units_of_runs(region) - coming
    }

    fn units_of_runs(&self, region: Class) -> u32 {
        self.runs[region.index()].iter().map(|run| run.units).sum()
    }
}

/// The first of some runs, as many units as there is room for: at most so many, if that is not within a run that is to be
/// one piece.
pub(super) fn cut_to(runs: &[Run], room: u32, most: u32) -> Vec<Run> {
    let (mut cut, mut taken) = (Vec::new(), 0);
    for run in runs {
        let (room, left) = (room - taken, most.saturating_sub(taken));
        let fits_whole = run.units <= room && (run.units <= left || taken == 0);
        let units =
            if run.whole { if fits_whole { run.units } else { 0 } } else { run.units.min(room).min(left) };
        cut.extend((units > 0).then_some(Run { units, ..*run }));
        taken += units;
        if units < run.units {
            break;
        }
    }
    cut
}

/// The runs of slots that ranges, in order, touch.
fn runs<'a>(ranges: impl Iterator<Item = &'a AwayRange>, unit: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for range in ranges {
        let (first, end) = range.slots(unit);
        match runs.last_mut() {
            Some(run) if run.class == range.class && first <= run.first + run.units => {
                run.units = run.units.max(end - run.first);
            }
            _ => runs.push(Run { class: range.class, first, units: end - first, whole: false }),
        }
    }
    runs
}

/// The copies that bring `saved` into `placed`, as much of it as lies behind placed slots.
fn moves(saved: &[AwayRange], placed: &[Placed], unit: u64) -> Vec<Move> {
    let slots = Slots::of(placed, unit);
    let mut moves = Vec::new();
    for range in saved {
        let (mut at, end) = (range.at, range.at + range.bytes);
        while let Some((piece, start, stop)) = slots.behind(range.class, at).filter(|_| at < end) {
            let bytes = stop.min(end) - at;
            moves.push(Move { piece, offset: at - start, bytes, class: range.class, at });
            at += bytes;
        }
    }
    moves
}

/// Where pieces lie in a tenant's address ranges, in bytes.
struct Slots {
    /// By class and first byte: the piece, and the byte behind its last.
    pieces: BTreeMap<(Class, u64), (PieceId, u64)>,
}

impl Slots {
    fn of(placed: &[Placed], unit: u64) -> Self {
        let piece = |placed: &Placed| {
            let start = u64::from(placed.slot.0) * unit;
            ((placed.class, start), (placed.piece, start + u64::from(placed.units.0) * unit))
        };
        Self { pieces: placed.iter().map(piece).collect() }
    }

    /// The piece behind a byte, its first byte, and the one behind its last.
    fn behind(&self, class: Class, at: u64) -> Option<(PieceId, u64, u64)> {
        let (&(of, start), &(piece, stop)) = self.pieces.range(..=(class, at)).next_back()?;
        (of == class && at < stop).then_some((piece, start, stop))
    }
}
