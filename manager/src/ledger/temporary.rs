//! The temporary region: pieces from the GPU's other end, without regard to whose they are.

#![forbid(unsafe_code)]

use super::row::{Place, Row};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TemporaryRegion {
    /// One past the GPU's last unit.
    end: u32,
    row: Row<()>,
}

impl TemporaryRegion {
    pub(super) fn new(end: u32) -> Self {
        Self { end, row: Row::new() }
    }

    /// Units of all pieces.
    pub(super) fn units(&self) -> u32 {
        self.row.units()
    }

    /// Where the region begins.
    pub(super) fn bottom(&self) -> u32 {
        self.row.first().map_or(self.end, |place| place.start)
    }

    /// The start of so many free units at or above `floor`: the upper part of the smallest hole, or as high as
    /// possible.
    pub(super) fn hole(&self, units: u32, floor: u32) -> Option<u32> {
        if let Some(hole) = self.row.hole((), units) {
            return Some(hole.end() - units);
        }
        let top = self.row.last().map_or(self.end, |place| place.end);
        let end = if self.end - top >= units { self.end } else { self.bottom() };
        (end >= floor + units).then(|| end - units)
    }

    pub(super) fn insert(&mut self, start: u32, units: u32) {
        self.row.insert(Place { start, end: start + units, owner: () });
    }

    pub(super) fn remove(&mut self, start: u32) {
        self.row.remove(start);
    }

    pub(super) fn check(&self, records: impl Iterator<Item = (u32, u32)>) -> Result<(), String> {
        let listed: Row<()> =
            records.map(|(start, units)| Place { start, end: start + units, owner: () }).collect();
        match listed == self.row {
            true => Ok(()),
            false => Err("the temporary region's row differs from its pieces".into()),
        }
    }
}
