//! The movers: one process per GPU, started by the manager, spoken to over a socket pair.
//!
//! A mover may die at any moment (I7). The manager holds what it held: a descriptor of every piece,
//! of every slab of saved bytes and of the save index; and the orders that it did not answer. The
//! next mover is handed the first and given the second again. Orders are answered in order, so a
//! dead mover has at most begun the first of them, or the first two (`mover::exchange`), and each can be carried out
//! twice.
//!
//! The manager may die too. Its movers live on, and come to the next one with all that they have;
//! the conversation goes on where it was (`line`), and orders that are under way are carried out.
//!
//! ```text
//! MoverGone ─► (pause) ─► start ─► Adopt … Adopt ─► the orders not answered ─► new orders
//!      └ so often in a row without any use: given up; its orders fail, the others' go on
//! ```

use super::outbox::Outbox;
use super::stillness::Stillness;
use super::{Input, VecDeque};
use crate::mover::progress::Reader;
use crate::planner::shares::{PerTier, TIERS};
use crate::process::{ProcessName, dies_within, wait_for_death};
use crate::scheduler::Time;
use anyhow::{Context, bail};
use crossbeam_channel::{Receiver, Sender};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tidegate_ffi::os;
use tidegate_ffi::units::{GpuUuid, PieceId};
use tidegate_ffi::wire::line::{Line, LineError, Numbered};
use tidegate_ffi::wire::message::{Bandwidth, FromMover, ToMover, Will};
use tidegate_ffi::wire::{Connection, MAX_FDS, Parcel};
use tracing::{error, info, warn};

/// So many movers in a row that were of no use are enough: the GPU is given up.
const USELESS_MOVERS: u32 = 5;
/// The pause before the third mover in a row; twice as long before each that follows.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a mover may take to end in order, which it does after the order that it carries out.
const ENDING: Duration = Duration::from_secs(30);
/// Names of orders in one message.
const STEPS: usize = 65536;

/// A GPU to be shared.
pub struct GpuPlan {
    /// Which.
    pub uuid: GpuUuid,
    /// Makes the command of its mover, which finds its end of the socket pair as standard input, for shares of
    /// the tiers in bytes.
    pub mover: Box<dyn Fn(PerTier) -> Command>,
    /// The shares that its first mover gets, in bytes.
    pub shares: PerTier,
    /// Locks on the GPU, held as long as the manager lives; none in tests.
    pub locks: Vec<OwnedFd>,
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
    testament: Option<Testament>,
    ready: bool,
    process: Option<Process>,
    /// How far it has come; `None`: its process has not said yet where that is shown.
    progress: Option<Reader>,
    stillness: Stillness,
    slabs: BTreeMap<u32, Arc<OwnedFd>>,
    index: Option<Arc<OwnedFd>>,
}

/// What movers are told for the time when their manager is dead.
#[derive(Clone, Debug)]
pub(crate) struct Testament {
    pub(crate) will: Will,
    /// The state file.
    pub(crate) state: Arc<OwnedFd>,
}

/// A mover whose manager has died, and what it has.
pub(crate) struct Orphaned {
    pub(crate) connection: Connection,
    pub(crate) name: ProcessName,
    pub(crate) process: OwnedFd,
    /// The number of the last message that it heard.
    pub(crate) heard: u64,
    /// What the dead manager had not heard of it, in order.
    pub(crate) unheard: Vec<(Numbered<FromMover>, Vec<OwnedFd>)>,
    pub(crate) pieces: BTreeMap<PieceId, HeldPiece>,
    pub(crate) slabs: BTreeMap<u32, Arc<OwnedFd>>,
    pub(crate) index: Arc<OwnedFd>,
    /// How far it has come.
    pub(crate) progress: Reader,
}

/// What is written down of a GPU's mover.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MoverState {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    /// Its shares of the tiers, as it last said.
    pub(crate) shares: PerTier,
    /// What lies in each tier.
    pub(crate) stored: PerTier,
    /// What it, or one before it, has measured.
    pub(crate) bandwidth: Bandwidth,
    /// When it was told.
    pub(crate) bandwidth_since: Time,
    /// So many bytes may have to be saved: what movers are told to get memory for.
    warm: u64,
    /// The orders that are not answered, in order.
    orders: VecDeque<ToMover>,
    /// The conversation with the present one.
    line: Line<ToMover>,
    process: Option<ProcessName>,
    pub(crate) replacements: Replacements,
}

