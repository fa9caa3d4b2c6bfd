"""Tells Tidegate what a program knows about its GPU memory.

Everything here is optional: it makes switches between jobs cheaper, and with `hold` keeps memory where it is. Where
the program does not run under Tidegate, every function does nothing.
"""

import contextlib
import ctypes
import json
from typing import Any, Dict, Iterator, Optional, Union

__all__ = ["persistent", "temporary", "step", "tag", "hold", "status"]

_PERSISTENT, _TEMPORARY = 1, 2


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
        self.hold = function("tidegate_hold", None, ctypes.c_uint64)
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

    `tensor` as for `tag`. Of PyTorch's tensors the whole segment stays."""
    _library.hold(_address(tensor))


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


def _address(tensor: Union[int, Any]) -> int:
    if isinstance(tensor, int):
        return tensor
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    if hasattr(tensor, "__cuda_array_interface__"):
        return int(tensor.__cuda_array_interface__["data"][0])
    raise TypeError(f"{type(tensor).__name__} has neither data_ptr() nor __cuda_array_interface__")
