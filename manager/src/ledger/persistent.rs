//! The persistent region: each tenant's extents, with room to grow behind them (R4.5).

use super::{Owner, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_ffi::units::{Class, TenantId};

/// One extent of a tenant's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose.
    pub tenant: TenantId,
    /// The first unit.
    pub start: u32,
    /// One past the last unit in use.
    pub end: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Extent {
    tenant: TenantId,
    /// Start → end of each piece.
    pieces: BTreeMap<u32, u32>,
}

/// The extents in address order. An extent begins with its first piece and ends with its last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PersistentRegion {
    offset: u32,
    extents: BTreeMap<u32, Extent>,
    /// Units of all pieces.
    units: u32,
}

/// A tenant's place in the order of spans, and the room in front of its first one.
#[derive(Clone, Copy)]
struct Turn {
    tenant: TenantId,
    gap: u32,
}

impl Extent {
    fn end(&self) -> u32 {
        self.pieces.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// The lowest hole between the extent's own pieces.
    fn hole(&self, units: u32) -> Option<u32> {
        let ends = self.pieces.values();
        let next_starts = self.pieces.keys().skip(1);
        ends.zip(next_starts).find(|&(&end, &next)| next - end >= units).map(|(&end, _)| end)
    }
}

impl PersistentRegion {
    pub(super) fn new(offset: u32) -> Self {
        Self { offset, extents: BTreeMap::new(), units: 0 }
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
        self.units
    }

    pub(super) fn top(&self) -> u32 {
        self.extents.last_key_value().map_or(0, |(_, extent)| extent.end())
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.extents.iter().map(|(&start, extent)| Span { tenant: extent.tenant, start, end: extent.end() })
    }

    /// Finds a place for a piece below `limit` and takes it: inside the tenant's extents, else
    /// in the room behind one of them, else as a new extent, which has room for the `rest` of the
    /// lease, this piece included (R4.5: the need, not its first piece, must fit a hole).
    pub(super) fn place(&mut self, tenant: TenantId, units: u32, rest: u32, limit: u32) -> Option<u32> {
        let (extent, start) = self
            .own_hole(tenant, units)
            .or_else(|| self.growth_room(tenant, units, limit))
            .or_else(|| self.new_extent(rest, limit).map(|start| (start, start)))?;
        let entry = self.extents.entry(extent).or_insert_with(|| Extent { tenant, pieces: BTreeMap::new() });
        entry.pieces.insert(start, start + units);
        self.units += units;
        Some(start)
    }

    /// The tenants in the order of their first extents. Room in front of an extent counts up to
    /// the offset: what a span has grown into is not given back.
    fn turns(&self) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        let mut end = None;
        for (&start, extent) in &self.extents {
            if turns.iter().all(|turn| turn.tenant != extent.tenant) {
                let gap = end.map_or(0, |end| self.offset.min(start - end));
                turns.push(Turn { tenant: extent.tenant, gap });
            }
            end = Some(extent.end());
        }
        turns
    }

    /// Where the region would end if it closed its holes.
    pub(super) fn packed_top(&self) -> u32 {
        self.units + self.turns().iter().map(|turn| turn.gap).sum::<u32>()
    }

    /// The same, with one more piece.
    pub(super) fn packed_top_with(&self, tenant: TenantId, units: u32) -> u32 {
        let known = self.extents.is_empty() || self.extents.values().any(|extent| extent.tenant == tenant);
        self.packed_top() + units + if known { 0 } else { self.offset }
    }

    /// Closes all holes; says from where to where each piece went.
    pub(super) fn pack(&mut self) -> BTreeMap<u32, u32> {
        let turns = self.turns();
        self.pack_in(&turns, None).0
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
        let (moved, place) = self.pack_in(&turns, Some((tenant, units)));
        self.units += units;
        (moved, place)
    }