/// How often, and how quickly, a GPU's movers were replaced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Replacements {
    /// Movers that took over from one that died.
    pub(crate) count: u64,
    /// From the last one's death to the next one's having everything.
    pub(crate) last: Option<Duration>,
    /// Given up.
    pub(crate) lost: bool,
    /// Movers in a row that were of no use.
    useless: u32,
    #[serde(skip)]
    died: Option<Instant>,
    due: Option<Time>,
    /// Why the last one could not use its GPU, by its own word.
    reason: Option<String>,
}

struct Process {
    name: ProcessName,
    handle: Arc<OwnedFd>,
    outbox: Outbox,
    /// Told to end: it is not killed then.
    ending: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl MoverLink {
    /// Starts a GPU's first mover.
    pub(crate) fn start(plan: GpuPlan, inputs: Sender<Input>) -> anyhow::Result<Self> {
        let mut mover = Self {
            state: MoverState { shares: plan.shares, ..MoverState::default() },
            plan,
            inputs,
            testament: None,
            ready: false,
            process: None,
            progress: None,
            stillness: Stillness::begin(Instant::now()),
            slabs: BTreeMap::new(),
            index: None,
        };
        mover.start_next(&[])?;
        Ok(mover)
    }

    /// Goes on with a mover of a manager that died. Without one the GPU is lost.
    pub(crate) fn inherit(
        plan: GpuPlan,
        inputs: Sender<Input>,
        state: MoverState,
        testament: Testament,
        orphan: Option<Orphaned>,
    ) -> anyhow::Result<Self> {
        let (testament, slabs, index) = (Some(testament), BTreeMap::new(), None);
        // Time in which there was no manager is not held against it.
        let (process, progress, stillness) = (None, None, Stillness::begin(Instant::now()));
        let mut mover =
            Self { plan, inputs, state, testament, ready: true, process, progress, stillness, slabs, index };
        match orphan {
            Some(orphan) => mover.resume(orphan)?,
            None => mover.state.replacements.lost = true,
        }
        Ok(mover)
    }

    fn resume(&mut self, orphan: Orphaned) -> anyhow::Result<()> {
        (self.slabs, self.index, self.progress) = (orphan.slabs, Some(orphan.index), Some(orphan.progress));
        let again = self.state.line.resume(orphan.heard)?;
        let inputs = self.inputs.clone();
        let Orphaned { name, process, connection, unheard, .. } = orphan;
        for (letter, fds) in unheard {
            // The core has ended already if nobody listens.
            let _ = inputs.send(Input::MoverSaid(self.plan.uuid, letter, fds));
        }
        let process = Process::read(self.plan.uuid, name, process, connection, None, inputs)?;
        for letter in again {
            let fds = self.descriptors(&letter.message);
            process.outbox.send(&letter, fds);
        }
        self.process = Some(process);
        Ok(())
    }

    /// What goes with a message that is said again.
    fn descriptors(&self, message: &ToMover) -> Vec<Arc<OwnedFd>> {
        match message {
            ToMover::Will(_) => self.testament.iter().map(|testament| testament.state.clone()).collect(),
            _ => Vec::new(),
        }
    }

    /// What it is to do when the manager dies.
    pub(crate) fn entrust(&mut self, testament: Testament) {
        let (will, state) = (testament.will.clone(), testament.state.clone());
        self.testament = Some(testament);
        self.say(ToMover::Will(will), vec![state]);
    }

    /// What is written down of it.
    pub(crate) fn state(&self) -> &MoverState {
        &self.state
    }

    /// The way to its process.
    pub(super) fn outbox(&self) -> Option<&Outbox> {
        self.process.as_ref().map(|process| &process.outbox)
    }

    /// Ends its process, as nothing can prevent.
    pub(super) fn kill(&self) {
        self.process.iter().for_each(Process::kill);
    }

    /// Whether the GPU was given up.
    pub(super) fn is_lost(&self) -> bool {
        self.state.replacements.lost
    }

    /// Bytes of the GPU that the ledger may use.
    pub(crate) fn usable(&self, limit: Option<u64>) -> u64 {
        self.state.total_bytes.min(limit.unwrap_or(u64::MAX))
    }

    /// Gives an order; the next mover gets it if this one dies before it has answered.
    pub(crate) fn order(&mut self, order: &ToMover) {
        let is_lost = self.is_lost();
        if !self.has_orders() {
            self.stillness = Stillness::begin(Instant::now());
        }
        match order {
            ToMover::Warm { bytes } => self.state.warm = *bytes,
            _ if !is_lost || order.step().is_some() => self.state.orders.push_back(order.clone()),
            _ => {}
        }
        match is_lost {
            true => self.answer_for_nobody(order),
            false => self.say(order.clone(), Vec::new()),
        }
    }

    fn say(&mut self, message: ToMover, fds: Vec<Arc<OwnedFd>>) {
        let Some(process) = &self.process else { return };
        match self.state.line.say(message) {
            Ok(letter) => {
                process.outbox.send(&letter, fds);
            }
            Err(error) => process.kill_because(&error),
        }
    }

    /// What a mover says, unless it was heard before.
    pub(super) fn hear(&mut self, letter: Numbered<FromMover>) -> Option<FromMover> {
        match self.state.line.hear(letter) {
            Ok(message) => {
                if self.state.line.owes_a_word() {
                    self.say(ToMover::Heard, Vec::new());
                }
                message
            }
            Err(error) => {
                self.process.iter().for_each(|process| process.kill_because(&error));
                None
            }
        }
    }

    /// An order is answered, and all that came before it are carried out.
    pub(super) fn answered(&mut self, answer: &FromMover) {
        let of = |order: &ToMover| answer.step().is_some() && order.step() == answer.step();
        let Some(place) = self.state.orders.iter().position(of) else { return };
        if let (ToMover::Share { tier, .. }, FromMover::Done { bytes, .. }) =
            (&self.state.orders[place], answer)
        {
            self.state.shares[tier.index()] = *bytes;
        }
        self.state.orders.drain(..=place);
        self.state.replacements.useless = 0;
        self.stillness = Stillness::begin(Instant::now());
    }

    /// The order that it carries out, or will.
    fn oldest_order(&self) -> Option<&ToMover> {
        self.state.orders.iter().find(|order| order.step().is_some())
    }

    fn has_orders(&self) -> bool {
        self.oldest_order().is_some()
    }

    /// When it is to be looked at next, if it has orders.
    pub(super) fn next_look(&self, limit: Duration) -> Option<Instant> {
        let is_judged = self.process.is_some() && self.has_orders();
        is_judged.then(|| self.stillness.next_look(limit))
    }

    /// Ends a mover that has orders and has not come any further for as long as `limit`: another takes its place, with
    /// a context of its own. One that moves on is left alone, however long its orders take.
    pub(super) fn kill_if_still(&mut self, limit: Duration) {
        let now = Instant::now();
        if self.next_look(limit).is_none_or(|due| due > now) {
            return;
        }
        let count = self.progress.as_ref().map(Reader::count);
        let is_still = self.stillness.look(count, now, limit);
        if let Some(process) = self.process.as_ref().filter(|_| is_still) {
            let (gpu, order) = (self.plan.uuid, self.oldest_order().and_then(ToMover::step));
            warn!(%gpu, pid = process.name.pid, ?order, ?limit, "a mover makes no progress: it is killed");
            process.kill();
            self.stillness = Stillness::begin(now);
        }
    }

    /// Takes the page that shows how far the mover has come.
    fn take_progress(&mut self, page: Option<OwnedFd>) {
        match page.as_ref().map(|page| Reader::open(page.as_fd())) {
            Some(Ok(progress)) => self.progress = Some(progress),
            outcome => {
                let error = outcome.and_then(Result::err);
                warn!(gpu = %self.plan.uuid, ?error, "a mover does not show how far it has come: it is killed");
                self.kill();
            }
        }
    }

    /// Takes note of what concerns the mover alone.
    pub(super) fn note(&mut self, now: Time, message: &FromMover, mut fds: Vec<OwnedFd>) {
        match message {
            FromMover::Ready { name, total_bytes, .. } => {
                self.state.name.clone_from(name);
                self.state.total_bytes = *total_bytes;
                self.ready = true;
                self.take_progress(fds.pop());
            }
            FromMover::Slab { slab } => {
                self.slabs.extend(fds.pop().map(|fd| (*slab, Arc::new(fd))));
            }
            FromMover::SlabGone { slab } => {
                self.slabs.remove(slab);
            }
            FromMover::Stored { bytes } => self.state.stored = *bytes,
            FromMover::Bandwidth(bandwidth) => {
                (self.state.bandwidth, self.state.bandwidth_since) = (*bandwidth, now);
            }
            FromMover::Index => self.index = fds.pop().map(Arc::new).or(self.index.take()),
            FromMover::Adopted { micros } => self.note_adopted(*micros),
            FromMover::Unusable { reason } => self.state.replacements.reason = Some(reason.clone()),
            _ => {}
        }
    }

    fn note_adopted(&mut self, micros: u64) {
        let Some(died) = self.state.replacements.died.take() else { return };
        self.state.replacements.count += 1;
        self.state.replacements.last = Some(died.elapsed());
        let (gpu, slabs) = (self.plan.uuid, self.slabs.len());
        let all_micros = died.elapsed().as_micros() as u64;
        info!(%gpu, all_micros, adopting_micros = micros, slabs, "another mover has taken over");
    }

    /// The mover is dead. `true`: there will be no other.
    pub(super) fn gone(&mut self, now: Time, why: &str) -> bool {
        self.process = None;
        let has_orders = self.has_orders();
        let state = &mut self.state.replacements;
        // It had everything, nothing to do, and no complaint: it was ended from outside.
        if state.died.is_none() && !has_orders && state.reason.is_none() {
            state.useless = 0;
        }
        state.died.get_or_insert_with(Instant::now);
        self.fail(now, why)
    }

    fn fail(&mut self, now: Time, why: &str) -> bool {
        let (gpu, state) = (self.plan.uuid, &mut self.state.replacements);
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
        self.state.replacements.due
    }

    /// Starts the next mover and hands it everything. `true`: there will be none.
    pub(super) fn replace(&mut self, now: Time, pieces: &[(PieceId, HeldPiece)]) -> bool {
        self.state.replacements.due = None;
        match self.start_next(pieces) {
            Ok(()) => false,
            Err(error) => self.fail(now, &format!("{error:#}")),
        }
    }

    fn start_next(&mut self, pieces: &[(PieceId, HeldPiece)]) -> anyhow::Result<()> {
        let process = Process::start(&self.plan, self.state.shares, self.inputs.clone())?;
        (self.state.process, self.state.line) = (Some(process.name), Line::new());
        (self.progress, self.stillness) = (None, Stillness::begin(Instant::now()));
        self.process = Some(process);
        for (message, fds) in self.legacy(pieces) {
            self.say(message, fds);
        }
        for order in self.state.orders.clone() {
            self.say(order, Vec::new());
        }
        if self.state.warm > 0 {
            self.say(ToMover::Warm { bytes: self.state.warm }, Vec::new());
        }
        // Behind the legacy: whom a manager leaves a will has everything.
        if let Some(testament) = self.testament.clone() {
            self.entrust(testament);
        }
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
        // Orders are answered in order: only the first of them, or two, can have been begun.
        let again = self.state.orders.iter().filter_map(ToMover::step).take(STEPS).collect();
        let last = ToMover::Adopt { pieces: Vec::new(), slabs: Vec::new(), again: Some(again) };
        let index = self.index.iter().cloned().collect();
        of_pieces.chain(of_slabs).chain([(last, index)]).collect()
    }

    /// No mover will answer any more: what was asked fails.
    pub(super) fn give_up(&mut self) {
        self.state.orders.retain(|order| order.step().is_some());
        self.state.orders.iter().for_each(|order| self.answer_for_nobody(order));
        // Nobody will read them again.
        self.slabs.clear();
        (self.index, self.state.stored) = (None, [0; TIERS]);
    }

    /// Pieces are destroyed by the death of who made them, once their descriptors are closed;
    /// nothing else can be done without a mover.
    fn answer_for_nobody(&self, order: &ToMover) {
        let Some(step) = order.step() else { return };
        let answer = match order {
            ToMover::Destroy { .. } => FromMover::Done { step, bytes: 0, micros: 0 },
            _ => FromMover::Failed { step, reason: "this GPU's mover is gone".into(), shortage: None },
        };
        // The core has ended already if nobody listens.
        let _ = self.inputs.send(Input::Mover(self.plan.uuid, answer, Vec::new()));
    }
}

impl MoverState {
    /// Of a mover that has heard nothing and has these orders to carry out.
    #[cfg(test)]
    pub(crate) fn of(process: ProcessName, orders: Vec<ToMover>) -> Self {
        let mut line = Line::new();
        orders.iter().for_each(|order| drop(line.say(order.clone()).unwrap()));
        Self { process: Some(process), orders: orders.into(), line, ..Self::default() }
    }

