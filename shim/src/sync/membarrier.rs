//! A barrier between threads whose whole cost is on one side (`membarrier(2)`).
//!
//! Of a [`light`] and a [`heavy`] side one comes first: what was written before it is seen after
//! the other. Two light sides promise each other nothing.

use super::atomic::{Ordering, compiler_fence};
use rustix::io::Errno;
use rustix::thread::{CpuSet, MembarrierCommand, membarrier, sched_getaffinity, sched_setaffinity};

/// Makes [`heavy`] work in this process; false where that is forbidden (seccomp).
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// The side that is passed often: no instruction, and the compiler moves nothing over it.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The other side: makes every running thread of the process execute a full barrier, wherever it
/// is. The process is [registered](register). False where that cannot be had any more.
#[must_use]
pub fn heavy() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok() || visit_every_processor()
}

/// Stands in where the process has forbidden itself `membarrier(2)` since it was registered (seccomp): runs
/// on one processor after the other. What ran there before has been put aside for it, which is a full
/// barrier, as is a thread's way from one processor to another.
fn visit_every_processor() -> bool {
    let Ok(own) = sched_getaffinity(None) else { return false };
    let visited = (0..CpuSet::MAX_CPU).all(visit);
    sched_setaffinity(None, &own).is_ok() && visited
}

/// False where processors cannot be chosen. One that there is not, or where the process cannot run, needs
/// no visit.
fn visit(processor: usize) -> bool {
    let mut alone = CpuSet::new();
    alone.set(processor);
    matches!(sched_setaffinity(None, &alone), Ok(()) | Err(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getcpu;

    #[test]
    fn every_processor_is_visited_and_the_thread_goes_where_it_may_again() {
        let own = sched_getaffinity(None).unwrap();
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor)).collect();
        for processor in allowed {
            assert!(visit(processor));
            assert_eq!(sched_getcpu(), processor);
        }
        assert!(sched_setaffinity(None, &own).is_ok() && visit_every_processor());
        assert_eq!(sched_getaffinity(None).unwrap(), own);
    }
}
