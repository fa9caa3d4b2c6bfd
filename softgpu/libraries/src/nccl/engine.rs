//! What an operation does when its stream comes to it.
//!
//! Each rank that takes part *offers* its operation to all others, and goes on when all offers are there and
//! alike: until then its stream is occupied. Then bytes pass, through a ring for each pair of ranks. All that a
//! rank does at a time goes on side by side; when nothing can, it waits to be called by another rank.

use super::comm::{Comm, Plan};
use super::element::{self, Element, Reduction};
use super::segment::{ALIGNMENT, Segment, State, Words};
use super::{Answer, Code, Failure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

/// What all ranks do together, or two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    Message = 1,
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

impl Kind {
    fn name(number: u64) -> &'static str {
        match number {
            1 => "a message",
            2 => "ncclAllReduce",
            3 => "ncclBroadcast",
            4 => "ncclReduce",
            5 => "ncclAllGather",
            6 => "ncclReduceScatter",
            7 => "ncclAlltoAll",
            _ => "an unknown operation",
        }
    }
}

/// An operation of all ranks. `count` is the caller's: of [`Kind::AllGather`] what each rank sends, of
/// [`Kind::ReduceScatter`] what each receives, of [`Kind::AllToAll`] what passes between two.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    pub kind: Kind,
    pub send: u64,
    pub receive: u64,
    pub count: u64,
    pub element: Element,
    pub reduction: Reduction,
    pub root: usize,
}

/// A message to or from another rank.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub is_sent: bool,
    pub peer: usize,
    pub place: u64,
    pub count: u64,
    pub element: Element,
}

impl Collective {
    fn bytes(&self) -> u64 {
        self.count * self.element.bytes()
    }

    fn words(&self) -> Words {
        [self.kind as u64, self.count, self.element as u64, self.reduction.number(), self.root as u64]
    }
}

impl Message {
    fn bytes(&self) -> u64 {
        self.count * self.element.bytes()
    }

    fn words(&self) -> Words {
        [Kind::Message as u64, self.count, self.element as u64, 0, 0]
    }
}

/// Carries out a plan; returns when all of it is done.
///
/// # Errors
/// The operations of the ranks do not match, a rank that is needed is gone, the communicator was aborted, or
/// memory of the plan cannot be reached. What was received by then is incomplete.
pub fn run(comm: &Comm, segment: &Segment, plan: &Plan) -> Answer {
    let engine = Engine { comm, segment, rank: comm.rank, ranks: comm.ranks };
    for collective in &plan.collectives {
        engine.collective(collective)?;
    }
    engine.messages(&plan.messages)
}

/// How far something has come.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Done,
    Moved,
    Stuck,
}

impl Step {
    /// Of two things that go on side by side.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, other) => other,
            (one, Self::Done) => one,
            (Self::Stuck, Self::Stuck) => Self::Stuck,
            _ => Self::Moved,
        }
    }
}

struct Engine<'a> {
    comm: &'a Comm,
    segment: &'a Segment,
    rank: usize,
    ranks: usize,
}

/// Bytes on their way to a peer.
struct Out {
    peer: usize,
    from: u64,
    bytes: u64,
    done: u64,
}

/// Bytes on their way from a peer.
struct In {
    peer: usize,
    to: u64,
    bytes: u64,
    done: u64,
}

/// Operands of all peers on their way into a result.
struct Sum {
    element: Element,
    reduction: Reduction,
    /// This rank's own operand.
    own: u64,
    result: u64,
    bytes: u64,
    done: u64,
}

/// The most elements that are reduced at a time.
const AT_ONCE: u64 = 16 << 10;

