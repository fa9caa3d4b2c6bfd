//! Which numbers are sums of bounded multiples: the arithmetic of strided overlap.
//!
//! Two regions meet if there are positions p, q and bytes e, f of their elements with
//!
//! ```text
//!   low_a + Σ s·p + e  =  low_b + Σ t·q + f        every stride made positive, counted from the lowest address
//!   Σ s·p + Σ t·q' + e + f'  =  end_b − 1 − low_a   with q' = last q − q, f' likewise
//! ```
//!
//! So the question is whether a number is a sum of terms stride · z, 0 ≤ z ≤ most, and of a *slack*: any number
//! of bytes from 0 to the two elements' sizes less 2. Its answer takes four steps:
//!
//! 1. Terms are made fewer, which loses nothing: those of the same stride are one, those that the slack fills are
//!    part of it (rows of a contiguous tensor), and a stride that is a multiple of another, within its reach,
//!    joins it.
//! 2. The interval of what is left to reach is compared with the largest sum, and with the strides' common divisor.
//! 3. The largest stride's factor is tried, from the least that leaves no more than the others can reach.
//! 4. The last two terms are decided at once, by Euclid's algorithm.
//!
//! Step 3 ends for equal pitches after few tries: for each dimension at most two factors leave what the inner ones
//! reach, a row's remainder to the right and to the left.

#![forbid(unsafe_code)]

use super::region::{MOST_DIMENSIONS, Region};
use std::ops::{Range, RangeInclusive};

/// Most terms: a dimension of either region each.
const MOST_TERMS: usize = 2 * MOST_DIMENSIONS;

/// The multiples 0, stride, …, most · stride.
#[derive(Clone, Copy, Debug, Default)]
struct Term {
    stride: i64,
    most: i64,
    /// The largest sum of this term and those of smaller strides.
    reach: i64,
    /// The greatest common divisor of its stride and the smaller ones.
    divisor: i64,
}

/// Sums of bounded multiples and a slack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    terms: [Term; MOST_TERMS],
    count: usize,
    slack: i64,
}

/// Whether two regions share a byte whose hulls do; `None` if so many steps do not tell.
///
/// Of a region without gaps only the bytes in the other one's hull are looked at, so that all numbers are below
/// 4 · [`MOST_SPREAD`](super::region::MOST_SPREAD).
pub(super) fn meet(one: &Region, other: &Region, steps: u32) -> Option<bool> {
    let mut sums = Sums::with_slack(0);
    let low = sums.add_region(one, &other.hull());
    let high = sums.add_region(other, &one.hull());
    sums.reach(high.end.wrapping_sub(low.start).wrapping_sub(1) as i64, steps)
}

impl Sums {
    /// The numbers 0 ..= slack.
    fn with_slack(slack: i64) -> Self {
        Self { terms: [Term::default(); MOST_TERMS], count: 0, slack }
    }

    /// Also every sum with a distance between two bytes of a region, or of what of it lies in a hull, if it is without
    /// gaps: the addresses that are looked at.
    fn add_region(&mut self, region: &Region, other: &Range<u64>) -> Range<u64> {
        let hull = region.hull();
        if region.is_solid() {
            let common = hull.start.max(other.start)..hull.end.min(other.end);
            self.slack += (common.end - common.start) as i64 - 1;
            return common;
        }
        self.slack += region.element() as i64 - 1;
        for dimension in region.dimensions().iter().filter(|dimension| dimension.size > 1) {
            self.add(dimension.stride.unsigned_abs() as i64, dimension.size as i64 - 1);
        }
        hull
    }

    /// Also every sum with stride · 0, …, stride · most.
    fn add(&mut self, stride: i64, most: i64) {
        if stride == 0 {
            return;
        }
        let terms = &mut self.terms[..self.count];
        let place = terms.iter().take_while(|term| term.stride < stride).count();
        if let Some(term) = terms.get_mut(place).filter(|term| term.stride == stride) {
            term.most += most;
            return;
        }
        self.terms.copy_within(place..self.count, place + 1);
        self.terms[place] = Term { stride, most, ..Term::default() };
        self.count += 1;
    }

