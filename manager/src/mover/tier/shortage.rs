//! Says that a tier is full, and that it has room again: once each, however often an order is tried again.
//!
//! A tier is full from a refusal until as many bytes as were refused are free, or could be handed
//! out. A smaller request that succeeds meanwhile does not end it: the next refusal would be news
//! again.

#![forbid(unsafe_code)]

use super::{Extent, TierError};

/// What a tier has refused last, if nothing has made room for it since.
#[derive(Debug)]
pub struct Shortage {
    /// The tier, as the log has it.
    title: String,
    /// What becomes of saved bytes until it has room.
    until_then: &'static str,
    refused: Option<u64>,
}

impl Shortage {
    /// Of a tier that is not full.
    pub fn new(title: String, until_then: &'static str) -> Self {
        Self { title, until_then, refused: None }
    }

    /// The tier, as the log has it.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Notes what was handed out where `bytes` were asked for.
    pub fn note(&mut self, bytes: u64, taken: &Result<Vec<Extent>, TierError>) {
        match taken {
            Ok(_) => self.note_room(bytes),
            Err(error) if self.begins(bytes) => {
                tracing::warn!(
                    %error, "the {} tier is full: {} until it has room", self.title, self.until_then
                );
            }
            Err(_) => {}
        }
    }

    /// Notes that `bytes` could be handed out at once.
    pub fn note_room(&mut self, bytes: u64) {
        if self.ends(bytes) {
            tracing::warn!("the {} tier has room again", self.title);
        }
    }

    /// Notes that `bytes` could not be handed out; `true` when the shortage begins with that.
    fn begins(&mut self, bytes: u64) -> bool {
        let begins = self.refused.is_none();
        self.refused = self.refused.max(Some(bytes));
        begins
    }

    /// Notes that `bytes` could be handed out at once; `true` when the shortage ends with that.
    fn ends(&mut self, bytes: u64) -> bool {
        let ends = self.refused.is_some_and(|refused| bytes >= refused);
        if ends {
            self.refused = None;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_begins_once_and_ends_once() {
        let mut shortage = Shortage::new("DRAM".into(), "jobs wait");
        assert!(!shortage.ends(100), "there was none");
        assert!(shortage.begins(10));
        assert!(!shortage.begins(10) && !shortage.begins(20));
        assert!(!shortage.ends(19), "it would begin again at once");
        assert!(shortage.ends(20));
        assert!(!shortage.ends(20));
        assert!(shortage.begins(1));
    }
}
