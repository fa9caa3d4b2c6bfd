//! One method for each order of the manager.
//!
//! The GPU's context, and the tiers' first slabs, are made by the first order that moves bytes or
//! measures (DESIGN §2): a GPU with a single tenant pays for neither.

use super::MoverConfig;
use super::bandwidth;
use super::copy::{ExportError, Gpu, Piece};
use super::error::OrderError;
use super::exchange::{Exchange, Order, Save, is_faster};
use super::link::LinkError;
use super::pieces::Pieces;
use super::progress;
use super::save::Store;
use super::staging::Staging;
use super::tier::{Disk, Memory, SlabId, SlabNews, Tiers};
use super::turns::Turns;
use super::warmth::{Chore, Held, Warmth};
use crate::brief::Brief;
use crate::death;
use crate::hardware::{self, MemorySizes};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::units::{GpuUuid, PieceId, Step, TenantId, Tier};
use tidegate_ffi::wire::MAX_FDS;
use tidegate_ffi::wire::message::{Bandwidth, FromMover, Location, Move, TierRates, ToMover};

/// The most host memory that is got and page-locked at once.
const SLAB_BYTES: u64 = 64 << 20;
/// Of the DRAM tier, at most this part of a GPU's memory: what is free in a slab is of no use to pieces in the
/// GPU's place.
const SLABS_PER_GPU: u64 = 8;

/// All that a mover has. The fields are dropped in this order: the GPU's context goes last.
pub struct Mover {
    pieces: Pieces,
    store: Store,
    /// What lies in each tier, as the manager was told.
    stored: [u64; 3],
    engaged: bool,
    /// What was measured, and whether the manager knows.
    bandwidth: Option<Bandwidth>,
    has_told_bandwidth: bool,
    /// Slabs to take over, until the index comes.
    slabs: Vec<(SlabId, OwnedFd)>,
    /// The orders that the mover before this one was given.
    again: BTreeSet<Step>,
    warmth: Warmth,
    gpu: Rc<Gpu>,
}

/// What the manager is told.
pub struct Answer {
    pub message: FromMover,
    pub fds: Vec<OwnedFd>,
}

/// How the manager is told something.
pub type Tell<'a> = &'a mut dyn FnMut(Answer) -> Result<(), LinkError>;

impl From<SlabNews> for Answer {
    fn from(news: SlabNews) -> Self {
        match news {
            SlabNews::Made(slab, fd) => Self { message: FromMover::Slab { slab: slab.0 }, fds: vec![fd] },
            SlabNews::GivenBack(slab) => {
                Self { message: FromMover::SlabGone { slab: slab.0 }, fds: Vec::new() }
            }
        }
    }
}

/// Why a mover ends: another takes its place.
#[derive(Debug, thiserror::Error)]
pub enum Useless {
    /// What a mover before this one held.
    #[error("what another mover held cannot be taken over: {0}")]
    CannotTakeOver(OrderError),
    /// What it has done cannot be noted: another, which begins with a short index, does it again.
    #[error(transparent)]
    Unnoted(OrderError),
    /// The manager cannot be told what it has to know.
    #[error(transparent)]
    Unheard(LinkError),
    /// The driver has failed an order for the first time.
    #[error("{0}: the next mover is given the order again")]
    Broken(DriverError),
}

enum Outcome {
    Made(Vec<OwnedFd>),
    Moved(u64),
    Measured { free_bytes: u64, total_bytes: u64, saved_bytes: u64 },
}

impl Mover {
    /// A mover that has made nothing yet.
    pub fn new(gpu: Rc<Gpu>, config: &MoverConfig) -> io::Result<Self> {
        let total_bytes = gpu.properties().total_bytes;
        let slab_bytes = SLAB_BYTES.min(total_bytes);
        let dram_slab_bytes = SLAB_BYTES.min(total_bytes / SLABS_PER_GPU);
        let dram = Memory::dram(config.dram_bytes, dram_slab_bytes, Some(gpu.clone()));
        let cxl = Memory::cxl(config.cxl.as_ref(), slab_bytes, Some(gpu.clone()));
        let disk = Disk::new(config.disk.clone(), config.disk_bytes);
        let store = Store::new(Tiers { dram, cxl, disk }, Staging::new(gpu.clone()))?;
        Ok(Self {
            pieces: Pieces::default(),
            store,
            stored: [0; 3],
            engaged: false,
            bandwidth: None,
            has_told_bandwidth: false,
            slabs: Vec::new(),
            again: BTreeSet::new(),
            warmth: Warmth::new(Instant::now()),
            gpu,
        })
    }

