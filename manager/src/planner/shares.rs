//! How much of each tier each GPU may use (R0.4, R0.5).
//!
//! The GPUs are decided one after the other. What is left of a tier is its total less what the decided ones
//! *occupy* (not their shares); the share of the next is an equal part of that among those not yet decided:
//!
//! ```text
//! a tier of 30         left   not decided   share   occupies
//!   GPU 0, needs 4      30         3          10        4
//!   GPU 1, needs 20     26         2          13       13      the rest goes to its next tier
//!   GPU 2, needs 8      13         1          13        8
//! ```
//! Decided in the order of what they need, least first, none goes short that needs no more than its equal part.
//!
//! Invariants: a share is no more than what is left, so that what is occupied is never more than the total; it
//! is no less than what is in use; the last GPU's share is all that is left.

/// How many tiers there are: DRAM, CXL memory, disk.
pub const TIERS: usize = 3;

/// Bytes of each tier, in the order in which they are filled.
pub type PerTier = [u64; TIERS];

/// What one GPU needs of the tiers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes that do not fit on the GPU (R0.3).
    pub extra: u64,
    /// What it uses of each tier: that stays where it is.
    pub used: PerTier,
}

/// What one GPU gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// What it may use of each tier.
    pub share: PerTier,
    /// What of that it needs: the first tiers are filled first.
    pub occupied: PerTier,
}

/// Divides tiers of so many bytes among GPUs, in their order. What they use is no more than there is; where it
/// is all the same, nothing is taken from who uses it.
pub fn divide(totals: PerTier, needs: &[Need]) -> Vec<Part> {
    let mut left = totals;
    let divide_one = |(index, need): (usize, &Need)| {
        let (_, behind) = needs.split_at(index + 1);
        let share = std::array::from_fn(|tier| {
            let set_aside = behind.iter().map(|need| need.used[tier]).fold(0, u64::saturating_add);
            let equal = left[tier] / (behind.len() as u64 + 1);
            equal.min(left[tier].saturating_sub(set_aside)).max(need.used[tier])
        });
        let occupied = fill(share, need);
        left = std::array::from_fn(|tier| left[tier].saturating_sub(occupied[tier]));
        Part { share, occupied }
    };
    needs.iter().enumerate().map(divide_one).collect()
}

/// R0.4: the first tier alone if that is enough; else the first two; else all three.
fn fill(share: PerTier, need: &Need) -> PerTier {
    let mut rest = need.extra.saturating_sub(need.used.iter().copied().fold(0, u64::saturating_add));
    std::array::from_fn(|tier| {
        let more = rest.min(share[tier] - need.used[tier]);
        rest -= more;
        need.used[tier] + more
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn need(extra: u64) -> Need {
        Need { extra, used: [0; TIERS] }
    }

    fn using(extra: u64, used: PerTier) -> Need {
        Need { extra, used }
    }

    /// Tiers of 30, 60 and 300 bytes: what the GPUs need, and of each its share and what it occupies.
    #[test]
    fn the_three_cases_of_the_source_are_one_rule() {
        let none_is_used = [
            (need(4), [10, 20, 100], [4, 0, 0]),
            // The first has left 26 of 30.
            (need(20), [13, 30, 150], [13, 7, 0]),
            (need(8), [13, 53, 300], [8, 0, 0]),
        ];
        let the_first_is_used = [
            // Half of 30 would be less than it uses.
            (using(16, [16, 0, 0]), [16, 30, 150], [16, 0, 0]),
            (using(12, [2, 0, 0]), [14, 60, 300], [12, 0, 0]),
        ];
        let two_are_used = [
            // 12 of 30 are left by what the second uses; half of 60, and what does not fit into either.
            (using(50, [10, 5, 0]), [12, 30, 150], [12, 30, 8]),
            (using(30, [18, 6, 0]), [18, 30, 292], [18, 12, 0]),
        ];
        for table in [&none_is_used[..], &the_first_is_used, &two_are_used] {
            let needs: Vec<Need> = table.iter().map(|(need, ..)| *need).collect();
            let wanted: Vec<Part> =
                table.iter().map(|&(_, share, occupied)| Part { share, occupied }).collect();
            assert_eq!(divide([30, 60, 300], &needs), wanted);
        }
    }

    #[test]
    fn the_tiers_are_filled_in_their_order() {
        let share = [10, 10, 1000];
        for (extra, occupied) in [
            (0, [0, 0, 0]),
            (10, [10, 0, 0]),
            // The source's example: neither is enough, both are.
            (15, [10, 5, 0]),
            (20, [10, 10, 0]),
            (21, [10, 10, 1]),
        ] {
            assert_eq!(fill(share, &need(extra)), occupied, "{extra}");
        }
    }

    #[test]
    fn what_the_last_may_use_is_all_that_is_left() {
        let parts = divide([90, 0, 0], &[need(1), need(2), need(1000)]);
        assert_eq!(parts[2].share, [87, 0, 0]);
    }

    #[test]
    fn where_more_is_used_than_there_is_nobody_loses_it() {
        let used = |bytes| Need { extra: 0, used: [bytes, 0, 0] };
        let parts = divide([10, 0, 0], &[used(7), used(7), need(5)]);
        assert_eq!(parts.iter().map(|part| part.share[0]).collect::<Vec<_>>(), [7, 7, 0]);
        assert!(divide([u64::MAX; TIERS], &[]).is_empty());
    }

    /// What happens to a GPU between two divisions: what it needs then, and how much of what it may use it does,
    /// in hundredths.
    fn change() -> impl Strategy<Value = (usize, u64, [u64; TIERS])> {
        (0usize..8, 0u64..2_000, [0u64..=100, 0u64..=100, 0u64..=100])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn over_any_trace_of_needs_shares_are_what_they_promise(
            gpus in 1usize..8,
            totals in [0u64..3_000, 0u64..3_000, 0u64..9_000],
            changes in proptest::collection::vec(change(), 1..20),
        ) {
            let mut needs = vec![Need::default(); gpus];
            for (gpu, extra, hundredths) in changes {
                needs[gpu % gpus].extra = extra;
                let parts = divide(totals, &needs);
                let mut left = totals;
                for (index, (part, need)) in parts.iter().zip(&needs).enumerate() {
                    for (tier, left) in left.iter_mut().enumerate() {
                        let (share, occupied) = (part.share[tier], part.occupied[tier]);
                        prop_assert!(share <= *left, "more than what is left");
                        prop_assert!(need.used[tier] <= occupied && occupied <= share);
                        prop_assert!(index + 1 < gpus || share == *left, "not all that is left");
                        // A tier is used only where those before it are full, but for what was there before.
                        let is_first = (0..tier).all(|before| part.occupied[before] == part.share[before]);
                        prop_assert!(is_first || occupied == need.used[tier]);
                        *left -= occupied;
                    }
                    let whole = part.occupied.iter().sum::<u64>();
                    let is_full = part.occupied == part.share;
                    prop_assert!(is_full || whole >= need.extra, "short, though there is room");
                }
                // The GPU goes on, and uses what it may, or less.
                let (need, part) = (&mut needs[gpu % gpus], &parts[gpu % gpus]);
                need.used = std::array::from_fn(|tier| part.occupied[tier] * hundredths[tier] / 100);
            }
        }
    }
}
