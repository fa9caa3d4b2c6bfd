//! What is written down: all that the core knows and nobody else can tell it.
//!
//! Not written: connections and descriptors, which come again with those whose they are, and who
//! waits for an answer over a connection that ends with the manager.

use super::super::Server;
use super::super::gpus::MoverState;
use crate::scheduler::Scheduler;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tidegate_ffi::units::{GpuUuid, JobId, PieceId, Step};
use tidegate_ffi::wire::message::Ending;

/// The state of a manager.
#[derive(Serialize, Deserialize)]
pub(in super::super) struct State<'a> {
    /// The moment zero of all times, by the system's monotonic clock.
    pub(in super::super) started: Duration,
    /// When this was written, by the manager's clock.
    pub(in super::super) written: Duration,
    pub(in super::super) scheduler: Cow<'a, Scheduler>,
    pub(in super::super) movers: BTreeMap<GpuUuid, Cow<'a, MoverState>>,
    /// Pieces of which the manager has a duplicate, and their bytes.
    pub(in super::super) pieces: Vec<(PieceId, GpuUuid, u64)>,
    pub(in super::super) making: Cow<'a, BTreeMap<Step, Vec<(PieceId, u64)>>>,
    pub(in super::super) tokens: Cow<'a, HashMap<u64, (JobId, u32)>>,
    pub(in super::super) peaks: Cow<'a, HashMap<JobId, [u64; 2]>>,
    pub(in super::super) evictions: Vec<(JobId, Ending)>,
    pub(in super::super) draining: bool,
    pub(in super::super) next_job: u64,
    pub(in super::super) last_client: u64,
}

impl<'a> State<'a> {
    pub(in super::super) fn of(server: &'a Server) -> Self {
        Self {
            started: server.clock.started(),
            written: server.now(),
            scheduler: Cow::Borrowed(&server.scheduler),
            movers: server.movers.iter().map(|(gpu, mover)| (*gpu, Cow::Borrowed(mover.state()))).collect(),
            pieces: server.pieces.iter().map(|(id, piece)| (*id, piece.gpu, piece.bytes)).collect(),
            making: Cow::Borrowed(&server.making),
            tokens: Cow::Borrowed(&server.tokens),
            peaks: Cow::Borrowed(&server.peaks),
            evictions: server.evictions.iter().map(|(job, eviction)| (*job, eviction.how())).collect(),
            draining: server.draining,
            next_job: server.next_job,
            last_client: server.last_client,
        }
    }
}
