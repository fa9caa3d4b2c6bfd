#!/usr/bin/env python3
"""One training of the kit: `train.py MODEL STEPS`. The same bits each time, on one machine. Prints JSON: a digest of
losses and weights, the median of a step, PyTorch's peak, and what PyTorch itself says."""

import hashlib
import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional


# Little work where only the kit itself is tried.
WIDTH = 128 if os.environ.get("GROUND_QUICK") else 1024


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(x + y)


class Gpt(nn.Module):
    def __init__(self, words=512, width=256, heads=4, layers=4, length=128):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = [nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True) for _ in range(layers)]
        self.layers, self.head = nn.ModuleList(layer), nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        y = self.words(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            y = layer(y, src_mask=self.mask, is_causal=True)
        return self.head(y)


def perceptron(width=WIDTH):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 16))


def features(batch=256, width=WIDTH):
    return torch.randn(batch, width), torch.randint(0, 16, (batch,))


def pictures(batch=32):
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 16, (batch,))


def texts(batch=16, length=128):
    text = torch.randint(0, 512, (batch, length + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def resnet(width=64):
    body = [Residual(width) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 16))


def plainly(model, data, kind, step=None):
    """An iteration in the usual order; its losses and the modules that were trained."""
    model = model.cuda()
    optimizer = kind(model.parameters())

    def iteration():
        x, y = (tensor.cuda(non_blocking=True) for tensor in data())
        optimizer.zero_grad()
        loss = functional.cross_entropy((step or model)(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return iteration, [model]


def compiled(**options):
    model = perceptron()
    return plainly(model, features, sgd, torch.compile(model, **options))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def amp():
    model = perceptron().cuda()
    optimizer, scaler = adamw(model.parameters()), torch.amp.GradScaler("cuda")

    def iteration():
        x, y = (tensor.cuda() for tensor in features())
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return iteration, [model]


def gan():
    maker, judge = perceptron().cuda(), nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    makes, judges = adamw(maker.parameters()), adamw(judge.parameters())

    def iteration():
        x, _ = features()
        x, real = x.cuda(), torch.randn(256, 16).cuda()
        judges.zero_grad()
        (functional.softplus(judge(maker(x).detach())).mean() + functional.softplus(-judge(real)).mean()).backward()
        judges.step()
        makes.zero_grad()
        loss = functional.softplus(-judge(maker(x))).mean()
        loss.backward()
        makes.step()
        return loss.detach()

    return iteration, [maker, judge]


def lightning():
    """The order of Lightning's loop: gradients go between forward and backward."""
    model = perceptron().cuda()
    optimizer = adamw(model.parameters())

    def iteration():
        x, y = (tensor.cuda() for tensor in features())

        def closure():
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return iteration, [model]


MODELS = {
    "mlp": lambda: plainly(perceptron(), features, sgd),
    "resnet": lambda: plainly(resnet(), pictures, sgd),
    "gpt": lambda: plainly(Gpt(), texts, adamw),
    "amp": amp,
    "gan": gan,
    "lightning": lightning,
    "compile_eager": lambda: compiled(backend="eager"),
    "compile_inductor": lambda: compiled(),
    "compile_reduce_overhead": lambda: compiled(mode="reduce-overhead"),
}


def meet():
    """Waits until as many trainings as shall run at the same time have come here: `KIT_MEET` is DIRECTORY:COUNT."""
    if "KIT_MEET" in os.environ:
        directory, _, count = os.environ["KIT_MEET"].rpartition(":")
        open(os.path.join(directory, str(os.getpid())), "w").close()
        while len(os.listdir(directory)) < int(count):
            time.sleep(0.005)


def main():
    meet()
    name, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    iteration, modules = MODELS[name]()
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(iteration().item())
        times.append(time.perf_counter() - start)
    digest = hashlib.sha256("".join(loss.hex() for loss in losses).encode())
    for module in modules:
        for tensor in module.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    print(
        json.dumps(
            {
                "model": name,
                "digest": digest.hexdigest(),
                "step_ms": statistics.median(times[steps // 5 :]) * 1e3,
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "torch": torch.__version__,
            }
        ),
        flush=True,
    )


main()
