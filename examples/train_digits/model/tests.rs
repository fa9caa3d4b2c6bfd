//! The network's gradient against differences of its loss, computed plainly in double precision.

use super::*;
use crate::data::Digits;
use crate::host::Host;

const WIDTH: u32 = 12;
const IMAGES: usize = 5;

fn network(host: &Host) -> Network<Host> {
    Network::new(host, WIDTH, Random::new(3, 0)).unwrap()
}

fn batch() -> Batch {
    Digits::load().batches(IMAGES, Random::new(3, 1)).next().unwrap()
}

/// The mean loss of a network with these weights (in the order of `Network::weights`).
fn plain_loss(weights: &[f64], batch: &Batch) -> f64 {
    let images = batch.inputs.chunks(PIXELS).zip(batch.targets.chunks(CLASSES));
    images.map(|(pixels, targets)| plain_loss_of(weights, pixels, targets)).sum::<f64>() / IMAGES as f64
}

fn plain_loss_of(weights: &[f64], pixels: &[f32], targets: &[f32]) -> f64 {
    let width = WIDTH as usize;
    let mut x: Vec<f64> = pixels.iter().map(|&pixel| pixel.into()).collect();
    let mut rest = weights;
    for outputs in [width, width, CLASSES] {
        let (layer, after) = rest.split_at((x.len() + 1) * outputs);
        rest = after;
        x = plain_layer(layer, &x, outputs);
        if !rest.is_empty() {
            x.iter_mut().for_each(|x| *x = x.max(0.0));
        }
    }
    let total: f64 = x.iter().map(|logit| logit.exp()).sum();
    targets.iter().zip(&x).map(|(&t, logit)| f64::from(t) * (total.ln() - logit)).sum()
}

fn plain_layer(layer: &[f64], x: &[f64], outputs: usize) -> Vec<f64> {
    let (weights, bias) = layer.split_at(x.len() * outputs);
    let term = |k: usize, j: usize| x[k] * weights[k * outputs + j];
    (0..outputs).map(|j| bias[j] + (0..x.len()).map(|k| term(k, j)).sum::<f64>()).collect()
}

fn as_doubles(numbers: Vec<f32>) -> Vec<f64> {
    numbers.into_iter().map(f64::from).collect()
}

/// Loss and gradient as the device computes them, in the order of `Network::weights`.
fn device_gradient(host: &Host, network: &Network<Host>, batch: &Batch) -> (f64, Vec<f64>) {
    let batch = DeviceBatch::upload(host, batch).unwrap();
    let activations = network.forward(host, &batch).unwrap();
    let gradients = network.backward(host, &batch, &activations).unwrap();
    let from_first = gradients.layers.iter().rev();
    let buffers = from_first.flat_map(|layer| [&layer.weights, &layer.bias]);
    let all = buffers.flat_map(|buffer| host.download(buffer).unwrap()).collect();
    (gradients.loss(host).unwrap().into(), as_doubles(all))
}

#[test]
fn backward_gives_the_gradient_of_the_loss() {
    let (host, batch) = (Host::default(), batch());
    let network = network(&host);
    let mut weights = as_doubles(network.weights(&host).unwrap());
    let (loss, gradient) = device_gradient(&host, &network, &batch);
    assert!((loss - plain_loss(&weights, &batch)).abs() < 1e-5);
    assert_eq!(gradient.len(), weights.len());

    const STEP: f64 = 1e-6;
    for i in 0..weights.len() {
        let here = weights[i];
        weights[i] = here + STEP;
        let above = plain_loss(&weights, &batch);
        weights[i] = here - STEP;
        let below = plain_loss(&weights, &batch);
        weights[i] = here;
        let wanted = (above - below) / (2.0 * STEP);
        assert!((gradient[i] - wanted).abs() < 1e-5, "weight {i}: {} for {wanted}", gradient[i]);
    }
}

#[test]
fn an_update_makes_the_loss_smaller() {
    let (host, batch) = (Host::default(), batch());
    let mut network = network(&host);
    let uploaded = DeviceBatch::upload(&host, &batch).unwrap();
    let step = AdamStep { rate: 1e-3, beta1: 0.0, beta2: 0.0, epsilon: 1e-8 };
    let mut losses = Vec::new();
    for _ in 0..5 {
        let activations = network.forward(&host, &uploaded).unwrap();
        let gradients = network.backward(&host, &uploaded, &activations).unwrap();
        network.update(&host, step, &gradients).unwrap();
        losses.push(gradients.loss(&host).unwrap());
    }
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
}
