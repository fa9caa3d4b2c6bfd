"""Trains a small perceptron with SGD, as anybody would write it. Prints the losses and a digest of the weights,
bit for bit. With `--check` it compares them with the same training on the CPU, with `--endless` it goes on until
it is killed."""

import hashlib
import sys

import torch

STEPS, BATCH, CLASSES = 40, 48, 10


def train(device):
    torch.manual_seed(1)
    inputs, targets = torch.randn(STEPS * BATCH, 96), torch.randint(0, CLASSES, (STEPS * BATCH,))
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, t in zip(inputs.split(BATCH), targets.split(BATCH)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), t.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


losses, weights = train("cuda")
while "--endless" in sys.argv:
    train("cuda")
if "--check" in sys.argv:
    expected, theirs = train("cpu")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-3, atol=1e-3)
    for ours, other in zip(weights, theirs):
        torch.testing.assert_close(ours, other, rtol=1e-2, atol=1e-3)
digest = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()
print([loss.hex() for loss in losses], digest, flush=True)
