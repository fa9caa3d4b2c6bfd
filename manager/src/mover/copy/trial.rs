//! Whether tiny ranges are gathered: tried once, between memory of the trial's own.
//!
//! Each way's staging is the pieces of the other. Ranges of odd sizes and alignments are gathered and scattered, and
//! their bytes compared, and those of the gaps between them; then ranges of 4 KiB are timed against how they go else.

use super::gather::{DeviceMemory, LockedMemory, Means, Ways};
use super::gpu::Context;
use super::{Gpu, HostRange, Transfer, Way, submit_copies};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};
use tidegate_ffi::cuda::DriverError;
use tidegate_ffi::cuda::sys::CUresult;

/// No more than so much memory: enough to be timed, and copied in less than a millisecond.
const MOST_BYTES: usize = 1 << 20;
/// Ranges that are timed, and the gaps between them.
const TIMED_BYTES: usize = 4 << 10;
const TIMED_GAP: usize = 512;
/// The fastest of so many rounds counts.
const ROUNDS: u32 = 3;
/// Gathering is to be so many times as fast: it takes memory of the GPU, and is to stay faster when others compute.
const WORTH: u32 = 2;
/// What gaps are filled with.
const GAP: u8 = 0xA5;

/// Why nothing is gathered.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("the GPU is too small to have staging memory")]
    SmallGpu,
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("the kernel does not copy what it should")]
    WrongBytes,
    #[error("it is not faster (out, {0}; back, {1})")]
    Slow(Times, Times),
}

impl TrialError {
    /// Whether it may help to try later.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, TrialError::Driver(error) if error.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// How long the timed ranges take one way.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    bytes: usize,
    gathered: Duration,
    copied: Duration,
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, gathered, copied } = self;
        write!(f, "{bytes} bytes in ranges of {TIMED_BYTES}: {gathered:?} gathered, {copied:?} in a batch")
    }
}

impl Times {
    fn is_worth_it(&self) -> bool {
        self.gathered * WORTH <= self.copied
    }
}

/// Which ways to gather.
fn choose(is_right: bool, out: Times, back: Times) -> Result<Ways, TrialError> {
    match (out.is_worth_it(), back.is_worth_it()) {
        _ if !is_right => Err(TrialError::WrongBytes),
        (false, false) => Err(TrialError::Slow(out, back)),
        (out, back) => Ok(Ways { out, back }),
    }
}

/// Finds the means and tries them; what is left of them is worth it. Takes milliseconds.
pub fn run(gpu: &Gpu, context: &Context) -> Result<Means, TrialError> {
    let began = Instant::now();
    let mut means = Means::make(gpu)?;
    let mut trial = Trial::new(gpu, context, &means)?;
    let is_right = trial.gathers_rightly()? && trial.scatters_rightly()?;
    let (out, back) = (trial.times(Way::Out)?, trial.times(Way::In)?);
    let chosen = choose(is_right, out, back)?;
    tracing::info!(?chosen, %out, %back, took = ?began.elapsed(), "tiny ranges are gathered on the GPU");
    drop(trial);
    means.keep(chosen);
    Ok(means)
}

struct Trial<'a> {
    context: &'a Context,
    means: &'a Means,
    /// In the pieces' place, for each way.
    saved: &'a DeviceMemory,
    restored: &'a DeviceMemory,
    /// In a slab's place.
    host: LockedMemory,
    bytes: usize,
}

impl<'a> Trial<'a> {
    fn new(gpu: &Gpu, context: &'a Context, means: &'a Means) -> Result<Self, TrialError> {
        let (Some(out), Some(back)) = (&means.out, &means.back) else { return Err(TrialError::SmallGpu) };
        let bytes = out.memory.bytes.min(MOST_BYTES);
        let host = LockedMemory::make(gpu.driver(), bytes)?;
        Ok(Self { context, means, saved: &back.memory, restored: &out.memory, host, bytes })
    }

    fn gathers_rightly(&mut self) -> Result<bool, DriverError> {
        let source = pattern(self.bytes);
        self.host.bytes().copy_from_slice(&source);
        self.copy_whole(Way::In, self.saved)?;
        self.host.bytes().fill(GAP);
        self.gather(Way::Out, &odd_places(self.bytes))?;
        let mut wanted = vec![GAP; self.bytes];
        for (place, there) in packed(&odd_places(self.bytes)) {
            wanted[there].copy_from_slice(&source[place]);
        }
        Ok(self.host.bytes() == wanted)
    }

    fn scatters_rightly(&mut self) -> Result<bool, DriverError> {
        let source = pattern(self.bytes);
        self.host.bytes().fill(GAP);
        self.copy_whole(Way::In, self.restored)?;
        self.host.bytes().copy_from_slice(&source);
        self.gather(Way::In, &odd_places(self.bytes))?;
        self.host.bytes().fill(0);
        self.copy_whole(Way::Out, self.restored)?;
        let mut wanted = vec![GAP; self.bytes];
        for (place, there) in packed(&odd_places(self.bytes)) {
            wanted[place].copy_from_slice(&source[there]);
        }
        Ok(self.host.bytes() == wanted)
    }

