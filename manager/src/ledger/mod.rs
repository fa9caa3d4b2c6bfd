//! The ledger of one GPU's memory: which unit is whose (R4.2, R4.3, R4.5).
//!
//! ```text
//! unit 0                                                                    last unit
//! ├─span A──┬offset┬─span B────┬offset┬─span C─┬ … free … ┬─temporary pieces──────────┤
//! │    persistent region, grows up ─►          │ headroom │  ◄─ grows down, temporary │
//! ```
//! Units are numbered by the ledger alone, so a whole piece changes its place by being
//! renumbered, without a copy; both regions close their holes that way when they must: first the
//! temporary one, and, when even that makes no room, the persistent one too. So the only room
//! that is ever lost is that of the offsets.
//!
//! Memory in use that lies in no piece (contexts, modules, other programs) is told to the ledger
//! as *outside*: so many units cannot be had. Headroom is kept free for more of it. So is memory
//! of pieces that somebody kept who should have given them back: *retired* (I8).
//!
//! Invariant (I4): every piece lies in one region, pieces never overlap, the regions never
//! cross, what is placed leaves headroom alone, and the sums equal the totals. [`Ledger::check`]
//! proves it.

mod persistent;
mod row;
mod temporary;

pub use persistent::Span;

use persistent::PersistentRegion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use temporary::TemporaryRegion;
use tidegate_ffi::units::{Class, PieceId, TenantId, Units};

/// Who may use a piece's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    /// A tenant.
    Tenant(TenantId),
    /// Nobody: a scrubbed piece, ready for the next lease of the same user.
    Spare,
}

/// A piece as the ledger knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The first unit.
    pub start: u32,
    /// Length in units.
    pub units: u32,
    /// The region it lies in.
    pub region: Class,
    /// Whose it is.
    pub owner: Owner,
}

/// There is no room for what was asked; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{short} units short")]
pub struct NoRoom {
    /// How many more units would have to be free; at least 1.
    pub short: u32,
}

/// What may be used up to find room, where nothing else can be set free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slack {
    /// Nothing: offsets and headroom stay as they are.
    Kept,
    /// The offsets: they keep growth room; they do not keep out who has room without them.
    Offsets,
    /// The headroom too: only for memory that was here before.
    Headroom,
}

/// One GPU's units.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    units: u32,
    headroom: u32,
    outside: u32,
    retired: u32,
    pieces: BTreeMap<PieceId, Record>,
    persistent: PersistentRegion,
    temporary: TemporaryRegion,
    /// Units of each tenant, by region.
    held: BTreeMap<TenantId, [u32; 2]>,
}

impl Ledger {
    /// A GPU of `units` units, with `offset` units left after a span when the next is placed.
    pub fn new(units: Units, offset: Units) -> Self {
        Self {
            units: units.0,
            headroom: 0,
            outside: 0,
            retired: 0,
            pieces: BTreeMap::new(),
            persistent: PersistentRegion::new(offset.0),
            temporary: TemporaryRegion::new(units.0),
            held: BTreeMap::new(),
        }
    }

    /// Sets how many units are kept free for memory outside of pieces.
    pub fn set_headroom(&mut self, headroom: Units) {
        self.headroom = headroom.0;
    }

    /// Sets how many units memory outside of pieces takes.
    pub fn set_outside(&mut self, outside: Units) {
        self.outside = outside.0;
    }

    /// All units of the GPU.
    pub fn total(&self) -> u32 {
        self.units
    }

    /// Units kept free.
    pub fn headroom(&self) -> u32 {
        self.headroom
    }

    /// Units that memory outside of pieces takes.
    pub fn outside(&self) -> u32 {
        self.outside
    }

    /// Units of pieces that are released, but that somebody who kept them may still use.
    pub fn retired(&self) -> u32 {
        self.retired
    }

    /// Units that no piece may take: headroom, what lies outside and what is retired.
    pub fn reserved(&self) -> u32 {
        self.headroom.saturating_add(self.taken_outside()).min(self.units)
    }

    /// Units that are in use though no piece has them: what lies outside and what is retired.
    pub fn taken_outside(&self) -> u32 {
        self.outside.saturating_add(self.retired)
    }

    /// Units that are missing for the headroom and so many more: it has been used up, or more lies
    /// outside now.
    pub fn short_of(&self, more: u32) -> u32 {
        (self.in_pieces() + self.reserved()).saturating_add(more).saturating_sub(self.units)
    }

    /// Units that are missing for so many more outside of pieces, which may use the headroom up.
    pub fn short_outside(&self, more: u32) -> u32 {
        (self.in_pieces() + self.taken_outside()).saturating_add(more).saturating_sub(self.units)
    }

