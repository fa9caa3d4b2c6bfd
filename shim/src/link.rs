//! The connection to the manager: questions and their answers, and orders.
//!
//! ```text
//! program's threads ── request ──►  socket ──► manager
//!        ▲ replies, by step           │
//!        └────────── reader ◄─────────┘
//! gate thread ◄── orders, in order ──┘
//! ```
//! The connection may end, and the manager with it: the reader waits for the next one (`reunion`),
//! and the conversation goes on where it was. Nobody else notices but by waiting. Only a manager's
//! refusal ends the session.
//!
//! Invariant: answers are handed to whoever asked and orders to the gate thread, each once, in the
//! order in which the manager sent them; the reader itself never waits for anything but the socket,
//! so an answer gets through while an order is being carried out.

use crate::gate::{Arrival, GATE};
use crate::log::{Level, Once, debug, info, warning};
use crate::outgoing::{Letter, Outgoing};
use crate::reunion::{Connection, Found, Session};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::mpsc::Sender;
use crate::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ffi::units::{PieceId, Step, TenantId, Units};
use tidegate_ffi::wire::Parcel;
use tidegate_ffi::wire::line::Line;
use tidegate_ffi::wire::message::{FromShim, Layout, Placed, ToShim};

/// The session is over: no manager will answer any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the manager is gone: {0}")]
pub struct Gone(Arc<str>);

impl Gone {
    /// And why.
    pub fn because(reason: &str) -> Self {
        Self(reason.into())
    }

    /// Tells the user, and what follows for the program: once, with what is noticed first.
    pub fn explain(&self, consequence: fmt::Arguments<'_>) {
        static SAID: Once = Once::new();
        SAID.say(Level::Warn, format_args!("{self}; {consequence}"));
    }
}

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
        /// Their handles, in order; fewer, where the process has no descriptors left.
        handles: Vec<OwnedFd>,
        /// More follow.
        more: bool,
        /// Keeps the gate from shutting until the pieces are mapped.
        arrival: Arrival,
    },
    /// To `Borrow`.
    Lent {
        /// Where the pieces lie in their tenant's range.
        pieces: Vec<Placed>,
        /// Their handles, in order; fewer, where the process has no descriptors left.
        handles: Vec<OwnedFd>,
    },
    /// To `Hold`: they stay.
    Held,
    /// To `MakeRoom`: there is so much, or all that can be had.
    Room {
        /// Whether asking for more could bring more.
        more: bool,
    },
    /// No, and why.
    Refused(String),
}

/// An order of the manager, for the gate thread.
#[derive(Debug)]
pub enum Order {
    /// A message that is no answer, with its file descriptors.
    Message(ToShim, Vec<OwnedFd>),
    /// The session is over; no more orders.
    Over(Gone),
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
    /// The session is over: nothing more will come.
    gone: Option<Gone>,
}

#[derive(Default)]
struct Waiting {
    /// The questions whose last answer has not come.
    by_step: BTreeMap<Step, Arc<Mailbox>>,
    flow: Flow,
    gone: Option<Gone>,
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

/// The conversation with the manager, shared by all threads of the process.
pub struct Link {
    session: Session,
    outgoing: Outgoing,
    waiting: Mutex<Waiting>,
    next_step: AtomicU64,
}

/// How reading from a connection ended.
enum End {
    /// The connection ended; the session has not.
    Parted,
    /// The session is over.
    Over(Gone),
}

impl Link {
    /// Goes on after a handshake over this connection.
    pub fn new(connection: Arc<Connection>, line: Line<Letter>, session: Session) -> Self {
        let outgoing = Outgoing::new(connection, line);
        Self { session, outgoing, waiting: Mutex::default(), next_step: AtomicU64::new(1) }
    }

    /// Sends a message.
    pub fn send(&self, message: FromShim) -> Result<(), Gone> {
        self.outgoing.say(Letter::new(message, Vec::new()))
    }

