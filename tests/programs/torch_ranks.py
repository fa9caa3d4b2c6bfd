"""Ranks of a training, each a process that `mp.spawn` starts: `torch_ranks.py WHAT [STEPS [BACKEND]]`. WHAT is `collectives`,
`ddp`, `fsdp`, `pipeline` or `all`. Each compares what it computes with the backend `nccl` on GPUs with what the same
program computes on the CPU: `ddp` and `pipeline` with the backend `gloo`, `fsdp` with one process that has all
batches. Rank r uses GPU r modulo the number of GPUs; on one GPU, NCCL's stand-in must be told that this is allowed.
With a BACKEND the ranks compute with that one, on GPUs only, and compare nothing."""

import hashlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS, BATCH = 2, 16


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def batches(steps):
    torch.manual_seed(2)
    return torch.randn(steps, RANKS * BATCH, 32), torch.randint(0, 10, (steps, RANKS * BATCH))


def part(tensor, rank):
    return tensor[rank * BATCH : (rank + 1) * BATCH]


def step(net, optimizer, x, t):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), t)
    loss.backward()
    optimizer.step()
    return loss.item()


def weights(net):
    return [parameter.detach().cpu().clone() for parameter in net.parameters()]


def sgd(net, **more):
    return torch.optim.SGD(net.parameters(), lr=0.05, **more)


def ddp(rank, device, steps):
    net = DistributedDataParallel(model().to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer, (inputs, targets) = sgd(net), batches(steps)
    losses = [step(net, optimizer, part(x, rank).to(device), part(t, rank).to(device)) for x, t in zip(inputs, targets)]
    return losses, weights(net)


def pipeline(rank, device, steps):
    """Two stages; activations and their gradients pass by send and recv."""
    full = model().to(device)
    stage = full[:2] if rank == 0 else full[2:]
    optimizer, (inputs, targets) = sgd(stage), batches(steps)
    losses = []
    for x, t in zip(inputs, targets):
        optimizer.zero_grad()
        if rank == 0:
            hidden = stage(x.to(device))
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(RANKS * BATCH, 64, device=device)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            loss = torch.nn.functional.cross_entropy(stage(hidden), t.to(device))
            loss.backward()
            losses.append(loss.item())
            dist.send(hidden.grad, 0)
        optimizer.step()
    return losses, weights(stage)


def fsdp(rank, device, steps):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh

    net = model().to(device)
    mesh = init_device_mesh(device.type, (RANKS,))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer, (inputs, targets) = sgd(net, foreach=False), batches(steps)
    losses = [step(net, optimizer, part(x, rank).to(device), part(t, rank).to(device)) for x, t in zip(inputs, targets)]
    return losses, [parameter.full_tensor().detach().cpu().clone() for parameter in net.parameters()]


def collectives(rank, device, _steps):
    """What torch.distributed has, each once; small whole numbers, so that every order of sums has the same bits."""
    results = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        own = lambda count, shift=0: (torch.arange(count) % 7 + rank + 1 + shift).to(dtype).to(device)
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            tensor = own(1000)
            dist.all_reduce(tensor, operation)
            results.append(tensor)
        tensor = own(77)
        dist.broadcast(tensor, 1)
        gathered = [own(33, 5) for _ in range(RANKS)]
        dist.all_gather(gathered, own(33))
        flat = own(2 * 50)
        dist.all_gather_into_tensor(flat, own(50))
        results += [tensor, *gathered, flat]
        if device.type == "cuda":
            # gloo lacks these: they must agree with those above.
            scattered = own(25)
            dist.reduce_scatter_tensor(scattered, own(50))
            summed = own(50)
            dist.all_reduce(summed)
            assert torch.equal(scattered.cpu(), summed.cpu()[rank * 25 : rank * 25 + 25]), dtype
            swapped, given = own(40), own(40)
            dist.all_to_all_single(swapped, given)
            both = [own(40) for _ in range(RANKS)]
            dist.all_gather(both, given)
            expected = torch.cat([tensor.cpu()[rank * 20 : rank * 20 + 20] for tensor in both])
            assert torch.equal(swapped.cpu(), expected), dtype
    if device.type == "cuda":
        average = torch.full((9,), float(rank), device=device)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert average.cpu().tolist() == [0.5] * 9
        there, back = torch.full((300_000,), float(rank), device=device), torch.empty(300_000, device=device)
        requests = [dist.P2POp(dist.isend, there, 1 - rank), dist.P2POp(dist.irecv, back, 1 - rank)]
        for request in dist.batch_isend_irecv(requests):
            request.wait()
        assert back.cpu().unique().tolist() == [1.0 - rank]
    dist.barrier()
    return [], [tensor.cpu() for tensor in results]


def alone(steps):
    """The training of `fsdp` by one process: the loss of each step is the mean over the ranks' batches."""
    net = model()
    optimizer, (inputs, targets) = sgd(net), batches(steps)
    return [step(net, optimizer, x, t) for x, t in zip(inputs, targets)], weights(net)


def run(rank, wanted, steps, chosen, meeting, results):
    for what in wanted:
        check(rank, what, steps, chosen, f"{meeting}-{what}", results)


def check(rank, what, steps, chosen, meeting, results):
    def computed(backend, device):
        store = dist.FileStore(f"{meeting}-{backend}", RANKS)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS)
        result = {"ddp": ddp, "pipeline": pipeline, "fsdp": fsdp, "collectives": collectives}[what](rank, device, steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.destroy_process_group()
        return result

    torch.set_num_threads(1)
    losses, found = computed(chosen or "nccl", torch.device("cuda", rank % torch.cuda.device_count()))
    if chosen:
        expected = found
    elif what == "fsdp":
        _, expected = alone(steps)
    else:
        expected_losses, expected = computed("gloo", torch.device("cpu"))
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected_losses), rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        # The bits of whole numbers are the same.
        assert what != "collectives" or torch.equal(ours, theirs)
    words = b"".join(tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in found)
    # Nothing reads the pipe before the ranks have ended: what is put has to fit in it. The weights stand for the rest.
    results.put((what, rank, [loss.hex() for loss in losses[:100]], hashlib.sha256(words).hexdigest()))


def main(wanted, steps, chosen):
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (wanted, steps, chosen, os.path.join(directory, "store"), results), RANKS)
    for what, rank, losses, digest in sorted(results.get() for _ in range(RANKS * len(wanted))):
        print(what, rank, losses, digest, flush=True)


if __name__ == "__main__":
    wanted, steps, chosen, *_ = sys.argv[1:] + [None] * 3
    every = ["collectives", "ddp", "fsdp", "pipeline"]
    main(every if wanted == "all" else [wanted], int(steps or 4), chosen)
