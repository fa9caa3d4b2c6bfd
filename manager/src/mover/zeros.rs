//! Zeros take no room in a tier: what a save has copied is looked through for runs of them, which the index names
//! and a restore writes anew. Pure.
//!
//! Bytes that are no zeros cost the first word of each stretch: the search goes on at the next one.

#![forbid(unsafe_code)]

use std::ops::Range;

/// The shortest run that counts, in bytes: a run costs a call when it comes back, and an entry of the index.
pub const SHORTEST: usize = 64 << 10;

/// What zeros are compared with at once, in bytes.
const AT_ONCE: usize = 4096;

/// Whether all bytes are zeros.
pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; AT_ONCE] = [0; AT_ONCE];
    bytes.chunks(AT_ONCE).all(|some| *some == ZEROS[..some.len()])
}

/// The runs of zeros, as they are found in stretches of [`SHORTEST`] bytes from the first on: in order, none meets
/// another.
pub fn runs(bytes: &[u8]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut start = 0;
    for stretch in bytes.chunks(SHORTEST) {
        let end = start + stretch.len() as u64;
        // The last one may be shorter: then it counts with those before it.
        let may_count = stretch.len() == SHORTEST || runs.last().is_some_and(|run| run.end == start);
        if may_count && is_zero(stretch) {
            extend(&mut runs, start..end);
        }
        start = end;
    }
    runs
}

/// Adds a range behind the last: to it, where it begins at its end.
pub fn extend(runs: &mut Vec<Range<u64>>, next: Range<u64>) {
    match runs.last_mut().filter(|last| last.end == next.start) {
        Some(last) => last.end = next.end,
        None => runs.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = SHORTEST as u64;

    /// The runs of ones with zeros in these places, each from its first byte to behind its last.
    fn found(length: u64, zeros: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut bytes = vec![1; length as usize];
        zeros.iter().for_each(|run| bytes[run.0 as usize..run.1 as usize].fill(0));
        runs(&bytes).into_iter().map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn a_run_ends_where_a_stretch_has_another_byte() {
        assert_eq!(found(4 * RUN, &[(RUN, 3 * RUN)]), [(RUN, 3 * RUN)]);
        assert_eq!(found(4 * RUN, &[(RUN - 1, 3 * RUN + 1)]), [(RUN, 3 * RUN)]);
        assert_eq!(found(4 * RUN, &[(RUN + 1, 3 * RUN - 1)]), []);
        assert_eq!(found(4 * RUN, &[(0, 2 * RUN - 1)]), [(0, RUN)]);
        let apart = [(0, RUN), (2 * RUN, 3 * RUN), (4 * RUN, 5 * RUN)];
        assert_eq!(found(5 * RUN, &apart), apart);
    }

    #[test]
    fn what_is_shorter_counts_at_a_runs_end_alone() {
        assert_eq!(found(RUN - 1, &[(0, RUN - 1)]), []);
        assert_eq!(found(RUN + 7, &[(0, RUN + 7)]), [(0, RUN + 7)]);
        assert_eq!(found(RUN + 7, &[(1, RUN + 7)]), []);
        assert_eq!(found(RUN + 7, &[(0, RUN + 6)]), [(0, RUN)]);
        assert_eq!(found(0, &[]), []);
    }

    #[test]
    fn one_byte_anywhere_is_seen() {
        let mut bytes = vec![0; SHORTEST];
        for at in [0, 1, 7, 8, AT_ONCE - 1, AT_ONCE, SHORTEST - 1] {
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "byte {at}");
            bytes[at] = 0;
        }
        assert!(is_zero(&bytes));
    }
}