    fn in_pieces(&self) -> u32 {
        self.persistent.units() + self.temporary_units()
    }

    /// Where the persistent region ends now.
    pub fn persistent_top(&self) -> u32 {
        self.persistent.top()
    }

    /// Units of temporary pieces, spare ones included.
    pub fn temporary_units(&self) -> u32 {
        self.temporary.units()
    }

    /// Where the persistent region would end if it closed its holes; offsets stay.
    pub fn packed_top(&self) -> u32 {
        self.persistent.packed_top()
    }

    /// Units that lie free between the regions, once both have closed their holes.
    pub fn free(&self) -> u32 {
        self.units.saturating_sub(self.reserved() + self.packed_top() + self.temporary_units())
    }

    /// Units that pieces can get, once both regions have closed their holes, where so much may be used up.
    pub fn room(&self, slack: Slack) -> u32 {
        let without_offsets = self.units.saturating_sub(self.in_pieces());
        match slack {
            Slack::Kept => self.free(),
            Slack::Offsets => without_offsets.saturating_sub(self.reserved()),
            Slack::Headroom => without_offsets.saturating_sub(self.taken_outside()),
        }
    }

    /// Units of a tenant's pieces in a region.
    pub fn held(&self, tenant: TenantId, region: Class) -> u32 {
        self.held.get(&tenant).map_or(0, |held| held[region.index()])
    }

    /// The offset between spans, in units.
    pub fn offset(&self) -> u32 {
        self.persistent.offset()
    }