impl Engine<'_> {
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.ranks).filter(move |peer| *peer != rank)
    }

    /// Takes steps until all is done; waits for a call when there is none to take.
    fn until_done(&self, mut step: impl FnMut() -> Answer<Step>) -> Answer {
        loop {
            let calls = self.segment.calls(self.rank);
            self.comm.check_not_aborted()?;
            match step()? {
                Step::Done => return Ok(()),
                Step::Moved => {}
                Step::Stuck => self.segment.wait(self.rank, calls, None),
            }
        }
    }

    /// What to do when a peer has not done its part, which was `state` before that was looked for.
    fn stuck(&self, peer: usize, state: State) -> Answer<Step> {
        match state {
            State::Active | State::Absent => Ok(Step::Stuck),
            State::Failed(code) if Code::of(code) == Code::InvalidUsage => {
                Err(Failure::usage(format!("rank {peer} found that the ranks' operations do not match")))
            }
            State::Failed(_) => Err(Failure::new(Code::RemoteError, format!("rank {peer} has failed"))),
            State::Left => Err(Failure::new(
                Code::RemoteError,
                format!("rank {peer} destroyed or aborted its communicator"),
            )),
            State::Dead => Err(Failure::new(Code::RemoteError, format!("rank {peer}'s process has ended"))),
        }
    }

    fn collective(&self, collective: &Collective) -> Answer {
        self.agree(collective)?;
        let Collective { kind, send, receive, element, reduction, root, .. } = *collective;
        let (bytes, own, all) = (collective.bytes(), self.rank as u64, self.ranks as u64);
        let sends = match kind {
            Kind::AllToAll | Kind::ReduceScatter => bytes * all,
            Kind::Broadcast if own != root as u64 => 0,
            _ => bytes,
        };
        let receives = match kind {
            Kind::AllGather | Kind::AllToAll => bytes * all,
            Kind::Reduce if own != root as u64 => 0,
            _ => bytes,
        };
        self.reach(send, sends, false)?;
        self.reach(receive, receives, true)?;
        let out = |peer: usize, from: u64| Out { peer, from, bytes, done: 0 };
        let inward = |peer: usize, to: u64| In { peer, to, bytes, done: 0 };
        let sum = |own: u64| Sum { element, reduction, own, result: receive, bytes, done: 0 };
        let block = |start: u64, rank: usize| start + rank as u64 * bytes;
        let is_root = self.rank == root;
        match kind {
            Kind::AllReduce => {
                let outs = self.peers().map(|peer| out(peer, send)).collect();
                self.pass(outs, Vec::new(), Some(sum(send)))
            }
            Kind::Reduce if is_root => self.pass(Vec::new(), Vec::new(), Some(sum(send))),
            Kind::Reduce => self.pass(vec![out(root, send)], Vec::new(), None),
            Kind::ReduceScatter => {
                let outs = self.peers().map(|peer| out(peer, block(send, peer))).collect();
                self.pass(outs, Vec::new(), Some(sum(block(send, self.rank))))
            }
            Kind::Broadcast if is_root => {
                copy(send, receive, bytes);
                self.pass(self.peers().map(|peer| out(peer, send)).collect(), Vec::new(), None)
            }
            Kind::Broadcast => self.pass(Vec::new(), vec![inward(root, receive)], None),
            Kind::AllGather => {
                copy(send, block(receive, self.rank), bytes);
                let outs = self.peers().map(|peer| out(peer, send)).collect();
                self.pass(outs, self.peers().map(|peer| inward(peer, block(receive, peer))).collect(), None)
            }
            Kind::AllToAll => {
                copy(block(send, self.rank), block(receive, self.rank), bytes);
                let outs = self.peers().map(|peer| out(peer, block(send, peer))).collect();
                self.pass(outs, self.peers().map(|peer| inward(peer, block(receive, peer))).collect(), None)
            }
            Kind::Message => Ok(()),
        }
    }

    /// Waits until all ranks have come to this operation.
    fn agree(&self, collective: &Collective) -> Answer {
        let words = collective.words();
        let mut open: Vec<(usize, bool, bool)> = self.peers().map(|peer| (peer, false, false)).collect();
        self.until_done(|| {
            let mut all = Step::Done;
            for (peer, offered, read) in &mut open {
                let state = self.segment.state(*peer);
                let mut moved = false;
                if !*offered && self.segment.channel(self.rank, *peer).offer.post(&words) {
                    (*offered, moved) = (true, true);
                }
                if !*read && let Some(theirs) = self.segment.channel(*peer, self.rank).offer.take() {
                    same(&words, &theirs, *peer)?;
                    (*read, moved) = (true, true);
                }
                if moved {
                    self.segment.call(*peer);
                }
                all = all.and(match (*offered && *read, moved) {
                    (true, _) => Step::Done,
                    (false, true) => Step::Moved,
                    (false, false) => self.stuck(*peer, state)?,
                });
            }
            Ok(all)
        })
    }

    fn pass(&self, mut outs: Vec<Out>, mut ins: Vec<In>, mut sum: Option<Sum>) -> Answer {
        self.until_done(|| {
            let mut all = Step::Done;
            for out in &mut outs {
                all = all.and(self.send(out)?);
            }
            for inward in &mut ins {
                all = all.and(self.receive(inward)?);
            }
            if let Some(sum) = &mut sum {
                // The result may lie where the operand does: bytes that are not sent yet are not written to.
                let sent = outs.iter().map(|out| out.done).min().unwrap_or(u64::MAX);
                let before = if sum.own == sum.result { sent } else { u64::MAX };
                all = all.and(self.sum(sum, before)?);
            }
            Ok(all)
        })
    }

    /// Puts into the ring what there is room for.
    fn send(&self, out: &mut Out) -> Answer<Step> {
        let left = out.bytes - out.done;
        if left == 0 {
            return Ok(Step::Done);
        }
        let state = self.segment.state(out.peer);
        let channel = self.segment.channel(self.rank, out.peer);
        let ring = self.segment.ring_bytes();
        let written = channel.written.load(Ordering::Relaxed);
        let room = ring.saturating_sub(written - channel.read.load(Ordering::Acquire));
        let at = written & (ring - 1);
        let bytes = left.min(room).min(ring - at);
        if bytes == 0 {
            return self.stuck(out.peer, state);
        }
        let to = self.segment.ring(self.rank, out.peer).wrapping_add(at as usize);
        // SAFETY: `reach` found the memory, which the launch named; the ring has room for `bytes` there, which the
        // receiver does not look at before `written` says so.
        unsafe { std::ptr::copy_nonoverlapping((out.from + out.done) as *const u8, to, bytes as usize) };
        out.done += bytes;
        channel.written.store(after(written, bytes, out.done == out.bytes), Ordering::Release);
        self.segment.call(out.peer);
        Ok(if out.done == out.bytes { Step::Done } else { Step::Moved })
    }

    /// What lies in the ring from a peer, in one piece: where, and how many bytes.
    fn arrived(&self, peer: usize) -> (*const u8, u64) {
        let channel = self.segment.channel(peer, self.rank);
        let ring = self.segment.ring_bytes();
        let read = channel.read.load(Ordering::Relaxed);
        let bytes = channel.written.load(Ordering::Acquire) - read;
        let at = read & (ring - 1);
        (self.segment.ring(peer, self.rank).wrapping_add(at as usize), bytes.min(ring - at))
    }

    fn took(&self, peer: usize, bytes: u64, is_last: bool) {
        let read = &self.segment.channel(peer, self.rank).read;
        read.store(after(read.load(Ordering::Relaxed), bytes, is_last), Ordering::Release);
        self.segment.call(peer);
    }

    fn receive(&self, inward: &mut In) -> Answer<Step> {
        let left = inward.bytes - inward.done;
        if left == 0 {
            return Ok(Step::Done);
        }
        let state = self.segment.state(inward.peer);
        let (from, arrived) = self.arrived(inward.peer);
        let bytes = left.min(arrived);
        if bytes == 0 {
            return self.stuck(inward.peer, state);
        }
        // SAFETY: `arrived` says that so many bytes lie there; `reach` found the memory, which the launch named.
        unsafe { std::ptr::copy_nonoverlapping(from, (inward.to + inward.done) as *mut u8, bytes as usize) };
        inward.done += bytes;
        self.took(inward.peer, bytes, inward.done == inward.bytes);
        Ok(if inward.done == inward.bytes { Step::Done } else { Step::Moved })
    }

    /// Reduces what has come of all peers, up to byte `before`.
    fn sum(&self, sum: &mut Sum, before: u64) -> Answer<Step> {
        if sum.done == sum.bytes {
            return Ok(Step::Done);
        }
        let size = sum.element.bytes();
        let mut bytes = (sum.bytes.min(before) - sum.done).min(AT_ONCE * size);
        let mut operands = Vec::with_capacity(self.ranks);
        for rank in 0..self.ranks {
            if rank == self.rank {
                operands.push((sum.own + sum.done) as *const u8);
                continue;
            }
            let state = self.segment.state(rank);
            let (from, arrived) = self.arrived(rank);
            if arrived < size {
                self.stuck(rank, state)?;
            }
            bytes = bytes.min(arrived);
            operands.push(from);
        }
        bytes -= bytes % size;
        if bytes == 0 {
            return Ok(Step::Stuck);
        }
        let (result, count) = ((sum.result + sum.done) as *mut u8, (bytes / size) as usize);
        // SAFETY: so many bytes have arrived of each peer; `reach` found this rank's memory, which the launch named.
        // The result lies where the operand does or elsewhere, as NCCL demands.
        unsafe { element::reduce(sum.element, sum.reduction, &operands, result, count) };
        sum.done += bytes;
        self.peers().for_each(|peer| self.took(peer, bytes, sum.done == sum.bytes));
        Ok(if sum.done == sum.bytes { Step::Done } else { Step::Moved })
    }

    /// Messages with one peer in one direction pass one after the other, all else side by side.
    fn messages(&self, messages: &[Message]) -> Answer {
        let mut queues: BTreeMap<(usize, bool), VecDeque<Passing>> = BTreeMap::new();
        let mut own: [VecDeque<&Message>; 2] = Default::default();
        for message in messages {
            self.reach(message.place, message.bytes(), !message.is_sent)?;
            if message.peer == self.rank {
                own[usize::from(message.is_sent)].push_back(message);
            } else {
                let queue = queues.entry((message.peer, message.is_sent)).or_default();
                queue.push_back(Passing::new(message));
            }
        }
        self.own_messages(own)?;
        self.until_done(|| {
            let mut all = Step::Done;
            for queue in queues.values_mut() {
                while let Some(first) = queue.front_mut() {
                    let step = self.message(first)?;
                    if step != Step::Done {
                        all = all.and(step);
                        break;
                    }
                    queue.pop_front();
                }
            }
            Ok(all)
        })
    }

    fn own_messages(&self, [received, sent]: [VecDeque<&Message>; 2]) -> Answer {
        if received.len() != sent.len() {
            return Err(Failure::usage(
                "messages of a rank to itself must be sent and received in one group",
            ));
        }
        for (from, to) in sent.iter().zip(&received) {
            same(&from.words(), &to.words(), self.rank)?;
            copy(from.place, to.place, from.bytes());
        }
        Ok(())
    }

    fn message(&self, passing: &mut Passing) -> Answer<Step> {
        let peer = passing.message.peer;
        if !(passing.offered && passing.agreed) {
            let state = self.segment.state(peer);
            if !self.greet(passing, peer)? {
                return self.stuck(peer, state);
            }
            if !(passing.offered && passing.agreed) {
                return Ok(Step::Moved);
            }
        }
        match &mut passing.way {
            Way::Out(out) => self.send(out),
            Way::In(inward) => self.receive(inward),
        }
    }

    /// Sender and receiver tell each other of the message. `false`: neither is possible now.
    fn greet(&self, passing: &mut Passing, peer: usize) -> Answer<bool> {
        let words = passing.message.words();
        let (from, to) = if passing.message.is_sent { (self.rank, peer) } else { (peer, self.rank) };
        let channel = self.segment.channel(from, to);
        let (mine, theirs) = match passing.message.is_sent {
            true => (&channel.offer, &channel.accept),
            false => (&channel.accept, &channel.offer),
        };
        let mut moved = false;
        if !passing.offered && mine.post(&words) {
            (passing.offered, moved) = (true, true);
        }
        if !passing.agreed
            && let Some(theirs) = theirs.take()
        {
            same(&words, &theirs, peer)?;
            (passing.agreed, moved) = (true, true);
        }
        if moved {
            self.segment.call(peer);
        }
        Ok(moved)
    }

    /// Finds out whether memory can be reached. If not, the other ranks learn that this one has failed, and then
    /// its context that its kernel touched such memory, as on hardware: the kernel does not return from that.
    fn reach(&self, address: u64, bytes: u64, to_write: bool) -> Answer {
        if bytes == 0 || is_reachable(address, bytes, to_write) {
            return Ok(());
        }
        let failure = Failure::new(
            Code::UnhandledCudaError,
            format!("{bytes} bytes at {address:#x} are not mapped, or not for this access"),
        );
        self.comm.fail(&failure);
        for page in (address..address + bytes).step_by(PAGE as usize) {
            let place = page as *mut u8;
            // SAFETY: the launch named this memory; a fault is its context's.
            let byte = unsafe { place.read_volatile() };
            if to_write {
                // SAFETY: as above.
                unsafe { place.write_volatile(byte) };
            }
        }
        Err(failure)
    }
}

