//! How many clients there may be: of one process, of one user, of all.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A process needs one; `tidegate status` and the like one more.
const PER_PROCESS: usize = 32;
const PER_USER: usize = 512;
const OF_ALL: usize = 4096;

/// Counts the clients that are connected, or whose process lives.
#[derive(Debug, Default)]
pub(super) struct Crowd(Mutex<BTreeMap<(u32, i32), usize>>);

/// A client's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    whose: (u32, i32),
}

impl Crowd {
    /// A place for one more client of a process, if there is one.
    pub(super) fn admit(self: &Arc<Self>, uid: u32, pid: i32) -> Option<Place> {
        let mut counts = self.0.lock();
        let of_user: usize = counts.range((uid, i32::MIN)..=(uid, i32::MAX)).map(|(_, count)| count).sum();
        let all: usize = counts.values().sum();
        let own = counts.get(&(uid, pid)).copied().unwrap_or(0);
        if own >= PER_PROCESS || of_user >= PER_USER || all >= OF_ALL {
            return None;
        }
        counts.insert((uid, pid), own + 1);
        Some(Place { crowd: self.clone(), whose: (uid, pid) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.crowd.0.lock();
        if let Some(count) = counts.get_mut(&self.whose) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_a_user_have_so_many_places_and_get_them_back() {
        let crowd = Arc::new(Crowd::default());
        let mut places: Vec<Place> = (0..PER_PROCESS).map(|_| crowd.admit(1, 1).unwrap()).collect();
        assert!(crowd.admit(1, 1).is_none());
        places.extend((2..).map_while(|pid| crowd.admit(1, pid)));
        assert_eq!(places.len(), PER_USER);
        assert!(crowd.admit(2, 9).is_some(), "another user has its own");
        places.clear();
        assert!(crowd.admit(1, 1).is_some());
        assert!(crowd.0.lock().is_empty());
    }
}
