//! What jobs needed when they ran last (R4.1), under their user's name for them.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tidegate_ffi::wire::message::Need;

/// So many names are remembered for each user; the one that was used longest ago is forgotten.
const NAMES_PER_USER: usize = 256;

/// The needs of all users' jobs, the latest last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Needs(VecDeque<(u32, String, Need)>);

impl Needs {
    /// What the user's job of that name last needed.
    pub(super) fn of(&self, uid: u32, name: &str) -> Option<Need> {
        let known = self.0.iter().rev().find(|(of, known, _)| *of == uid && known == name);
        known.map(|(_, _, need)| *need)
    }

    /// Remembers a need in place of what was known.
    pub(super) fn note(&mut self, uid: u32, name: &str, need: Need) {
        self.0.retain(|(of, known, _)| *of != uid || known != name);
        self.0.push_back((uid, name.into(), need));
        if self.0.iter().filter(|(of, ..)| *of == uid).count() > NAMES_PER_USER
            && let Some(oldest) = self.0.iter().position(|(of, ..)| *of == uid)
        {
            self.0.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_oldest_name_is_forgotten_and_nobody_elses() {
        let need = |persistent| Need { persistent, temporary: 0 };
        let mut needs = Needs::default();
        needs.note(7, "theirs", need(7));
        needs.note(1, "first", need(1));
        needs.note(1, "second", need(2));
        needs.note(1, "first", need(3));
        for index in 0..NAMES_PER_USER - 1 {
            needs.note(1, &format!("job {index}"), need(4));
        }
        assert_eq!((needs.of(7, "theirs"), needs.of(1, "theirs")), (Some(need(7)), None));
        assert_eq!((needs.of(1, "first"), needs.of(1, "second")), (Some(need(3)), None));
        assert_eq!(needs.0.len(), NAMES_PER_USER + 1);
    }
}
