//! What the program tells: lines for people, or JSON for programs that start it.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

use crate::training::{Options, Outcome};

/// People see the first step, and every so many.
const EVERY: u32 = 10;

/// The end of a training, for programs. Equal runs have equal `losses_bits` and `weights_digest`.
#[derive(Serialize)]
pub struct Summary {
    device: String,
    steps: u32,
    hidden: u32,
    batch: u32,
    seed: u64,
    accuracy: f64,
    /// FNV-1a, 128 bits, of all weights and biases in layer order, as little-endian bytes.
    weights_digest: String,
    /// The bits of each step's loss.
    losses_bits: Vec<u32>,
}

impl Summary {
    /// What came out of a training on `device`.
    pub fn new(device: String, options: &Options, outcome: &Outcome) -> Self {
        Summary {
            device,
            steps: options.steps,
            hidden: options.hidden,
            batch: options.batch,
            seed: options.seed,
            accuracy: outcome.accuracy,
            weights_digest: digest(&outcome.weights),
            losses_bits: outcome.losses.iter().map(|loss| loss.to_bits()).collect(),
        }
    }
}

/// One step, for programs.
#[derive(Serialize)]
struct Step {
    step: u32,
    steps: u32,
    loss: f32,
    loss_bits: u32,
}

/// Writes to standard output as the training goes on; each line is flushed.
pub struct Progress {
    /// A JSON object per line, instead of lines for people.
    pub json_lines: bool,
    /// Steps of the training.
    pub steps: u32,
}

impl Progress {
    /// Tells one step.
    pub fn step(&self, step: u32, loss: f32) -> Result<()> {
        let steps = self.steps;
        if self.json_lines {
            json_line(&Step { step, steps, loss, loss_bits: loss.to_bits() })
        } else if step == 1 || step.is_multiple_of(EVERY) || step == steps {
            line(&format!("step {step:>4}/{steps}  loss {loss:.4}"))
        } else {
            Ok(())
        }
    }

    /// Tells the end.
    pub fn end(&self, summary: &Summary) -> Result<()> {
        if self.json_lines {
            return json_line(summary);
        }
        line(&format!(
            "{:.1} % of the test images recognised; weights {}",
            summary.accuracy * 100.0,
            summary.weights_digest
        ))
    }
}

fn json_line(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string(value)?)
}

fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// FNV-1a with 128 bits, in hexadecimal.
fn digest(numbers: &[f32]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_fnv_1a_and_sees_the_sign_of_zero() {
        assert_eq!(digest(&[]), "6c62272e07bb014262b821756295c58d");
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
    }
}