    /// Whether a number is one of the sums; `None` if so many steps do not tell.
    fn reach(&mut self, sum: i64, mut steps: u32) -> Option<bool> {
        self.join_multiples();
        self.fill_slack();
        self.total();
        reaches(&self.terms[..self.count], sum - self.slack..=sum, &mut steps)
    }

    /// Strides that are multiples of smaller ones and continue their run join these.
    fn join_multiples(&mut self) {
        let mut first = 0;
        while first < self.count {
            let Term { stride, mut most, .. } = self.terms[first];
            let mut kept = first + 1;
            for next in first + 1..self.count {
                let term = self.terms[next];
                if term.stride <= stride * (most + 1) && term.stride % stride == 0 {
                    most += term.stride / stride * term.most;
                } else {
                    self.terms[kept] = term;
                    kept += 1;
                }
            }
            self.terms[first].most = most;
            self.count = kept;
            first += 1;
        }
    }

    /// Terms without gaps wider than the slack are part of it.
    fn fill_slack(&mut self) {
        let mut filled = 0;
        while filled < self.count && self.terms[filled].stride <= self.slack + 1 {
            self.slack += self.terms[filled].stride * self.terms[filled].most;
            filled += 1;
        }
        self.terms.copy_within(filled..self.count, 0);
        self.count -= filled;
    }

    fn total(&mut self) {
        let (mut reach, mut divisor) = (0, 0);
        for term in &mut self.terms[..self.count] {
            reach += term.stride * term.most;
            divisor = greatest_common_divisor(term.stride, divisor);
            (term.reach, term.divisor) = (reach, divisor);
        }
    }
}

