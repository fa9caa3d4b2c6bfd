//! Memory outside of pieces: the driver takes it for contexts, modules, graphs and the like.
//!
//! It is real memory of the GPU, of which the ledger leases to pieces what is free. So a call that
//! finds none asks the manager to make room (`MakeRoom`), and is made once more:
//! ```text
//! driver: out of memory ──► MakeRoom ─► manager ─► Room ──► driver, once more: the answer
//! ```
//! Invariant: at most one question and one more call, whatever the answers; nothing is held
//! meanwhile that a closing waits for. A call that failed has changed nothing, except that a
//! compiler's log may have been written and its length with it: the second log may be cut short.

use super::abi::Real;
use crate::driver;
use crate::link::Reply;
use crate::log::debug;
use crate::process::Process;
use crate::status::{Answer, Status};
use tidegate_ffi::cuda::sys::CUdevice;
use tidegate_ffi::wire::message::FromShim;

/// Calls the driver; when memory is short, once more with room on the current context's GPU.
pub fn for_current_gpu(process: &Process, real: Real<'_>) -> Answer {
    or_again(real, || make(process, driver::current_device().ok()?))
}

/// Calls the driver; when memory is short, once more with room on `device`.
pub fn for_gpu(process: &Process, device: CUdevice, real: Real<'_>) -> Answer {
    or_again(real, || make(process, device))
}

fn or_again(real: Real<'_>, make_room: impl FnOnce() -> Option<()>) -> Answer {
    match real() {
        Err(Status::OUT_OF_MEMORY) if make_room().is_some() => real(),
        answer => answer,
    }
}

/// Waits until the manager has made the room that it can; `None`: it cannot be asked.
fn make(process: &Process, device: CUdevice) -> Option<()> {
    process.tenants.on(device)?;
    let gpu = driver::uuid(device).ok()?;
    debug!("no memory outside of pieces on {gpu}");
    let replies = process.link.request(|step| FromShim::MakeRoom { step, gpu }).ok()?;
    matches!(replies.next().ok()?, Reply::Room).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// How often the driver is called and the manager asked when the driver gives these answers.
    fn calls(answers: &[Answer], is_there: bool) -> (Answer, usize, usize) {
        let (left, asked) = (RefCell::new(answers.iter()), Cell::new(0));
        let real = || *left.borrow_mut().next().unwrap();
        let make_room = || {
            asked.set(asked.get() + 1);
            is_there.then_some(())
        };
        let answer = or_again(&real, make_room);
        (answer, answers.len() - left.borrow().len(), asked.get())
    }

    #[test]
    fn only_a_call_that_found_no_memory_is_made_again_and_only_once() {
        const FULL: Answer = Err(Status::OUT_OF_MEMORY);
        assert_eq!(calls(&[Ok(()), Ok(())], true), (Ok(()), 1, 0));
        let wrong = Err(Status::INVALID_VALUE);
        assert_eq!(calls(&[wrong, Ok(())], true), (wrong, 1, 0));
        assert_eq!(calls(&[FULL, Ok(())], true), (Ok(()), 2, 1));
        assert_eq!(calls(&[FULL, FULL, Ok(())], true), (FULL, 2, 1));
        assert_eq!(calls(&[FULL, Ok(())], false), (FULL, 1, 1));
    }
}
