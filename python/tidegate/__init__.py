"""Tells Tidegate what a program knows about its GPU memory.

Everything here is optional: it makes switches between jobs cheaper, with `operands` lets work go before all of the job's
memory is back, and with `hold` keeps memory where it is. Where the program does not run under Tidegate, every function
does nothing.
"""

import contextlib
import ctypes
import json
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

__all__ = ["persistent", "temporary", "step", "tag", "hold", "operands", "status"]

_PERSISTENT, _TEMPORARY = 1, 2
_OUT_OF_MEMORY = 2


class _Tensor(ctypes.Structure):
    """`tidegate_tensor` of `tidegate.h`."""

    _fields_ = [
        ("address", ctypes.c_uint64),
        ("element", ctypes.c_uint64),
        ("rank", ctypes.c_uint64),
        ("sizes", ctypes.c_int64 * 8),
        ("strides", ctypes.c_int64 * 8),
    ]


class _Library:
    """The functions of `tidegate.h`, as far as the process has them."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name, None)
            if found is None:
                return lambda *_: 0
            found.argtypes, found.restype = arguments, result
            return found

        self.scope_push = function("tidegate_scope_push", None, ctypes.c_int)
        self.scope_pop = function("tidegate_scope_pop", None)
        self.boundary = function("tidegate_boundary", ctypes.c_int)
        self.tag = function("tidegate_tag", None, ctypes.c_uint64, ctypes.c_int)
        self.hold = function("tidegate_hold", ctypes.c_int, ctypes.c_uint64)
        self.operands_push = function(
            "tidegate_operands_push", ctypes.c_int, ctypes.POINTER(_Tensor), ctypes.c_size_t
        )
        self.operands_pop = function("tidegate_operands_pop", None)
        self.status = function("tidegate_status", ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


_library = _Library()


@contextlib.contextmanager
def _scope(number: int) -> Iterator[None]:
    _library.scope_push(number)
    try:
        yield
    finally:
        _library.scope_pop()


def persistent() -> "contextlib.AbstractContextManager[None]":
    """What this thread allocates inside outlives iterations: weights, tables, state.

    Scopes nest; the innermost decides."""
    return _scope(_PERSISTENT)


def temporary() -> "contextlib.AbstractContextManager[None]":
    """What this thread allocates inside is needed within one iteration."""
    return _scope(_TEMPORARY)


def step() -> None:
    """An iteration ends here: few bytes are alive. Waits while it is another job's turn.

    From the first call on, boundaries are no longer learnt: the program tells them."""
    _library.boundary()


def tag(tensor: Any, persistent: bool = True) -> None:
    """The memory behind `tensor` outlives iterations, or (`persistent=False`) does not. Its address does not change.

    `tensor`: what has `data_ptr()` or `__cuda_array_interface__`, or an address on the GPU."""
    _library.tag(_address(tensor), _PERSISTENT if persistent else _TEMPORARY)


def hold(tensor: Any) -> None:
    """The allocation behind `tensor` stays resident, where it is, until it is freed: somebody outside the program
    relies on it, as a network card does. Nobody else can use that memory meanwhile: hold little.

    `tensor` as for `tag`. Of PyTorch's tensors the whole segment stays. Raises `MemoryError` where another job would have
    no room any more for what it had, and `RuntimeError` with the driver's error where the GPU cannot be used."""
    error = _library.hold(_address(tensor))
    if error == _OUT_OF_MEMORY:
        raise MemoryError("the tensor cannot stay where it is: another job would have no room any more")
    if error != 0:
        raise RuntimeError(f"the tensor cannot stay where it is: error {error} of the CUDA driver")


@contextlib.contextmanager
def operands(*tensors: Any) -> Iterator[None]:
    """The work that this thread submits inside (kernels, copies) touches no memory of the GPU but that of `tensors`,
    results included. So it may go as soon as that is there, when the job's memory comes back after another job's turn;
    all other work waits until all of it is there.

    Each of `tensors`: what has `data_ptr()`, `shape`, `stride()` and `element_size()`, or `__cuda_array_interface__`, or
    a pair (address, bytes). Descriptions nest; the innermost decides alone. A wrong one makes the work fault: it never
    reads old bytes, or somebody else's. A library's workspace is memory, too: describe kernels of your own. With one
    that cannot be (more than 8 dimensions, ...) the work waits for all."""
    described = [_described(tensor) for tensor in tensors]
    _library.operands_push((_Tensor * len(described))(*described), len(described))
    try:
        yield
    finally:
        _library.operands_pop()


def status() -> Optional[Dict[str, Any]]:
    """What Tidegate knows of this process; `None` where it does not run under it.

    `boundaries`, `switches`: counts; `gpus`: for each the `device` and, in bytes, `allocated_bytes`, `live_bytes`
    (less where PyTorch's blocks are known), `persistent_bytes` (of the live ones) and `mapped_bytes` (resident)."""
    size = _library.status(None, 0)
    while size:
        text = ctypes.create_string_buffer(size)
        needed = _library.status(text, size)
        if needed <= size:
            return json.loads(text.value)
        size = needed
    return None


def _described(tensor: Any) -> _Tensor:
    if isinstance(tensor, tuple):
        address, size = tensor
        return _tensor(address, 1, [(size, 1)])
    if isinstance(tensor, int):
        raise TypeError("of an address alone the size is not known: give (address, bytes)")
    address = _address(tensor)
    if hasattr(tensor, "element_size"):
        element = int(tensor.element_size())
        steps = [step * element for step in tensor.stride()]
        return _tensor(address, element, list(zip(tensor.shape, steps)))
    array = tensor.__cuda_array_interface__
    shape, element = array["shape"], int(array["typestr"][2:])
    return _tensor(address, element, list(zip(shape, array.get("strides") or _contiguous(shape, element))))


def _contiguous(shape: Sequence[int], element: int) -> Sequence[int]:
    """The bytes from one element to the next, in each dimension."""
    strides = []
    for size in reversed(shape):
        strides.insert(0, element)
        element *= size
    return strides


def _tensor(address: int, element: int, dimensions: Sequence[Tuple[int, int]]) -> _Tensor:
    sizes, strides = zip(*dimensions[:8]) if dimensions else ((), ())
    words = ctypes.c_int64 * 8
    return _Tensor(address, element, len(dimensions), words(*sizes), words(*strides))


def _address(tensor: Union[int, Any]) -> int:
    if isinstance(tensor, int):
        return tensor
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    if hasattr(tensor, "__cuda_array_interface__"):
        return int(tensor.__cuda_array_interface__["data"][0])
    raise TypeError(f"{type(tensor).__name__} has neither data_ptr() nor __cuda_array_interface__")
