"""How often the process was stopped, as Tidegate says."""

import ctypes
import json


def switches():
    text = ctypes.create_string_buffer(1 << 16)
    ctypes.CDLL(None).tidegate_status(text, ctypes.c_size_t(len(text)))
    return json.loads(text.value)["switches"]
