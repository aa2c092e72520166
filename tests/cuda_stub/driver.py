"""A CUDA driver that is not there: the stand-in library, built once, and what processes did with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("cuda_stub.c")


def build(folder: Path) -> Path:
    """The folder that holds the library; it belongs in front of ``LD_LIBRARY_PATH`` of a new process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for the CUDA driver is built with a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / "libcuda.so.1", SOURCE],
        check=True,
        timeout=600,
    )
    return folder


class Driver:
    """What processes did, in a folder that the library writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nvidia0").touch()  # stands for the card's device file
        (folder / "events").touch()

    def variables(self, library: Path) -> dict[str, str]:
        return {"CUDA_STUB": str(self.folder), "LD_LIBRARY_PATH": str(library)}

    def events(self, kind: str) -> list[list[str]]:
        """Words after this first one, of each line."""
        lines = [line.split() for line in (self.folder / "events").read_text().splitlines()]
        return [words[1:] for words in lines if words[0] == kind]

    def contexts(self) -> list[int]:
        """Processes that paid for a context, each in its turn; those that paid for kernels are the same."""
        found = [int(words[0]) for words in self.events("context")]
        assert sorted(int(words[0]) for words in self.events("kernels")) == sorted(found)
        return found

    def break_context(self, pid: int) -> None:
        """The context of a process cannot be used any more."""
        (self.folder / f"fault-{pid}").touch()