    fn pack_in(&mut self, turns: &[Turn], more: Option<(TenantId, u32)>) -> (BTreeMap<u32, u32>, u32) {
        let old = std::mem::take(&mut self.extents);
        let (mut moved, mut place, mut end) = (BTreeMap::new(), 0, 0);
        for turn in turns {
            let first = end + turn.gap;
            end = first;
            let mut pieces = BTreeMap::new();
            let own = old.values().filter(|extent| extent.tenant == turn.tenant);
            for (&from, &to) in own.flat_map(|extent| &extent.pieces) {
                moved.insert(from, end);
                pieces.insert(end, end + to - from);
                end += to - from;
            }
            if let Some((_, units)) = more.filter(|(tenant, _)| *tenant == turn.tenant) {
                place = end;
                pieces.insert(end, end + units);
                end += units;
            }
            self.extents.insert(first, Extent { tenant: turn.tenant, pieces });
        }
        (moved, place)
    }

    /// Undoes a `vacate` after which nothing else was changed.
    pub(super) fn put_back(&mut self, tenant: TenantId, start: u32, units: u32) {
        self.units += units;
        let around = self.extents.range_mut(..start).next_back();
        match around.filter(|(_, extent)| extent.tenant == tenant && extent.end() >= start) {
            Some((_, extent)) => {
                extent.pieces.insert(start, start + units);
            }
            None => {
                let pieces = BTreeMap::from([(start, start + units)]);
                self.extents.insert(start, Extent { tenant, pieces });
            }
        }
    }

    fn own_hole(&self, tenant: TenantId, units: u32) -> Option<(u32, u32)> {
        let mut own = self.extents.iter().filter(|(_, extent)| extent.tenant == tenant);
        own.find_map(|(&at, extent)| extent.hole(units).map(|start| (at, start)))
    }

    fn growth_room(&self, tenant: TenantId, units: u32, limit: u32) -> Option<(u32, u32)> {
        let nexts = self.extents.keys().skip(1).copied().chain([limit]);
        self.extents
            .iter()
            .zip(nexts)
            .find(|((_, extent), next)| extent.tenant == tenant && extent.end() + units <= *next)
            .map(|((&at, extent), _)| (at, extent.end()))
    }

    /// The lowest hole that takes the need and an offset, else the place behind the last span
    /// and its offset.
    fn new_extent(&self, units: u32, limit: u32) -> Option<u32> {
        let mut start = 0;
        for (&next, extent) in &self.extents {
            if start + units + self.offset <= next {
                return Some(start);
            }
            start = extent.end() + self.offset;
        }
        (start + units <= limit).then_some(start)
    }

    pub(super) fn vacate(&mut self, tenant: TenantId, start: u32, units: u32) {
        let Some((&at, extent)) = self.extents.range_mut(..=start).next_back() else { return };
        debug_assert_eq!((extent.tenant, extent.pieces.get(&start)), (tenant, Some(&(start + units))));
        extent.pieces.remove(&start);
        self.units -= units;
        let first = extent.pieces.first_key_value().map(|(&first, _)| first);
        if first == Some(at) {
            return;
        }
        if let (Some(extent), Some(first)) = (self.extents.remove(&at), first) {
            self.extents.insert(first, extent);
        }
    }

    pub(super) fn check<'a>(&self, records: impl Iterator<Item = &'a Record>) -> Result<(), String> {
        let mut kept = BTreeMap::new();
        let (mut end, mut units) = (0, 0);
        for (&at, extent) in &self.extents {
            if extent.pieces.keys().next() != Some(&at) || at < end {
                return Err(format!("the extent at unit {at} is not where it says, or overlaps"));
            }
            end = extent.end();
            units += extent.pieces.iter().map(|(start, end)| end - start).sum::<u32>();
            kept.extend(extent.pieces.iter().map(|(&start, &end)| (start, (end, extent.tenant))));
        }
        let listed: BTreeMap<_, _> = records
            .filter_map(|record| match (record.region, record.owner) {
                (Class::Persistent, Owner::Tenant(tenant)) => {
                    Some((record.start, (record.start + record.units, tenant)))
                }
                _ => None,
            })
            .collect();
        if units != self.units {
            return Err(format!("persistent region: {units} units counted, {} kept", self.units));
        }
        if kept == listed {
            Ok(())
        } else {
            Err("the persistent region's extents differ from its pieces".into())
        }
    }
}
