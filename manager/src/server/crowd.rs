//! How many clients there may be: of one process, of one user, of all.

use super::descriptors::Shares;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A process needs one; `tidegate status` and the like one more.
const PER_PROCESS: usize = 32;
const PER_USER: usize = 512;
const OF_ALL: usize = 4096;

/// Counts the clients that are connected, or whose process lives.
#[derive(Debug)]
pub(super) struct Crowd {
    counts: Mutex<BTreeMap<(u32, i32), usize>>,
    left: Condvar,
    most: Most,
}

/// How many there may be.
#[derive(Debug)]
struct Most {
    per_process: usize,
    per_user: usize,
    of_all: usize,
}

/// A client's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    whose: (u32, i32),
}

impl Crowd {
    /// Nobody yet. Where descriptors are few, no user has more than half of the places, and no
    /// process more than a quarter of those.
    pub(super) fn of(shares: Shares) -> Self {
        let of_all = OF_ALL.min(shares.clients);
        let per_user = PER_USER.min(of_all.div_ceil(2));
        let most = Most { per_process: PER_PROCESS.min(per_user.div_ceil(4)), per_user, of_all };
        Self { counts: Mutex::default(), left: Condvar::new(), most }
    }

    /// A place for one more client of a process, if there is one.
    pub(super) fn admit(self: &Arc<Self>, uid: u32, pid: i32) -> Option<Place> {
        let mut counts = self.counts.lock();
        let of_user: usize = counts.range((uid, i32::MIN)..=(uid, i32::MAX)).map(|(_, count)| count).sum();
        let all: usize = counts.values().sum();
        let own = counts.get(&(uid, pid)).copied().unwrap_or(0);
        let Most { per_process, per_user, of_all } = self.most;
        if own >= per_process || of_user >= per_user || all >= of_all {
            return None;
        }
        counts.insert((uid, pid), own + 1);
        Some(Place { crowd: self.clone(), whose: (uid, pid) })
    }

    /// Waits until a client leaves, no longer than `patience`.
    pub(super) fn wait_for_a_departure(&self, patience: Duration) {
        self.left.wait_for(&mut self.counts.lock(), patience);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.crowd.counts.lock();
        if let Some(count) = counts.get_mut(&self.whose) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
        self.crowd.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_a_user_have_so_many_places_and_get_them_back() {
        let crowd = Arc::new(Crowd::of(Shares::of(1 << 20)));
        let mut places: Vec<Place> = (0..PER_PROCESS).map(|_| crowd.admit(1, 1).unwrap()).collect();
        assert!(crowd.admit(1, 1).is_none());
        places.extend((2..).map_while(|pid| crowd.admit(1, pid)));
        assert_eq!(places.len(), PER_USER);
        assert!(crowd.admit(2, 9).is_some(), "another user has its own");
        places.clear();
        assert!(crowd.admit(1, 1).is_some());
        assert!(crowd.counts.lock().is_empty());
    }

    #[test]
    fn where_descriptors_are_few_there_is_a_place_for_another_process_and_another_user() {
        for limit in [64, 128, 1024] {
            let crowd = Arc::new(Crowd::of(Shares::of(limit)));
            let greedy: Vec<Place> = std::iter::from_fn(|| crowd.admit(1, 1)).collect();
            let same_user: Vec<Place> = (2..).map_while(|pid| crowd.admit(1, pid)).collect();
            let other_user = crowd.admit(2, 1);
            assert!(!greedy.is_empty() && same_user.len() >= 2 && other_user.is_some(), "of {limit}");
        }
    }
}