    /// Its present process.
    pub(crate) fn process(&self) -> Option<ProcessName> {
        self.process
    }

    /// The number of the last message that was heard of the mover, if a conversation of which the
    /// mover has heard so much can go on: all that the mover was handed has reached it.
    pub(crate) fn heard(&self, by_mover: u64) -> Result<u64, String> {
        let mut line = self.line.clone();
        let again = line.resume(by_mover).map_err(|error| error.to_string())?;
        match again.iter().any(|letter| matches!(letter.message, ToMover::Adopt { .. })) {
            true => Err("it has not got all that the one before it held".into()),
            false => Ok(self.line.heard()),
        }
    }

    /// Pieces that its orders destroy.
    pub(crate) fn destroys(&self) -> impl Iterator<Item = PieceId> + '_ {
        let pieces = |order: &'_ ToMover| match order {
            ToMover::Destroy { pieces, .. } => pieces.clone(),
            _ => Vec::new(),
        };
        self.orders.iter().flat_map(pieces)
    }
}

impl Process {
    /// Starts a mover's process and the thread that reads from it.
    fn start(plan: &GpuPlan, shares: PerTier, inputs: Sender<Input>) -> anyhow::Result<Self> {
        let (here, there) = os::pair()?;
        let mut command = (plan.mover)(shares);
        let process = os::start_process(command.stdin(Stdio::from(OwnedFd::from(there))))
            .with_context(|| format!("starting the mover of {}", plan.uuid))?;
        let process = OwnChild(process);
        // Nobody has waited for it: the number is its own, even if it is dead.
        let name = ProcessName::of(process.0.id() as i32).context("the mover has no name")?;
        let handle = os::process_handle(Pid::from_child(&process.0))?;
        Self::read(plan.uuid, name, handle, here.into(), Some(process), inputs)
    }

