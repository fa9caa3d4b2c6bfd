//! What each user may see, do and ask for. A client's user is the one that the kernel reports, whatever the client says.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_ffi::wire::message::JobSpec;

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

/// What users may ask for that is at the cost of other users. Root and the manager's own user may ask for all.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    /// The highest priority that a user may ask for, by uid.
    pub max_priority: BTreeMap<u32, i32>,
    /// The same for each user that is not named; without it, 0.
    pub max_priority_of_others: i32,
    /// The largest weight that a user may ask for, by uid.
    pub max_weight: BTreeMap<u32, u32>,
    /// The same for each user that is not named; without it, 1.
    pub max_weight_of_others: Option<u32>,
    /// The users whose jobs may be resident.
    pub resident: BTreeSet<u32>,
    /// Every user's jobs may.
    pub all_resident: bool,
}

impl Permissions {
    /// Why a user may not start a job that is to be treated like this; `None`: the user may.
    pub(super) fn against(&self, asker: Asker, spec: &JobSpec) -> Option<String> {
        if asker.rules() {
            return None;
        }
        let most = self.max_priority.get(&asker.uid).copied().unwrap_or(self.max_priority_of_others);
        if spec.priority > most {
            let wanted = spec.priority;
            return Some(format!(
                "priority {wanted} is more than this user may ask for, {most} (--max-priority)"
            ));
        }
        let most = self.max_weight.get(&asker.uid).copied().or(self.max_weight_of_others).unwrap_or(1);
        if spec.weight > most {
            let wanted = spec.weight;
            return Some(format!(
                "weight {wanted} is more than this user may ask for, {most} (--max-weight)"
            ));
        }
        let refused = spec.resident && !self.all_resident && !self.resident.contains(&asker.uid);
        refused.then(|| "this user's jobs may not be resident (--allow-resident)".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_other_users_cost_is_asked_for_by_those_who_may() {
        let permissions =
            Permissions { max_priority: [(5, 3)].into(), resident: [6].into(), ..Permissions::default() };
        let is_allowed = |uid, priority, resident| {
            let spec = JobSpec { priority, resident, ..JobSpec::default() };
            permissions.against(Asker { uid, manager: 7 }, &spec).is_none()
        };
        assert!(
            is_allowed(0, i32::MAX, true) && is_allowed(7, i32::MAX, true),
            "root, and the manager's user"
        );
        assert!(is_allowed(9, 0, false) && is_allowed(9, -4, false), "anyone");
        assert!(!is_allowed(9, 1, false) && !is_allowed(9, 0, true));
        assert!(is_allowed(5, 3, false) && !is_allowed(5, 4, false) && !is_allowed(5, 3, true));
        assert!(is_allowed(6, 0, true) && !is_allowed(6, 1, true));
    }

    #[test]
    fn a_weight_is_at_other_users_cost_too() {
        let allowed = |permissions: &Permissions, uid, weight| {
            let spec = JobSpec { weight, ..JobSpec::default() };
            permissions.against(Asker { uid, manager: 7 }, &spec).is_none()
        };
        let unnamed = Permissions { max_weight: [(5, 3)].into(), ..Permissions::default() };
        assert!(allowed(&unnamed, 0, u32::MAX) && allowed(&unnamed, 9, 1) && !allowed(&unnamed, 9, 2));
        assert!(allowed(&unnamed, 5, 3) && !allowed(&unnamed, 5, 4));
        let all = Permissions { max_weight_of_others: Some(2), ..unnamed };
        assert!(allowed(&all, 9, 2) && !allowed(&all, 9, 3) && allowed(&all, 5, 3));
    }

    #[test]
    fn root_may_all_the_managers_user_may_look_others_have_their_own() {
        let asker = |uid| Asker { uid, manager: 7 };
        assert!(asker(0).rules() && asker(0).sees(5) && asker(0).may_end(5));
        assert!(asker(7).rules() && asker(7).sees(5) && !asker(7).may_end(5));
        assert!(!asker(5).rules() && asker(5).sees(5) && asker(5).may_end(5));
        assert!(!asker(5).sees(6) && !asker(5).may_end(6) && !asker(5).sees(0) && !asker(5).may_end(0));
    }
}
