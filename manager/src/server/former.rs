//! Jobs that are over, and may begin anew.
//!
//! A process that a program leaves behind (a daemon) may come to CUDA when all others of its job are gone.
//! It names a job that is over: so it gets one that is as that one was, with its priority and its quota.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tidegate_ffi::wire::message::JobSpec;

/// How many are remembered, the last ones.
const KEPT: usize = 256;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FormerJobs(VecDeque<FormerJob>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FormerJob {
    token: u64,
    uid: u32,
    spec: JobSpec,
}

impl FormerJobs {
    /// A job that was announced is over.
    pub(super) fn remember(&mut self, token: u64, uid: u32, spec: JobSpec) {
        self.0.push_back(FormerJob { token, uid, spec });
        while self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    /// What the job was that a user's token named, if it is to begin anew: once.
    pub(super) fn recall(&mut self, token: u64, uid: u32) -> Option<JobSpec> {
        let at = self.0.iter().position(|job| job.token == token && job.uid == uid)?;
        self.0.remove(at).map(|job| job.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_recalled_once_and_by_its_user() {
        let mut former = FormerJobs::default();
        let spec = JobSpec { priority: 3, ..JobSpec::default() };
        former.remember(7, 1000, spec.clone());
        assert_eq!((former.recall(7, 1001), former.recall(8, 1000)), (None, None));
        assert_eq!(former.recall(7, 1000), Some(spec));
        assert_eq!(former.recall(7, 1000), None);
    }

    #[test]
    fn the_last_ones_are_remembered() {
        let mut former = FormerJobs::default();
        (0..KEPT as u64 + 1).for_each(|token| former.remember(token, 0, JobSpec::default()));
        assert_eq!(former.recall(0, 0), None);
        assert!(former.recall(1, 0).is_some() && former.recall(KEPT as u64, 0).is_some());
    }
}
