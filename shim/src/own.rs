//! What the process holds by a descriptor that the program may close.
//!
//! A program that closes all descriptors (`close_range`, the ways of daemons) closes ours too, and the
//! numbers go to what it opens next. So each use asks first whether the number still is what it was.
//!
//! Invariant: nothing of the program's is written to, sent, shut down or closed by us.

use rustix::fs::fstat;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;

/// Something behind a descriptor.
pub struct Own<T: AsFd> {
    thing: ManuallyDrop<T>,
    /// Which file it is; `None`: that could not be asked.
    file: Option<(u64, u64)>,
}

impl<T: AsFd> Own<T> {
    /// From now on ours.
    pub fn new(thing: T) -> Self {
        let file = file_behind(&thing);
        Self { thing: ManuallyDrop::new(thing), file }
    }

    /// The thing, unless the program has closed it.
    pub fn get(&self) -> Option<&T> {
        (self.file.is_some() && file_behind(&*self.thing) == self.file).then_some(&*self.thing)
    }
}

impl<T: AsFd> Drop for Own<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}

fn file_behind(thing: &impl AsFd) -> Option<(u64, u64)> {
    fstat(thing).ok().map(|file| (file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};

    #[test]
    fn what_the_program_has_closed_is_not_touched_and_nor_is_what_it_opened_there() {
        let own = Own::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let programs = tempfile::tempfile().unwrap();
        let number = own.get().unwrap().as_raw_fd();
        // SAFETY: as the program may: the number is this test's own, and becomes another file's at once.
        assert_eq!(unsafe { libc::dup2(programs.as_raw_fd(), number) }, number);
        assert!(own.get().is_none());
        drop(own);
        let path = format!("/proc/thread-self/fd/{number}");
        assert!(File::open(&path).is_ok(), "it was closed");
        // SAFETY: opened above, by its number.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }

    #[test]
    fn what_is_ours_is_closed_with_it() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let (kept, number) = (file.try_clone().unwrap(), file.as_raw_fd());
        drop(Own::new(file));
        let now = std::fs::read_link(format!("/proc/thread-self/fd/{number}")).ok();
        let then = std::fs::read_link(format!("/proc/thread-self/fd/{}", kept.as_raw_fd())).ok();
        assert_ne!(now, then);
    }
}