    /// Whether a manager would hear it now.
    pub fn has_manager(&self) -> bool {
        self.outgoing.is_open()
    }

    /// Asks something; the answers come through the result.
    pub fn request(&self, question: impl FnOnce(Step) -> FromShim) -> Result<Replies<'_>, Gone> {
        let step = Step(self.next_step.fetch_add(1, Ordering::Relaxed));
        let question = question(step);
        let mailbox = Arc::new(Mailbox::of(&question));
        {
            let mut waiting = self.waiting.lock();
            if let Some(gone) = &waiting.gone {
                return Err(gone.clone());
            }
            waiting.by_step.insert(step, mailbox.clone());
        }
        let replies = Replies { link: self, step, mailbox };
        self.send(question)?;
        Ok(replies)
    }

    /// Reads until the session is over: the reader thread's whole life.
    pub fn read(&self, mut connection: Arc<Connection>, orders: &Sender<Order>) {
        let gone = loop {
            if let End::Over(gone) = self.read_from(&connection, orders) {
                break gone;
            }
            connection = match self.meet_again() {
                Ok(connection) => connection,
                Err(gone) => break gone,
            };
        };
        self.hang_up(&gone);
        // The gate thread may have ended already; then nobody needs to know.
        let _ = orders.send(Order::Over(gone));
    }

    fn read_from(&self, connection: &Connection, orders: &Sender<Order>) -> End {
        loop {
            // Where descriptors are lost, whoever uses them misses them, and says so.
            let Parcel { message: letter, fds, .. } = match connection.receive_parcel() {
                Ok(parcel) => parcel,
                Err(error) => {
                    info!("the connection to the manager has ended: {error}");
                    return End::Parted;
                }
            };
            match self.outgoing.hear(letter) {
                Ok(Some(ToShim::Refused { reason })) => return End::Over(Gone::because(&reason)),
                Ok(Some(message)) => self.dispatch(message, fds, orders),
                Ok(None) => {}
                Err(error) => return End::Over(Gone::because(&error.to_string())),
            }
        }
    }

    /// Waits for the next manager and goes on with it.
    fn meet_again(&self) -> Result<Arc<Connection>, Gone> {
        self.outgoing.part();
        let mut absence = Absence::default();
        let found = self.session.find_manager(self.outgoing.heard(), || absence.notice(self.anybody_waits()));
        let Found { connection, heard } = found.map_err(|reason| Gone::because(&reason))?;
        let connection = Arc::new(connection);
        let resumed = self.outgoing.resume(connection.clone(), heard);
        resumed.map_err(|error| Gone::because(&error.to_string()))?;
        info!("a manager has taken the session up");
        Ok(connection)
    }

    /// Whether a thread of the program waits for what only a manager can give.
    fn anybody_waits(&self) -> bool {
        GATE.has_waiters() || !self.waiting.lock().by_step.is_empty()
    }

