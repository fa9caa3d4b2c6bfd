//! One method for each order of the manager.
//!
//! The GPU's context, and the tier's first slab, are made by the first order that moves bytes or
//! measures (DESIGN §2): a GPU with a single tenant pays for neither.

use super::copy::{Gpu, Piece};
use super::error::OrderError;
use super::pieces::Pieces;
use super::save::Store;
use super::tier::{Dram, Tier};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::units::{PieceId, Step, TenantId};
use tidegate_ffi::wire::MAX_FDS;
use tidegate_ffi::wire::message::{FromMover, Move, ToMover};

/// The most host memory that is got and page-locked at once.
const SLAB_BYTES: u64 = 64 << 20;

/// All that a mover has. The fields are dropped in this order: the GPU's context goes last.
pub struct Mover {
    pieces: Pieces,
    store: Store<Dram>,
    engaged: bool,
    gpu: Rc<Gpu>,
}

/// What the manager is told.
pub struct Answer {
    pub message: FromMover,
    pub fds: Vec<OwnedFd>,
}

enum Outcome {
    Made(Vec<OwnedFd>),
    Moved(u64),
    Measured { free_bytes: u64, total_bytes: u64, saved_bytes: u64 },
}

impl Mover {
    /// A mover that has made nothing yet, with `dram_bytes` for saved bytes.
    pub fn new(gpu: Rc<Gpu>, dram_bytes: u64) -> Self {
        let slab_bytes = SLAB_BYTES.min(gpu.properties().total_bytes);
        let tier = Dram::new(dram_bytes, slab_bytes, Some(gpu.clone()));
        Self { pieces: Pieces::default(), store: Store::new(tier), engaged: false, gpu }
    }

    /// Carries one order out; `None` when it is not answered.
    pub fn handle(&mut self, order: ToMover) -> Option<Answer> {
        let began = Instant::now();
        let (step, outcome) = match order {
            ToMover::Make { step, pieces } => (step, self.make(&pieces)),
            ToMover::Save { step, tenant, moves } => (step, self.save(tenant, &moves)),
            ToMover::Restore { step, tenant, moves, poison } => (step, self.restore(tenant, &moves, &poison)),
            ToMover::Scrub { step, pieces } => (step, self.scrub(&pieces)),
            ToMover::Destroy { step, pieces } => (step, self.destroy(&pieces)),
            ToMover::Measure { step } => (step, self.measure()),
            ToMover::Forget { tenant } => {
                self.store.forget(tenant);
                return None;
            }
        };
        Some(answer(step, outcome, began))
    }

    fn make(&mut self, wanted: &[(PieceId, u64)]) -> Result<Outcome, OrderError> {
        self.pieces.check_new(wanted, self.gpu.properties().granularity_bytes)?;
        if wanted.len() > MAX_FDS {
            return Err(OrderError::TooManyPieces { asked: wanted.len(), most: MAX_FDS });
        }
        // A failure drops, and so releases, what was made before it.
        let made = wanted.iter().map(|&(id, bytes)| Ok((id, Piece::make(&self.gpu, bytes)?)));
        let made = made.collect::<Result<Vec<_>, DriverError>>()?;
        let fds = made.iter().map(|(_, piece)| piece.export()).collect::<Result<Vec<_>, DriverError>>()?;
        self.pieces.add(made);
        Ok(Outcome::Made(fds))
    }

    fn save(&mut self, tenant: TenantId, moves: &[Move]) -> Result<Outcome, OrderError> {
        self.engage()?;
        self.store.save(&self.gpu, &mut self.pieces, tenant, moves).map(Outcome::Moved)
    }

    fn restore(
        &mut self,
        tenant: TenantId,
        moves: &[Move],
        poison: &[PieceId],
    ) -> Result<Outcome, OrderError> {
        self.engage()?;
        self.store.restore(&self.gpu, &mut self.pieces, tenant, moves, poison).map(Outcome::Moved)
    }

    fn scrub(&mut self, ids: &[PieceId]) -> Result<Outcome, OrderError> {
        self.engage()?;
        self.pieces.fill(&self.gpu, ids, 0).map(Outcome::Moved)
    }

    fn destroy(&mut self, ids: &[PieceId]) -> Result<Outcome, OrderError> {
        self.pieces.remove(ids).map(Outcome::Moved)
    }

    fn measure(&mut self) -> Result<Outcome, OrderError> {
        self.engage()?;
        let (free_bytes, total_bytes) = self.gpu.measure()?;
        Ok(Outcome::Measured { free_bytes, total_bytes, saved_bytes: self.store.saved_bytes() })
    }

    /// Makes the context and the first slab, once.
    fn engage(&mut self) -> Result<(), DriverError> {
        if self.engaged {
            return Ok(());
        }
        self.gpu.engage()?;
        self.engaged = true;
        if let Err(error) = self.store.tier_mut().prepare() {
            tracing::warn!(%error, "no memory for saved bytes could be prepared ahead");
        }
        Ok(())
    }
}

fn answer(step: Step, outcome: Result<Outcome, OrderError>, began: Instant) -> Answer {
    let micros = began.elapsed().as_micros() as u64;
    let message = match outcome {
        Ok(Outcome::Made(fds)) => return Answer { message: FromMover::Made { step }, fds },
        Ok(Outcome::Moved(bytes)) => FromMover::Done { step, bytes, micros },
        Ok(Outcome::Measured { free_bytes, total_bytes, saved_bytes }) => {
            FromMover::Measured { step, free_bytes, total_bytes, saved_bytes }
        }
        Err(error) => failure(step, &error),
    };
    tracing::debug!(?message, micros, "carried out");
    Answer { message, fds: Vec::new() }
}

fn failure(step: Step, error: &OrderError) -> FromMover {
    match error {
        // Tried again and again: the tier says when it becomes full, and when it is well again.
        OrderError::Tier(tier) if tier.is_out_of_memory() => {
            tracing::debug!(%step, %error, "an order failed");
        }
        _ => tracing::warn!(%step, %error, "an order failed"),
    }
    FromMover::Failed { step, reason: error.to_string(), out_of_memory: error.is_out_of_memory() }
}
