"""NVIDIA's Multi-Process Service (MPS): the daemons of the GPUs that this process's jobs share.

Each GPU has one control daemon of this user, in a private folder, with a keeper that ends it after its last user
(:mod:`hpo_core.placement.mps_keeper`). No call waits without a limit, whatever state keeper and daemon are in.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hpo_core.model.errors import HpoError
from hpo_core.placement import mps_keeper
from hpo_core.placement.mps_keeper import locked, open_lock
from hpo_core.security.masking import without_private_settings
from hpo_core.security.private_files import private_folder

CONTROL = "nvidia-cuda-mps-control"
FOLDER = "HPO_MPS_FOLDER"
WAIT_SECONDS = 25.0
"""Longest wait for a daemon that starts, or for one that just ends."""
LINGER_SECONDS = 30.0
"""A daemon that nobody uses is kept so long for the next job."""
RETRY_SECONDS = 300.0
"""After a failure the next attempt comes so much later."""
_AGAIN_SECONDS = 4.0
"""A keeper that was started and is not there after this time is started again."""
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_SOCKET = 107
"""Longest path of a UNIX socket."""
_LONGEST_NAME = len("/pipe/nvidia-cuda-mps-control.pid")


class NoMpsError(HpoError):
    """Jobs share a GPU without MPS, and this is why."""


def folder_of_user() -> Path:
    """Where the daemons of this user live: one place for all workers of a computer, so that there is no second one.

    Its name in ``/tmp``, short for the paths of sockets, is random: others could make one that they know first. A link
    in the user's home folder leads there, made anew where the computer has emptied ``/tmp``.

    Raises:
        NoMpsError: the home folder cannot be written.
    """
    if given := os.environ.get(FOLDER):
        return Path(given)
    try:
        link = private_folder(Path.home() / ".hpo-mps") / socket.gethostname()
        lock = open_lock(link.with_name(f"{link.name}.lock"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a moment alone
            if link.is_symlink() and _is_private(link.readlink()):
                return link.readlink()
            link.unlink(missing_ok=True)
            link.symlink_to(tempfile.mkdtemp(prefix="hpo-mps-", dir="/tmp"))
            return link.readlink()
        finally:
            os.close(lock)
    except (OSError, RuntimeError, HpoError) as error:
        raise NoMpsError(f"a folder for its sockets cannot be found ({error}); set {FOLDER} to one") from None


class MpsDaemons:
    """The daemons that this process uses. All methods may be called from any thread.

    Args:
        folder: where they live; None: :func:`folder_of_user`.
        by_hand: where CUDA looks for a daemon if nobody says where; one that runs there is a person's.
        wait: seconds to wait for a daemon at most.
        linger: seconds for which a daemon without jobs is kept.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        by_hand: Path = Path("/tmp/nvidia-mps"),
        wait: float = WAIT_SECONDS,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self._folder = folder
        self._by_hand = by_hand
        self._wait = wait
        self._linger = linger
        self._locks: dict[str, threading.Lock] = {}
        """By GPU: workers of several may start their daemons at once."""
        self._held: dict[str, int] = {}
        """By GPU: descriptor of the lock that tells its keeper of us."""
        self._jobs: dict[str, int] = {}
        self._off: dict[str, tuple[str, float]] = {}
        """By GPU: why it is off, and until when nobody tries again."""
        self._timers: dict[str, threading.Timer] = {}

    def prepare(self, gpus: Iterable[str]) -> str:
        """Have these daemons ready for the first jobs; returns why some are not, or nothing."""
        problems: dict[str, list[str]] = {}
        for gpu in gpus:
            try:
                self.begin(gpu)
            except NoMpsError as error:
                problems.setdefault(str(error), []).append(gpu)
            else:
                self.end(gpu)
        return "; ".join(f"MPS is off for {', '.join(those)}: {why}" for why, those in problems.items())

    @contextlib.contextmanager
    def used(self, gpu: str) -> Iterator[str]:
        """While a job runs: the folder of the daemon's pipes; empty where there is none."""
        try:
            pipes = self.begin(gpu)
        except NoMpsError:
            yield ""
            return
        try:
            yield pipes
        finally:
            self.end(gpu)

    def begin(self, gpu: str) -> str:
        """Use the daemon of a GPU until :meth:`end`, and start it where there is none.

        Returns:
            The folder of its pipes, for ``CUDA_MPS_PIPE_DIRECTORY``.

        Raises:
            NoMpsError: MPS is off for this GPU.
        """
        ends = time.monotonic() + self._wait
        lock = self._lock(gpu)
        if not lock.acquire(timeout=self._wait):
            raise NoMpsError("another thread waits for a daemon")
        try:
            why, until = self._off.get(gpu, ("", 0.0))
            if time.monotonic() < until:
                raise NoMpsError(why)
            try:
                pipes = self._ready(gpu, ends)
            except (NoMpsError, OSError, subprocess.SubprocessError) as error:
                self._off[gpu] = str(error), time.monotonic() + RETRY_SECONDS
                self._let_go(gpu)
                raise NoMpsError(str(error)) from None
            self._jobs[gpu] = self._jobs.get(gpu, 0) + 1
            return pipes
        finally:
            lock.release()

    def end(self, gpu: str) -> None:
        """Use it no more; the last user's end is the daemon's, after a while."""
        with self._lock(gpu):
            self._jobs[gpu] -= 1
            if self._jobs[gpu] == 0:
                timer = threading.Timer(self._linger, self._end_idle, [gpu])
                timer.daemon = True
                if (before := self._timers.pop(gpu, None)) is not None:
                    before.cancel()
                self._timers[gpu] = timer
                timer.start()

    def _end_idle(self, gpu: str) -> None:
        with self._lock(gpu):
            if not self._jobs.get(gpu) and self._timers.get(gpu) is threading.current_thread():
                self._let_go(gpu)

    def _lock(self, gpu: str) -> threading.Lock:
        return self._locks.setdefault(gpu, threading.Lock())

    def _let_go(self, gpu: str) -> None:
        if not self._jobs.get(gpu) and (descriptor := self._held.pop(gpu, None)) is not None:
            os.close(descriptor)

    def _ready(self, gpu: str, ends: float) -> str:
        """Hold the lock of its users and see that a keeper has the daemon ready."""
        base = self._folder or folder_of_user()
        control = self._control(gpu, base)
        folder = base / gpu
        for path in (base, folder):
            _check_private(path)
        if gpu not in self._held:
            self._held[gpu] = users = open_lock(folder / "users")
            while not locked(users, fcntl.LOCK_SH):
                _wait(ends, "the daemon before it does not end")
        start_at = 0.0
        while True:
            last = _left_behind(folder)
            if last is None:
                if _state(folder).get("ready"):
                    return str(folder / "pipe")
            elif start_at and "error" in last:
                raise NoMpsError(str(last["error"]))
            elif time.monotonic() >= start_at:
                _start_keeper(control, gpu, folder)
                start_at = time.monotonic() + _AGAIN_SECONDS
            _wait(ends, "its daemon did not start in time")

    def _control(self, gpu: str, base: Path) -> str:
        """The program, where nothing speaks against it."""
        if not _GPU.fullmatch(gpu):
            raise NoMpsError("only whole GPUs share their compute that way, no slices (MIG)")
        control = shutil.which(CONTROL)
        if control is None:
            raise NoMpsError(f"{CONTROL} is not on PATH; it comes with NVIDIA's driver")
        if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
            raise NoMpsError("CUDA_MPS_PIPE_DIRECTORY is set on this worker; jobs use the daemon there")
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._by_hand / "nvidia-cuda-mps-control.pid").read_text())
            if Path(f"/proc/{pid}/comm").read_text().startswith(CONTROL[:15]):
                raise NoMpsError(
                    f"a daemon that somebody started ({self._by_hand}, process {pid}) is left to its users"
                )
        if len(str(base / gpu)) + _LONGEST_NAME > _SOCKET:
            raise NoMpsError(f"{base} is too long a path for its sockets")
        return control


def _check_private(path: Path) -> None:
    """Make a folder that nobody else reaches.

    Raises:
        NoMpsError: what is there is another's, open to others, or no folder.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not _is_private(path):
        raise NoMpsError(f"{path} must be a folder of this user alone (mode 0700), and no link; remove it")


def _is_private(path: Path) -> bool:
    """Whether it is a folder of this user alone."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def _left_behind(folder: Path) -> Mapping[str, object] | None:
    """What the last keeper said; None: it lives. Forgotten thereby, lest it be taken for the words of the next."""
    lock = open_lock(folder / "keeper")
    try:
        if not locked(lock, fcntl.LOCK_EX):
            return None
        last = _state(folder)
        (folder / "state").unlink(missing_ok=True)
        return last
    finally:
        os.close(lock)


def _state(folder: Path) -> Mapping[str, object]:
    try:
        found = json.loads((folder / "state").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _start_keeper(control: str, gpu: str, folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-I", mps_keeper.__file__, control, gpu, str(folder)],
        env=without_private_settings(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def _wait(ends: float, why: str) -> None:
    if time.monotonic() > ends:
        raise NoMpsError(why)
    time.sleep(0.02)
