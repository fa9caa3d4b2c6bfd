//! Which moment of a training loop is its boundary: the one at which least is alive.
//!
//! ```text
//! loop:   next batch ─ forward ─ backward ─ step ─ zero_grad ─┐
//!           400 MB                          120 MB   80 MB ◄── the boundary
//!           ▲─────────────────────────────────────────────────┘
//! ```
//! Moments have names: what happens, and to which object (which optimizer's step, which loader's next). A name
//! that has come a few times competes; the one with the fewest live bytes is told as a boundary. When it does
//! not come any more, or another has become clearly better, the loop has changed, and another is chosen.
//!
//! Ranks of one job have the same loop, but not the same bytes: they may choose at different times. So that they
//! stop at the same boundary all the same, its number comes from the order of moments alone: the how-manieth of
//! its name it is, counted from where all others were when that name first came. (Ranks that choose different
//! moments for good have boundaries of the same numbers all the same; that nobody needs the other between them is
//! not known.)
//!
//! Invariant: a wrong choice costs time, never data: what is alive is another module's business.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// What happens at a moment: the kind, and the object it happens to.
pub type Name = (u32, u64);

/// A moment that came so often competes.
const TIMES: u32 = 3;
/// Another moment is chosen when it has less than this part of the chosen one's live bytes.
const CLEARLY: (u64, u64) = (49, 50);
/// A name that did not come for so many of its own periods, and so many moments more, is gone.
const PERIODS: u64 = 4;
const GRACE: u64 = 16;
/// One that came once only has no period yet: it is gone after so many.
const ONCE: u64 = 1024;
/// The most names that are known; of more, those that came least recently are forgotten.
const MOST: usize = 64;

/// What is known of a name.
#[derive(Debug)]
struct Seen {
    times: u32,
    /// Its numbers begin behind this one.
    base: u64,
    /// The number of its last moment.
    last: u64,
    /// How many moments lay between its last two.
    period: u64,
    /// The mean of live bytes, the last weighing half.
    live: u64,
}

/// The moments of a loop so far.
#[derive(Debug, Default)]
pub struct Candidates {
    moments: u64,
    /// The highest number of any name.
    highest: u64,
    /// How many boundaries the program has told.
    told: u64,
    seen: BTreeMap<Name, Seen>,
    chosen: Option<Name>,
}

impl Candidates {
    /// The program tells a boundary: from now on nothing else is one. Its number.
    pub fn tell(&mut self) -> u64 {
        self.told += 1;
        self.told
    }

    /// A moment has come, at which so many bytes are alive. Its number, if it is the boundary.
    pub fn meet(&mut self, name: Name, live: u64) -> Option<u64> {
        if self.told > 0 {
            return None;
        }
        self.moments += 1;
        let now = self.moments;
        // The names of one round begin with one number.
        let base = self.highest.saturating_sub(1);
        let new = Seen { times: 0, base, last: now, period: 0, live };
        let seen = self.seen.entry(name).or_insert(new);
        seen.times = seen.times.saturating_add(1);
        let number = seen.base + u64::from(seen.times);
        self.highest = self.highest.max(number);
        seen.period = now - seen.last;
        seen.last = now;
        // A loop's first rounds are not like the rest: libraries take their workspaces then.
        seen.live = if seen.times <= TIMES { live } else { seen.live / 2 + live / 2 };
        self.seen.retain(|_, seen| !seen.is_gone(now));
        self.forget_all_but(MOST);
        self.choose();
        (self.chosen == Some(name)).then_some(number)
    }

    /// While no name is chosen: the number of the last boundary that another rank, in the same loop, may have told
    /// by now. The names of one round come as often as each other, so all ranks have chosen one before the next number.
    /// `None`: nothing has come twice, no loop is known.
    pub fn learning(&self) -> Option<u64> {
        (self.highest > 1).then(|| self.highest.max(u64::from(TIMES) + 1))
    }

