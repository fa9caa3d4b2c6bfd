//! Leaked memory (I6): a piece has been destroyed, and its memory is still in use, because a process has kept a descriptor of
//! it, or a child that outlives its process a mapping. The driver frees the memory only when the last of these is closed,
//! and does not tell which process that is.
//!
//! So the mover looks at what is free before and after it destroys pieces that a user's jobs had. What did not come
//! free is that user's: it counts towards the quota, and a user that leaks more than an eighth of a GPU is leased no
//! more of it. No process is expelled for it: a program beside Tidegate that takes memory in the same instant could have
//! another user's job expelled. What comes back to a job at its turn is not leased, and not refused. Not looked for is what root's
//! jobs and those of the manager's own user leak: they may stop the manager.
//!
//! ```text
//! destroyed ─► less came free than the pieces had ─► the user's leak ─► as much less lies outside ─► forgotten
//! expelled process dead ─► more lies outside than before ─┘
//! ```
//!
//! Memory that another process takes at the same moment looks the same. It is charged until as much comes free again,
//! and never beyond what lies outside of pieces.

use super::outside::Since;
use super::{Pending, Scheduler};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_ffi::units::GpuUuid;

/// A user may leak this part of a GPU before its jobs get no more of it.
const PART_OF_GPU: u32 = 8;

/// Units of destroyed pieces that are still in use, by user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaks {
    units: BTreeMap<u32, u32>,
}

impl Leaks {
    /// Units that a user leaks.
    pub fn of(&self, uid: u32) -> u32 {
        self.units.get(&uid).copied().unwrap_or(0)
    }

    /// Users that leak, and how many units.
    pub fn by_user(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.units.iter().map(|(uid, units)| (*uid, *units))
    }

    /// Units of all users.
    pub fn total(&self) -> u32 {
        self.units.values().fold(0, |all, units| all.saturating_add(*units))
    }

    pub(super) fn add(&mut self, uid: u32, units: u32) {
        if units > 0 {
            let leaked = self.units.entry(uid).or_default();
            *leaked = leaked.saturating_add(units);
        }
    }

    /// So many units have come free: of the users that leak most, first.
    pub(super) fn forget(&mut self, mut units: u32) {
        while units > 0
            && let Some((&uid, leaked)) = self.units.iter_mut().max_by_key(|(_, leaked)| **leaked)
        {
            let freed = units.min(*leaked);
            *leaked -= freed;
            units -= freed;
            if *leaked == 0 {
                self.units.remove(&uid);
            }
        }
    }

    /// All together are no more than so many.
    pub(super) fn limit(&mut self, most: u32) {
        self.forget(self.total().saturating_sub(most));
    }
}

impl Scheduler {
    /// Whether it is looked at if memory that a user's jobs had comes free.
    pub(super) fn is_watched(&self, uid: u32) -> bool {
        uid != 0 && uid != self.config.own_uid
    }

    /// So many bytes of destroyed pieces did not come free.
    pub(super) fn note_leak(&mut self, gpu: GpuUuid, uid: u32, bytes: u64) {
        // Less than a unit is noise: nothing is handed out that is smaller.
        let units = u32::try_from(bytes / self.config.unit_bytes).unwrap_or(u32::MAX / 4);
        let Some(on) = self.gpus.get_mut(&gpu).filter(|_| units > 0) else { return };
        on.leaks.add(uid, units);
        // Until it is measured: the ledger has these units no more, and they are not free.
        if let Some(outside) = &mut on.outside.units {
            *outside = outside.saturating_add(units);
        }
        on.reserve();
        self.measure(gpu);
    }

    /// So many units are measured outside of pieces: as much less than before is leaked no more, but for the contexts that
    /// have gone; what is more may be what the dead gave back, in their children.
    pub(super) fn compare(&mut self, gpu: GpuUuid, outside: u32, since: Since) {
        let watched: Vec<(u32, u32)> =
            since.given_back.into_iter().filter(|(uid, _)| self.is_watched(*uid)).collect();
        let Some(on) = self.gpus.get_mut(&gpu) else { return };
        let known = on.outside.units.unwrap_or(0);
        on.leaks.forget(known.saturating_sub(outside).saturating_sub(since.contexts_gone));
        let mut more = outside.saturating_sub(known);
        for (uid, units) in watched {
            let kept = units.min(more);
            on.leaks.add(uid, kept);
            more -= kept;
        }
        on.leaks.limit(outside);
    }

    /// Units of a user's pieces that are being destroyed, where it is looked at if they come free.
    pub(super) fn units_being_destroyed(&self, gpu: GpuUuid, uid: u32) -> u32 {
        let Some(on) = self.gpus.get(&gpu) else { return 0 };
        let pieces = self.pending.values().filter_map(|pending| match pending {
            Pending::Destroy(of, pieces, Some(user)) if *of == gpu && *user == uid => Some(pieces),
            _ => None,
        });
        pieces.flatten().filter_map(|piece| on.ledger.piece(*piece)).map(|record| record.units).sum()
    }

    /// Why a user's jobs get no more of a GPU, whatever their quota, if so many units more leak; `None`: they may.
    pub(super) fn leaks_too_much(&self, gpu: GpuUuid, uid: u32, more: u32) -> Option<String> {
        let on = self.gpus.get(&gpu)?;
        let leaked = on.leaks.of(uid).saturating_add(more);
        (leaked > on.ledger.total() / PART_OF_GPU).then(|| {
            format!(
                "processes of user {uid} keep {} bytes of {gpu} that were given back, by descriptors or in children of ended \
                 processes",
                u64::from(leaked) * self.config.unit_bytes
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_free_is_taken_from_the_largest_leak_and_no_leak_is_less_than_nothing() {
        let mut leaks = Leaks::default();
        leaks.add(7, 10);
        leaks.add(8, 4);
        leaks.add(9, 0);
        assert_eq!(leaks.by_user().collect::<Vec<_>>(), [(7, 10), (8, 4)]);
        leaks.forget(7);
        assert_eq!((leaks.of(7), leaks.of(8)), (3, 4));
        leaks.limit(5);
        assert_eq!((leaks.of(7), leaks.of(8), leaks.total()), (3, 2, 5));
        leaks.limit(9);
        leaks.forget(9);
        assert_eq!(leaks, Leaks::default());
    }
}