    /// Whether an order may be carried out at once with the next: it is a save, the link is faster so, and nothing is
    /// done again, which is done as it was first ordered.
    pub fn may_exchange(&self, order: &ToMover) -> bool {
        let link = self.bandwidth.as_ref().and_then(|bandwidth| bandwidth.link.as_ref());
        matches!(order, ToMover::Save { .. }) && self.again.is_empty() && link.is_some_and(is_faster)
    }

    /// Carries two orders out at once, and says what the manager is to be told; `None`: nothing was done.
    ///
    /// # Errors
    /// This mover is of no use any more.
    pub fn exchange(&mut self, exchange: &Exchange<'_>) -> Result<Option<Vec<Answer>>, Useless> {
        let began = Instant::now();
        let moved = self.store.exchange(&self.gpu, &mut self.pieces, exchange).map_err(Useless::Unnoted)?;
        let Some([saved, restored]) = moved else { return Ok(None) };
        progress::step();
        let took = began.elapsed();
        let done = [(exchange.save.order.step, saved), (exchange.restore.step, restored)];
        let done = done.map(|(step, bytes)| answer(step, Ok(Outcome::Moved(bytes)), took));
        Ok(Some(self.with_news(done)))
    }

    /// Carries one order out, and says what the manager is to be told, in this order; by `tell` what it has to know before
    /// the order is done.
    ///
    /// # Errors
    /// This mover is of no use any more.
    pub fn handle(
        &mut self,
        order: ToMover,
        fds: Vec<OwnedFd>,
        tell: Tell<'_>,
    ) -> Result<Vec<Answer>, Useless> {
        match order {
            ToMover::Adopt { pieces, slabs, again } => {
                self.adopt(&pieces, &slabs, again, fds).map_err(Useless::CannotTakeOver)
            }
            order => {
                let answer = self.obey(order, tell)?;
                Ok(self.with_news(answer))
            }
        }
    }

    fn with_news(&mut self, answer: impl IntoIterator<Item = Answer>) -> Vec<Answer> {
        // The manager has the slabs before it hears that bytes are saved in them.
        let mut answers = self.slab_news();
        answers.extend(self.stored_news());
        answers.extend(self.bandwidth_news());
        answers.extend(answer);
        match self.store.tidy() {
            Ok(anew) => answers.extend(anew.map(index)),
            Err(error) => tracing::warn!(%error, "the save index cannot be written anew"),
        }
        answers
    }

    /// From now on it shares the tiers with the movers of other GPUs, by a page in the manager's state file.
    pub fn share_tiers(&mut self, gpu: GpuUuid, state: &OwnedFd) {
        match Turns::of(gpu, state.as_fd()) {
            Ok(turns) => self.store.share_tiers(turns),
            Err(error) => tracing::warn!(%error, "this GPU's mover takes of the tiers what it can get"),
        }
    }

    /// All that it has, in messages for a manager that takes over, where the last of all messages had this number.
    pub fn holdings(&self, said: u64) -> Result<Vec<Answer>, OrderError> {
        let mut parts = Vec::new();
        let (mut pieces, mut slabs) = (self.pieces.export()?, self.store.tiers().share()?);
        let held = |pieces, slabs, more, fds| Answer {
            message: FromMover::Holds { pieces, slabs, more, said },
            fds,
        };
        while !pieces.is_empty() {
            let part: Vec<_> = pieces.drain(..pieces.len().min(MAX_FDS)).collect();
            let names = part.iter().map(|(id, bytes, _)| (*id, *bytes)).collect();
            parts.push(held(names, Vec::new(), true, part.into_iter().map(|(.., fd)| fd).collect()));
        }
        while !slabs.is_empty() {
            let part: Vec<_> = slabs.drain(..slabs.len().min(MAX_FDS)).collect();
            let names = part.iter().map(|(slab, _)| slab.0).collect();
            parts.push(held(Vec::new(), names, true, part.into_iter().map(|(_, fd)| fd).collect()));
        }
        parts.push(held(Vec::new(), Vec::new(), false, vec![self.store.share_journal()?, progress::page()?]));
        Ok(parts)
    }

