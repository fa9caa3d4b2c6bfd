//! Lines: conversations that outlive their connections.
//!
//! ```text
//! say ──► 5 ──► 6 ──► 7 ───────────────► hear     each message says up to which number
//!         └──── unheard ────┘                     its sender has heard
//!
//! connection lost: both tell what they have heard, and say the rest again (`resume`)
//! ```
//! Each side numbers what it says from 1 and keeps it until the other side has said that it was
//! heard. Connections carry messages in order or end, so the numbers that come are those expected,
//! or ones that were heard before.
//!
//! Invariant: whatever connections are lost, each message is heard exactly once and in order, or
//! the conversation ends with an error.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// So many messages may wait to be heard; who hears none of them is gone for good (I10).
pub const MOST_UNHEARD: usize = 2048;
/// Who has heard so many messages and said nothing says that it has: the other side keeps them
/// until then.
pub const SILENCE: u64 = 64;

/// A message as it travels over a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<M> {
    /// Its place among the sender's messages, from 1.
    pub number: u64,
    /// The number of the last message that its sender had heard; 0: none.
    pub heard: u64,
    /// What is said.
    pub message: M,
}

impl<M> Numbered<M> {
    /// The same place, with what `change` makes of the message.
    pub fn map<N>(self, change: impl FnOnce(M) -> N) -> Numbered<N> {
        Numbered { number: self.number, heard: self.heard, message: change(self.message) }
    }
}

/// How a conversation is broken. It cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Messages are missing.
    #[error("message {expected} was expected, and {came} came")]
    Gap {
        /// The number after the last one heard.
        expected: u64,
        /// The number that came.
        came: u64,
    },
    /// The other side claims to have heard what was never said.
    #[error("the other side claims to have heard message {heard}, of {sent}")]
    Future {
        /// By its word.
        heard: u64,
        /// In fact said.
        sent: u64,
    },
    /// The other side claims not to have heard what it had said it had.
    #[error("the other side has heard message {known} before, and now only {heard}")]
    Forgotten {
        /// By its word now.
        heard: u64,
        /// By its word before.
        known: u64,
    },
    /// The other side hears nothing.
    #[error("{MOST_UNHEARD} messages wait to be heard")]
    Unheard,
}

/// One side of a conversation: says `M`s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line<M> {
    /// The number of the last message said.
    sent: u64,
    /// The number of the last message heard.
    heard: u64,
    /// What the other side has last been told of `heard`.
    told: u64,
    /// The messages up to `sent` that the other side has not said that it heard.
    unheard: VecDeque<M>,
}

impl<M> Default for Line<M> {
    fn default() -> Self {
        Self { sent: 0, heard: 0, told: 0, unheard: VecDeque::new() }
    }
}

impl<M: Clone> Line<M> {
    /// Nothing said, nothing heard.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says a message: it is kept until it is heard.
    pub fn say(&mut self, message: M) -> Result<Numbered<M>, LineError> {
        if self.unheard.len() >= MOST_UNHEARD {
            return Err(LineError::Unheard);
        }
        self.unheard.push_back(message.clone());
        self.sent += 1;
        self.told = self.heard;
        Ok(Numbered { number: self.sent, heard: self.heard, message })
    }

    /// Hears a message. `None`: it was heard before.
    pub fn hear<N>(&mut self, letter: Numbered<N>) -> Result<Option<N>, LineError> {
        self.forget(letter.heard)?;
        let expected = self.heard + 1;
        if letter.number > expected {
            return Err(LineError::Gap { expected, came: letter.number });
        }
        let is_new = letter.number == expected;
        self.heard += u64::from(is_new);
        Ok(is_new.then_some(letter.message))
    }

    /// The number of the last message heard.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// The number of the last message said.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How many messages are not known to be heard.
    pub fn unheard(&self) -> usize {
        self.unheard.len()
    }

    /// These messages, in order.
    pub fn unheard_messages(&self) -> impl Iterator<Item = &M> {
        self.unheard.iter()
    }

