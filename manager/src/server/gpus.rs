//! The movers: one process per GPU, started by the manager, spoken to over a socket pair.
//!
//! A mover may die at any moment (I7). The manager holds what it held: a descriptor of every piece,
//! of every slab of saved bytes and of the save index; and the orders that it did not answer. The
//! next mover is handed the first and given the second again. Orders are answered in order, so a
//! dead mover has at most begun the first of them, and each can be carried out twice.
//!
//! ```text
//! MoverGone ─► (pause) ─► start ─► Adopt … Adopt ─► the orders not answered ─► new orders
//!      └ so often in a row without any use: given up; its orders fail, the others' go on
//! ```

use super::outbox::Outbox;
use super::{Input, VecDeque};
use crate::scheduler::Time;
use anyhow::{Context, bail};
use crossbeam_channel::{Receiver, Sender};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{GpuUuid, PieceId, Step};
use tidegate_ffi::wire::message::{FromMover, ToMover};
use tidegate_ffi::wire::{Connection, MAX_FDS};
use tracing::{error, info, warn};

/// So many movers in a row that were of no use are enough: the GPU is given up.
const USELESS_MOVERS: u32 = 5;
/// A mover that had nothing to do for so long was of use.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// The pause before the third mover in a row; twice as long before each that follows.
const PAUSE: Duration = Duration::from_millis(50);
/// Names of orders in one message.
const STEPS: usize = 65536;

/// A GPU to be shared.
pub struct GpuPlan {
    /// Which.
    pub uuid: GpuUuid,
    /// Makes the command of its mover, which finds its end of the socket pair as standard input.
    pub mover: Box<dyn Fn() -> Command>,
    /// A lock that says whose GPU this is; held as long as the manager lives.
    pub lock: Option<OwnedFd>,
}

/// The manager's duplicate of a piece.
#[derive(Debug, Clone)]
pub(crate) struct HeldPiece {
    pub(crate) gpu: GpuUuid,
    pub(crate) bytes: u64,
    pub(crate) fd: Arc<OwnedFd>,
}

/// A GPU's mover as the core sees it, and what the next one needs.
pub(crate) struct MoverLink {
    plan: GpuPlan,
    inputs: Sender<Input>,
    state: MoverState,
    ready: bool,
    process: Option<Process>,
    slabs: BTreeMap<u32, Arc<OwnedFd>>,
    index: Option<Arc<OwnedFd>>,
    pub(crate) replacements: Replacements,
}

/// What is written down of a GPU's mover.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MoverState {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    /// The orders that are not answered, in order.
    orders: VecDeque<ToMover>,
}

/// How often, and how quickly, a GPU's movers were replaced.
#[derive(Debug, Default)]
pub(crate) struct Replacements {
    /// Movers that took over from one that died.
    pub(crate) count: u64,
    /// From the last one's death to the next one's having everything.
    pub(crate) last: Option<Duration>,
    /// Given up.
    pub(crate) lost: bool,
    /// Movers in a row that were of no use.
    useless: u32,
    died: Option<Instant>,
    due: Option<Time>,
    /// Why the last one could not use its GPU, by its own word.
    reason: Option<String>,
}

struct Process {
    outbox: Outbox,
    /// Told to end: it is not killed then.
    ending: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    started: Instant,
}

impl MoverLink {
    /// Starts a GPU's first mover.
    pub(crate) fn start(plan: GpuPlan, inputs: Sender<Input>) -> anyhow::Result<Self> {
        let mut mover = Self {
            plan,
            inputs,
            state: MoverState::default(),
            ready: false,
            process: None,
            slabs: BTreeMap::new(),
            index: None,
            replacements: Replacements::default(),
        };
        mover.start_next(&[])?;
        Ok(mover)
    }

    /// What is written down of it.
    pub(crate) fn state(&self) -> &MoverState {
        &self.state
    }

    /// Sends what is held for it.
    pub(super) fn release(&self) {
        if let Some(process) = &self.process {
            process.outbox.release();
        }
    }

    /// Bytes of the GPU that the ledger may use.
    pub(crate) fn usable(&self, limit: Option<u64>) -> u64 {
        self.state.total_bytes.min(limit.unwrap_or(u64::MAX))
    }

    /// Gives an order; the next mover gets it if this one dies before it has answered.
    pub(crate) fn order(&mut self, order: &ToMover) {
        if self.replacements.lost {
            return self.answer_for_nobody(order);
        }
        self.state.orders.push_back(order.clone());
        if let Some(process) = &self.process {
            process.outbox.send(order, Vec::new());
        }
    }

