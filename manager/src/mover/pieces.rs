//! The pieces that this mover made, under the manager's names.

#![forbid(unsafe_code)]

use super::copy::{DeviceRange, ExportError, Gpu, Piece, Window};
use super::error::OrderError;
use super::progress;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use tidegate_ffi::units::PieceId;
use tidegate_ffi::wire::message::{Location, Move};

/// All pieces. A piece is released when it leaves the table.
#[derive(Default)]
pub struct Pieces {
    pieces: BTreeMap<PieceId, Piece>,
    hosted_bytes: u64,
}

impl Pieces {
    /// Whether pieces of these names and sizes can be made: the names are new, the sizes positive
    /// multiples of `granularity` bytes.
    pub fn check_new(&self, wanted: &[(PieceId, u64)], granularity: u64) -> Result<(), OrderError> {
        check_distinct(wanted.iter().map(|(id, _)| *id))?;
        for &(piece, bytes) in wanted {
            if self.pieces.contains_key(&piece) {
                return Err(OrderError::PieceExists(piece));
            }
            if bytes == 0 || !bytes.is_multiple_of(granularity) {
                return Err(OrderError::PieceSize { piece, bytes, granularity });
            }
        }
        Ok(())
    }

    /// Puts new pieces into the table.
    pub fn add(&mut self, made: Vec<(PieceId, Piece)>) {
        self.hosted_bytes += made.iter().map(|(_, piece)| in_host_memory(piece)).sum::<u64>();
        self.pieces.extend(made);
    }

    /// All pieces: name, bytes, and a descriptor by which others import it.
    pub fn export(&self) -> Result<Vec<(PieceId, u64, OwnedFd)>, ExportError> {
        self.pieces.iter().map(|(id, piece)| Ok((*id, piece.bytes(), piece.export()?))).collect()
    }

    /// Releases pieces, those that there are; returns how many bytes of the GPU they had. What is unknown has been released
    /// already: by a mover before this one, or by its death.
    pub fn remove(&mut self, ids: &[PieceId]) -> Result<u64, OrderError> {
        check_distinct(ids.iter().copied())?;
        let removed: Vec<Piece> = ids.iter().filter_map(|id| self.pieces.remove(id)).collect();
        self.hosted_bytes -= removed.iter().map(in_host_memory).sum::<u64>();
        let release = |piece: Piece| {
            let bytes = piece.bytes() - in_host_memory(&piece);
            drop(piece);
            progress::step();
            bytes
        };
        Ok(removed.into_iter().map(release).sum())
    }

    /// Bytes of those that are host memory.
    pub fn hosted_bytes(&self) -> u64 {
        self.hosted_bytes
    }

    /// Maps the pieces that planned moves name, and checks that the moves lie inside them.
    pub fn map_for(&mut self, gpu: &Gpu, moves: &[Move]) -> Result<(), OrderError> {
        for m in moves {
            self.map(gpu, m.piece)?;
            self.range(m.piece, m.offset, m.bytes)?;
        }
        Ok(())
    }

    /// Bytes of a mapped piece. Unknown is also a piece that was never mapped.
    pub fn range(&self, piece: PieceId, offset: u64, bytes: u64) -> Result<DeviceRange<'_>, OrderError> {
        let range = self.window(piece)?.range(offset, bytes);
        range.map_err(|source| OrderError::OutsidePiece { piece, source })
    }

    /// Overwrites whole pieces with `byte`; returns how many bytes that were.
    pub fn fill(&mut self, gpu: &Gpu, ids: &[PieceId], byte: u8) -> Result<u64, OrderError> {
        self.check_known(ids)?;
        ids.iter().try_for_each(|id| self.map(gpu, *id))?;
        let windows = ids.iter().map(|id| self.window(*id)).collect::<Result<Vec<_>, _>>()?;
        gpu.fill(&windows.iter().map(|window| window.whole()).collect::<Vec<_>>(), byte)?;
        Ok(windows.iter().map(|window| window.bytes()).sum())
    }

    /// Makes a whole piece readable and writable by the GPU's copies, until it is removed.
    fn map(&mut self, gpu: &Gpu, id: PieceId) -> Result<(), OrderError> {
        self.pieces.get_mut(&id).ok_or(OrderError::UnknownPiece(id))?.map(gpu)?;
        progress::step();
        Ok(())
    }

    fn window(&self, id: PieceId) -> Result<&Window, OrderError> {
        self.pieces.get(&id).and_then(Piece::window).ok_or(OrderError::UnknownPiece(id))
    }

    fn check_known(&self, ids: &[PieceId]) -> Result<(), OrderError> {
        match ids.iter().find(|id| !self.pieces.contains_key(id)) {
            Some(unknown) => Err(OrderError::UnknownPiece(*unknown)),
            None => Ok(()),
        }
    }
}

/// Bytes of host memory that a piece is.
fn in_host_memory(piece: &Piece) -> u64 {
    match piece.location() {
        Location::Device => 0,
        Location::Host => piece.bytes(),
    }
}

fn check_distinct(ids: impl Iterator<Item = PieceId>) -> Result<(), OrderError> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if !seen.insert(id) {
            return Err(OrderError::PieceTwice(id));
        }
    }
    Ok(())
}