    /// The same, to keep them elsewhere.
    pub fn unheard_messages_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.unheard.iter_mut()
    }

    /// Whether the other side ought to be told what was heard, be it by an empty message.
    pub fn owes_a_word(&self) -> bool {
        self.heard - self.told >= SILENCE
    }

    /// A new connection, on which the other side told what it has heard: what is to be said again,
    /// before anything new.
    pub fn resume(&mut self, other_heard: u64) -> Result<Vec<Numbered<M>>, LineError> {
        let known = self.acknowledged();
        if other_heard < known {
            return Err(LineError::Forgotten { heard: other_heard, known });
        }
        self.forget(other_heard)?;
        self.told = self.heard;
        let again = (other_heard + 1..).zip(&self.unheard);
        Ok(again
            .map(|(number, message)| Numbered { number, heard: self.heard, message: message.clone() })
            .collect())
    }

    /// The number of the last message that is known to be heard.
    pub fn acknowledged(&self) -> u64 {
        self.sent - self.unheard.len() as u64
    }

    /// The other side has heard so much. An older word, of a connection that has ended, says less.
    fn forget(&mut self, heard: u64) -> Result<(), LineError> {
        if heard > self.sent {
            return Err(LineError::Future { heard, sent: self.sent });
        }
        let news = heard.saturating_sub(self.acknowledged());
        self.unheard.drain(..news as usize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two sides and what is under way between them.
    #[derive(Default)]
    struct Talk {
        sides: [Line<u32>; 2],
        /// By sender.
        under_way: [VecDeque<Numbered<u32>>; 2],
        said: [Vec<u32>; 2],
        heard: [Vec<u32>; 2],
    }

    impl Talk {
        fn say(&mut self, side: usize, word: u32) {
            if let Ok(letter) = self.sides[side].say(word) {
                self.under_way[side].push_back(letter);
                self.said[side].push(word);
            }
        }

        /// The other side reads the next message of `side`, if one is under way.
        fn read(&mut self, side: usize) -> bool {
            let Some(letter) = self.under_way[side].pop_front() else { return false };
            let heard = self.sides[1 - side].hear(letter).unwrap();
            self.heard[side].extend(heard);
            true
        }

        /// What is under way is lost; both meet again.
        fn cut(&mut self) {
            let heard = [0, 1].map(|side| self.sides[side].heard());
            for side in [0, 1] {
                self.under_way[side] = self.sides[side].resume(heard[1 - side]).unwrap().into();
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_cut_each_message_is_heard_once_and_in_order(
            steps in proptest::collection::vec((0..6u8, any::<u32>()), 0..400),
        ) {
            let mut talk = Talk::default();
            for (step, word) in steps {
                match step {
                    0 | 1 => talk.say(step.into(), word),
                    2 | 3 => { talk.read(usize::from(step) - 2); }
                    4 => talk.cut(),
                    _ => while talk.read(word as usize % 2) {},
                }
            }
            talk.cut();
            while talk.read(0) || talk.read(1) {}
            prop_assert_eq!(&talk.said, &talk.heard);
            talk.cut();
            prop_assert!(talk.under_way.iter().all(VecDeque::is_empty), "what was heard is kept");
        }
    }

    fn letter(number: u64, heard: u64) -> Numbered<()> {
        Numbered { number, heard, message: () }
    }

    #[test]
    fn what_was_heard_before_counts_once() {
        let mut line = Line::<u8>::new();
        assert_eq!(line.hear(letter(1, 0)), Ok(Some(())));
        assert_eq!(line.hear(letter(1, 0)), Ok(None));
        assert_eq!((line.hear(letter(2, 0)), line.heard()), (Ok(Some(())), 2));
    }

    #[test]
    fn a_gap_is_an_error() {
        let mut line = Line::<u8>::new();
        assert_eq!(line.hear(letter(2, 0)), Err(LineError::Gap { expected: 1, came: 2 }));
    }

    #[test]
    fn what_was_never_said_cannot_have_been_heard() {
        let mut line = Line::<u8>::new();
        let future = LineError::Future { heard: 1, sent: 0 };
        assert_eq!(line.hear(letter(1, 1)), Err(future.clone()));
        assert_eq!(line.resume(1), Err(future));
    }

    #[test]
    fn who_has_forgotten_what_it_heard_cannot_go_on() {
        let mut line = Line::<u8>::new();
        line.say(1).unwrap();
        line.hear(letter(1, 1)).unwrap();
        assert_eq!(line.resume(0), Err(LineError::Forgotten { heard: 0, known: 1 }));
        assert_eq!(line.resume(1), Ok(Vec::new()));
    }

    #[test]
    fn who_hears_nothing_is_not_spoken_to_for_ever() {
        let mut line = Line::<u8>::new();
        for _ in 0..MOST_UNHEARD {
            line.say(7).unwrap();
        }
        assert_eq!(line.say(7), Err(LineError::Unheard));
        line.hear(letter(1, 1)).unwrap();
        assert_eq!(line.say(7).unwrap().number, MOST_UNHEARD as u64 + 1);
    }

    #[test]
    fn who_only_listens_owes_a_word_now_and_then() {
        let mut line = Line::<u8>::new();
        for number in 1..=SILENCE {
            assert!(!line.owes_a_word());
            line.hear(letter(number, 0)).unwrap();
        }
        assert!(line.owes_a_word());
        assert_eq!(line.say(0).unwrap().heard, SILENCE);
        assert!(!line.owes_a_word());
    }
}