    /// The name of the boundary, and what is alive there, in bytes.
    pub fn chosen(&self) -> Option<(Name, u64)> {
        let name = self.chosen?;
        Some((name, self.seen.get(&name)?.live))
    }

    fn choose(&mut self) {
        self.chosen = self.chosen.filter(|chosen| self.seen.contains_key(chosen));
        // The first that has come often enough is not alone: what belongs to its round has come as often
        // when it comes once more.
        let is_round = self.chosen.is_some() || self.seen.values().any(|seen| seen.times > TIMES);
        let competing = self.seen.iter().filter(|(_, seen)| is_round && seen.times >= TIMES);
        let Some((&best, least)) = competing.min_by_key(|(_, seen)| seen.live) else { return };
        let is_better = self.chosen.and_then(|chosen| self.seen.get(&chosen)).is_none_or(|chosen| {
            u128::from(least.live) * u128::from(CLEARLY.1) < u128::from(chosen.live) * u128::from(CLEARLY.0)
        });
        if is_better {
            self.chosen = Some(best);
        }
    }

    fn forget_all_but(&mut self, most: usize) {
        while self.seen.len() > most {
            let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.last).map(|(name, _)| *name);
            oldest.map(|name| self.seen.remove(&name));
        }
    }
}

impl Seen {
    fn is_gone(&self, now: u64) -> bool {
        let grace = if self.times == 1 { ONCE } else { GRACE };
        now - self.last > self.period.saturating_mul(PERIODS) + grace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Name = (1, 7);
    const OTHER_STEP: Name = (1, 8);
    const ZERO_GRAD: Name = (2, 7);
    const NEXT: Name = (3, 9);

    /// How often each moment of a loop was its boundary in `rounds` rounds.
    fn boundaries(candidates: &mut Candidates, rounds: usize, round: &[(Name, u64)]) -> Vec<usize> {
        let mut counts = vec![0; round.len()];
        for _ in 0..rounds {
            for (index, &(name, live)) in round.iter().enumerate() {
                counts[index] += usize::from(candidates.meet(name, live).is_some());
            }
        }
        counts
    }

    #[test]
    fn the_moment_with_the_fewest_live_bytes_is_the_boundary() {
        let mut candidates = Candidates::default();
        let round = [(NEXT, 80), (STEP, 120), (ZERO_GRAD, 60)];
        assert_eq!(boundaries(&mut candidates, 1, &[(NEXT, 8), (STEP, 90), (ZERO_GRAD, 70)]), [0, 0, 0]);
        assert_eq!(boundaries(&mut candidates, 2, &round), [0, 0, 0]);
        assert_eq!(boundaries(&mut candidates, 10, &round), [0, 0, 10]);
        assert_eq!(candidates.chosen(), Some((ZERO_GRAD, 60)));
    }

    #[test]
    fn one_boundary_comes_in_a_round_with_several_optimizers_and_with_accumulation() {
        let mut candidates = Candidates::default();
        let round = [(NEXT, 100), (NEXT, 140), (NEXT, 140), (STEP, 130), (OTHER_STEP, 90)];
        boundaries(&mut candidates, 4, &round);
        assert_eq!(boundaries(&mut candidates, 10, &round), [0, 0, 0, 0, 10]);
    }

    #[test]
    fn small_differences_do_not_make_it_waver() {
        let mut candidates = Candidates::default();
        boundaries(&mut candidates, 5, &[(STEP, 1000), (ZERO_GRAD, 1001)]);
        assert_eq!(boundaries(&mut candidates, 9, &[(STEP, 1005), (ZERO_GRAD, 996)]), [9, 0]);
        boundaries(&mut candidates, 5, &[(STEP, 1000), (ZERO_GRAD, 940)]);
        assert_eq!(boundaries(&mut candidates, 9, &[(STEP, 1000), (ZERO_GRAD, 940)]), [0, 9]);
    }

    #[test]
    fn another_is_chosen_when_the_loop_changes() {
        let mut candidates = Candidates::default();
        boundaries(&mut candidates, 10, &[(NEXT, 80), (STEP, 50)]);
        // An evaluation: nothing is stepped.
        let counts = boundaries(&mut candidates, 100, &[(NEXT, 70)]);
        assert!(counts[0] > 70, "{counts:?}");
        // Training goes on.
        boundaries(&mut candidates, 5, &[(NEXT, 80), (STEP, 50)]);
        assert_eq!(boundaries(&mut candidates, 10, &[(NEXT, 80), (STEP, 50)]), [0, 10]);
    }

    #[test]
    fn a_loop_with_many_small_batches_for_each_step_has_its_boundary_after_the_step() {
        let mut candidates = Candidates::default();
        let round: Vec<_> = [(NEXT, 100); 40].into_iter().chain([(STEP, 130), (ZERO_GRAD, 60)]).collect();
        boundaries(&mut candidates, 4, &round);
        let counts = boundaries(&mut candidates, 10, &round);
        assert_eq!(counts[40..], [0, 10]);
        assert!(counts[..40].iter().all(|count| *count == 0), "{counts:?}");
    }

    #[test]
    fn a_program_that_tells_its_boundaries_is_believed() {
        let mut candidates = Candidates::default();
        boundaries(&mut candidates, 10, &[(STEP, 50)]);
        assert_eq!((candidates.tell(), candidates.tell()), (1, 2));
        assert_eq!(boundaries(&mut candidates, 10, &[(STEP, 50)]), [0]);
    }

    #[test]
    fn ranks_that_choose_at_different_times_agree_on_the_numbers() {
        let (mut one, mut other) = (Candidates::default(), Candidates::default());
        let (mut ahead, mut agreed) = (0, 0);
        for round in 0..80 {
            // To one of them another moment looks better at first: when that changes, it sees two boundaries in one
            // round. From the 20th on a loop of another kind comes.
            let last = if round < 10 { 60 } else { 10 };
            let training = [(NEXT, 90, 90), (STEP, 50, 60), (ZERO_GRAD, last, 50)];
            let evaluation = [(OTHER_STEP, 40, 40)];
            for &(name, mine, theirs) in if round < 20 { &training[..] } else { &evaluation[..] } {
                match (one.meet(name, mine), other.meet(name, theirs)) {
                    (Some(mine), Some(theirs)) => {
                        assert_eq!(mine, theirs, "{name:?} in round {round}");
                        assert!(mine >= ahead);
                        (ahead, agreed) = (mine, agreed + 1);
                    }
                    (Some(number), None) | (None, Some(number)) => ahead = ahead.max(number),
                    (None, None) => {}
                }
            }
        }
        assert!(agreed > 15, "{agreed}");
    }

    #[test]
    fn all_ranks_know_a_boundary_before_the_number_after_the_one_that_is_being_learnt() {
        for (first, second) in [(NEXT, STEP), (STEP, NEXT)] {
            let mut candidates = Candidates::default();
            assert_eq!((candidates.meet(first, 50), candidates.learning()), (None, None));
            let mut told = Vec::new();
            let rest = std::iter::once((second, 60)).chain((0..5).flat_map(|_| [(first, 50), (second, 60)]));
            for (name, live) in rest {
                let learning = candidates.learning();
                if let Some(number) = candidates.meet(name, live) {
                    told.push(number);
                } else if told.is_empty() {
                    assert!(learning.is_none_or(|number| number == u64::from(TIMES) + 1), "{learning:?}");
                }
            }
            assert!(told[0] <= u64::from(TIMES) + 2 && told.contains(&(u64::from(TIMES) + 2)), "{told:?}");
        }
    }

    #[test]
    fn names_that_come_once_are_forgotten() {
        let mut candidates = Candidates::default();
        for object in 0..1_000 {
            assert_eq!(candidates.meet((3, object), 10), None);
        }
        assert!(candidates.seen.len() <= MOST);
    }
}
