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
    LATE = 5

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

    def quietly(work, *arguments):
        try:
            work(*arguments)
        except Exception as error:
            complain(repr(error).encode())

    def tell(kind, thing):
        if moment(kind, id(thing)) and is_audited:
            quietly(audit)

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

    def label_optimizer(optimizer):
        for group in optimizer.param_groups:
            label_all(group["params"])
        for state in list(optimizer.state.values()):
            label_all(state.values() if isinstance(state, dict) else ())

    has_begun = False

    class Known:
        """What is known of an optimizer."""

        __slots__ = ("labelled", "calls_hooks", "zeroed", "life")

        def __init__(self, optimizer, key):
            # How many groups of parameters, and parameters with state, it had when it was labelled.
            self.labelled = 0, 0
            # Whether its step did so since its gradients were last zeroed; how often they were, since it did.
            self.calls_hooks = False
            self.zeroed = 0
            self.life = weakref.ref(optimizer, lambda _: forget(key))

    def forget(key):
        nonlocal has_begun
        known.pop(key, None)
        # Another training may come after this one.
        has_begun = has_begun and bool(known)

    # By `id`: no optimizer is asked whether it is equal to another, and none is written into.
    known = {}

    def known_of(optimizer):
        key = id(optimizer)
        it = known.get(key)
        if it is None:
            it = known[key] = Known(optimizer, key)
        return it

    def label_changes(it, optimizer):
        now = len(optimizer.param_groups), len(optimizer.state)
        if it.labelled != now:
            it.labelled = now
            label_optimizer(optimizer)

    def begin(optimizer):
        nonlocal has_begun
        if not is_capturing():
            has_begun = True
            # State that is about to be born shall not lie between activations that have died.
            torch.cuda.empty_cache()
            label_buffers()
            label_optimizer(optimizer)

    def before_step(optimizer, args, kwargs):
        if not is_compiling() and not has_begun:
            quietly(begin, optimizer)

    def note_step(optimizer):
        it = known_of(optimizer)
        it.calls_hooks = True
        label_changes(it, optimizer)

    def after_step(optimizer, args, kwargs):
        if not is_compiling():
            quietly(note_step, optimizer)
            tell(STEP, optimizer)

    def note_zero_grad(optimizer):
        """A compiled step calls no hooks: what it would have labelled, well after it must have come."""
        it = known_of(optimizer)
        if it.calls_hooks:
            it.calls_hooks, it.zeroed = False, 0
            return
        it.zeroed += 1
        if it.zeroed == LATE:
            label_buffers()
        if it.zeroed >= LATE:
            label_changes(it, optimizer)

    def told_after(zero_grad):
        @functools.wraps(zero_grad)
        def wrapper(self, *args, **kwargs):
            result = zero_grad(self, *args, **kwargs)
            if not is_compiling():
                quietly(note_zero_grad, self)
                tell(ZERO_GRAD, self)
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
        optimizer.register_optimizer_step_pre_hook(before_step)
        optimizer.register_optimizer_step_post_hook(after_step)
        optimizer.Optimizer.zero_grad = told_after(optimizer.Optimizer.zero_grad)
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
