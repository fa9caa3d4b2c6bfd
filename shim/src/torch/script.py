"""The part of Tidegate that runs inside Python: it tells the moments of a training loop at which few bytes may be
alive, and which tensors outlive iterations. Run once, when PyTorch is there; its result is `answer`.

It changes nothing that a program can see, but for what it must wrap: `Optimizer.zero_grad`,
`CUDAGraph.replay` and a data loader's `__next__`. What fails here is told to the library, and to nobody else.
"""


def install():
    import sys

    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return "later"

    import ctypes
    import functools
    import os
    import weakref

    library = ctypes.CDLL(None)
    moment = library.tidegate_moment
    moment.argtypes, moment.restype = (ctypes.c_uint32, ctypes.c_uint64), ctypes.c_int
    outlives = library.tidegate_outlives
    outlives.argtypes, outlives.restype = (ctypes.c_uint64, ctypes.c_uint64), None
    complain = library.tidegate_script_failed
    complain.argtypes, complain.restype = (ctypes.c_char_p,), None
    report = library.tidegate_audit
    report.argtypes, report.restype = (ctypes.c_void_p, ctypes.c_size_t), None
    is_audited = os.environ.get("TIDEGATE_AUDIT", "0") not in ("", "0")
    STEP, ZERO_GRAD, NEXT, REPLAY = 1, 2, 3, 4
    LATE = 4

    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None) or (lambda: False)
    is_capturing = torch.cuda.is_current_stream_capturing

    def audit():
        pairs = []
        for segment in torch.cuda.memory_snapshot():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    pairs += address, block["size"]
                address += block["size"]
        report((ctypes.c_uint64 * len(pairs))(*pairs), len(pairs) // 2)

    def tell(kind, thing):
        if moment(kind, id(thing)) and is_audited:
            quietly(audit)

    def quietly(work, *arguments):
        try:
            work(*arguments)
        except Exception as error:
            complain(repr(error).encode())

    def label(tensor):
        try:
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                storage = tensor.untyped_storage()
                outlives(storage.data_ptr(), max(storage.nbytes(), 1))
        except Exception:
            pass  # A tensor without memory of its own.

    def label_all(values):
        for value in values:
            label(value)

    def label_buffers():
        import gc

        for thing in gc.get_objects():
            if issubclass(type(thing), torch.nn.Module):
                label_all(thing.__dict__.get("_buffers", {}).values())

    # Of each optimizer: how many parameters, and how many with state, are labelled.
    labelled = weakref.WeakKeyDictionary()

    def label_parameters(optimizer):
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if labelled.get(optimizer, (0, 0))[0] == count or is_capturing():
            return
        if not labelled:
            label_buffers()
        labelled[optimizer] = count, 0
        for group in optimizer.param_groups:
            label_all(group["params"])

    def before_step(optimizer):
        if not labelled and not is_capturing():
            # State that is about to be born shall not lie between activations that have died.
            torch.cuda.empty_cache()
        label_parameters(optimizer)

    def label_state(optimizer):
        count, before = labelled.get(optimizer, (0, 0))
        if before != len(optimizer.state):
            labelled[optimizer] = count, len(optimizer.state)
            for state in list(optimizer.state.values()):
                label_all(state.values() if isinstance(state, dict) else ())

    # How often each optimizer's gradients were zeroed.
    zeroed = weakref.WeakKeyDictionary()

    def label_late(optimizer):
        """A compiled step calls no hooks: what it would have labelled, well after it must have come."""
        zeroed[optimizer] = zeroed.get(optimizer, 0) + 1
        if zeroed[optimizer] > LATE:
            label_parameters(optimizer)
            label_state(optimizer)

    def hook(label, kind=None):
        def quiet(optimizer, args, kwargs):
            if is_compiling():
                return
            quietly(label, optimizer)
            if kind is not None:
                tell(kind, optimizer)

        return quiet

    def told_after(function, label_it, kind):
        @functools.wraps(function)
        def wrapper(self, *args, **kwargs):
            result = function(self, *args, **kwargs)
            if not is_compiling():
                quietly(label_it, self)
                tell(kind, self)
            return result

        return wrapper

    def told_before(function, kind, of):
        @functools.wraps(function)
        def wrapper(self, *args, **kwargs):
            if not is_compiling():
                tell(kind, of(self))
            return function(self, *args, **kwargs)

        return wrapper

    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is not None:
        optimizer.register_optimizer_step_pre_hook(hook(before_step))
        optimizer.register_optimizer_step_post_hook(hook(label_state, STEP))
        optimizer.Optimizer.zero_grad = told_after(optimizer.Optimizer.zero_grad, label_late, ZERO_GRAD)
    loader = sys.modules.get("torch.utils.data.dataloader")
    iterator = getattr(loader, "_BaseDataLoaderIter", None)
    if iterator is not None:
        # There is a new iterator in each epoch, over the same data.
        iterator.__next__ = told_before(iterator.__next__, NEXT, lambda self: getattr(self, "_dataset", self))
    graphs = sys.modules.get("torch.cuda.graphs")
    graph = getattr(graphs, "CUDAGraph", None)
    if graph is not None and "replay" in vars(graph):
        graph.replay = told_before(graph.replay, REPLAY, lambda self: self)
    return "done"


try:
    answer = install()
except Exception as error:
    answer = f"{type(error).__name__}: {error}"
