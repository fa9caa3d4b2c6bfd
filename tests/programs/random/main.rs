//! A program that uses the driver at random, and knows what every byte must be.
//!
//! ```text
//! random KERNELS SEED STEPS [managed]    a sequence of valid calls that depends on the seed only
//! random KERNELS family NAME ROUNDS      one kind of call, again and again
//! ```
//! What it reads back, and every code it gets, it tells in lines that are the same on each run;
//! `LOUD=1` before it names each step on stderr. It panics when a byte is not what it must be.

mod calls;
mod dice;
mod families;
mod graphs;
mod player;
mod work;

use calls::ok;
use player::Player;

/// What the two threads may have of the GPU.
const MAIN: usize = 4 << 20;
const SECOND: usize = 1 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    ok!(cuInit(0));
    match words[..] {
        [kernels, "family", name, rounds] => families::play(kernels, name, rounds.parse().unwrap()),
        [kernels, seed, steps] => play(kernels, seed, steps, false),
        [kernels, seed, steps, "managed"] => play(kernels, seed, steps, true),
        _ => panic!("KERNELS SEED STEPS [managed], or KERNELS family NAME ROUNDS"),
    }
}

/// Two threads play at the same time.
fn play(kernels: &str, seed: &str, steps: &str, managed: bool) {
    let (seed, steps): (u64, usize) = (seed.parse().unwrap(), steps.parse().unwrap());
    let image = kernels.to_owned();
    let play = move |name, seed, budget, steps| Player::new(name, seed, &image, budget, managed).play(steps);
    let second = std::thread::spawn({
        let play = play.clone();
        move || play("second", !seed, SECOND, steps / 4)
    });
    let first = play("main", seed, MAIN, steps);
    let second = second.join().expect("the second thread found what it must");
    first.iter().chain(&second).for_each(|line| println!("{line}"));
}