    /// An order is answered, and all that came before it are carried out.
    pub(super) fn answered(&mut self, step: Step) {
        let Some(place) = self.state.orders.iter().position(|order| order.step() == Some(step)) else {
            return;
        };
        self.state.orders.drain(..=place);
        self.replacements.useless = 0;
    }

    /// Takes note of what concerns the mover alone.
    pub(super) fn note(&mut self, message: &FromMover, mut fds: Vec<OwnedFd>) {
        match message {
            FromMover::Ready { name, total_bytes, .. } => {
                self.state.name.clone_from(name);
                self.state.total_bytes = *total_bytes;
                self.ready = true;
            }
            FromMover::Slab { slab } => {
                self.slabs.extend(fds.pop().map(|fd| (*slab, Arc::new(fd))));
            }
            FromMover::SlabGone { slab } => {
                self.slabs.remove(slab);
            }
            FromMover::Index => self.index = fds.pop().map(Arc::new).or(self.index.take()),
            FromMover::Adopted { micros } => self.note_adopted(*micros),
            FromMover::Unusable { reason } => self.replacements.reason = Some(reason.clone()),
            _ => {}
        }
    }

    fn note_adopted(&mut self, micros: u64) {
        let Some(died) = self.replacements.died.take() else { return };
        self.replacements.count += 1;
        self.replacements.last = Some(died.elapsed());
        let (gpu, slabs) = (self.plan.uuid, self.slabs.len());
        let all_micros = died.elapsed().as_micros() as u64;
        info!(%gpu, all_micros, adopting_micros = micros, slabs, "another mover has taken over");
    }

    /// The mover is dead. `true`: there will be no other.
    pub(super) fn gone(&mut self, now: Time, why: &str) -> bool {
        let process = self.process.take();
        let useful =
            |process: &Process| self.state.orders.is_empty() && process.started.elapsed() >= LONG_LIFE;
        if process.as_ref().is_some_and(useful) {
            self.replacements.useless = 0;
        }
        self.replacements.died.get_or_insert_with(Instant::now);
        self.fail(now, why)
    }

    fn fail(&mut self, now: Time, why: &str) -> bool {
        let (gpu, state) = (self.plan.uuid, &mut self.replacements);
        let said = state.reason.take();
        let why = said.as_deref().unwrap_or(why);
        state.useless += 1;
        if state.useless >= USELESS_MOVERS {
            state.lost = true;
            error!(
                %gpu, why,
                "{USELESS_MOVERS} movers in a row died before they were of use: this GPU is given up. \
                 Jobs that wait for it end, jobs that run on it keep what they have; restart the manager"
            );
            return true;
        }
        warn!(%gpu, why, "a mover is gone; another takes its place");
        let pause = if state.useless == 1 { Duration::ZERO } else { PAUSE * (1 << (state.useless - 2)) };
        state.due = Some(now + pause);
        false
    }

    /// When the next mover is to be started, if one is.
    pub(super) fn due(&self) -> Option<Time> {
        self.replacements.due
    }

    /// Starts the next mover and hands it everything. `true`: there will be none.
    pub(super) fn replace(&mut self, now: Time, pieces: &[(PieceId, HeldPiece)]) -> bool {
        self.replacements.due = None;
        match self.start_next(pieces) {
            Ok(()) => false,
            Err(error) => self.fail(now, &format!("{error:#}")),
        }
    }

    fn start_next(&mut self, pieces: &[(PieceId, HeldPiece)]) -> anyhow::Result<()> {
        let process = Process::start(&self.plan, self.inputs.clone())?;
        for (message, fds) in self.legacy(pieces) {
            process.outbox.send(&message, fds);
        }
        for order in &self.state.orders {
            process.outbox.send(order, Vec::new());
        }
        self.process = Some(process);
        Ok(())
    }

