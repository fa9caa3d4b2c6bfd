//! The network: two hidden layers with ReLU, a softmax over the digits, trained with Adam.
//!
//! What is *persistent*, the weights and Adam's moments, is allocated by [`Network::new`] and
//! nowhere else. What is *temporary*, activations and gradients, is allocated anew in every
//! iteration and freed in it, as in a framework.

use anyhow::Result;

use crate::data::{Batch, CLASSES, PIXELS};
use crate::device::Device;
use crate::ops::{self, AdamStep, Dims};
use crate::random::Random;

/// A batch in device memory.
pub struct DeviceBatch<D: Device> {
    images: u32,
    inputs: D::Buffer,
    targets: D::Buffer,
}

impl<D: Device> DeviceBatch<D> {
    /// Copies a batch to the device.
    pub fn upload(device: &D, batch: &Batch) -> Result<Self> {
        Ok(DeviceBatch {
            images: u32::try_from(batch.len())?,
            inputs: device.upload_pinned(&batch.inputs)?,
            targets: device.upload_pinned(&batch.targets)?,
        })
    }
}

/// Numbers that are learnt, with their moments in Adam.
struct Parameter<D: Device> {
    count: u32,
    value: D::Buffer,
    first: D::Buffer,
    second: D::Buffer,
}

impl<D: Device> Parameter<D> {
    fn new(device: &D, value: &[f32]) -> Result<Self> {
        Ok(Parameter {
            count: u32::try_from(value.len())?,
            value: device.upload(value)?,
            first: device.zeros(value.len())?,
            second: device.zeros(value.len())?,
        })
    }

    fn update(&mut self, device: &D, step: AdamStep, gradient: &D::Buffer) -> Result<()> {
        let state = [&mut self.value, &mut self.first, &mut self.second];
        ops::adam(device, self.count, step, gradient, state)
    }
}

/// `x · weights + bias`
struct Layer<D: Device> {
    inputs: u32,
    outputs: u32,
    weights: Parameter<D>,
    bias: Parameter<D>,
}

impl<D: Device> Layer<D> {
    /// Weights spread evenly, so wide that ReLU keeps the variance (He and others, 2015).
    fn new(device: &D, (inputs, outputs): (u32, u32), random: &mut Random) -> Result<Self> {
        let limit = (6.0 / inputs as f32).sqrt();
        let count = inputs as usize * outputs as usize;
        let weights: Vec<_> = (0..count).map(|_| random.symmetric(limit)).collect();
        Ok(Layer {
            inputs,
            outputs,
            weights: Parameter::new(device, &weights)?,
            bias: Parameter::new(device, &vec![0.0; outputs as usize])?,
        })
    }

    fn dims(&self, images: u32) -> Dims {
        Dims { rows: images, inner: self.inputs, cols: self.outputs }
    }

    fn forward(&self, device: &D, images: u32, x: &D::Buffer) -> Result<D::Buffer> {
        ops::linear(device, self.dims(images), x, &self.weights.value, &self.bias.value)
    }

    /// The gradients of this layer's numbers, given that of its result.
    fn gradients(
        &self,
        device: &D,
        images: u32,
        x: &D::Buffer,
        delta: &D::Buffer,
    ) -> Result<LayerGradients<D>> {
        let dims = self.dims(images);
        Ok(LayerGradients {
            weights: ops::linear_backward_weights(device, dims, x, delta)?,
            bias: ops::linear_backward_bias(device, dims, delta)?,
        })
    }

    fn update(&mut self, device: &D, step: AdamStep, by: &LayerGradients<D>) -> Result<()> {
        self.weights.update(device, step, &by.weights)?;
        self.bias.update(device, step, &by.bias)
    }
}

/// What a hidden layer computed: before and after its ReLU.
struct Hidden<D: Device> {
    before: D::Buffer,
    after: D::Buffer,
}

/// What a forward pass leaves for the backward pass.
pub struct Activations<D: Device> {
    hidden: Vec<Hidden<D>>,
    logits: D::Buffer,
}

struct LayerGradients<D: Device> {
    weights: D::Buffer,
    bias: D::Buffer,
}

/// What a backward pass gives: the mean loss of the batch, and its gradient.
pub struct Gradients<D: Device> {
    loss: D::Buffer,
    /// From the last layer to the first.
    layers: Vec<LayerGradients<D>>,
}