    fn slab_news(&mut self) -> Vec<Answer> {
        self.store.tiers_mut().news().into_iter().map(Answer::from).collect()
    }

    fn stored_news(&mut self) -> Option<Answer> {
        let bytes = self.store.tiers().used();
        let is_new = std::mem::replace(&mut self.stored, bytes) != bytes;
        is_new.then(|| Answer { message: FromMover::Stored { bytes }, fds: Vec::new() })
    }

    fn bandwidth_news(&mut self) -> Option<Answer> {
        let bandwidth = self.bandwidth.as_mut()?;
        let link = bandwidth.link.and_then(|told| self.store.rates.news(told));
        if let Some(link) = link {
            bandwidth.link = Some(link);
            bandwidth.tiers[Tier::Dram.index()] = Some(TierRates { write: link.to_host, read: link.to_gpu });
            self.has_told_bandwidth = false;
        }
        let is_known = std::mem::replace(&mut self.has_told_bandwidth, true);
        (!is_known).then(|| Answer { message: FromMover::Bandwidth(*bandwidth), fds: Vec::new() })
    }

    /// Takes over what a mover before this one held; with the last part of it, answers.
    fn adopt(
        &mut self,
        pieces: &[(PieceId, u64)],
        slabs: &[u32],
        again: Option<Vec<Step>>,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<Answer>, OrderError> {
        let began = Instant::now();
        let mut fds = fds.into_iter();
        let adopted = pieces.iter().zip(&mut fds);
        let adopted = adopted.map(|(&(id, bytes), fd)| {
            progress::step();
            Ok((id, Piece::adopt(&self.gpu, fd, bytes)?))
        });
        self.add(adopted.collect::<Result<_, DriverError>>()?);
        self.slabs.extend(slabs.iter().copied().map(SlabId).zip(&mut fds));
        death::point("adopt");
        let Some(again) = again else { return Ok(Vec::new()) };
        if let Some(journal) = fds.next() {
            let mut slabs = std::mem::take(&mut self.slabs);
            slabs.sort_unstable_by_key(|(slab, _)| *slab);
            self.store.adopt(slabs, journal, &again)?;
        }
        if !again.is_empty() {
            self.gpu.gather_nothing();
        }
        self.again = again.into_iter().collect();
        let mut answers = vec![index(self.store.share_journal()?)];
        // The mover before this one may have said what the manager must not believe any more.
        self.stored = self.store.tiers().used();
        answers.push(Answer { message: FromMover::Stored { bytes: self.stored }, fds: Vec::new() });
        answers.push(adopted_in(began));
        Ok(answers)
    }

    /// Carries out one order that may fail; `None` when it is not answered.
    ///
    /// The driver may refuse because this process's context is broken. So what it refuses for the
    /// first time, though not for lack of memory, the next mover is given again, with a context of
    /// its own; an answer that it failed comes from there.
    fn obey(&mut self, order: ToMover, tell: Tell<'_>) -> Result<Option<Answer>, Useless> {
        let began = Instant::now();
        let (step, outcome) = match order {
            ToMover::Make { step, pieces, location } => (step, self.make(&pieces, location, tell)),
            ToMover::Save { step, tenant, moves, spared } => (step, self.save(step, tenant, &moves, spared)),
            ToMover::Restore { step, tenant, moves, poison } => {
                (step, self.restore(step, tenant, &moves, &poison))
            }
            ToMover::Scrub { step, pieces } => (step, self.scrub(&pieces)),
            ToMover::Destroy { step, pieces, watched_for_leaks } => {
                (step, self.destroy(&pieces, watched_for_leaks))
            }
            ToMover::Measure { step } => (step, self.measure()),
            ToMover::Share { step, tier, bytes } => {
                (step, Ok(Outcome::Moved(self.store.tiers_mut().set_share(tier, bytes))))
            }
            ToMover::Forget { tenant } => {
                self.store.forget(tenant).map_err(Useless::Unnoted)?;
                return Ok(None);
            }
            ToMover::Warm { bytes } => {
                self.warmth.want(bytes, Instant::now());
                return Ok(None);
            }
            ToMover::Adopt { .. } | ToMover::Will(_) | ToMover::Heard | ToMover::End => return Ok(None),
        };
        progress::step();
        let is_again = self.again.remove(&step);
        match outcome {
            Err(error @ OrderError::Unnoted(_)) => Err(Useless::Unnoted(error)),
            Err(OrderError::Unheard(error)) => Err(Useless::Unheard(error)),
            Err(ref error @ OrderError::Driver(cause)) if !is_again && error.shortage().is_none() => {
                Err(Useless::Broken(cause))
            }
            outcome => Ok(Some(answer(step, outcome, began.elapsed()))),
        }
    }

    fn make(
        &mut self,
        wanted: &[(PieceId, u64)],
        location: Location,
        tell: Tell<'_>,
    ) -> Result<Outcome, OrderError> {
        self.pieces.check_new(wanted, self.gpu.properties().granularity_bytes)?;
        if wanted.len() > MAX_FDS {
            return Err(OrderError::TooManyPieces { asked: wanted.len(), most: MAX_FDS });
        }
        if location == Location::Host {
            let mut tell = |news: Vec<SlabNews>| news.into_iter().map(Answer::from).try_for_each(&mut *tell);
            self.store.make_room_apart(wanted.iter().map(|(_, bytes)| bytes).sum(), &mut tell)?;
        }
        // A failure drops, and so releases, what was made before it.
        let made = wanted.iter().map(|&(id, bytes)| {
            progress::step();
            Ok((id, Piece::make(&self.gpu, bytes, location)?))
        });
        let made = made.collect::<Result<Vec<_>, DriverError>>();
        let made = made.map_err(|error| match location {
            Location::Device => OrderError::Driver(error),
            Location::Host => OrderError::NoHostMemory(error),
        })?;
        let fds = made.iter().map(|(_, piece)| piece.export()).collect::<Result<Vec<_>, ExportError>>()?;
        self.add(made);
        death::point("make");
        Ok(Outcome::Made(fds))
    }

    fn add(&mut self, pieces: Vec<(PieceId, Piece)>) {
        self.pieces.add(pieces);
        self.note_hosted();
    }

    /// Tells the DRAM tier how much of its share is host memory in the GPU's place now.
    fn note_hosted(&mut self) {
        self.store.tiers_mut().dram.set_apart(self.pieces.hosted_bytes());
    }

    fn save(
        &mut self,
        step: Step,
        tenant: TenantId,
        moves: &[Move],
        spared: u64,
    ) -> Result<Outcome, OrderError> {
        self.engage()?;
        let save = Save { order: Order { step, tenant, moves }, spared };
        let bytes = self.store.save(&self.gpu, &mut self.pieces, save)?;
        death::point("save:index");
        Ok(Outcome::Moved(bytes))
    }

    fn restore(
        &mut self,
        step: Step,
        tenant: TenantId,
        moves: &[Move],
        poison: &[PieceId],
    ) -> Result<Outcome, OrderError> {
        self.engage()?;
        let order = Order { step, tenant, moves };
        let bytes = self.store.restore(&self.gpu, &mut self.pieces, order, poison)?;
        death::point("restore:index");
        Ok(Outcome::Moved(bytes))
    }

    fn scrub(&mut self, ids: &[PieceId]) -> Result<Outcome, OrderError> {
        self.engage()?;
        let bytes = self.pieces.fill(&self.gpu, ids, 0)?;
        death::point("scrub");
        Ok(Outcome::Moved(bytes))
    }

    /// Destroys pieces. Moved are their bytes of the GPU; where they are watched, those that did not come free.
    fn destroy(&mut self, ids: &[PieceId], watched: bool) -> Result<Outcome, OrderError> {
        let before = if watched { self.free_bytes() } else { None };
        let bytes = self.pieces.remove(ids)?;
        self.note_hosted();
        death::point("destroy");
        if !watched {
            return Ok(Outcome::Moved(bytes));
        }
        let came = before.and_then(|before| Some(self.free_bytes()?.saturating_sub(before)));
        Ok(Outcome::Moved(came.map_or(0, |came| bytes.saturating_sub(came))))
    }

    /// Free memory, by the driver's word; `None`: it does not say.
    fn free_bytes(&mut self) -> Option<u64> {
        let measured = self.engage().and_then(|()| self.gpu.measure());
        if let Err(error) = &measured {
            tracing::warn!(%error, "it is not known whether memory of destroyed pieces came free");
        }
        measured.ok().map(|(free, _)| free)
    }

    fn measure(&mut self) -> Result<Outcome, OrderError> {
        self.engage()?;
        let (free_bytes, total_bytes) = self.gpu.measure()?;
        if self.bandwidth.is_none() {
            self.bandwidth = Some(bandwidth::measure(&self.gpu, self.store.tiers_mut()));
        }
        death::point("measure");
        Ok(Outcome::Measured { free_bytes, total_bytes, saved_bytes: self.store.tiers().used().iter().sum() })
    }

    /// What is to be done while no order waits. Where the host's memory cannot be told, nothing is got ahead.
    pub fn next_chore(&mut self) -> Chore {
        let tiers = self.store.tiers();
        let host = || hardware::memory_sizes().unwrap_or(MemorySizes { available: 0, total: u64::MAX });
        let held = Held {
            bytes: tiers.held(),
            used: tiers.used_memory(),
            can_grow: tiers.can_grow(),
            next_to_give: tiers.next_to_give(),
        };
        self.warmth.next(held, host, Instant::now())
    }

    /// Gets some memory for saved bytes ahead of need; says what the manager is to be told.
    pub fn get_ahead(&mut self) -> Vec<Answer> {
        let began = Instant::now();
        let got = match self.engage() {
            Ok(()) => self.store.tiers_mut().grow_ahead().map_err(OrderError::from),
            Err(error) => Err(error.into()),
        };
        let held = self.store.tiers().held();
        match got {
            Ok(()) => tracing::debug!(held, took = ?began.elapsed(), "memory for saved bytes was got ahead"),
            Err(error) => {
                tracing::info!(held, %error, "no more memory for saved bytes is got ahead");
                self.warmth.failed();
            }
        }
        self.slab_news()
    }

    /// Gives some memory for saved bytes back that was not needed for long; says what the manager is to be told.
    pub fn give_back(&mut self) -> Vec<Answer> {
        self.store.tiers_mut().give_one_back();
        self.slab_news()
    }

    /// Makes the context and the first slabs, once.
    fn engage(&mut self) -> Result<(), DriverError> {
        if self.engaged {
            return Ok(());
        }
        self.gpu.engage()?;
        progress::step();
        self.engaged = true;
        self.store.tiers_mut().prepare();
        Ok(())
    }
}

fn index(journal: OwnedFd) -> Answer {
    Answer { message: FromMover::Index, fds: vec![journal] }
}

fn adopted_in(began: Instant) -> Answer {
    let micros = began.elapsed().as_micros() as u64;
    Answer { message: FromMover::Adopted { micros }, fds: Vec::new() }
}

fn answer(step: Step, outcome: Result<Outcome, OrderError>, took: Duration) -> Answer {
    let micros = took.as_micros() as u64;
    let message = match outcome {
        Ok(Outcome::Made(fds)) => return Answer { message: FromMover::Made { step }, fds },
        Ok(Outcome::Moved(bytes)) => FromMover::Done { step, bytes, micros },
        Ok(Outcome::Measured { free_bytes, total_bytes, saved_bytes }) => {
            FromMover::Measured { step, free_bytes, total_bytes, saved_bytes }
        }
        Err(error) => failure(step, &error),
    };
    tracing::debug!(message = %Brief(&message), micros, "carried out");
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
    FromMover::Failed { step, reason: error.to_string(), shortage: error.shortage() }
}
