//! The persistent region: each tenant's span, with room to grow behind it (R4.5).

use super::row::{Place, Row};
use super::{Owner, Record};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::units::{Class, TenantId};

/// An extent of a tenant in the persistent region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose.
    pub tenant: TenantId,
    /// The first unit.
    pub start: u32,
    /// One past the last unit in use.
    pub end: u32,
}

/// The pieces in address order, and each tenant's in its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PersistentRegion {
    offset: u32,
    row: Row<TenantId>,
    /// Whose piece begins where.
    own: BTreeSet<(TenantId, u32)>,
}

/// A tenant's place in the order of spans, and the room in front of its first one.
#[derive(Clone, Copy)]
struct Turn {
    tenant: TenantId,
    gap: u32,
}

impl PersistentRegion {
    pub(super) fn new(offset: u32) -> Self {
        Self { offset, row: Row::new(), own: BTreeSet::new() }
    }

    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    /// Sets the offset for what is placed from now on; returns what it was.
    pub(super) fn set_offset(&mut self, offset: u32) -> u32 {
        std::mem::replace(&mut self.offset, offset)
    }

    /// Units of all pieces.
    pub(super) fn units(&self) -> u32 {
        self.row.units()
    }

    pub(super) fn top(&self) -> u32 {
        self.row.last().map_or(0, |place| place.end)
    }

    /// Neighbours of one tenant are one span.
    pub(super) fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for Place { start, end, owner: tenant } in self.row.places() {
            match spans.last_mut().filter(|last| last.tenant == tenant) {
                Some(last) => last.end = end,
                None => spans.push(Span { tenant, start, end }),
            }
        }
        spans
    }

    /// Finds a place for a piece below `limit` and takes it: behind one of the tenant's, else apart from all
    /// others, with room for the `rest` of the lease, this piece included (R4.5: the need, not its first piece,
    /// must fit a hole).
    pub(super) fn place(&mut self, tenant: TenantId, units: u32, rest: u32, limit: u32) -> Option<u32> {
        let start = self.growth_room(tenant, units, limit).or_else(|| self.room_apart(rest, limit))?;
        self.insert(tenant, start, units);
        Some(start)
    }

    pub(super) fn insert(&mut self, tenant: TenantId, start: u32, units: u32) {
        self.row.insert(Place { start, end: start + units, owner: tenant });
        self.own.insert((tenant, start));
    }

    pub(super) fn remove(&mut self, start: u32) {
        if let Some(place) = self.row.remove(start) {
            self.own.remove(&(place.owner, start));
        }
    }

    fn growth_room(&self, tenant: TenantId, units: u32, limit: u32) -> Option<u32> {
        if let Some(hole) = self.row.hole(tenant, units) {
            return Some(hole.start);
        }
        let last = self.row.last().filter(|last| last.owner == tenant && last.end + units <= limit);
        last.map(|last| last.end)
    }

    /// The smallest hole that takes the need between offsets, else the place behind the last piece and an offset.
    fn room_apart(&self, units: u32, limit: u32) -> Option<u32> {
        let first = self.row.first().map_or(limit, |first| first.start.saturating_sub(self.offset));
        if units <= first {
            return Some(0);
        }
        let between = units + 2 * self.offset;
        let holes = self.tenants().filter_map(|(tenant, _)| self.row.hole(tenant, between));
        let smallest = holes.min_by_key(|hole| (hole.units, hole.start));
        let start = smallest.map_or(self.top(), |hole| hole.start) + self.offset;
        (smallest.is_some() || start + units <= limit).then_some(start)
    }

    /// Each tenant and its first unit.
    fn tenants(&self) -> impl Iterator<Item = (TenantId, u32)> + '_ {
        let next = |last: TenantId| self.own.range((TenantId(last.0 + 1), 0)..).next().copied();
        std::iter::successors(self.own.first().copied(), move |(tenant, _)| next(*tenant))
    }

    /// The tenants in the order of their first pieces. Room in front of a piece counts up to the offset: what a
    /// span has grown into is not given back.
    fn turns(&self) -> Vec<Turn> {
        let mut tenants: Vec<(TenantId, u32)> = self.tenants().collect();
        tenants.sort_unstable_by_key(|(_, start)| *start);
        let gap = |start| self.row.before(start).map_or(0, |before| self.offset.min(start - before.end));
        tenants.into_iter().map(|(tenant, start)| Turn { tenant, gap: gap(start) }).collect()
    }

    /// Where the region would end if it closed its holes.
    pub(super) fn packed_top(&self) -> u32 {
        self.units() + self.turns().iter().map(|turn| turn.gap).sum::<u32>()
    }

    /// The same, with one more piece.
    pub(super) fn packed_top_with(&self, tenant: TenantId, units: u32) -> u32 {
        let is_known = self.own.is_empty() || self.own_of(tenant).next().is_some();
        self.packed_top() + units + if is_known { 0 } else { self.offset }
    }

    /// Where a tenant's pieces begin.
    fn own_of(&self, tenant: TenantId) -> impl Iterator<Item = u32> + '_ {
        self.own.range((tenant, 0)..=(tenant, u32::MAX)).map(|(_, start)| *start)
    }

    /// Closes all holes; says from where to where each piece went.
    pub(super) fn pack(&mut self) -> BTreeMap<u32, u32> {
        self.pack_in(&self.turns(), None).0
    }

    /// Closes all holes and takes the offsets away.
    pub(super) fn squeeze(&mut self) -> BTreeMap<u32, u32> {
        let turns: Vec<Turn> = self.turns().iter().map(|turn| Turn { gap: 0, ..*turn }).collect();
        self.pack_in(&turns, None).0
    }

    /// Closes all holes, but for a place for one more piece behind its tenant's last.
    pub(super) fn pack_with(&mut self, tenant: TenantId, units: u32) -> (BTreeMap<u32, u32>, u32) {
        let mut turns = self.turns();
        if turns.iter().all(|turn| turn.tenant != tenant) {
            turns.push(Turn { tenant, gap: if turns.is_empty() { 0 } else { self.offset } });
        }
        self.pack_in(&turns, Some((tenant, units)))
    }

    fn pack_in(&mut self, turns: &[Turn], more: Option<(TenantId, u32)>) -> (BTreeMap<u32, u32>, u32) {
        let old = std::mem::replace(self, Self::new(self.offset));
        let units_at: BTreeMap<u32, u32> =
            old.row.places().map(|place| (place.start, place.end - place.start)).collect();
        let (mut moved, mut place, mut end) = (BTreeMap::new(), 0, 0);
        for turn in turns {
            end += turn.gap;
            for from in old.own_of(turn.tenant) {
                moved.insert(from, end);
                self.insert(turn.tenant, end, units_at[&from]);
                end += units_at[&from];
            }
            if let Some((_, units)) = more.filter(|(tenant, _)| *tenant == turn.tenant) {
                place = end;
                self.insert(turn.tenant, end, units);
                end += units;
            }
        }
        (moved, place)
    }

    pub(super) fn check<'a>(&self, records: impl Iterator<Item = &'a Record>) -> Result<(), String> {
        let place = |record: &Record| match (record.region, record.owner) {
            (Class::Persistent, Owner::Tenant(tenant)) => {
                Some(Place { start: record.start, end: record.start + record.units, owner: tenant })
            }
            _ => None,
        };
        let listed: Row<TenantId> = records.filter_map(place).collect();
        let own = self.row.places().map(|place| (place.owner, place.start)).collect::<BTreeSet<_>>();
        match listed == self.row && own == self.own {
            true => Ok(()),
            false => Err("the persistent region's row differs from its pieces".into()),
        }
    }
}
