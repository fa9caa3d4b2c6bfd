//! The connection to the manager: questions and their answers, and orders.
//!
//! ```text
//! program's threads ── request ──►  socket ──► manager
//!        ▲ replies, by step           │
//!        └────────── reader ◄─────────┘
//! gate thread ◄── orders, in order ──┘
//! ```
//! Invariant: answers are handed to whoever asked and orders to the gate thread in the order in
//! which the manager sent them; the reader itself never waits for anything but the socket, so an
//! answer gets through while an order is being carried out.

use crate::gate::{Arrival, GATE};
use crate::log::{debug, info};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{PieceId, Step, TenantId};
use tidegate_ffi::wire::Connection;
use tidegate_ffi::wire::message::{FromShim, Layout, Placed, ToManager, ToShim};

/// The manager cannot be asked, or will not answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the manager is gone")]
pub struct Gone;

/// An answer of the manager.
pub enum Reply {
    /// To `Attach`.
    Attached {
        /// The process's name on the GPU.
        tenant: TenantId,
        /// How its memory is laid out.
        layout: Layout,
    },
    /// To `Lease`.
    Leased {
        /// Where the pieces go.
        pieces: Vec<Placed>,
        /// Their handles, in order.
        handles: Vec<OwnedFd>,
        /// More follow.
        more: bool,
        /// Keeps the gate from shutting until the pieces are mapped.
        arrival: Arrival,
    },
    /// To `MakeRoom`: what could be set free is.
    Room,
    /// No, and why.
    Refused(String),
}

/// An order of the manager, for the gate thread.
#[derive(Debug)]
pub enum Order {
    /// A message that is no answer, with its file descriptors.
    Message(ToShim, Vec<OwnedFd>),
    /// The manager is gone; no more orders.
    Gone,
}

/// Where the answers to one question wait. Its lock is the innermost: it may be taken while
/// `Link::waiting` is held, never the other way round.
struct Mailbox {
    /// The question is a `Lease`.
    is_lease: bool,
    inside: Mutex<Letters>,
    came: Condvar,
}

#[derive(Default)]
struct Letters {
    replies: VecDeque<Reply>,
    /// The manager is gone: nothing more will come.
    gone: bool,
}

#[derive(Default)]
struct Waiting {
    /// The questions whose last answer has not come.
    by_step: HashMap<Step, Arc<Mailbox>>,
    flow: Flow,
    gone: bool,
}

/// What happens to pieces that come.
///
/// `Drained` tells the manager which leases are not answered; a `Leased` that crosses it is void
/// on both sides. So from the moment that list is made no piece may be mapped any more.
#[derive(Default)]
enum Flow {
    /// They go to the thread that asked.
    #[default]
    Through,
    /// The list is being made: they are kept, in case there will be no `Drained` after all.
    Held(Vec<(Step, Vec<Placed>, Vec<OwnedFd>, bool)>),
    /// The list is made: they are closed. The lease stays asked.
    Void,
}

/// The connection, shared by all threads of the process.
pub struct Link {
    connection: Connection,
    /// Held while one frame is sent, so that frames do not mix.
    sending: Mutex<()>,
    waiting: Mutex<Waiting>,
    next_step: AtomicU64,
}

impl Link {
    /// Talks over a connection whose handshake is done.
    pub fn new(connection: Connection) -> Self {
        Self { connection, sending: Mutex::new(()), waiting: Mutex::default(), next_step: AtomicU64::new(1) }
    }

    /// Sends a message.
    pub fn send(&self, message: FromShim) -> Result<(), Gone> {
        self.send_with(message, &[])
    }

    /// Sends a message with file descriptors.
    pub fn send_with(&self, message: FromShim, fds: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        let _turn = self.sending.lock();
        self.send_in_turn(message, fds)
    }

    fn send_in_turn(&self, message: FromShim, fds: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        debug!("to the manager: {message:?}");
        self.connection.send(&ToManager::Shim(message), fds).map_err(|error| {
            debug!("{error}");
            Gone
        })
    }