    /// What a mover is handed first: all that the one before held. The last message brings the
    /// index.
    fn legacy(&self, pieces: &[(PieceId, HeldPiece)]) -> Vec<(ToMover, Vec<Arc<OwnedFd>>)> {
        let of_pieces = pieces.chunks(MAX_FDS).map(|pieces| {
            let names = pieces.iter().map(|(id, piece)| (*id, piece.bytes)).collect();
            let fds = pieces.iter().map(|(_, piece)| piece.fd.clone()).collect();
            (ToMover::Adopt { pieces: names, slabs: Vec::new(), again: None }, fds)
        });
        let slabs: Vec<_> = self.slabs.iter().collect();
        let of_slabs = slabs.chunks(MAX_FDS).map(|slabs| {
            let fds = slabs.iter().map(|(_, fd)| Arc::clone(fd)).collect();
            let slabs = slabs.iter().map(|(slab, _)| **slab).collect();
            (ToMover::Adopt { pieces: Vec::new(), slabs, again: None }, fds)
        });
        // Orders are answered in order: only the first of them can have been begun.
        let again = self.state.orders.iter().filter_map(ToMover::step).take(STEPS).collect();
        let last = ToMover::Adopt { pieces: Vec::new(), slabs: Vec::new(), again: Some(again) };
        let index = self.index.iter().cloned().collect();
        of_pieces.chain(of_slabs).chain([(last, index)]).collect()
    }

    /// No mover will answer any more: what was asked fails.
    pub(super) fn give_up(&mut self) {
        for order in std::mem::take(&mut self.state.orders) {
            self.answer_for_nobody(&order);
        }
        // Nobody will read them again.
        self.slabs.clear();
        self.index = None;
    }

    /// Pieces are destroyed by the death of who made them, once their descriptors are closed;
    /// nothing else can be done without a mover.
    fn answer_for_nobody(&self, order: &ToMover) {
        let Some(step) = order.step() else { return };
        let answer = match order {
            ToMover::Destroy { .. } => FromMover::Done { step, bytes: 0, micros: 0 },
            _ => FromMover::Failed { step, reason: "this GPU's mover is gone".into(), out_of_memory: false },
        };
        // The core has ended already if nobody listens.
        let _ = self.inputs.send(Input::Mover(self.plan.uuid, answer, Vec::new()));
    }
}

impl Process {
    /// Starts a mover's process and the thread that reads from it.
    fn start(plan: &GpuPlan, inputs: Sender<Input>) -> anyhow::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        let process = (plan.mover)()
            .stdin(Stdio::from(OwnedFd::from(there)))
            .spawn()
            .with_context(|| format!("starting the mover of {}", plan.uuid))?;
        let connection = Arc::new(Connection::from(here));
        let outbox = Outbox::start(connection.clone())?;
        let (gpu, ending) = (plan.uuid, Arc::new(AtomicBool::new(false)));
        let told = ending.clone();
        let reader = std::thread::Builder::new()
            .name("mover-reader".into())
            .spawn(move || read_all(gpu, &connection, process, &told, &inputs))?;
        Ok(Self { outbox, ending, reader: Some(reader), started: Instant::now() })
    }
}

/// Reads until the mover is dead. A mover that only ends its connection is killed: the memory of
/// its context is back before the next one makes its own.
fn read_all(
    gpu: GpuUuid,
    connection: &Connection,
    mut process: Child,
    ending: &AtomicBool,
    inputs: &Sender<Input>,
) {
    let why = loop {
        match connection.receive::<FromMover>() {
            Ok((message, fds)) => {
                if inputs.send(Input::Mover(gpu, message, fds)).is_err() {
                    break "the manager ends".into();
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    if !ending.load(Ordering::Acquire) {
        // It may be dead already.
        let _ = process.kill();
    }
    let why =
        process.wait().map_or_else(|error| format!("{why}; {error}"), |status| format!("{why}; {status}"));
    // The core has ended already if nobody listens.
    let _ = inputs.send(Input::MoverGone(gpu, why));
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.outbox.close();
        self.outbox.release();
        // It ends with its connection; waiting keeps it from staying a zombie.
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// Waits until every GPU's mover has said what it found.
pub(super) fn wait_until_ready(
    movers: &mut BTreeMap<GpuUuid, MoverLink>,
    inputs: &Receiver<Input>,
    held_back: &mut VecDeque<Input>,
) -> anyhow::Result<()> {
    while movers.values().any(|mover| !mover.ready) {
        match inputs.recv()? {
            Input::Mover(gpu, FromMover::Unusable { reason }, _) => bail!("{gpu} cannot be used: {reason}"),
            Input::MoverGone(gpu, why) if movers.get(&gpu).is_some_and(|mover| !mover.ready) => {
                bail!("the mover of {gpu} ended before it was ready: {why}")
            }
            Input::Mover(gpu, message @ FromMover::Ready { .. }, fds) => {
                if let Some(mover) = movers.get_mut(&gpu) {
                    mover.note(&message, fds);
                }
            }
            other => held_back.push_back(other),
        }
    }
    Ok(())
}
