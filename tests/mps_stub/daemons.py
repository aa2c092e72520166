"""The stand-in for NVIDIA's MPS control program: on PATH of real processes, with a record of what happened."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("nvidia-cuda-mps-control")
LIMIT = 600.0


class MpsStub:
    """The program, its record, and the folder of its daemons."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "bin"
        self.record = folder / "stub"
        self.program.mkdir()
        self.record.mkdir()
        shutil.copy(SOURCE, self.program)

    def environment(self) -> dict[str, str]:
        """For a process that is to find it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return kept | {"PATH": f"{self.program}:{os.environ['PATH']}", "MPS_STUB": str(self.record)}

    def behave(self, mode: str) -> None:
        (self.record / "mode").write_text(mode)

    def calls(self, what: str) -> list[list[str]]:
        """Words after this first one, of each line of the record."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.record / "calls").read_text().splitlines()]
            return [words[1:] for words in lines if words[0] == what]
        return []

    def started(self) -> list[int]:
        """Process ids of all daemons that were ever started."""
        return [int(words[0]) for words in self.calls("start")]

    def living(self) -> list[int]:
        return [pid for pid in self.started() if lives(pid)]

    def close(self) -> None:
        """End what a test left."""
        servers = [int(words[0]) for words in self.calls("server")]
        for pid in [*self.started(), *servers]:
            if lives(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < ends, f"waited in vain: {what}"
        time.sleep(0.05)
