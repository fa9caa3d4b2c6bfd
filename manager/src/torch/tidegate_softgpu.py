"""PyTorch of this environment links stand-ins for NVIDIA's libraries, which need the driver of the software GPUs. Where
that is not there, `import torch` says in one line what to do."""

import os
import sys
from importlib.machinery import PathFinder

HINT = f"this PyTorch runs on Tidegate's software GPUs: start it as `tidegate run -- {sys.executable} …`"


class Refusing:
    """In place of PyTorch's loader."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        raise ImportError(HINT)


class Finder:
    """Finds PyTorch as Python does: whoever only asks whether it is installed is told that it is."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = Refusing()
        return spec


if "TIDEGATE_SOFTGPU" not in os.environ:
    sys.meta_path.insert(0, Finder)
