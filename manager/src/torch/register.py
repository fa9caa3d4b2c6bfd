"""Run by the Python of an environment: registers what NVIDIA's libraries, for which it has stand-ins, are called in the
package index. Otherwise `pip install` of whatever needs PyTorch would bring them, for PyTorch needs them by name."""

import shutil
from importlib.metadata import distribution, requires
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

INSTALLER = "tidegate"
SITE = Path(distribution("torch").locate_file(""))


def installer(folder):
    file = folder / "INSTALLER"
    return file.read_text().strip() if file.exists() else None


def register(need):
    name = need.name.replace("-", "_")
    known = list(SITE.glob(f"{name}-*.dist-info"))
    if any(installer(folder) != INSTALLER for folder in known):
        return  # The real one was installed.
    for folder in known:
        shutil.rmtree(folder)
    least = sorted(spec.version for spec in need.specifier if spec.operator in ("==", ">=", "~="))
    version = least[-1] if least else "0"
    folder = SITE / f"{name}-{version}.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {need.name}", f"Version: {version}"]
    lines += ["Summary: a stand-in on Tidegate's software GPUs", *(f"Provides-Extra: {extra}" for extra in need.extras)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    (folder / "INSTALLER").write_text(INSTALLER + "\n")
    files = ["METADATA", "INSTALLER", "RECORD"]
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in files))


for need in map(Requirement, requires("torch")):
    is_wanted = need.marker is None or need.marker.evaluate({"extra": ""})
    if is_wanted and need.name.startswith(("nvidia-", "cuda-", "triton")):
        register(need)
