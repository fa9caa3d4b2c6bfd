//! What a save or restore has to copy: checked, merged, and dealt over the tier's extents. Pure.
//!
//! ```text
//! moves, by their place in the tenant's address range   ├──── piece 1 ────┼─ piece 2 ─┼─ 2 ─┤
//! extents of the tier, end to end                       ├─── slab 0 ───┼──── slab 1 ────────┤
//! parts                                                 ├──────────────┼──┼─────────────────┤
//! ```
//! Invariant: each byte of the moves is in exactly one part, and each byte of the extents too.

#![forbid(unsafe_code)]

use super::tier::{Extent, ZEROS};
use std::ops::Range;
use tidegate_ffi::units::{Class, PieceId};
use tidegate_ffi::wire::message::Move;

/// One copy between a piece and the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The piece.
    pub piece: PieceId,
    /// Where in the piece.
    pub offset: u64,
    /// Which of the tenant's address ranges.
    pub class: Class,
    /// Where in that range.
    pub at: u64,
    /// Where in the tier, and how many bytes.
    pub extent: Extent,
}

/// Moves that contradict themselves or each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A move wraps around the end of all addresses.
    #[error("a move of {0} bytes ends past the last address")]
    Endless(u64),
    /// Two moves name the same byte of the tenant.
    #[error("two moves name {0} byte {1}")]
    SameName(Class, u64),
    /// Two moves name the same byte of a piece.
    #[error("two moves name byte {1} of {0}")]
    SamePlace(PieceId, u64),
}

/// The moves in the order of the tenant's addresses, neighbours merged, empty ones left out.
pub fn plan(moves: &[Move]) -> Result<Vec<Move>, PlanError> {
    let mut moves: Vec<Move> = moves.iter().copied().filter(|m| m.bytes > 0).collect();
    moves.iter().try_for_each(check_end)?;
    check_places(&mut moves)?;
    check_names(&mut moves)?;
    Ok(merge(moves))
}

/// Deals planned moves over extents of as many bytes, in order.
pub fn deal(moves: &[Move], extents: &[Extent]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(moves.len() + extents.len());
    let mut extents = extents.iter().copied();
    let mut left = None;
    for m in moves {
        let mut done = 0;
        while done < m.bytes {
            let Some(extent) = left.take().or_else(|| extents.next()) else { return parts };
            let (extent, rest) = extent.split(m.bytes - done);
            parts.push(part(m, done, extent));
            done += extent.bytes;
            left = rest;
        }
    }
    parts
}

impl Part {
    /// The bytes `from .. to` of the part.
    fn slice(self, from: u64, to: u64) -> Self {
        let extent = self.extent.slice(from, to);
        Self { offset: self.offset + from, at: self.at + from, extent, ..self }
    }

    /// Cut where runs of zeros begin and end (places in the part, in order); these lie nowhere.
    pub fn without(self, zeros: &[Range<u64>]) -> Vec<Self> {
        let mut parts = Vec::with_capacity(2 * zeros.len() + 1);
        let mut done = 0;
        for run in zeros {
            parts.extend((done < run.start).then(|| self.slice(done, run.start)));
            let zeros = self.slice(run.start, run.end);
            let nowhere = Extent { slab: ZEROS, start: zeros.at, ..zeros.extent };
            parts.push(Self { extent: nowhere, ..zeros });
            done = run.end;
        }
        parts.extend((done < self.extent.bytes).then(|| self.slice(done, self.extent.bytes)));
        parts
    }
}

/// Parts in groups of at most `bytes` bytes, cut where one is larger.
pub fn in_steps(parts: &[Part], bytes: u64) -> Vec<Vec<Part>> {
    let mut steps: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let mut done = 0;
        while done < part.extent.bytes {
            if room == 0 {
                steps.push(Vec::new());
                room = bytes;
            }
            let next = part.slice(done, done + room);
            (done, room) = (done + next.extent.bytes, room - next.extent.bytes);
            steps.last_mut().into_iter().for_each(|step| step.push(next));
        }
    }
    steps
}

