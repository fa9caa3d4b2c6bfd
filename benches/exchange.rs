//! What it gains to save one tenant and restore another at once: the time of one after the other ÷ the time of both at
//! once. `cargo bench --bench exchange`
//!
//! The link is a model, as fast in each direction whatever goes in the other: 2 is all that there is to gain. On
//! hardware it is less (FACTS: 18.6 GB/s both ways where one alone has 26).

#[path = "support/mod.rs"]
mod bench;
#[path = "support/mover.rs"]
mod mover;

use bench::Spread;
use mover::{MIB, Mover, config, measure_on};
use tidegate_ffi::units::TenantId;
use tidegate_ffi::wire::message::Move;
use tidegate_manager::mover::MoverConfig;

const ROUNDS: usize = 9;
const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const MIXES: [(&str, u64); 3] = [("64 MiB", 64 * MIB), ("1 MiB", MIB), ("64 KiB", 64 << 10)];

const NODE: &str = "1x640MiB,link=1GB/s";

fn main() {
    if let Some(config) = config() {
        return measure(config);
    }
    println!(
        "software GPU {NODE}: 128 MiB each way; medians of {ROUNDS} rounds, the fastest and the slowest"
    );
    println!("ranges     one after the other ÷ at once");
    measure_on(NODE, &[]);
}

fn measure(config: MoverConfig) {
    for (name, range) in MIXES {
        let mut mover = Mover::start(config.clone());
        let moves = mover.lay_out(&[(range, 100)]);
        let half = moves[moves.len() / 2].piece;
        // What comes is not the longer one.
        let (back, out): (Vec<Move>, Vec<Move>) = moves.into_iter().partition(|m| m.piece < half);
        mover.measure();
        let away = mover.saves(B, &back);
        mover.carry_out(away, 1);
        let rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| round(&mut mover, &out, &back, 1) / round(&mut mover, &out, &back, 2))
            .collect();
        println!("{name:<9}  {}", Spread::of(rounds).line(""));
        mover.end();
    }
}

/// How long it takes to save what is `out`'s of one tenant and to restore what is `back`'s of another, so many orders
/// at once, in seconds. Afterwards all is as before.
fn round(mover: &mut Mover, out: &[Move], back: &[Move], at_once: usize) -> f64 {
    let (saves, restores) = (mover.saves(A, out), mover.restores(B, back));
    let pairs = saves.into_iter().zip(restores).flat_map(|(save, restore)| [save, restore]).collect();
    let took = mover.carry_out(pairs, at_once);
    let undone = mover.restores(A, out).into_iter().chain(mover.saves(B, back)).collect();
    mover.carry_out(undone, 1);
    took
}
