//! How fast real moves between the GPU and the host's memory were. Pure.
//!
//! What was measured when the mover began is a guess of some milliseconds: it may have met a busy moment, or a link that
//! was asleep. So the median of the last moves takes its place: one that was interrupted, or two, change nothing.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;
use tidegate_ffi::wire::message::LinkRates;

/// Moves that an estimate is made of.
const KEPT: usize = 9;
/// Fewer say nothing.
const ENOUGH: usize = 3;
/// A move of fewer bytes says more of what a call costs than of the link.
pub const LEAST: u64 = 8 << 20;
/// An estimate is told when it differs from what was told by more than one part in so many.
const TOLD_PART: u64 = 8;

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the GPU.
    Out,
    /// To the GPU.
    Back,
    /// Both at once.
    Both,
}

/// The last moves, by way: bytes per second.
#[derive(Debug, Default)]
pub struct Rates([VecDeque<u64>; 3]);

impl Rates {
    /// So many bytes went that way, in one go, and took so long.
    pub fn note(&mut self, way: Way, bytes: u64, took: Duration) {
        if bytes < LEAST {
            return;
        }
        let rate = bytes as f64 / took.max(Duration::from_nanos(1)).as_secs_f64();
        let recent = &mut self.0[way as usize];
        recent.push_back(rate as u64);
        if recent.len() > KEPT {
            recent.pop_front();
        }
    }

    /// The link's rates by what is known now; `None`: they are near enough to those that were told.
    pub fn news(&self, told: LinkRates) -> Option<LinkRates> {
        let better = |way, told| self.estimate(way).unwrap_or(told);
        let now = LinkRates {
            to_host: better(Way::Out, told.to_host),
            to_gpu: better(Way::Back, told.to_gpu),
            both: better(Way::Both, told.both),
        };
        let differs = |now: u64, told: u64| now.abs_diff(told) > told / TOLD_PART;
        let is_news = differs(now.to_host, told.to_host)
            || differs(now.to_gpu, told.to_gpu)
            || differs(now.both, told.both);
        is_news.then_some(now)
    }

    fn estimate(&self, way: Way) -> Option<u64> {
        let mut recent: Vec<u64> = self.0[way as usize].iter().copied().collect();
        recent.sort_unstable();
        (recent.len() >= ENOUGH).then(|| recent[recent.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn told(rate: u64) -> LinkRates {
        LinkRates { to_host: rate, to_gpu: rate, both: rate }
    }

    /// A move of 100 MB at a rate, in GB/s.
    fn moved(rates: &mut Rates, way: Way, rate: f64) {
        rates.note(way, GB / 10, Duration::from_secs_f64(0.1 / rate));
    }

    #[test]
    fn a_wrong_guess_is_corrected_by_a_few_moves() {
        let mut rates = Rates::default();
        let guess = told(GB / 100);
        moved(&mut rates, Way::Out, 10.0);
        moved(&mut rates, Way::Out, 10.0);
        assert_eq!(rates.news(guess), None, "two are no rate");
        moved(&mut rates, Way::Out, 10.0);
        let news = rates.news(guess).unwrap();
        assert!(news.to_host.abs_diff(10 * GB) < GB / 100, "{news:?}");
        assert_eq!((news.to_gpu, news.both), (guess.to_gpu, guess.both));
        assert_eq!(rates.news(news), None, "told once");
    }

    #[test]
    fn moves_that_were_interrupted_change_nothing() {
        let mut rates = Rates::default();
        (0..9).for_each(|_| moved(&mut rates, Way::Back, 10.0));
        (0..4).for_each(|_| moved(&mut rates, Way::Back, 0.1));
        assert_eq!(rates.news(told(10 * GB)), None);
        moved(&mut rates, Way::Back, 0.1);
        assert!(
            rates.news(told(10 * GB)).is_some_and(|news| news.to_gpu < GB),
            "five of nine are no accident"
        );
    }

    #[test]
    fn small_moves_are_no_rate() {
        let mut rates = Rates::default();
        (0..9).for_each(|_| rates.note(Way::Both, LEAST - 1, Duration::from_secs(1)));
        assert_eq!(rates.news(told(GB)), None);
    }
}
