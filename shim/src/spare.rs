//! Descriptors kept for a moment in which the program has used all others up.
//!
//! A process that cannot say what is alive in its memory cannot be stopped, and keeps all others
//! waiting: for what it says, there is always a descriptor.

use crate::own::Own;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use tidegate_ffi::os;
use tidegate_ffi::wire::live::{self, LiveMapError, LiveRange};

/// See the module.
#[derive(Default)]
pub struct Spares(Mutex<Vec<Own<OwnedFd>>>);

impl Spares {
    /// Keeps so many, as far as there are that many left.
    pub fn keep(&self, count: usize) {
        let mut kept = self.0.lock();
        while kept.len() < count {
            let Ok(spare) = os::memory_file("tidegate-spare") else { return };
            kept.push(Own::new(spare));
        }
    }

    /// Writes a live map: in place of a spare one, if there is no other descriptor.
    pub fn write(&self, ranges: &[LiveRange]) -> Result<OwnedFd, LiveMapError> {
        live::write(ranges).or_else(|error| {
            let spare = self.0.lock().pop().ok_or(error)?;
            drop(spare);
            live::write(ranges)
        })
    }
}