/// Whether a sum of these terms, of ascending strides, lies in the interval; `None` if the steps do not tell.
fn reaches(terms: &[Term], wanted: RangeInclusive<i64>, steps: &mut u32) -> Option<bool> {
    let (low, high) = wanted.into_inner();
    let Some((last, inner)) = terms.split_last() else { return Some(low <= 0 && high >= 0) };
    if high < 0 || low > last.reach || !has_multiple(last.divisor, low, high) {
        return Some(false);
    }
    if low <= 0 || high >= last.reach || inner.is_empty() {
        return Some(true);
    }
    let inner_reach = last.reach - last.stride * last.most;
    let first = (low - inner_reach + last.stride - 1).div_euclid(last.stride).max(0);
    let factors = first..=high.div_euclid(last.stride).min(last.most);
    if let [inner] = inner {
        return Some(pair_reaches(inner, last.stride, factors, low, high));
    }
    for factor in factors {
        *steps = steps.checked_sub(1)?;
        let done = factor * last.stride;
        if reaches(inner, low - done..=high - done, steps)? {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether some factor · stride and a multiple of the inner term add up to a number from `low` to `high`.
///
/// Each of the factors leaves an interval that meets the inner term's reach. One that holds a multiple beyond that
/// reach holds its end, too, which is a multiple itself: any multiple of the inner stride will do.
fn pair_reaches(inner: &Term, stride: i64, factors: RangeInclusive<i64>, low: i64, high: i64) -> bool {
    let (first, last) = factors.into_inner();
    if first > last {
        return false;
    }
    let modulus = inner.stride;
    let (width, above) = (high - low, (high - first * stride).rem_euclid(modulus));
    if above <= width {
        return true;
    }
    let found = first_within(stride.rem_euclid(modulus), modulus, above - width, above);
    found.is_some_and(|factor| factor <= last - first)
}

/// The least x ≥ 0 with `low` ≤ factor · x mod modulus ≤ `high`, for 0 < low ≤ high < modulus > factor ≥ 0.
fn first_within(factor: i64, modulus: i64, low: i64, high: i64) -> Option<i64> {
    if factor == 0 {
        return None;
    }
    let first = (low + factor - 1) / factor;
    if first * factor <= high {
        return Some(first);
    }
    // Not in the first turn around the modulus: in which one, is the same question for smaller numbers.
    let (low_rest, high_rest) = ((-high).rem_euclid(factor), (-low).rem_euclid(factor));
    let turns = first_within(modulus % factor, factor, low_rest, high_rest)?;
    let found = i128::from(low + factor - 1) + i128::from(modulus) * i128::from(turns);
    Some((found / i128::from(factor)) as i64)
}

fn has_multiple(of: i64, low: i64, high: i64) -> bool {
    high - high.rem_euclid(of) >= low
}

fn greatest_common_divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_first_multiple_within_an_interval_is_found() {
        for modulus in 2..24 {
            for (factor, low) in (0..modulus).flat_map(|factor| (1..modulus).map(move |low| (factor, low))) {
                for high in low..modulus {
                    let tried = (0..modulus).find(|x| (low..=high).contains(&(factor * x % modulus)));
                    assert_eq!(
                        first_within(factor, modulus, low, high),
                        tried,
                        "{factor} {modulus} {low} {high}"
                    );
                }
            }
        }
    }

    /// All sums up to 4096, by trying.
    fn tried(terms: &[(i64, i64)], slack: i64) -> Vec<bool> {
        let mut is_sum = vec![false; 4096];
        is_sum[..=slack as usize].fill(true);
        for (stride, most) in terms {
            let smaller = is_sum.clone();
            for factor in 1..=*most {
                let shift = (factor * stride) as usize;
                (shift..4096).for_each(|sum| is_sum[sum] |= smaller[sum - shift]);
            }
        }
        is_sum
    }

    #[test]
    fn sums_are_told_from_other_numbers() {
        let mut random = Random::new(1);
        let (mut asked, mut found) = (0, 0);
        for round in 0..20_000 {
            let count = random.between(0, 8);
            let most_stride = [8, 40, 400][random.below(3) as usize];
            let terms: Vec<(i64, i64)> = (0..count)
                .map(|_| (random.between(0, most_stride).into(), random.between(0, 7).into()))
                .collect();
            let slack: i64 = random.between(0, 6).into();
            let mut sums = Sums::with_slack(slack);
            terms.iter().for_each(|(stride, most)| sums.add(*stride, *most));
            let is_sum = tried(&terms, slack);
            let top: i64 = slack + terms.iter().map(|(stride, most)| stride * most).sum::<i64>();
            for _ in 0..10 {
                let sum = random.signed(-3, (top + 3).min(4095));
                let expected = sum >= 0 && is_sum[sum as usize];
                assert_eq!(
                    sums.reach(sum, 1 << 20),
                    Some(expected),
                    "round {round}: {sum} of {terms:?} and {slack}"
                );
                (asked, found) = (asked + 1, found + usize::from(expected));
            }
        }
        println!("{asked} numbers, {found} of them sums");
        assert!(found > asked / 10 && found < asked * 9 / 10);
    }

    #[test]
    fn large_numbers_are_decided_at_once() {
        let reach = |terms: &[(i64, i64)], slack, sum| {
            let mut sums = Sums::with_slack(slack);
            terms.iter().for_each(|(stride, most)| sums.add(*stride, *most));
            sums.reach(sum, 0)
        };
        let (large, next) = ((1 << 40) - 87, (1 << 40) - 167);
        let terms = [(large, 1 << 20), (next, 1 << 20)];
        let sum = 123_456 * large + 654_321 * next;
        assert_eq!(reach(&terms, 0, sum), Some(true), "two strides need no steps");
        assert_eq!(reach(&terms, 3, sum + 3), Some(true));
        assert_eq!(reach(&terms, 0, sum + 1), Some(false));
        assert_eq!(
            reach(&[(6, 1 << 50), (10, 1 << 50), (15 << 20, 1)], 0, 1),
            Some(false),
            "a common divisor"
        );
    }
}
