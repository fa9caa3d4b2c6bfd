//! What is kept of the conversation with a client, whatever becomes of its connection.
//!
//! Invariant: it is taken up again only by the process that it was begun with: the kernel vouches
//! for the user and the process id, the ticket's secret for that process and no later one of that
//! number.

use crate::kept::{Keep, Kept, Store, StoreError};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tidegate_ffi::units::SessionId;
use tidegate_ffi::wire::line::{Line, LineError, Numbered};
use tidegate_ffi::wire::message::{FromShim, Resume, Ticket, ToShim};

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Conversation {
    /// The client's user, by the kernel's word.
    pub(crate) uid: u32,
    /// Its process id, by the kernel's word.
    pub(crate) pid: i32,
    ticket: Ticket,
    /// Of messages as they are sent.
    line: Line<Kept<Vec<u8>>>,
    /// A message to it is lost for good: it cannot go on over another connection.
    broken: bool,
}

/// The most bytes of messages that are kept for a process until it acknowledges them. The largest arrival of a job's memory, each
/// unit a piece of its own, takes three quarters of it.
const MOST_UNHEARD_BYTES: u64 = 2 << 20;

/// Why a message cannot be said.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSaid {
    /// Too many wait.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Too long ones wait.
    #[error("{0} bytes of messages wait to be acknowledged")]
    Bytes(u64),
    /// It cannot be put into bytes.
    #[error(transparent)]
    Codec(#[from] postcard::Error),
}

/// Why a conversation is not taken up again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTakenUp {
    /// The secret, the user or the process is another's.
    #[error("this manager does not know the process's session")]
    Stranger,
    /// See [`Conversation::give_up`].
    #[error("the process did not hear what it was told")]
    Broken,
    /// The two sides contradict each other.
    #[error(transparent)]
    Line(#[from] LineError),
}

impl Conversation {
    /// Nothing is said yet.
    pub(crate) fn begin(session: SessionId, uid: u32, pid: i32) -> Result<Self, Errno> {
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        let ticket = Ticket { session, secret: u128::from_le_bytes(secret) };
        Ok(Self { uid, pid, ticket, line: Line::new(), broken: false })
    }

    /// With what the process can take it up again.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Says a message, which is kept until it is heard.
    pub(crate) fn say(&mut self, message: ToShim) -> Result<Numbered<ToShim>, NotSaid> {
        let text = postcard::to_stdvec(&message)?;
        let waiting = self.unheard_bytes().saturating_add(text.len() as u64);
        if waiting > MOST_UNHEARD_BYTES {
            return Err(NotSaid::Bytes(waiting));
        }
        Ok(self.line.say(text.into())?.map(|_| message))
    }

    /// Hears a message. `None`: it was heard before.
    pub(crate) fn hear(&mut self, letter: Numbered<FromShim>) -> Result<Option<FromShim>, LineError> {
        self.line.hear(letter)
    }

    /// Bytes of messages that are kept until the process acknowledges them.
    pub(crate) fn unheard_bytes(&self) -> u64 {
        self.line.unheard_messages().map(|text| text.len() as u64).sum()
    }

    /// Puts into the store what was said, and is not known to be heard.
    pub(crate) fn keep(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        self.line.unheard_messages_mut().try_for_each(|text| text.keep(store))
    }

    /// Takes it from there.
    pub(crate) fn load(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.line.unheard_messages_mut().try_for_each(|text| text.load(store))
    }

    /// The number of the last message heard.
    pub(crate) fn heard(&self) -> u64 {
        self.line.heard()
    }

    /// Whether the client may not even have heard its welcome.
    pub(crate) fn is_unheard(&self) -> bool {
        self.line.acknowledged() == 0
    }

    /// Whether the process ought to be told what was heard.
    pub(crate) fn owes_a_word(&self) -> bool {
        self.line.owes_a_word()
    }

    /// A message could not be said: this is the conversation's last connection.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// Takes the conversation up with whom the kernel says has connected: what is to be said
    /// again, before anything new.
    pub(crate) fn take_up(
        &mut self,
        resume: &Resume,
        uid: u32,
        pid: i32,
    ) -> Result<Vec<Numbered<ToShim>>, NotTakenUp> {
        if (resume.ticket, uid, pid) != (self.ticket, self.uid, self.pid) {
            return Err(NotTakenUp::Stranger);
        }
        if self.broken {
            return Err(NotTakenUp::Broken);
        }
        let again = self.line.resume(resume.heard)?;
        let message = |letter: Numbered<Kept<Vec<u8>>>| {
            let message = postcard::from_bytes(&letter.message)?;
            Ok(letter.map(|_| message))
        };
        again.into_iter().map(message).collect::<Result<_, postcard::Error>>().map_err(|_| NotTakenUp::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> (Conversation, Resume) {
        let mut conversation = Conversation::begin(SessionId(3), 1000, 77).unwrap();
        conversation.say(ToShim::Open).unwrap();
        let resume = Resume { ticket: conversation.ticket(), heard: 0 };
        (conversation, resume)
    }

    #[test]
    fn only_the_process_that_began_takes_it_up_again() {
        let (mut conversation, resume) = conversation();
        let guess = Ticket { secret: resume.ticket.secret ^ 1, ..resume.ticket };
        let other = Ticket { session: SessionId(4), ..resume.ticket };
        for (ticket, uid, pid) in
            [(guess, 1000, 77), (other, 1000, 77), (resume.ticket, 1001, 77), (resume.ticket, 1000, 78)]
        {
            let attempt = Resume { ticket, ..resume };
            assert_eq!(conversation.take_up(&attempt, uid, pid), Err(NotTakenUp::Stranger));
        }
        let again = conversation.take_up(&resume, 1000, 77).unwrap();
        assert_eq!(again, [Numbered { number: 1, heard: 0, message: ToShim::Open }]);
    }

    #[test]
    fn what_lost_a_message_is_not_taken_up_again() {
        let (mut conversation, resume) = conversation();
        conversation.give_up();
        assert_eq!(conversation.take_up(&resume, 1000, 77), Err(NotTakenUp::Broken));
    }

    #[test]
    fn what_is_not_acknowledged_is_kept_only_up_to_a_bound() {
        let (mut conversation, resume) = conversation();
        let long = || ToShim::Refused { reason: "x".repeat(64 << 10) };
        let said = (0..1000).take_while(|_| conversation.say(long()).is_ok()).count();
        assert_eq!(said as u64, MOST_UNHEARD_BYTES / (64 << 10) - 1, "each has its length beside it");
        assert!(matches!(conversation.say(long()), Err(NotSaid::Bytes(_))));
        conversation.say(ToShim::Open).unwrap();
        let heard = Resume { heard: said as u64, ..resume };
        assert_eq!(conversation.take_up(&heard, 1000, 77).unwrap().len(), 2);
        assert!(conversation.unheard_bytes() < 128 << 10);
        conversation.say(long()).unwrap();
    }

    #[test]
    fn two_conversations_have_two_secrets() {
        assert_ne!(conversation().1.ticket, conversation().1.ticket);
    }

    #[test]
    fn it_can_be_written_down() {
        let (mut conversation, resume) = conversation();
        let mut store = Vec::new();
        conversation.keep(&mut store).unwrap();
        let text = postcard::to_stdvec(&conversation).unwrap();
        let mut copy: Conversation = postcard::from_bytes(&text).unwrap();
        copy.load(&store).unwrap();
        assert_eq!(copy.take_up(&resume, 1000, 77), conversation.take_up(&resume, 1000, 77));
    }
}