    /// Asks something; the answers come through the result.
    pub fn request(&self, question: impl FnOnce(Step) -> FromShim) -> Result<Replies<'_>, Gone> {
        let step = Step(self.next_step.fetch_add(1, Ordering::Relaxed));
        let question = question(step);
        let mailbox = Arc::new(Mailbox::of(&question));
        {
            let mut waiting = self.waiting.lock();
            if waiting.gone {
                return Err(Gone);
            }
            waiting.by_step.insert(step, mailbox.clone());
        }
        let replies = Replies { link: self, step, mailbox };
        self.send(question)?;
        Ok(replies)
    }

    /// Reads until the connection ends: the reader thread's whole life.
    pub fn read(&self, orders: &Sender<Order>) {
        let end = loop {
            match self.connection.receive::<ToShim>() {
                Ok((message, fds)) => self.dispatch(message, fds, orders),
                Err(error) => break error,
            }
        };
        info!("the connection to the manager has ended: {end}");
        self.hang_up();
        // The gate thread may have ended already; then nobody needs to know.
        let _ = orders.send(Order::Gone);
    }

    fn dispatch(&self, message: ToShim, fds: Vec<OwnedFd>, orders: &Sender<Order>) {
        debug!("from the manager: {message:?}");
        match message {
            ToShim::Attached { step, tenant, layout } => {
                self.waiting.lock().answer_last(step, Reply::Attached { tenant, layout });
            }
            ToShim::Room { step } => self.waiting.lock().answer_last(step, Reply::Room),
            ToShim::LeaseRefused { step, reason } => {
                self.waiting.lock().answer_last(step, Reply::Refused(reason));
            }
            ToShim::Leased { step, pieces, more } => self.waiting.lock().leased(step, pieces, fds, more),
            ToShim::Refused { reason } => self.refuse_all(&reason),
            // Only the handshake expects it.
            ToShim::Welcome { .. } => {}
            order => {
                if order == ToShim::Open {
                    self.waiting.lock().flow = Flow::Through;
                }
                // Without a gate thread there is nobody to carry it out.
                let _ = orders.send(Order::Message(order, fds));
            }
        }
    }

    /// Holds back the pieces that come from now on.
    pub fn hold(&self) {
        self.waiting.lock().flow = Flow::Held(Vec::new());
    }

    /// There is no `Drained`: hands on what was held back.
    pub fn hand_on(&self) {
        let mut waiting = self.waiting.lock();
        if let Flow::Held(held) = std::mem::take(&mut waiting.flow) {
            held.into_iter().for_each(|(step, pieces, fds, more)| waiting.leased(step, pieces, fds, more));
        }
    }

    /// Sends `Drained`, made with the leases that are not answered. What was held back is void,
    /// and what comes until `Open`.
    ///
    /// The list is made in the turn in which `Drained` is sent, and a lease is listed before it
    /// is sent: so whatever the manager was asked before `Drained`, and may be answering now,
    /// is on the list.
    pub fn send_drained(
        &self,
        drained: impl FnOnce(Vec<Step>) -> FromShim,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Gone> {
        let _turn = self.sending.lock();
        let unanswered = {
            let mut waiting = self.waiting.lock();
            waiting.flow = Flow::Void;
            let leases = waiting.by_step.iter().filter(|(_, mailbox)| mailbox.is_lease);
            leases.map(|(step, _)| *step).collect()
        };
        self.send_in_turn(drained(unanswered), fds)
    }

    fn refuse_all(&self, reason: &str) {
        let mailboxes = std::mem::take(&mut self.waiting.lock().by_step);
        mailboxes.values().for_each(|mailbox| mailbox.put(Reply::Refused(reason.into())));
    }

    /// No more answers: everybody who waits for one is told.
    pub fn hang_up(&self) {
        let mailboxes: Vec<Arc<Mailbox>> = {
            let mut waiting = self.waiting.lock();
            waiting.gone = true;
            waiting.by_step.values().cloned().collect()
        };
        mailboxes.iter().for_each(|mailbox| mailbox.close());
        GATE.give_up_closing();
    }

    /// Gives pieces back that nothing of the process can reach.
    pub fn give_back(&self, tenant: TenantId, pieces: Vec<PieceId>) {
        // A manager that is gone takes nothing back.
        let _ = self.send(FromShim::Return { tenant, pieces });
    }
}

impl Waiting {
    /// The last answer to a question. One that nobody asked is dropped, as are pieces for it:
    /// they were never mapped.
    fn answer_last(&mut self, step: Step, reply: Reply) {
        if let Some(mailbox) = self.by_step.remove(&step) {
            mailbox.put(reply);
        }
    }

    fn leased(&mut self, step: Step, pieces: Vec<Placed>, handles: Vec<OwnedFd>, more: bool) {
        match &mut self.flow {
            Flow::Held(held) => held.push((step, pieces, handles, more)),
            Flow::Void => {}
            Flow::Through => {
                let reply = Reply::Leased { pieces, handles, more, arrival: GATE.arrival() };
                match self.by_step.get(&step) {
                    Some(mailbox) if more => mailbox.put(reply),
                    _ => self.answer_last(step, reply),
                }
            }
        }
    }
}

impl Mailbox {
    fn of(question: &FromShim) -> Self {
        let is_lease = matches!(question, FromShim::Lease(_));
        Self { is_lease, inside: Mutex::default(), came: Condvar::new() }
    }

    fn put(&self, reply: Reply) {
        self.inside.lock().replies.push_back(reply);
        self.came.notify_all();
    }

    fn close(&self) {
        self.inside.lock().gone = true;
        self.came.notify_all();
    }
}

/// The answers to one question, as they come.
pub struct Replies<'a> {
    link: &'a Link,
    step: Step,
    mailbox: Arc<Mailbox>,
}

impl Replies<'_> {
    /// The question.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Waits for the next answer.
    pub fn next(&self) -> Result<Reply, Gone> {
        self.wait(None).ok_or(Gone)
    }

    /// Waits for the next answer; says `waiting` when it has not come after a second.
    pub fn next_or_say(&self, waiting: impl FnOnce()) -> Result<Reply, Gone> {
        let soon = Instant::now() + Duration::from_secs(1);
        if let Some(reply) = self.wait(Some(soon)) {
            return Ok(reply);
        }
        if !self.mailbox.inside.lock().gone {
            waiting();
        }
        self.next()
    }

    /// `None`: the manager is gone, or `until` has passed.
    fn wait(&self, until: Option<Instant>) -> Option<Reply> {
        let mut inside = self.mailbox.inside.lock();
        loop {
            if let Some(reply) = inside.replies.pop_front() {
                return Some(reply);
            }
            if inside.gone || until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            match until {
                None => self.mailbox.came.wait(&mut inside),
                Some(until) => drop(self.mailbox.came.wait_until(&mut inside, until)),
            }
        }
    }
}

impl Drop for Replies<'_> {
    fn drop(&mut self) {
        self.link.waiting.lock().by_step.remove(&self.step);
    }
}
