"""Cards that are not there: the stand-in for NVIDIA's management library, built once, and its state in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
GIB = 2**30


def build(folder: Path) -> Path:
    """The folder that holds the library; it belongs in front of ``LD_LIBRARY_PATH`` of a new process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for NVML is built with a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE],
        check=True,
        timeout=600,
    )
    return folder


class Cards:
    """The state that the stand-in reads at every call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "processes").mkdir(parents=True)
        self._cards: dict[str, str] = {}
        self._slices: list[str] = []

    def environment(self, library: Path) -> dict[str, str]:
        """For a process that is to see these cards and no others."""
        return os.environ | self.variables(library)

    def variables(self, library: Path) -> dict[str, str]:
        return {"NVML_STUB": str(self.folder), "LD_LIBRARY_PATH": str(library)}

    def put(
        self,
        uuid: str,
        *,
        name: str = "NVIDIA A100-SXM4-80GB",
        memory: int = 80 * GIB,
        kept: int = 0,
        state: str = "ok",
    ) -> None:
        self._cards[uuid] = f"{uuid}\t{name}\t{memory}\t{kept}\t{state}\n"
        self._write("gpus", "".join(self._cards.values()))

    def remove(self, uuid: str) -> None:
        del self._cards[uuid]
        self._write("gpus", "".join(self._cards.values()))

    def put_slice(self, card: str, uuid: str, *, name: str, memory: int) -> None:
        self._slices.append(f"{card}\t{uuid}\t{name}\t{memory}\n")
        self._write("mig", "".join(self._slices))

    def hold(self, pid: int, uuid: str, memory: int, percent: int = 0) -> None:
        self._write(f"processes/{pid}", f"{uuid}\t{memory}\t{percent}\n")

    def show_foreign_ids(self) -> None:
        """Name processes by other ids than they have here, as a container sees those of the host."""
        self._write("foreign", "1000000")

    def share_through_mps(self) -> None:
        """List all processes as clients of MPS."""
        self._write("mps", "on")

    def set_driver_absent(self) -> None:
        self._write("driver", "absent")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        new.rename(path)  # never half a file