fn part(m: &Move, done: u64, extent: Extent) -> Part {
    Part { piece: m.piece, offset: m.offset + done, class: m.class, at: m.at + done, extent }
}

fn check_end(m: &Move) -> Result<(), PlanError> {
    let ends = m.at.checked_add(m.bytes).zip(m.offset.checked_add(m.bytes));
    ends.map(drop).ok_or(PlanError::Endless(m.bytes))
}

/// Sorts by place in the pieces, where no two moves may meet.
fn check_places(moves: &mut [Move]) -> Result<(), PlanError> {
    moves.sort_unstable_by_key(|m| (m.piece, m.offset));
    let meets = |a: &Move, b: &Move| a.piece == b.piece && a.offset + a.bytes > b.offset;
    match moves.windows(2).find(|pair| meets(&pair[0], &pair[1])) {
        Some(pair) => Err(PlanError::SamePlace(pair[1].piece, pair[1].offset)),
        None => Ok(()),
    }
}

/// Sorts by place in the tenant's address ranges, where no two moves may meet.
fn check_names(moves: &mut [Move]) -> Result<(), PlanError> {
    moves.sort_unstable_by_key(|m| (m.class, m.at));
    let meets = |a: &Move, b: &Move| a.class == b.class && a.at + a.bytes > b.at;
    match moves.windows(2).find(|pair| meets(&pair[0], &pair[1])) {
        Some(pair) => Err(PlanError::SameName(pair[1].class, pair[1].at)),
        None => Ok(()),
    }
}

fn merge(moves: Vec<Move>) -> Vec<Move> {
    let mut merged: Vec<Move> = Vec::with_capacity(moves.len());
    for m in moves {
        match merged.last_mut() {
            Some(last) if continues(last, &m) => last.bytes += m.bytes,
            _ => merged.push(m),
        }
    }
    merged
}

