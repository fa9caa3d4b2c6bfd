//! Who worked when: spans of time in lanes, and how far they overlap.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What may go on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The preprocessor's thread.
    Parse,
    /// Copies to the GPU.
    Copy,
    /// Kernels.
    Compute,
    /// Copies of the results to the host.
    Results,
}

impl Lane {
    /// All, in the order of a picture.
    pub const ALL: [Self; 4] = [Self::Parse, Self::Copy, Self::Compute, Self::Results];
    /// Those of the way in, which are to overlap.
    pub const IN: [Self; 3] = [Self::Parse, Self::Copy, Self::Compute];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Copy => "copy",
            Self::Compute => "compute",
            Self::Results => "results",
        }
    }
}

/// A lane worked from one moment to another, in seconds of the timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub lane: Lane,
    pub from: f64,
    pub to: f64,
}

/// Takes down spans, from any thread.
pub struct Timeline {
    start: Instant,
    spans: Mutex<Vec<Span>>,
}

impl Timeline {
    /// Time 0 is now.
    pub fn start() -> Self {
        Self { start: Instant::now(), spans: Mutex::default() }
    }

    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub fn add(&self, lane: Lane, from: f64, to: f64) {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(Span { lane, from, to });
    }

    /// What was taken down.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The seconds in which at least so many of these lanes work.
pub fn at_work(spans: &[Span], lanes: &[Lane], at_least: usize) -> f64 {
    let ends = |span: &Span| [(span.from, 1, span.lane), (span.to, -1, span.lane)];
    let mut events: Vec<_> = spans.iter().flat_map(ends).collect();
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut depth = [0; Lane::ALL.len()];
    let (mut last, mut seconds) = (0.0, 0.0);
    for (at, step, lane) in events {
        let working = lanes.iter().filter(|lane| depth[**lane as usize] > 0).count();
        if working >= at_least {
            seconds += at - last;
        }
        depth[lane as usize] += step;
        last = at;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_counts_lanes_and_not_spans() {
        let span = |lane, from: f64, to| Span { lane, from, to };
        let spans = [
            span(Lane::Parse, 0.0, 4.0),
            span(Lane::Parse, 1.0, 3.0),
            span(Lane::Copy, 2.0, 6.0),
            span(Lane::Compute, 5.0, 10.0),
            span(Lane::Results, 7.0, 12.0),
        ];
        assert_eq!(at_work(&spans, &Lane::IN, 2), 3.0);
        assert_eq!(at_work(&spans, &[Lane::Parse], 1), 4.0);
        assert_eq!(at_work(&spans, &[Lane::Parse, Lane::Compute], 1), 9.0);
        assert_eq!(at_work(&[], &Lane::IN, 2), 0.0);
    }
}