/// A message that passes.
struct Passing<'a> {
    message: &'a Message,
    offered: bool,
    agreed: bool,
    way: Way,
}

enum Way {
    Out(Out),
    In(In),
}

impl<'a> Passing<'a> {
    fn new(message: &'a Message) -> Self {
        let (peer, bytes) = (message.peer, message.bytes());
        let way = match message.is_sent {
            true => Way::Out(Out { peer, from: message.place, bytes, done: 0 }),
            false => Way::In(In { peer, to: message.place, bytes, done: 0 }),
        };
        Self { message, offered: false, agreed: false, way }
    }
}

/// A counter of a ring after so many more bytes; the next message begins aligned.
fn after(counter: u64, bytes: u64, is_last: bool) -> u64 {
    let counter = counter + bytes;
    if is_last { counter.next_multiple_of(ALIGNMENT) } else { counter }
}

fn same(own: &Words, theirs: &Words, peer: usize) -> Answer {
    if own == theirs {
        return Ok(());
    }
    let text = |[kind, count, element, reduction, root]: &Words| {
        format!("{} (count {count}, type {element}, operation {reduction}, root {root})", Kind::name(*kind))
    };
    let (own, theirs) = (text(own), text(theirs));
    Err(Failure::usage(format!("the ranks' operations do not match: {own} here, {theirs} at rank {peer}")))
}

fn copy(from: u64, to: u64, bytes: u64) {
    if from != to && bytes > 0 {
        // SAFETY: `reach` found both, which the launch named. They may overlap.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
    }
}

const PAGE: u64 = 4096;

/// Whether all of it is mapped, for reading or for writing; where the system cannot say, it is.
fn is_reachable(address: u64, bytes: u64, to_write: bool) -> bool {
    let advice = if to_write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let ask = |address: u64, bytes: u64| {
        let start = address & !(PAGE - 1);
        let length = (address + bytes).next_multiple_of(PAGE) - start;
        // SAFETY: it changes nothing that is in memory, and says so if there is none.
        unsafe { libc::madvise(start as *mut libc::c_void, length as usize, advice) == 0 }
    };
    let own = 0u8;
    ask(address, bytes) || !ask(&raw const own as u64, 1)
}