    /// A piece's record.
    pub fn piece(&self, piece: PieceId) -> Option<Record> {
        self.pieces.get(&piece).copied()
    }

    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = (PieceId, Record)> + '_ {
        self.pieces.iter().map(|(&piece, &record)| (piece, record))
    }

    /// The spans of the persistent region, in address order.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.persistent.spans().into_iter()
    }

    /// Places new pieces for a tenant: all of them or none. Each piece is one run of units.
    pub fn lease(
        &mut self,
        tenant: TenantId,
        region: Class,
        pieces: &[(PieceId, Units)],
        slack: Slack,
    ) -> Result<(), NoRoom> {
        let first = self.lease_keeping(tenant, region, pieces);
        if first.is_ok() || slack == Slack::Kept {
            return first;
        }
        self.with_headroom(slack, |ledger| match ledger.has_room_for(pieces) {
            true => ledger.lease_without_offsets(tenant, region, pieces),
            false => first,
        })
    }

    /// Places something, with the headroom as the slack has it.
    fn with_headroom<T>(&mut self, slack: Slack, place: impl FnOnce(&mut Self) -> T) -> T {
        let headroom = self.headroom;
        if slack == Slack::Headroom {
            self.headroom = 0;
        }
        let placed = place(self);
        self.headroom = headroom;
        placed
    }

    fn lease_without_offsets(
        &mut self,
        tenant: TenantId,
        region: Class,
        pieces: &[(PieceId, Units)],
    ) -> Result<(), NoRoom> {
        self.without_offsets(|ledger| ledger.lease_keeping(tenant, region, pieces))
    }

    fn without_offsets<T>(&mut self, place: impl FnOnce(&mut Self) -> T) -> T {
        self.close_temporary_holes();
        let moved = self.persistent.squeeze();
        self.renumber_persistent(&moved);
        let offset = self.persistent.set_offset(0);
        let placed = place(self);
        self.persistent.set_offset(offset);
        placed
    }

    fn lease_keeping(
        &mut self,
        tenant: TenantId,
        region: Class,
        pieces: &[(PieceId, Units)],
    ) -> Result<(), NoRoom> {
        if !self.has_room_for(pieces) {
            return Err(NoRoom { short: self.short_of_pieces(tenant, region, pieces) });
        }
        let mut rest = sum(pieces);
        for (count, &(piece, units)) in pieces.iter().enumerate() {
            debug_assert!(!self.pieces.contains_key(&piece), "{piece} is placed twice");
            if self.place(piece, Owner::Tenant(tenant), region, units.0, rest) {
                rest -= units.0;
            } else {
                pieces[..count].iter().for_each(|(placed, _)| self.release(*placed));
                return Err(NoRoom { short: self.short_of_pieces(tenant, region, pieces) });
            }
        }
        Ok(())
    }

    /// Are so many units free at all, wherever they lie.
    fn has_room_for(&self, pieces: &[(PieceId, Units)]) -> bool {
        self.in_pieces() + sum(pieces) + self.reserved() <= self.units
    }

    fn short_of_pieces(&self, tenant: TenantId, region: Class, pieces: &[(PieceId, Units)]) -> u32 {
        let wanted = sum(pieces);
        let newcomer = region == Class::Persistent && self.held(tenant, region) == 0;
        let gap = if newcomer && self.packed_top() > 0 { self.offset() } else { 0 };
        (wanted + gap).saturating_sub(self.free()).max(1)
    }

    /// Finds a place for a piece; `false`: there is none, and nothing was changed. The persistent
    /// region's holes are closed only if that makes room for all that is to come, `rest` units.
    fn place(&mut self, piece: PieceId, owner: Owner, region: Class, units: u32, rest: u32) -> bool {
        let start = match (region, owner) {
            (Class::Persistent, Owner::Tenant(tenant)) => self.place_persistent(tenant, units, rest),
            _ => self.place_temporary(units, rest),
        };
        let Some(start) = start else { return false };
        self.enter(piece, Record { start, units, region, owner });
        true
    }

    fn enter(&mut self, piece: PieceId, record: Record) {
        if let Owner::Tenant(tenant) = record.owner {
            self.held.entry(tenant).or_default()[record.region.index()] += record.units;
        }
        self.pieces.insert(piece, record);
    }

    fn place_persistent(&mut self, tenant: TenantId, units: u32, rest: u32) -> Option<u32> {
        let as_it_lies = self.temporary.bottom().saturating_sub(self.reserved());
        if let Some(start) = self.persistent.place(tenant, units, rest, as_it_lies) {
            return Some(start);
        }
        let limit = self.units.saturating_sub(self.temporary_units() + self.reserved());
        if let Some(start) = self.persistent.place(tenant, units, rest, limit) {
            self.close_temporary_holes();
            return Some(start);
        }
        if self.persistent.packed_top_with(tenant, rest) > limit {
            return None;
        }
        self.close_temporary_holes();
        let (moved, start) = self.persistent.pack_with(tenant, units);
        self.renumber_persistent(&moved);
        Some(start)
    }

    fn place_temporary(&mut self, units: u32, rest: u32) -> Option<u32> {
        let floor = |ledger: &Self| ledger.persistent.top() + ledger.reserved();
        let start = match self.temporary.hole(units, floor(self)) {
            Some(start) => start,
            None if self.free() < rest => return None,
            None => {
                self.close_temporary_holes();
                if self.temporary.bottom() < floor(self) + units {
                    let moved = self.persistent.pack();
                    self.renumber_persistent(&moved);
                }
                self.temporary.bottom() - units
            }
        };
        self.temporary.insert(start, units);
        Some(start)
    }

    fn renumber_persistent(&mut self, moved: &BTreeMap<u32, u32>) {
        for record in self.pieces.values_mut().filter(|record| record.region == Class::Persistent) {
            record.start = moved[&record.start];
        }
    }

    /// Renumbers all temporary pieces so that no unit lies free between them.
    fn close_temporary_holes(&mut self) {
        let mut end = self.units;
        self.temporary = TemporaryRegion::new(end);
        let mut pieces: Vec<_> =
            self.pieces.values_mut().filter(|record| record.region == Class::Temporary).collect();
        pieces.sort_by_key(|record| std::cmp::Reverse(record.start));
        for record in pieces {
            end -= record.units;
            record.start = end;
            self.temporary.insert(end, record.units);
        }
    }

    /// Moves a piece to the other region or another owner by renumbering it (§4.6). A full GPU has
    /// no room for a new span's offset: then it goes without. On error it stays as it was.
    pub fn renumber(&mut self, piece: PieceId, owner: Owner, region: Class) -> Result<(), NoRoom> {
        let first = self.renumber_as_part(piece, owner, region, 0);
        let has_room = region == Class::Persistent && self.has_room_for(&[]);
        if first.is_ok() || !has_room {
            return first;
        }
        self.without_offsets(|ledger| ledger.renumber_as_part(piece, owner, region, 0))
    }

    /// Gives a spare piece to a tenant as a part of a lease of which `rest` units are still to be
    /// placed, this piece included: where there is no run of so many, at least this piece. On error it stays as it was.
    pub fn adopt(
        &mut self,
        piece: PieceId,
        tenant: TenantId,
        region: Class,
        rest: Units,
        slack: Slack,
    ) -> Result<(), NoRoom> {
        let owner = Owner::Tenant(tenant);
        if self.renumber_as_part(piece, owner, region, rest.0).is_ok() {
            return Ok(());
        }
        if slack == Slack::Kept {
            return self.renumber_as_part(piece, owner, region, 0);
        }
        self.with_headroom(slack, |ledger| ledger.renumber(piece, owner, region))
    }

    fn renumber_as_part(
        &mut self,
        piece: PieceId,
        owner: Owner,
        region: Class,
        rest: u32,
    ) -> Result<(), NoRoom> {
        let Some(old) = self.vacate(piece) else { return Ok(()) };
        let rest = rest.max(old.units);
        if (old.region, region) == (Class::Temporary, Class::Temporary) {
            self.temporary.insert(old.start, old.units);
            self.enter(piece, Record { owner, ..old });
            return Ok(());
        }
        if (old.region, old.owner) != (region, owner) && self.place(piece, owner, region, old.units, rest) {
            return Ok(());
        }
        self.put_back(piece, old);
        if (old.region, old.owner) == (region, owner) { Ok(()) } else { Err(NoRoom { short: 1 }) }
    }

    /// Undoes a `vacate` after which nothing else was changed.
    fn put_back(&mut self, piece: PieceId, record: Record) {
        match (record.region, record.owner) {
            (Class::Persistent, Owner::Tenant(tenant)) => {
                self.persistent.insert(tenant, record.start, record.units);
            }
            _ => self.temporary.insert(record.start, record.units),
        }
        self.enter(piece, record);
    }

    /// Makes a piece nobody's, keeping its memory for the next lease.
    pub fn spare(&mut self, piece: PieceId) -> Result<(), NoRoom> {
        self.renumber(piece, Owner::Spare, Class::Temporary)
    }

    /// Forgets a piece: its units are free.
    pub fn release(&mut self, piece: PieceId) {
        self.vacate(piece);
    }

    /// Forgets a piece whose memory somebody keeps: its units stay used, in no place, until they
    /// are [given back](Self::give_back_retired). Returned is how many that are.
    pub fn retire(&mut self, piece: PieceId) -> u32 {
        let units = self.vacate(piece).map_or(0, |record| record.units);
        self.retired += units;
        units
    }

    /// Nobody can use retired memory any more: its units are free.
    pub fn give_back_retired(&mut self, units: u32) {
        debug_assert!(units <= self.retired, "{units} of {} retired units are given back", self.retired);
        self.retired = self.retired.saturating_sub(units);
    }

    fn vacate(&mut self, piece: PieceId) -> Option<Record> {
        let record = self.pieces.remove(&piece)?;
        match (record.region, record.owner) {
            (Class::Persistent, Owner::Tenant(_)) => self.persistent.remove(record.start),
            _ => self.temporary.remove(record.start),
        }
        if let Owner::Tenant(tenant) = record.owner {
            self.count_out(tenant, record);
        }
        Some(record)
    }

    fn count_out(&mut self, tenant: TenantId, record: Record) {
        let Some(held) = self.held.get_mut(&tenant) else { return };
        held[record.region.index()] -= record.units;
        if *held == [0, 0] {
            self.held.remove(&tenant);
        }
    }

    /// Checks I4; the error names the first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut extents: Vec<_> = self.pieces().map(|(id, r)| (r.start, r.start + r.units, id, r)).collect();
        extents.sort_unstable_by_key(|extent| (extent.0, extent.1));
        for pair in extents.windows(2) {
            if pair[0].1 > pair[1].0 {
                return Err(format!("{} and {} overlap", pair[0].2, pair[1].2));
            }
        }
        for &(start, end, id, record) in &extents {
            let inside = match record.region {
                Class::Persistent => end <= self.persistent.top(),
                Class::Temporary => start >= self.persistent.top() && end <= self.units,
            };
            if !inside || start >= end {
                return Err(format!("{id} lies outside its {} region", record.region));
            }
        }
        self.check_sums()?;
        self.persistent.check(self.pieces.values())
    }

    fn check_sums(&self) -> Result<(), String> {
        let temporary = self.pieces.values().filter(|record| record.region == Class::Temporary);
        self.temporary.check(temporary.map(|record| (record.start, record.units)))?;
        if self.persistent.top() > self.temporary.bottom() {
            return Err("the regions cross".into());
        }
        self.check_held()
    }

    fn check_held(&self) -> Result<(), String> {
        let mut counted: BTreeMap<TenantId, [u32; 2]> = BTreeMap::new();
        for record in self.pieces.values() {
            if let Owner::Tenant(tenant) = record.owner {
                counted.entry(tenant).or_default()[record.region.index()] += record.units;
            }
        }
        if counted != self.held {
            return Err(format!("tenants hold {counted:?}, {:?} is kept", self.held));
        }
        Ok(())
    }
}

fn sum(pieces: &[(PieceId, Units)]) -> u32 {
    pieces.iter().map(|(_, units)| units.0).sum()
}

#[cfg(test)]
mod tests;
