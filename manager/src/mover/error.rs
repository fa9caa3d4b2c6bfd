//! Why an order failed.

use super::copy::{ExportError, OutOfBounds};
use super::link::LinkError;
use super::plan::PlanError;
use super::tier::TierError;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::CUresult;
use tidegate_ffi::units::{Class, PieceId, TenantId};
use tidegate_ffi::wire::message::Shortage;

/// Why an order failed; it changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The order names a piece that was not made here, or is destroyed.
    #[error("{0} is unknown to the mover")]
    UnknownPiece(PieceId),
    /// The order makes a piece whose name is taken.
    #[error("{0} exists already")]
    PieceExists(PieceId),
    /// The order names a piece twice.
    #[error("{0} is named twice in one order")]
    PieceTwice(PieceId),
    /// More pieces than one answer can carry descriptors.
    #[error("{asked} pieces in one order are more than the {most} that one answer can carry")]
    TooManyPieces {
        /// By the order.
        asked: usize,
        /// By the protocol.
        most: usize,
    },
    /// A size the GPU does not deal in.
    #[error("{piece} of {bytes} bytes: sizes are positive multiples of {granularity} bytes")]
    PieceSize {
        /// Which.
        piece: PieceId,
        /// By the order.
        bytes: u64,
        /// The GPU's.
        granularity: u64,
    },
    /// The moves contradict each other.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A move reaches past its piece.
    #[error("a move leaves {piece}: {source}")]
    OutsidePiece {
        /// Which.
        piece: PieceId,
        /// By how much.
        source: OutOfBounds,
    },
    /// The bytes have been saved already: which copy would be right?
    #[error("{tenant}, {class} bytes {at} to {end}: some are saved already")]
    SavedAlready {
        /// Whose.
        tenant: TenantId,
        /// In which address range.
        class: Class,
        /// The first byte.
        at: u64,
        /// The byte behind the last.
        end: u64,
    },
    /// There is nothing to restore.
    #[error("{tenant}, {class} bytes {at} to {end}: not all of them are saved")]
    NotSaved {
        /// Whose.
        tenant: TenantId,
        /// In which address range.
        class: Class,
        /// The first byte.
        at: u64,
        /// The byte behind the last.
        end: u64,
    },
    /// The tier has no room, or does not know its own memory.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The save index cannot be written or read.
    #[error("the save index: {0}")]
    Index(#[from] std::io::Error),
    /// Bytes that are saved no more cannot be noted as such: to give their place away now would
    /// mislead the next mover.
    #[error("what is not saved any more cannot be noted in the save index: {0}")]
    Unnoted(std::io::Error),
    /// The manager has to hold what bytes move to before they do.
    #[error("the manager cannot be told of memory for saved bytes: {0}")]
    Unheard(#[from] LinkError),
    /// The driver makes no pieces in host memory, or has no more of it.
    #[error("no host memory in the GPU's place: {0}")]
    NoHostMemory(#[source] DriverError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A piece's descriptor cannot be passed on.
    #[error("a piece cannot be passed on: {0}")]
    Descriptor(#[source] std::io::Error),
}

impl From<ExportError> for OrderError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Driver(error) => Self::Driver(error),
            ExportError::Descriptor(error) => Self::Descriptor(error),
        }
    }
}

impl OrderError {
    /// What there was not enough of; `None`: that was not the cause.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            OrderError::Tier(TierError::Full { .. }) => Some(Shortage::Tiers),
            OrderError::Tier(error) => error.is_out_of_memory().then_some(Shortage::Memory),
            OrderError::Driver(error) | OrderError::NoHostMemory(error) => {
                (error.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY).then_some(Shortage::Memory)
            }
            _ => None,
        }
    }
}
