//! Dividing copies into steps, each of which is waited for and counted before the next.

use super::{DeviceRange, Transfer};
use crate::mover::progress::Pace;
use std::time::Instant;
use tidegate_ffi::cuda::DriverError;

/// Copies are divided at multiples of it.
const ALIGN: u64 = 4096;

/// What can be divided.
pub trait Divide: Copy {
    fn bytes(&self) -> u64;
    /// The first so many bytes, and the rest.
    fn divide(self, at: u64) -> (Self, Self);
}

impl Divide for Transfer<'_> {
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn divide(self, at: u64) -> (Self, Self) {
        self.split(at as usize)
    }
}

impl Divide for DeviceRange<'_> {
    fn bytes(&self) -> u64 {
        DeviceRange::bytes(self)
    }

    fn divide(self, at: u64) -> (Self, Self) {
        self.split(at)
    }
}

/// Has two lists moved, step by step, as much of each as the pace says.
pub fn in_steps<T: Divide>(
    pace: &Pace,
    lists: [&[T]; 2],
    mut run: impl FnMut([&[T]; 2]) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let mut rests = lists.map(|list| Rest { list, head: None });
    loop {
        let most = pace.next();
        let [one, other] = rests.each_mut().map(|rest| rest.take(most));
        if one.is_empty() && other.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        run([&one, &other])?;
        let bytes = one.iter().chain(&other).map(Divide::bytes).sum();
        pace.moved(bytes, began.elapsed());
    }
}

/// What of a list is to do.
struct Rest<'t, T> {
    list: &'t [T],
    /// What is left of an element that was divided; it comes first.
    head: Option<T>,
}

impl<T: Divide> Rest<'_, T> {
    /// The next ones, of at most so many bytes (at least [`ALIGN`]).
    fn take(&mut self, most: u64) -> Vec<T> {
        let (mut taken, mut room) = (Vec::new(), most.max(ALIGN));
        while let Some(next) = self.head.take().or_else(|| self.pop()) {
            if next.bytes() <= room {
                room -= next.bytes();
                taken.push(next);
                continue;
            }
            match room - room % ALIGN {
                0 => self.head = Some(next),
                at => {
                    let (first, rest) = next.divide(at);
                    taken.push(first);
                    self.head = Some(rest);
                }
            }
            break;
        }
        taken
    }

    fn pop(&mut self) -> Option<T> {
        let (first, rest) = self.list.split_first()?;
        self.list = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes from here to there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Bytes(u64, u64);

    impl Divide for Bytes {
        fn bytes(&self) -> u64 {
            self.1 - self.0
        }

        fn divide(self, at: u64) -> (Self, Self) {
            (Self(self.0, self.0 + at), Self(self.0 + at, self.1))
        }
    }

    /// The steps of a pace that stays as it is.
    fn steps(most: u64, lists: [&[Bytes]; 2]) -> Vec<[Vec<Bytes>; 2]> {
        let (pace, mut steps) = (Pace::new(most, most), Vec::new());
        in_steps(&pace, lists, |step| {
            steps.push(step.map(<[Bytes]>::to_vec));
            Ok(())
        })
        .unwrap();
        steps
    }

    #[test]
    fn every_byte_is_moved_once_and_in_order() {
        let list =
            [Bytes(0, 3 * ALIGN), Bytes(0, 7), Bytes(100, 100), Bytes(7, ALIGN), Bytes(0, 5 * ALIGN + 1)];
        for most in [ALIGN, 2 * ALIGN, 3 * ALIGN + 5, 100 * ALIGN] {
            let steps = steps(most, [&list, &list[..2]]);
            for (side, whole) in [(0, &list[..]), (1, &list[..2])] {
                let moved: Vec<Bytes> = steps.iter().flat_map(|step| step[side].clone()).collect();
                assert!(steps.iter().all(|step| step[side].iter().map(Bytes::bytes).sum::<u64>() <= most));
                let bytes = |list: &[Bytes]| -> Vec<u64> { list.iter().flat_map(|b| b.0..b.1).collect() };
                assert_eq!(bytes(&moved), bytes(whole), "at most {most}");
            }
        }
        assert_eq!(steps(100 * ALIGN, [&list, &[]]), [[list.to_vec(), vec![]]], "what fits goes at once");
        assert!(steps(ALIGN, [&[], &[]]).is_empty());
    }

    #[test]
    fn what_fails_is_not_gone_on_with() {
        let error = DriverError { call: "x", code: tidegate_ffi::cuda::sys::CUresult::CUDA_ERROR_UNKNOWN };
        let mut count = 0;
        let run = |_: [&[Bytes]; 2]| {
            count += 1;
            Err(error)
        };
        assert!(in_steps(&Pace::new(ALIGN, ALIGN), [&[Bytes(0, 3 * ALIGN)], &[]], run).is_err());
        assert_eq!(count, 1);
    }
}