    fn times(&mut self, way: Way) -> Result<Times, DriverError> {
        let places = even_places(self.bytes);
        let mut round = || Ok((timed(|| self.gather(way, &places))?, timed(|| self.copy(way, &places))?));
        let rounds = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<_>, DriverError>>()?;
        let gathered = rounds.iter().map(|round| round.0).min().unwrap_or_default();
        let copied = rounds.iter().map(|round| round.1).min().unwrap_or_default();
        Ok(Times { bytes: places.len() * TIMED_BYTES, gathered, copied })
    }

    /// Copies all of the host's bytes to or from a memory of the GPU.
    fn copy_whole(&mut self, way: Way, memory: &DeviceMemory) -> Result<(), DriverError> {
        let stream = self.context.stream(way);
        let whole = Transfer::new(memory.range(0, self.bytes), HostRange::whole(self.host.bytes()));
        stream.run(|driver, stream| whole.submit(way, driver, stream))
    }

    /// Copies between places in the pieces and the host, as tiny ranges go that are gathered.
    fn gather(&mut self, way: Way, places: &[(usize, usize)]) -> Result<(), DriverError> {
        let (stream, means) = (self.context.stream(way), self.means);
        let transfers = self.transfers(way, places);
        stream.run(|driver, stream| {
            let (left, outcome) = means.submit(&transfers, way, stream);
            outcome?;
            submit_copies(left, way, driver, stream)
        })
    }

    /// The same as they go else.
    fn copy(&mut self, way: Way, places: &[(usize, usize)]) -> Result<(), DriverError> {
        let stream = self.context.stream(way);
        let transfers = self.transfers(way, places);
        stream.run(|driver, stream| submit_copies(transfers.iter().collect(), way, driver, stream))
    }

    fn transfers(&mut self, way: Way, places: &[(usize, usize)]) -> Vec<Transfer<'_>> {
        let pieces = match way {
            Way::Out => self.saved,
            Way::In => self.restored,
        };
        let host = HostRange::whole(self.host.bytes());
        let transfer = |(place, there): (Range<usize>, Range<usize>)| {
            let there = host.slice(there.start as u64, there.len() as u64).ok()?;
            Some(Transfer::new(pieces.range(place.start, place.len()), there))
        };
        packed(places).map_while(transfer).collect()
    }
}

fn timed(work: impl FnOnce() -> Result<(), DriverError>) -> Result<Duration, DriverError> {
    let began = Instant::now();
    work().map(|()| began.elapsed())
}

/// Bytes that differ from their neighbours, and from those some powers of two away.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 * 7) as u8).collect()
}

/// Places in so many bytes, start and length, of odd sizes: every other one is aligned, and there is a gap behind each.
/// On the host they lie end to end, so that some are aligned on both sides.
fn odd_places(bytes: usize) -> Vec<(usize, usize)> {
    const SIZES: [usize; 17] = [1, 3, 1000, 4, 4099, 29, 512, 15, 7, 9, 16, 24, 2049, 31, 12, 513, 2];
    let mut end = 0;
    let sizes = SIZES.iter().cycle().enumerate();
    let places = sizes.map(|(at, &size)| {
        let start = if at % 2 == 0 { (end + 1usize).next_multiple_of(16) } else { end + 5 };
        end = start + size;
        (start, size)
    });
    places.take_while(|(start, size)| start + size < bytes).collect()
}

/// Each place in the pieces, with its place on the host, where they lie end to end.
fn packed(places: &[(usize, usize)]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + '_ {
    let mut end = 0;
    places.iter().map(move |&(start, bytes)| {
        let there = end..end + bytes;
        end = there.end;
        (start..start + bytes, there)
    })
}

fn even_places(bytes: usize) -> Vec<(usize, usize)> {
    let starts = (0..bytes).step_by(TIMED_BYTES + TIMED_GAP);
    starts.map(|start| (start, TIMED_BYTES)).take_while(|(start, size)| start + size <= bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(gathered: u64, copied: u64) -> Times {
        let [gathered, copied] = [gathered, copied].map(Duration::from_micros);
        Times { bytes: 1, gathered, copied }
    }

    #[test]
    fn what_is_clearly_faster_and_right_is_chosen_each_way() {
        let chosen =
            |is_right, out, back| choose(is_right, out, back).ok().map(|Ways { out, back }| (out, back));
        let (fast, slow) = (times(50, 100), times(51, 100));
        assert_eq!(chosen(true, fast, fast), Some((true, true)));
        assert_eq!(chosen(true, fast, slow), Some((true, false)));
        assert_eq!(chosen(true, slow, fast), Some((false, true)));
        assert_eq!(chosen(true, slow, slow), None);
        assert_eq!(chosen(false, fast, fast), None, "wrong bytes are of no use, however fast");
    }

    #[test]
    fn odd_places_have_gaps_and_all_alignments() {
        let places = odd_places(64 << 10);
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
        let mut end = 0;
        let mut seen = [0; 3];
        for (start, bytes) in places {
            let shift = start | end;
            seen[if shift % 16 == 0 { 2 } else { usize::from(shift % 4 == 0) }] += usize::from(bytes > 15);
            end += bytes;
        }
        assert!(seen.iter().all(|times| *times > 1), "single bytes, words, 16 bytes: {seen:?}");
    }
}
