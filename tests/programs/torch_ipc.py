"""Tensors on the GPU pass between processes, by torch.multiprocessing, both ways, again and again."""

import torch
import torch.multiprocessing

ROUNDS, COUNT = 8, 1 << 20


def child(given, returned):
    own = torch.zeros(8 * COUNT, device="cuda")
    for step in range(ROUNDS):
        tensor = given.get()
        tensor.fill_(step)
        own.fill_(step)
        answer = torch.full((COUNT,), 100.0 + step, device="cuda")
        torch.cuda.synchronize()
        returned.put(answer)
        # Until the other has read it.
        assert given.get() == "read"
        del tensor, answer
    assert own.cpu().unique().tolist() == [ROUNDS - 1]


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    given, returned = torch.multiprocessing.Queue(), torch.multiprocessing.Queue()
    process = torch.multiprocessing.Process(target=child, args=(given, returned))
    process.start()
    kept = torch.full((4 * COUNT,), 5.0, device="cuda")
    for step in range(ROUNDS):
        tensor = torch.full((COUNT,), -1.0, device="cuda")
        given.put(tensor)
        answer = returned.get()
        assert tensor.cpu().unique().tolist() == [step]
        assert answer.cpu().unique().tolist() == [100 + step]
        del answer
        given.put("read")
    process.join()
    assert process.exitcode == 0 and kept.cpu().unique().tolist() == [5]
    print("shared", flush=True)
