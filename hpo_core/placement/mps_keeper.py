"""Keeps the MPS control daemon of one GPU while somebody uses it; a process of its own.

Run by its path, with the standard library alone, for it lives long: ``python -I mps_keeper.py CONTROL UUID FOLDER``.
Each worker that uses the daemon holds a shared lock of ``FOLDER/users``. Once the keeper gets that lock for itself,
nobody is left, however they ended; then it ends the daemon and itself. Its own lock, ``FOLDER/keeper``, keeps a second
one away. The kernel ends the daemon (SIGTERM) should the keeper be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOCK_SECONDS = 2.0
"""Others look for a moment whether the lock is free."""
READY_SECONDS = 10.0
ANSWER_SECONDS = 3.0
END_SECONDS = 4.0
LOOK_SECONDS = 0.25
TOUCH_SECONDS = 3600.0
_DEATH_SIGNAL = 1
_SUBREAPER = 36
_prctl: Any = ctypes.CDLL(None, use_errno=True).prctl


def main(control: str, uuid: str, folder: Path) -> None:
    """Keep the daemon of one GPU, in a process that is nobody's child: a worker may be ended with all of its own."""
    if os.fork():
        return
    os.chdir("/")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _prctl(_SUBREAPER, 1)  # what the daemon started becomes ours where it dies
    keeper = open_lock(folder / "keeper")
    if not _until(lambda: locked(keeper, fcntl.LOCK_EX), LOCK_SECONDS):
        return
    users = open_lock(folder / "users")
    if locked(users, fcntl.LOCK_EX):  # whoever wanted a daemon was served by another keeper, and is gone
        return
    daemon = None
    try:
        _end_former(folder)
        daemon = _start(control, uuid, folder)
        _say(folder, ready=True)
        touched = time.monotonic()
        while daemon.poll() is None and not locked(users, fcntl.LOCK_EX):
            time.sleep(LOOK_SECONDS)
            if time.monotonic() - touched > TOUCH_SECONDS:
                touch_all(folder)
                touched = time.monotonic()
    except (OSError, RuntimeError) as error:
        _say(folder, error=str(error))
    else:
        (folder / "state").unlink(missing_ok=True)
    finally:
        if daemon is not None:
            _end(control, daemon, folder)
        os.close(keeper)  # before the other: who gets that one looks for a keeper
        os.close(users)


def touch_all(folder: Path) -> None:
    """Keep the files young: some systems remove what is old from ``/tmp``, a lock that is held included."""
    for path in (folder.parent, folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)


def open_lock(path: Path) -> int:
    """A descriptor of a file to lock, which is made where it is missing and never a link.

    Raises:
        OSError: it is a link, or cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def locked(descriptor: int, how: int) -> bool:
    """Take a lock if it is free now."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def environment(uuid: str, folder: Path) -> dict[str, str]:
    """For a control daemon and whoever speaks to it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return kept | {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def _start(control: str, uuid: str, folder: Path) -> subprocess.Popen[bytes]:
    for name in ("pipe", "log"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(mode=0o700)
    with (folder / "log" / "output").open("wb") as output:
        # in the foreground (-f) it is our child: its process id is certain
        daemon = subprocess.Popen(
            [control, "-f"],
            env=environment(uuid, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: _prctl(_DEATH_SIGNAL, signal.SIGTERM),
        )
    try:
        (folder / "daemon").write_text(f"{daemon.pid} {_started(daemon.pid)}")
        if not _until(lambda: daemon.poll() is not None or _ask(control, "get_server_list", folder), READY_SECONDS):
            raise RuntimeError(f"{control} does not answer")
        if daemon.poll() is not None:
            said = (folder / "log" / "output").read_text(errors="replace").strip()[-300:]
            raise RuntimeError(f"{control} ended with {daemon.returncode}: {said or 'it says nothing'}")
    except BaseException:
        _kill(daemon, folder)
        raise
    return daemon


def _ask(control: str, command: str, folder: Path) -> bool:
    """Whether the daemon took a command."""
    try:
        done = subprocess.run(
            [control],
            input=f"{command}\n".encode(),
            env=environment("", folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _end(control: str, daemon: subprocess.Popen[bytes], folder: Path) -> None:
    if daemon.poll() is None:
        _ask(control, "quit", folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(END_SECONDS)
    _kill(daemon, folder)


def _kill(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGKILL to what is left of the daemon and of what it started, and to nobody else."""
    if daemon.poll() is None:
        daemon.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(END_SECONDS)
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(word), signal.SIGKILL)
    if daemon.poll() is not None:
        (folder / "daemon").unlink(missing_ok=True)


def _end_former(folder: Path) -> None:
    """End the daemon of a keeper that was killed, if it is still there.

    Raises:
        RuntimeError: it cannot be ended.
    """
    try:
        pid, started = (folder / "daemon").read_text().split()
    except (OSError, ValueError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _started(int(pid)) != started:
            return
        with contextlib.suppress(OSError):
            os.kill(int(pid), number)
        _until(lambda: _started(int(pid)) != started, END_SECONDS)
    if _started(int(pid)) == started:
        raise RuntimeError(f"an earlier MPS daemon (process {pid}) cannot be ended")


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks, for process ids are used again; empty: it is gone."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] == "Z" else facts[19]


def _say(folder: Path, **state: Any) -> None:
    new = folder / "state.new"
    new.write_text(json.dumps(state))
    new.rename(folder / "state")


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds within this time."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