    /// Reads from a process: a child of this manager, or another's.
    fn read(
        gpu: GpuUuid,
        name: ProcessName,
        handle: OwnedFd,
        connection: Connection,
        child: Option<OwnChild>,
        inputs: Sender<Input>,
    ) -> anyhow::Result<Self> {
        let (connection, handle) = (Arc::new(connection), Arc::new(handle));
        let outbox = Outbox::start(connection.clone())?;
        let ending = Arc::new(AtomicBool::new(false));
        let (told, process) = (ending.clone(), handle.clone());
        let read = move || read_all(gpu, &connection, &process, child, &told, &inputs);
        let reader = os::start_thread(Builder::new().name("mover-reader".into()), read)?;
        Ok(Self { name, handle, outbox, ending, reader: Some(reader) })
    }

    fn kill_because(&self, why: &LineError) {
        warn!(pid = self.name.pid, %why, "a mover is killed");
        self.kill();
    }

    fn kill(&self) {
        // It may be dead already.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

/// A process of our own. It does not outlive its being looked after, and is no zombie then.
struct OwnChild(Child);

impl Drop for OwnChild {
    fn drop(&mut self) {
        // Nothing, where it has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads until the mover is dead. A mover that only ends its connection is killed: the memory of
/// its context is back before the next one makes its own.
fn read_all(
    gpu: GpuUuid,
    connection: &Connection,
    process: &OwnedFd,
    child: Option<OwnChild>,
    ending: &AtomicBool,
    inputs: &Sender<Input>,
) {
    let why = loop {
        match connection.receive_parcel::<Numbered<FromMover>>() {
            // What is made can be made again; what else it holds must be held here too.
            Ok(Parcel { message, lost: 1.., .. }) if !matches!(message.message, FromMover::Made { .. }) => {
                break "the manager has no file descriptors left for what it holds".into();
            }
            Ok(Parcel { message, fds, .. }) => {
                if inputs.send(Input::MoverSaid(gpu, message, fds)).is_err() {
                    break "the manager ends".into();
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    if !ending.load(Ordering::Acquire) {
        // It may be dead already.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    wait_for_death(process);
    // How the process of another manager ended is not said.
    let status = child.and_then(|mut child| child.0.wait().ok());
    let why = status.map_or(why.clone(), |status: ExitStatus| format!("{why}; {status}"));
    // The core has ended already if nobody listens.
    let _ = inputs.send(Input::MoverGone(gpu, why));
}

/// The manager ends in order, and its movers with it.
impl Drop for MoverLink {
    fn drop(&mut self) {
        self.say(ToMover::End, Vec::new());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.outbox.close();
        self.outbox.release();
        if !dies_within(&self.handle, ENDING) {
            warn!(pid = self.name.pid, "a mover does not end: it is killed");
            self.kill();
        }
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
            Input::MoverSaid(gpu, letter, fds) => {
                let Some(mover) = movers.get_mut(&gpu) else { continue };
                match mover.hear(letter) {
                    Some(FromMover::Unusable { reason }) => bail!("{gpu} cannot be used: {reason}"),
                    Some(message) => mover.note(Time::ZERO, &message, fds),
                    None => {}
                }
            }
            Input::MoverGone(gpu, why) if movers.get(&gpu).is_some_and(|mover| !mover.ready) => {
                bail!("the mover of {gpu} ended before it was ready: {why}")
            }
            Input::Stop => bail!("it was asked to end before it was ready"),
            other => held_back.push_back(other),
        }
    }
    Ok(())
}
