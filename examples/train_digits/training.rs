//! The loop: forward, backward, fetch the next batch ahead, update, tell the boundary.

use anyhow::{Context, Result};

use crate::data::{Batch, Digits};
use crate::device::Device;
use crate::model::{DeviceBatch, Network};
use crate::ops::AdamStep;
use crate::random::Random;
use crate::tidegate;

/// Adam's numbers: the usual ones, but twice the usual rate, for trainings this short.
const RATE: f64 = 2e-3;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f32 = 1e-8;

/// What to train, and what to tell Tidegate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Iterations.
    pub steps: u32,
    /// Width of the two hidden layers.
    pub hidden: u32,
    /// Images in a batch.
    pub batch: u32,
    /// Decides the first weights and the order of the images.
    pub seed: u64,
    /// Tell the end of each iteration, and that of the last.
    pub boundaries: bool,
    /// Tell which allocations are persistent.
    pub scopes: bool,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The mean loss of each step's batch.
    pub losses: Vec<f32>,
    /// Share of the test images recognised.
    pub accuracy: f64,
    /// All weights and biases, from the first layer to the last.
    pub weights: Vec<f32>,
}

/// Trains a network; tells `on_step` each step's number, from 1, and loss.
pub fn train<D: Device>(
    device: &D,
    options: &Options,
    mut on_step: impl FnMut(u32, f32) -> Result<()>,
) -> Result<Outcome> {
    let digits = Digits::load();
    let network = new_network(device, options).context("cannot set up the network")?;
    let batches = digits.batches(options.batch as usize, Random::new(options.seed, 1));
    let mut training = Training { device, network, batches: batches.take(options.steps as usize) };

    let mut losses = Vec::new();
    let mut batch = training.next_batch()?;
    while let Some(now) = batch {
        let number = losses.len() as u32 + 1;
        let (loss, next) = training.step(number, now).with_context(|| format!("in step {number}"))?;
        batch = next;
        losses.push(loss);
        on_step(number, loss)?;
        if options.boundaries {
            tidegate::boundary();
        }
    }
    let outcome = training.outcome(losses, &digits.test())?;
    if options.boundaries {
        tidegate::job_done();
    }
    Ok(outcome)
}

/// The network, in a persistent scope if that is to be told.
fn new_network<D: Device>(device: &D, options: &Options) -> Result<Network<D>> {
    let allocate = || Network::new(device, options.hidden, Random::new(options.seed, 0));
    if options.scopes { tidegate::persistent(allocate) } else { allocate() }
}

/// A training under way.
struct Training<'a, D: Device, B> {
    device: &'a D,
    network: Network<D>,
    batches: B,
}

impl<D: Device, B: Iterator<Item = Batch>> Training<'_, D, B> {
    /// Uploads the next batch, if there is one.
    fn next_batch(&mut self) -> Result<Option<DeviceBatch<D>>> {
        let batch = self.batches.next();
        batch.map(|batch| DeviceBatch::upload(self.device, &batch)).transpose()
    }

    /// One iteration: its loss, and the next one's batch, which alone of all that was allocated
    /// here is alive afterwards.
    fn step(&mut self, number: u32, batch: DeviceBatch<D>) -> Result<(f32, Option<DeviceBatch<D>>)> {
        let activations = self.network.forward(self.device, &batch)?;
        let gradients = self.network.backward(self.device, &batch, &activations)?;
        let next = self.next_batch()?;
        drop((activations, batch));
        self.network.update(self.device, adam_step(number), &gradients)?;
        Ok((gradients.loss(self.device)?, next))
    }

    fn outcome(&self, losses: Vec<f32>, test: &Batch) -> Result<Outcome> {
        Ok(Outcome {
            losses,
            accuracy: self.network.accuracy(self.device, test)?,
            weights: self.network.weights(self.device)?,
        })
    }
}

/// The numbers of Adam's step `number`, from 1.
fn adam_step(number: u32) -> AdamStep {
    let steps = f64::from(number);
    let correction = (1.0 - BETA2.powf(steps)).sqrt() / (1.0 - BETA1.powf(steps));
    AdamStep { rate: (RATE * correction) as f32, beta1: BETA1 as f32, beta2: BETA2 as f32, epsilon: EPSILON }
}

#[cfg(test)]
mod tests;
