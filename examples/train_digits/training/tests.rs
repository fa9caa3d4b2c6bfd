//! What the training promises about results and about memory, on the device for tests.

use super::*;
use crate::data::{CLASSES, PIXELS};
use crate::host::Host;

const SMALL: Options = Options { steps: 60, hidden: 64, batch: 120, seed: 1, boundaries: true, scopes: true };

fn run(options: &Options) -> Outcome {
    train(&Host::default(), options, |_, _| Ok(())).unwrap()
}

/// Bytes of weights, biases and their moments.
fn persistent_bytes(hidden: usize) -> usize {
    let layers = [(PIXELS, hidden), (hidden, hidden), (hidden, CLASSES)];
    3 * 4 * layers.map(|(inputs, outputs)| (inputs + 1) * outputs).iter().sum::<usize>()
}

fn batch_bytes(images: usize) -> usize {
    4 * images * (PIXELS + CLASSES)
}

#[test]
fn the_same_seed_gives_the_same_bits_and_hints_change_nothing() {
    let first = run(&SMALL);
    assert_eq!(first, run(&SMALL));
    assert_eq!(first, run(&Options { boundaries: false, scopes: false, ..SMALL }));
    assert_ne!(first, run(&Options { seed: 2, ..SMALL }));
}

#[test]
fn a_short_training_of_a_small_network_reads_nine_digits_in_ten() {
    let outcome = run(&SMALL);
    assert_eq!(outcome.losses.len(), 60);
    assert!(outcome.accuracy >= 0.9, "{}", outcome.accuracy);
}

#[test]
fn only_the_weights_and_the_next_batch_are_alive_at_a_boundary() {
    let host = Host::default();
    let usage = host.usage.clone();
    let mut alive = Vec::new();
    train(&host, &Options { steps: 3, ..SMALL }, |_, _| {
        alive.push(usage.live.get());
        Ok(())
    })
    .unwrap();
    let persistent = persistent_bytes(64);
    let with_batch = persistent + batch_bytes(120);
    assert_eq!(alive, [with_batch, with_batch, persistent]);
    assert_eq!(usage.live.get(), 0);
}

#[test]
fn a_step_needs_about_twice_the_persistent_memory_besides() {
    let (host, options) = (Host::default(), Options { steps: 1, hidden: 512, batch: 480, ..SMALL });
    train(&host, &options, |_, _| Ok(())).unwrap();
    let persistent = persistent_bytes(512);
    let ratio = (host.usage.peak.get() - persistent) as f64 / persistent as f64;
    assert!((1.8..2.2).contains(&ratio), "{persistent} persistent, {ratio} times that besides");
}
