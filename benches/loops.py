"""Training loops of others' libraries, for `benches/progress.rs`: `loops.py NAME STEPS`. Prints when it began, had its model,
and ended each step, in microseconds of the system's monotonic clock, a line each; and then how its parameters are, bit for bit.

NAME: `plain` (PyTorch), `trainer` (transformers), `lightning`, or `ranks` (DistributedDataParallel, started by torchrun)."""

import hashlib
import os
import sys
import tempfile
import time

NAME, STEPS = sys.argv[1], int(sys.argv[2])
WIDTH = 8 << 20
times = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


times.append(now())
import torch  # noqa: E402

torch.manual_seed(1)


class Model(torch.nn.Module):
    """A small network, and a table of 32 MiB: with its gradient and momentum, 96 MiB. Only operations that PyTorch on software
    GPUs really computes: what others leave in their results is whatever lay there."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.table = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x, labels):
        loss = torch.nn.functional.cross_entropy(self.network(x), labels)
        return {"loss": loss + self.table.sum() * 1e-6}


def expected_table():
    """What the table comes to, whose gradient is always the same: a loss that was not computed is seen here."""
    table = momentum = 0.0
    for _ in range(STEPS):
        momentum = 0.9 * momentum + 1e-6
        table -= 0.01 * momentum
    return table


def digest(model):
    torch.testing.assert_close(model.table.detach().cpu(), torch.full((WIDTH,), expected_table()), rtol=1e-3, atol=0.0)
    state = b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(state).hexdigest()


def batches():
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        yield torch.randn(8, 64, generator=generator), torch.randint(0, 10, (8,), generator=generator)


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.labels = (torch.cat(items) for items in zip(*batches()))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return {"x": self.x[at], "labels": self.labels[at]}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def plain(model, wrap=lambda model: model):
    model = wrap(model.cuda())
    optimizer = sgd(model)
    times.append(now())
    for x, labels in batches():
        optimizer.zero_grad()
        model(x.cuda(), labels.cuda())["loss"].backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(now())


def ranks(model):
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    plain(model, torch.nn.parallel.DistributedDataParallel)
    torch.distributed.destroy_process_group()


def trainer(model):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Times(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            times.append(now())

        def on_step_end(self, *args, **kwargs):
            torch.cuda.synchronize()
            times.append(now())

    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory, per_device_train_batch_size=8, num_train_epochs=1, save_strategy="no", report_to=[],
            logging_strategy="no", max_grad_norm=0.0, disable_tqdm=True, remove_unused_columns=False, seed=1, lr_scheduler_type="constant",
        )
        model.cuda()
        Trainer(model, arguments, train_dataset=Data(), callbacks=[Times()], optimizers=(sgd(model), None)).train()


def lightning(model):
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return sgd(self.model)

    class Times(pl.Callback):
        def on_train_start(self, *args):
            times.append(now())

        def on_train_batch_end(self, *args):
            torch.cuda.synchronize()
            times.append(now())

    pl.seed_everything(1, verbose=False)
    with tempfile.TemporaryDirectory() as directory:
        pl.Trainer(
            accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Times()], default_root_dir=directory,
        ).fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=8))


model = Model()
{"plain": plain, "trainer": trainer, "lightning": lightning, "ranks": ranks}[NAME](model)
if os.environ.get("RANK", "0") == "0":
    print("\n".join(map(str, times)))
    print(digest(model), flush=True)
# Threads of PyTorch's may abort a process that finalizes its interpreter (pytorch/pytorch#38228).
os._exit(0)
