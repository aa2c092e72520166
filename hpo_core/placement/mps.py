"""NVIDIA's Multi-Process Service (MPS): the control daemons of the GPUs that this process's jobs share."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from hpo_core.model.errors import HpoError
from hpo_core.security.masking import without_private_settings

CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")
"""Where CUDA looks for a daemon if nobody says where."""
READY_SECONDS = 10.0
ANSWER_SECONDS = 3.0
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_ENDS_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], [sys.argv[1], '-f'])"
)
"""Asks the kernel for SIGTERM once the thread that started it is gone, and becomes the daemon."""


class NoMpsError(HpoError):
    """Jobs share a GPU without MPS, and this is why."""


class MpsDaemons:
    """Daemons that this process uses: one that a person started, else one for each GPU, which ends with this process.

    All methods may be called from any thread.

    Args:
        by_hand: folder of the pipes of a daemon that a person started.
    """

    def __init__(self, *, by_hand: Path = DEFAULT_PIPES) -> None:
        self._by_hand = by_hand
        self._lock = threading.Lock()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._off: dict[str, str] = {}
        """Why it is off, by GPU."""
        self._folder: Path | None = None

    def prepare(self, gpus: Iterable[str]) -> str:
        """Have these daemons ready for the first jobs; returns why some are not, or nothing."""
        problems: dict[str, list[str]] = {}
        for gpu in gpus:
            if not self.pipes(gpu):
                problems.setdefault(self._off[gpu], []).append(gpu)
        return "; ".join(f"MPS is off for {', '.join(those)}: {why}" for why, those in problems.items())

    def pipes(self, gpu: str) -> str:
        """Folder of the pipes of its daemon, for ``CUDA_MPS_PIPE_DIRECTORY``; empty where MPS is off for this GPU."""
        with self._lock:
            try:
                return "" if gpu in self._off else str(self._ready(gpu))
            except (NoMpsError, OSError, subprocess.SubprocessError) as error:
                self._off[gpu] = str(error)
                return ""

    def close(self) -> None:
        with self._lock:
            for gpu, daemon in self._daemons.items():
                self._ask("quit", self._pipes(gpu))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(ANSWER_SECONDS)
                daemon.kill()
                daemon.wait()
            self._daemons.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _ready(self, gpu: str) -> Path:
        if not _GPU.fullmatch(gpu):
            raise NoMpsError("only whole GPUs share their compute that way, no slices (MIG)")
        if given := os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
            return Path(given)
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._by_hand / f"{CONTROL}.pid").read_text())
            if Path(f"/proc/{pid}/comm").read_text().startswith(CONTROL[:15]):
                return self._by_hand
        daemon = self._daemons.get(gpu)
        if daemon is None or daemon.poll() is not None:
            self._start(gpu)
        return self._pipes(gpu)

    def _pipes(self, gpu: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hpo-mps-", dir="/tmp"))  # short, for the paths of sockets
            atexit.register(self.close)
        return self._folder / gpu / "pipe"

    def _start(self, gpu: str) -> None:
        control = shutil.which(CONTROL)
        if control is None:
            raise NoMpsError(f"{CONTROL} is not on PATH; it comes with NVIDIA's driver")
        pipes = self._pipes(gpu)
        shutil.rmtree(pipes.parent, ignore_errors=True)
        pipes.mkdir(parents=True, mode=0o700)
        log = pipes.parent / "log"
        log.mkdir()
        started = threading.Event()
        threading.Thread(target=self._keep, args=(control, gpu, started), name="hpo-mps", daemon=True).start()
        started.wait()
        daemon = self._daemons.get(gpu)
        ends = time.monotonic() + READY_SECONDS
        while daemon is not None and daemon.poll() is None and time.monotonic() < ends:
            if self._ask("get_server_list", pipes):
                return
            time.sleep(0.02)
        if daemon is not None and daemon.poll() is None:
            daemon.kill()
            raise NoMpsError(f"{control} does not answer")
        said = (log / "output").read_text(errors="replace").strip()[-300:]
        raise NoMpsError(f"{control} ended: {said or 'it says nothing'}")

    def _keep(self, control: str, gpu: str, started: threading.Event) -> None:
        # Start a daemon and wait for its end: it gets SIGTERM once this thread is gone.
        pipes = self._pipes(gpu)
        try:
            with (pipes.parent / "log" / "output").open("wb") as output:
                self._daemons[gpu] = daemon = subprocess.Popen(
                    [sys.executable, "-I", "-c", _ENDS_WITH_ITS_PARENT, control],
                    env=_environment(pipes) | {"CUDA_VISIBLE_DEVICES": gpu},
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
        finally:
            started.set()
        daemon.wait()

    @staticmethod
    def _ask(command: str, pipes: Path) -> bool:
        try:
            done = subprocess.run(
                [CONTROL], input=f"{command}\n".encode(), env=_environment(pipes),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=ANSWER_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def _environment(pipes: Path) -> dict[str, str]:
    kept = {name: value for name, value in without_private_settings(os.environ).items() if not name.startswith("CUDA_")}
    log = pipes.parent / "log"
    return kept | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(log)}
