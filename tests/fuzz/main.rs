//! I10: whatever a stranger sends, it is read or refused. Each target takes bytes, as a fuzzer
//! gives them; the suite replays fixed seeds, `tests/long/fuzz MINUTES` goes on with new ones.

mod schedule;
mod wire;

use std::time::{Duration, Instant};

type Target = fn(&[u8]);

/// The targets, by name.
const TARGETS: [(&str, Target); 4] = [
    ("codec", wire::codec),
    ("live_map", wire::live_map),
    ("page", wire::page),
    ("schedule", schedule::schedule),
];

/// The bytes that belong to a seed (splitmix64).
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut word = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let length = word() as usize % 2048;
    std::iter::repeat_with(|| word().to_le_bytes()).take(length / 8 + 1).flatten().take(length).collect()
}

/// Runs a target on a seed; a finding names both.
fn replay(name: &str, target: Target, seed: u64) {
    if std::panic::catch_unwind(|| target(&bytes(seed))).is_err() {
        panic!("a finding: {name}, seed {seed}");
    }
}

#[test]
fn the_fixed_seeds_find_nothing() {
    for (name, target) in TARGETS {
        (0..500).for_each(|seed| replay(name, target, seed));
    }
}

/// Minutes for each target in `MINUTES` (10), targets in `TARGETS` (all).
#[test]
#[ignore = "takes as long as it is told to: tests/long/fuzz"]
fn new_seeds_find_nothing() {
    let minutes: f64 = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let wanted = std::env::var("TARGETS").unwrap_or_default();
    for (name, target) in TARGETS.into_iter().filter(|(name, _)| wanted.is_empty() || wanted == *name) {
        let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
        let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_micros() as u64);
        let seeds = (first..).take_while(|_| Instant::now() < end);
        let executions = seeds.inspect(|seed| replay(name, target, *seed)).count();
        println!("{name}: {executions} executions, no finding");
    }
}