/// Whether `b` begins where `a` ends, on both sides.
fn continues(a: &Move, b: &Move) -> bool {
    (a.piece, a.class, a.offset + a.bytes, a.at + a.bytes) == (b.piece, b.class, b.offset, b.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::tier::SlabId;
    use proptest::prelude::*;

    fn moved(piece: u64, offset: u64, bytes: u64, at: u64) -> Move {
        Move { piece: PieceId(piece), offset, bytes, class: Class::Temporary, at }
    }

    fn extent(slab: u32, start: u64, bytes: u64) -> Extent {
        Extent { slab: SlabId(slab), start, bytes }
    }

    #[test]
    fn neighbours_on_both_sides_become_one_copy() {
        let moves = [moved(1, 8, 4, 108), moved(1, 0, 8, 100), moved(2, 0, 4, 112), moved(2, 9, 0, 7)];
        assert_eq!(plan(&moves), Ok(vec![moved(1, 0, 12, 100), moved(2, 0, 4, 112)]));
    }

    #[test]
    fn contradicting_moves_are_refused() {
        assert_eq!(plan(&[moved(1, u64::MAX, 2, 0)]), Err(PlanError::Endless(2)));
        assert_eq!(plan(&[moved(1, 0, 2, u64::MAX)]), Err(PlanError::Endless(2)));
        let named_twice = [moved(1, 0, 8, 0), moved(2, 0, 8, 7)];
        assert_eq!(plan(&named_twice), Err(PlanError::SameName(Class::Temporary, 7)));
        let placed_twice = [moved(1, 0, 8, 0), moved(1, 7, 8, 100)];
        assert_eq!(plan(&placed_twice), Err(PlanError::SamePlace(PieceId(1), 7)));
    }

    #[test]
    fn parts_end_where_a_move_or_an_extent_ends() {
        let moves = [moved(1, 0, 10, 0), moved(2, 5, 6, 50)];
        let parts = deal(&moves, &[extent(0, 0, 8), extent(1, 3, 8)]);
        let seen: Vec<_> = parts.iter().map(|p| (p.piece.0, p.offset, p.at, p.extent)).collect();
        let wanted = [(1, 0, 0, extent(0, 0, 8)), (1, 8, 8, extent(1, 3, 2)), (2, 5, 50, extent(1, 5, 6))];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn steps_are_full_but_for_the_last() {
        let parts = deal(&[moved(1, 0, 10, 0), moved(2, 5, 6, 50)], &[extent(0, 0, 16)]);
        let steps = in_steps(&parts, 7);
        let shown: Vec<Vec<_>> = steps
            .iter()
            .map(|step| {
                step.iter().map(|p| (p.piece.0, p.offset, p.at, p.extent.start, p.extent.bytes)).collect()
            })
            .collect();
        let wanted =
            [vec![(1, 0, 0, 0, 7)], vec![(1, 7, 7, 7, 3), (2, 5, 50, 10, 4)], vec![(2, 9, 54, 14, 2)]];
        assert_eq!(shown, wanted);
        assert!(in_steps(&[], 7).is_empty());
    }

    #[test]
    fn zeros_are_cut_out_of_a_part_and_lie_nowhere() {
        let whole = Part {
            piece: PieceId(1),
            offset: 5,
            class: Class::Temporary,
            at: 50,
            extent: extent(3, 500, 30),
        };
        let shown = |zeros: &[(u64, u64)]| -> Vec<_> {
            let zeros: Vec<Range<u64>> = zeros.iter().map(|&(start, end)| start..end).collect();
            let parts = whole.without(&zeros);
            parts.iter().map(|p| (p.offset, p.at, p.extent.slab, p.extent.start, p.extent.bytes)).collect()
        };
        let there = |done: u64, bytes: u64| (5 + done, 50 + done, SlabId(3), 500 + done, bytes);
        let nowhere = |done: u64, bytes: u64| (5 + done, 50 + done, ZEROS, 50 + done, bytes);
        assert_eq!(shown(&[]), [there(0, 30)]);
        assert_eq!(shown(&[(0, 30)]), [nowhere(0, 30)]);
        assert_eq!(shown(&[(0, 10), (20, 30)]), [nowhere(0, 10), there(10, 10), nowhere(20, 10)]);
        assert_eq!(shown(&[(10, 20)]), [there(0, 10), nowhere(10, 10), there(20, 10)]);
    }

    /// Every byte of the parts: its place in a piece, its name, its place in the tier.
    fn bytes_of(parts: &[Part]) -> Vec<(u64, u64, u64, u32, u64)> {
        let each = |p: &Part| {
            let p = *p;
            (0..p.extent.bytes)
                .map(move |i| (p.piece.0, p.offset + i, p.at + i, p.extent.slab.0, p.extent.start + i))
        };
        parts.iter().flat_map(each).collect()
    }

    proptest! {
        #[test]
        fn every_byte_is_dealt_once_and_in_order(
            lengths in proptest::collection::vec((0u64..3, 1u64..9), 1..20),
            cuts in proptest::collection::vec(1u64..9, 1..40),
        ) {
            let mut at = 0;
            let moves: Vec<Move> = lengths.iter().map(|&(gap, bytes)| {
                at += gap + bytes;
                moved(at % 3, 1000 + at - bytes, bytes, at - bytes)
            }).collect();
            let total: u64 = moves.iter().map(|m| m.bytes).sum();
            let mut left = total;
            let mut extents = Vec::new();
            for (slab, bytes) in cuts.iter().cycle().enumerate() {
                if left == 0 { break }
                extents.push(extent(slab as u32, 7, left.min(*bytes)));
                left -= left.min(*bytes);
            }
            let planned = plan(&moves).unwrap();
            let dealt = bytes_of(&deal(&planned, &extents));
            let named: Vec<_> = moves.iter().flat_map(|m| {
                let m = *m;
                (0..m.bytes).map(move |i| (m.piece.0, m.offset + i, m.at + i))
            }).collect();
            let placed: Vec<_> = extents.iter().flat_map(|e| {
                let e = *e;
                (0..e.bytes).map(move |i| (e.slab.0, e.start + i))
            }).collect();
            prop_assert_eq!(dealt.iter().map(|b| (b.0, b.1, b.2)).collect::<Vec<_>>(), named);
            prop_assert_eq!(dealt.iter().map(|b| (b.3, b.4)).collect::<Vec<_>>(), placed);
        }
    }
}
