//! Memory outside of pieces: the driver takes it for contexts, modules, graphs and the like.
//!
//! It is real memory of the GPU, of which the ledger leases to pieces what is free. So a call that
//! finds none asks the manager to make room (`MakeRoom`), and is made again. How much it wants
//! only the driver knows: it asks for one unit, then for twice as much each time.
//! ```text
//! driver: out of memory ──► MakeRoom ─► manager ─► Room ──► driver, again: the answer
//!                                                   │         │ out of memory, and there is more
//!                                                   └─────────┘
//! ```
//! Invariant: the questions end, whatever the answers; nothing is held meanwhile that a closing
//! waits for. A call that failed has changed nothing, except that a compiler's log may have been
//! written and its length with it: the second log may be cut short.

use super::abi::Real;
use crate::driver;
use crate::link::Reply;
use crate::log::debug;
use crate::process::Process;
use crate::status::{Answer, Status};
use tidegate_ffi::cuda::sys::CUdevice;
use tidegate_ffi::units::Units;
use tidegate_ffi::wire::message::FromShim;

/// Calls the driver; when memory is short, again with room on the current context's GPU.
pub fn for_current_gpu(process: &Process, real: Real<'_>) -> Answer {
    or_again(real, |units| make(process, driver::current_device().ok()?, units))
}

/// Calls the driver; when memory is short, again with room on `device`.
pub fn for_gpu(process: &Process, device: CUdevice, real: Real<'_>) -> Answer {
    or_again(real, |units| make(process, device, units))
}

/// Room was made: perhaps more can be.
struct Made {
    more: bool,
}

fn or_again(real: Real<'_>, mut make_room: impl FnMut(Units) -> Option<Made>) -> Answer {
    let mut answer = real();
    for units in (0..u32::BITS).map(|doubling| Units(1 << doubling)) {
        if answer != Err(Status::OUT_OF_MEMORY) {
            break;
        }
        let Some(made) = make_room(units) else { break };
        answer = real();
        if !made.more {
            break;
        }
    }
    answer
}

/// Waits until the manager has made the room that it can; `None`: it cannot be asked.
fn make(process: &Process, device: CUdevice, units: Units) -> Option<Made> {
    let tenant = process.tenants.on(device)?;
    let _inside = tenant.rooms.enter();
    let gpu = driver::uuid(device).ok()?;
    debug!("no memory outside of pieces on {gpu}, {} units wanted", units.0);
    let replies = process.link.request(|step| FromShim::MakeRoom { step, gpu, units }).ok()?;
    match replies.next().ok()? {
        Reply::Room { more } => Some(Made { more }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const FULL: Answer = Err(Status::OUT_OF_MEMORY);

    /// The driver's answer in the end, how many it gave, and the units that the manager was asked for.
    fn calls(answers: &[Answer], rooms: &[Option<bool>]) -> (Answer, usize, Vec<u32>) {
        let (left, mut asked) = (RefCell::new(answers.iter()), Vec::new());
        let mut rooms = rooms.iter();
        let real = || *left.borrow_mut().next().unwrap();
        let make_room = |units: Units| {
            asked.push(units.0);
            rooms.next().unwrap().map(|more| Made { more })
        };
        let answer = or_again(&real, make_room);
        (answer, answers.len() - left.borrow().len(), asked)
    }

    #[test]
    fn a_call_that_finds_no_memory_is_made_again_as_long_as_there_can_be_more() {
        assert_eq!(calls(&[Ok(()), Ok(())], &[]), (Ok(()), 1, vec![]));
        let wrong = Err(Status::INVALID_VALUE);
        assert_eq!(calls(&[wrong, Ok(())], &[]), (wrong, 1, vec![]));
        assert_eq!(calls(&[FULL, Ok(())], &[Some(true)]), (Ok(()), 2, vec![1]));
        assert_eq!(calls(&[FULL, FULL, Ok(())], &[Some(true), Some(true)]), (Ok(()), 3, vec![1, 2]));
        assert_eq!(calls(&[FULL, FULL, Ok(())], &[Some(false)]), (FULL, 2, vec![1]));
        assert_eq!(calls(&[FULL, FULL, wrong], &[Some(true), Some(true)]), (wrong, 3, vec![1, 2]));
        assert_eq!(calls(&[FULL, Ok(())], &[None]), (FULL, 1, vec![1]));
    }

    #[test]
    fn the_questions_end() {
        let (answer, driver, asked) = calls(&[FULL; 40], &[Some(true); 40]);
        assert_eq!((answer, driver, asked.len()), (FULL, 33, 32));
    }
}