impl<D: Device> Gradients<D> {
    /// Waits for the loss and downloads it.
    pub fn loss(&self, device: &D) -> Result<f32> {
        Ok(device.download(&self.loss)?[0])
    }
}

/// The network and the state of its training, all persistent.
pub struct Network<D: Device> {
    hidden: Vec<Layer<D>>,
    last: Layer<D>,
}

impl<D: Device> Network<D> {
    /// A network with two hidden layers of `width`, not trained yet.
    pub fn new(device: &D, width: u32, mut random: Random) -> Result<Self> {
        let (inputs, outputs) = (PIXELS as u32, CLASSES as u32);
        let mut layer = |inputs, outputs| Layer::new(device, (inputs, outputs), &mut random);
        Ok(Network {
            hidden: vec![layer(inputs, width)?, layer(width, width)?],
            last: layer(width, outputs)?,
        })
    }

    /// Applies the network.
    pub fn forward(&self, device: &D, batch: &DeviceBatch<D>) -> Result<Activations<D>> {
        let mut hidden: Vec<Hidden<D>> = Vec::new();
        for layer in &self.hidden {
            let x = hidden.last().map_or(&batch.inputs, |below| &below.after);
            let before = layer.forward(device, batch.images, x)?;
            let after = ops::relu(device, batch.images * layer.outputs, &before)?;
            hidden.push(Hidden { before, after });
        }
        let x = hidden.last().map_or(&batch.inputs, |below| &below.after);
        let logits = self.last.forward(device, batch.images, x)?;
        Ok(Activations { hidden, logits })
    }

    /// The loss on the batch and its gradient, from what `forward` left.
    pub fn backward(
        &self,
        device: &D,
        batch: &DeviceBatch<D>,
        activations: &Activations<D>,
    ) -> Result<Gradients<D>> {
        let (images, shape) = (batch.images, (batch.images, self.last.outputs));
        let (loss, mut delta) =
            ops::softmax_cross_entropy(device, shape, &activations.logits, &batch.targets)?;
        let mut layers = Vec::new();
        let mut layer = &self.last;
        for (below, hidden) in self.hidden.iter().zip(&activations.hidden).rev() {
            layers.push(layer.gradients(device, images, &hidden.after, &delta)?);
            let dims = layer.dims(images);
            delta = ops::linear_backward_inputs(device, dims, &delta, &layer.weights.value)?;
            ops::relu_backward(device, images * below.outputs, &hidden.before, &mut delta)?;
            layer = below;
        }
        layers.push(layer.gradients(device, images, &batch.inputs, &delta)?);
        Ok(Gradients { loss, layers })
    }

    /// Moves every weight and bias by one step of Adam.
    pub fn update(&mut self, device: &D, step: AdamStep, by: &Gradients<D>) -> Result<()> {
        let from_last = std::iter::once(&mut self.last).chain(self.hidden.iter_mut().rev());
        for (layer, gradients) in from_last.zip(&by.layers) {
            layer.update(device, step, gradients)?;
        }
        Ok(())
    }

    /// The share of the batch that the network recognises.
    pub fn accuracy(&self, device: &D, batch: &Batch) -> Result<f64> {
        let uploaded = DeviceBatch::upload(device, batch)?;
        let logits = device.download(&self.forward(device, &uploaded)?.logits)?;
        let answers = logits.chunks(CLASSES).map(largest);
        let truths = batch.targets.chunks(CLASSES).map(largest);
        let right = answers.zip(truths).filter(|(answer, truth)| answer == truth).count();
        Ok(right as f64 / batch.len() as f64)
    }

    /// All weights and biases, from the first layer to the last.
    pub fn weights(&self, device: &D) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for layer in self.hidden.iter().chain([&self.last]) {
            all.extend(device.download(&layer.weights.value)?);
            all.extend(device.download(&layer.bias.value)?);
        }
        Ok(all)
    }
}

/// The place of the largest number, the first of equals.
fn largest(numbers: &[f32]) -> usize {
    (1..numbers.len()).fold(0, |best, i| if numbers[i] > numbers[best] { i } else { best })
}

#[cfg(test)]
mod tests;
