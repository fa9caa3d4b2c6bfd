//! Which memory the calling thread's work uses, where the program says so, and whether it is there.
//!
//! Invariants: an operand counts as resident only if every slot of ours that it touches is mapped. What is not
//! known (no description, one that cannot be, too many) counts as not resident.

use crate::process::{self, Process, Stretch};
use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_ffi::tensor::Region;

/// A thread's descriptions one inside the other, at most; what is deeper counts as undescribed.
const MOST_FRAMES: usize = 64;
/// A thread's operands at a time, at most; more count as undescribed.
pub const MOST_OPERANDS: usize = 1 << 16;

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack::EMPTY) };
}

/// What a thread has described and not taken back, innermost last.
struct Stack {
    operands: Vec<Region>,
    frames: Vec<Frame>,
    /// Frames that are not remembered.
    deeper: usize,
}

/// One description.
struct Frame {
    /// Its first operand.
    first: usize,
    is_described: bool,
}

impl Stack {
    const EMPTY: Self = Self { operands: Vec::new(), frames: Vec::new(), deeper: 0 };

    /// Begins a description; false: the work counts as undescribed until it is popped.
    fn push(&mut self, count: usize, operands: impl Iterator<Item = Option<Region>>) -> bool {
        if self.deeper > 0 || self.frames.len() == MOST_FRAMES {
            self.deeper = self.deeper.saturating_add(1);
            return false;
        }
        let first = self.operands.len();
        let is_described = self.has_room(count) && self.append(operands);
        if !is_described {
            self.operands.truncate(first);
        }
        self.frames.push(Frame { first, is_described });
        is_described
    }

    fn has_room(&mut self, count: usize) -> bool {
        count <= MOST_OPERANDS - self.operands.len() && self.operands.try_reserve(count).is_ok()
    }

    /// False at the first that is none.
    fn append(&mut self, mut operands: impl Iterator<Item = Option<Region>>) -> bool {
        operands.all(|operand| operand.map(|operand| self.operands.push(operand)).is_some())
    }

    fn pop(&mut self) {
        if self.deeper > 0 {
            self.deeper -= 1;
        } else if let Some(frame) = self.frames.pop() {
            self.operands.truncate(frame.first);
        }
    }

    /// All that the work submitted now uses, if that is known.
    fn innermost(&self) -> Option<&[Region]> {
        let frame = self.frames.last().filter(|frame| self.deeper == 0 && frame.is_described)?;
        Some(&self.operands[frame.first..])
    }
}

/// Work that the calling thread submits from now on uses these operands and no others, until the matching
/// [`pop`]. False: one of them is none (`None`), or they are too many; then the work counts as undescribed.
pub fn push(count: usize, operands: impl Iterator<Item = Option<Region>>) -> bool {
    // In the thread's last destructors nothing is described any more.
    let pushed = STACK.try_with(|stack| {
        let mut stack = stack.try_borrow_mut().ok()?;
        let is_described = stack.push(count, operands);
        if let (Some(process), Some(operands)) = (process::active(), stack.innermost()) {
            operands.iter().for_each(|operand| note_use(process, operand));
        }
        Some(is_described)
    });
    matches!(pushed, Ok(Some(true)))
}

/// Ends the innermost description; without one it does nothing.
pub fn pop() {
    // As above.
    let _ = STACK.try_with(|stack| stack.try_borrow_mut().map(|mut stack| stack.pop()));
}

/// Whether the program says what the calling thread's work uses.
pub fn are_described() -> bool {
    let is_described =
        |stack: &RefCell<Stack>| stack.try_borrow().is_ok_and(|stack| stack.innermost().is_some());
    STACK.try_with(is_described).unwrap_or(false)
}

/// Whether all that the calling thread's work uses is known, and there.
pub fn are_resident() -> bool {
    let known_and_there = || {
        let process = process::active()?;
        let answer = STACK.try_with(|stack| {
            let stack = stack.try_borrow().ok()?;
            Some(stack.innermost()?.iter().all(|operand| is_resident(process, operand)))
        });
        answer.ok().flatten()
    };
    // The caller, a function that C has called, must not unwind.
    catch_unwind(AssertUnwindSafe(known_and_there)).ok().flatten().unwrap_or(false)
}

/// Whether every slot of ours that an operand touches is mapped.
fn is_resident(process: &Process, operand: &Region) -> bool {
    process.stretches(operand.hull()).iter().all(|stretch| {
        let missing = stretch.tenant.missing(stretch.class, stretch.bytes.clone());
        missing.into_iter().all(|bytes| !touches(operand, stretch, bytes))
    })
}

/// Whether an operand touches some bytes that a stretch of ours lies across.
fn touches(operand: &Region, stretch: &Stretch, bytes: Range<u64>) -> bool {
    let (from, to) = (bytes.start.max(stretch.bytes.start), bytes.end.min(stretch.bytes.end));
    let range = Region::range(stretch.start + (from - stretch.bytes.start), to.saturating_sub(from));
    range.map_or(true, |range| operand.overlap(&range).is_possible())
}

/// Notes the slots between an operand's first byte and its last: of one with gaps perhaps too many, which is a
/// matter of order only.
fn note_use(process: &Process, operand: &Region) {
    for stretch in process.stretches(operand.hull()) {
        stretch.tenant.note_use(stretch.class, stretch.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64) -> Option<Region> {
        Region::range(start, 8).ok()
    }

    fn push(stack: &mut Stack, operands: &[Option<Region>]) -> bool {
        stack.push(operands.len(), operands.iter().copied())
    }

    #[test]
    fn the_innermost_description_decides() {
        let mut stack = Stack::EMPTY;
        assert!(stack.innermost().is_none(), "nothing is described");
        assert!(push(&mut stack, &[range(0), range(8)]));
        assert!(push(&mut stack, &[range(16)]));
        assert_eq!(stack.innermost(), Some(&[range(16).unwrap()][..]));
        assert!(push(&mut stack, &[]));
        assert_eq!(stack.innermost(), Some(&[][..]), "work that uses nothing is described");
        stack.pop();
        stack.pop();
        assert_eq!(stack.innermost().map(<[Region]>::len), Some(2));
        stack.pop();
        stack.pop();
        assert!(stack.innermost().is_none());
    }

    #[test]
    fn one_operand_that_cannot_be_makes_the_work_undescribed_and_pops_stay_right() {
        let mut stack = Stack::EMPTY;
        assert!(push(&mut stack, &[range(0)]));
        assert!(!push(&mut stack, &[range(8), None, range(16)]));
        assert!(stack.innermost().is_none());
        stack.pop();
        assert_eq!(stack.innermost(), Some(&[range(0).unwrap()][..]));
    }

    #[test]
    fn descriptions_without_end_are_counted_and_not_kept() {
        let mut stack = Stack::EMPTY;
        let kept = (0..100).filter(|_| push(&mut stack, &[range(0)])).count();
        assert_eq!((kept, stack.frames.len()), (MOST_FRAMES, MOST_FRAMES));
        assert!(stack.innermost().is_none());
        (MOST_FRAMES..100).for_each(|_| stack.pop());
        assert!(stack.innermost().is_some());
        stack.pop();
        assert!(!stack.push(MOST_OPERANDS, std::iter::repeat(range(0))), "too many at a time");
        assert_eq!(stack.operands.len(), MOST_FRAMES - 1);
    }
}
