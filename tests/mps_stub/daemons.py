"""The stand-in for NVIDIA's MPS control program: on PATH of real processes, with a record of what happened."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("nvidia-cuda-mps-control")
LIMIT = 600.0
WORKER = """
import sys
from pathlib import Path
from hpo_core.placement.mps import MpsDaemons, NoMpsError
folder, linger, wait = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
daemons = MpsDaemons(folder, by_hand=Path("/nonexistent"), linger=linger, wait=wait)
for line in sys.stdin:
    action, gpu = line.split()
    try:
        print(daemons.begin(gpu) if action == "begin" else daemons.end(gpu), flush=True)
    except NoMpsError as error:
        print("off:", error, flush=True)
"""


class Worker:
    """A process that uses the daemons of some GPUs."""

    def __init__(self, stub: MpsStub, *, linger: float = 60.0, wait: float = LIMIT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(stub.base), str(linger), str(wait)],
            env=stub.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, action: str, gpu: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{action} {gpu}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, action: str, gpu: str = "GPU-a") -> str:
        self.ask(action, gpu)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


class MpsStub:
    """The program, its record, and the folder of its daemons."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "mps"
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

    def keepers(self) -> list[int]:
        """Processes that keep a daemon of this folder."""
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_text() if path.name.isdigit() else ""
                if "mps_keeper.py" in words and str(self.base) in words:
                    found.append(int(path.name))
        return [pid for pid in found if lives(pid)]

    def close(self) -> None:
        """End what a test left."""
        servers = [int(words[0]) for words in self.calls("server")]
        for pid in [*self.keepers(), *self.started(), *servers]:
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
