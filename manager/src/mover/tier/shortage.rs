//! Whether a tier is full, so that it can be said once, however often an order is tried again.
//!
//! A tier is full from a refusal until as many bytes as were refused are free, or could be handed
//! out. A smaller request that succeeds meanwhile does not end it: the next refusal would be news
//! again. Pure.

#![forbid(unsafe_code)]

/// What was refused last, if nothing has made room for it since.
#[derive(Debug, Default)]
pub struct Shortage {
    refused: Option<u64>,
}

impl Shortage {
    /// Notes that `bytes` could not be handed out; `true` when the shortage begins with that.
    pub fn begins(&mut self, bytes: u64) -> bool {
        let begins = self.refused.is_none();
        self.refused = self.refused.max(Some(bytes));
        begins
    }

    /// Notes that `bytes` could be handed out at once; `true` when the shortage ends with that.
    pub fn ends(&mut self, bytes: u64) -> bool {
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
        let mut shortage = Shortage::default();
        assert!(!shortage.ends(100), "there was none");
        assert!(shortage.begins(10));
        assert!(!shortage.begins(10) && !shortage.begins(20));
        assert!(!shortage.ends(19), "it would begin again at once");
        assert!(shortage.ends(20));
        assert!(!shortage.ends(20));
        assert!(shortage.begins(1));
    }
}