    fn dispatch(&self, message: ToShim, fds: Vec<OwnedFd>, orders: &Sender<Order>) {
        debug!("from the manager: {message:?}");
        match message {
            ToShim::Attached { step, tenant, layout } => {
                self.waiting.lock().answer_last(step, Reply::Attached { tenant, layout });
            }
            ToShim::Lent { step, pieces } => {
                self.waiting.lock().answer_last(step, Reply::Lent { pieces, handles: fds });
            }
            ToShim::Held { step } => self.waiting.lock().answer_last(step, Reply::Held),
            ToShim::Room { step, more } => self.waiting.lock().answer_last(step, Reply::Room { more }),
            ToShim::LeaseRefused { step, reason } => {
                self.waiting.lock().answer_last(step, Reply::Refused(reason));
            }
            ToShim::Leased { step, pieces, more } => self.waiting.lock().leased(step, pieces, fds, more),
            ToShim::AttachRefused { step, reason } => {
                self.waiting.lock().answer_last(step, Reply::Refused(reason));
            }
            // The first is expected by the handshake only, the second is the last and not handed on.
            ToShim::Welcome { .. } | ToShim::Refused { .. } | ToShim::Heard => {}
            order => {
                // Closed again after `Drained`, a process that is let through for others of its job may need memory.
                if matches!(order, ToShim::Open | ToShim::Close { .. }) {
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
    /// and what comes until `Open`, or another `Close`.
    ///
    /// The list is made in the turn in which `Drained` is sent, and a lease is listed before it
    /// is sent: so whatever the manager was asked before `Drained`, and may be answering now,
    /// is on the list.
    pub fn send_drained(
        &self,
        drained: impl FnOnce(Vec<Step>) -> FromShim,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Gone> {
        let mut turn = self.outgoing.take_turn();
        let unanswered = {
            let mut waiting = self.waiting.lock();
            waiting.flow = Flow::Void;
            let leases = waiting.by_step.iter().filter(|(_, mailbox)| mailbox.is_lease);
            leases.map(|(step, _)| *step).collect()
        };
        turn.say(Letter::new(drained(unanswered), fds))
    }

    /// The session is over: no more answers, and everybody who waits for one is told.
    pub fn hang_up(&self, gone: &Gone) {
        self.outgoing.end(gone.clone());
        let mailboxes: Vec<Arc<Mailbox>> = {
            let mut waiting = self.waiting.lock();
            waiting.gone = Some(gone.clone());
            waiting.by_step.values().cloned().collect()
        };
        mailboxes.iter().for_each(|mailbox| mailbox.close(gone));
        GATE.give_up_closing();
    }

    /// Gives pieces back that nothing of the process can reach.
    pub fn give_back(&self, tenant: TenantId, pieces: Vec<PieceId>, unused: Units) {
        // When the session is over nobody takes anything back.
        let _ = self.send(FromShim::Return { tenant, pieces, unused, recalled: false });
    }

    /// The same as the answer to a `Recall`.
    pub fn answer_recall(&self, tenant: TenantId, pieces: Vec<PieceId>, unused: Units) {
        let _ = self.send(FromShim::Return { tenant, pieces, unused, recalled: true });
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

    fn close(&self, gone: &Gone) {
        self.inside.lock().gone = Some(gone.clone());
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
        let mut inside = self.mailbox.inside.lock();
        loop {
            if let Some(answer) = inside.next() {
                return answer;
            }
            self.mailbox.came.wait(&mut inside);
        }
    }

    /// Waits for the next answer; says `waiting` when it has not come after a second.
    pub fn next_or_say(&self, waiting: impl FnOnce()) -> Result<Reply, Gone> {
        let soon = Instant::now() + Duration::from_secs(1);
        let mut inside = self.mailbox.inside.lock();
        loop {
            if let Some(answer) = inside.next() {
                return answer;
            }
            if self.mailbox.came.wait_until(&mut inside, soon).timed_out() {
                break;
            }
        }
        drop(inside);
        waiting();
        self.next()
    }
}

impl Letters {
    /// What came; `None`: nothing yet.
    fn next(&mut self) -> Option<Result<Reply, Gone>> {
        self.replies.pop_front().map(Ok).or_else(|| self.gone.clone().map(Err))
    }
}

impl Drop for Replies<'_> {
    fn drop(&mut self) {
        self.link.waiting.lock().by_step.remove(&self.step);
    }
}

/// A time without a manager.
#[derive(Default)]
struct Absence {
    /// Somebody waited when it was looked at last.
    waited: bool,
    said: bool,
}

impl Absence {
    /// Looked at about once in a second: nothing that is waited for comes meanwhile, so who waits
    /// twice in a row has waited since.
    fn notice(&mut self, waits: bool) {
        if waits && self.waited && !self.said {
            self.said = true;
            warning!("the manager is gone; waiting for the next one");
        }
        self.waited = waits;
    }
}
