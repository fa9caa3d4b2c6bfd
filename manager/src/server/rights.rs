//! Who may see and do what. A client is whom the kernel says it is, whatever it says itself.

/// A client's user, beside the manager's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) uid: u32,
    pub(super) manager: u32,
}

impl Asker {
    /// Whether the manager is this user's to see through and to stop.
    pub(super) fn rules(self) -> bool {
        self.uid == 0 || self.uid == self.manager
    }

    /// Whether a job of `owner` is shown.
    pub(super) fn sees(self, owner: u32) -> bool {
        self.rules() || self.uid == owner
    }

    /// Whether a job of `owner` may be ended.
    pub(super) fn may_end(self, owner: u32) -> bool {
        self.uid == 0 || self.uid == owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_may_all_the_managers_user_may_look_others_have_their_own() {
        let asker = |uid| Asker { uid, manager: 7 };
        assert!(asker(0).rules() && asker(0).sees(5) && asker(0).may_end(5));
        assert!(asker(7).rules() && asker(7).sees(5) && !asker(7).may_end(5));
        assert!(!asker(5).rules() && asker(5).sees(5) && asker(5).may_end(5));
        assert!(!asker(5).sees(6) && !asker(5).may_end(6) && !asker(5).sees(0) && !asker(5).may_end(0));
    }
}
