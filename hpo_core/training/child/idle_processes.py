"""Processes that wait for an attempt and hold a part of a device meanwhile: who begins there has them ended first.

A zygote whose child waits listens on a socket of Linux's abstract namespace, whose name says where and how much. The
kernel lists these names, and removes one with its owner. So studies of one user that share a computer, in whatever
workers, find each other's waiting processes. The socket does nothing but end the process that waits, and answers its
own user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpo_core.training.child.child_process import has_gpu
from hpo_core.training.request import JobRequest

_LISTED = Path("/proc/net/unix")
_SECONDS = 3.0
"""Longest wait for processes to end; where a zygote does not answer, it is not asked again."""
_ENDED = b"1"
_mute: set[str] = set()
_kind: int = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_STREAM)


def _start(place: str = "") -> str:
    """Beginning of the names of sockets for a device, or the slots of a worker; empty: of all."""
    end = f"{hashlib.blake2b(place.encode(), digest_size=8).hexdigest()}/" if place else ""
    return f"hpo-idle/{os.getuid()}/{end}"


def _place(request: JobRequest, worker: int) -> tuple[str, int]:
    """Where an attempt takes how much: bytes of a device that jobs share, or one slot of its worker process.

    A process that has workers for several GPUs has slots for each of them: what waits holds memory of one.
    """
    if request.portion is None:
        return f"worker {worker} {request.gpu}", 1
    return request.portion.device, request.portion.allowed


class IdleSocket:
    """The zygote's side.

    Args:
        request: of the attempt that the process served last.
        process: id of the process that waits.
        worker: process id of the worker.

    Raises:
        OSError: there can be no such socket here.
    """

    def __init__(self, request: JobRequest, process: int, *, worker: int) -> None:
        place, amount = _place(request, worker)
        self._socket = socket.socket(socket.AF_UNIX, _kind)
        try:
            self._socket.bind(f"\0{_start(place)}{amount}/{os.getpid()}/{process}")
            self._socket.listen(4)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def answer(self, end: Callable[[], None]) -> None:
        """Take a call: end the process, and say so; a call of another user is dropped."""
        try:
            caller, _ = self._socket.accept()
        except OSError:
            return
        with caller:
            if _is_ours(caller):
                end()
                with contextlib.suppress(OSError):
                    caller.send(_ENDED)


def _is_ours(call: socket.socket) -> bool:
    """Whether this user is at the other end: anybody may take a name, or call it."""
    _, user, _ = struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


class _Waiting(NamedTuple):
    name: str
    amount: int
    zygote: int
    process: int


def _waiting_at(place: str = "") -> Iterator[_Waiting]:
    try:
        listed = _LISTED.read_text()
    except OSError:
        return
    start = "@" + _start(place)
    for word in dict.fromkeys(listed.split()):  # a call that was accepted has the name as well
        numbers = word.split("/")[-3:] if word.startswith(start) else []
        if len(numbers) == 3 and all(map(str.isdecimal, numbers)):
            yield _Waiting(word[1:], *map(int, numbers))


def waiting_processes() -> list[int]:
    """Ids of all processes of this user that wait on this computer: what they hold is free for an attempt."""
    found = []
    for one in _waiting_at():
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{one.process}").stat().st_uid == os.getuid():
                found.append(one.process)
    return found


def make_room(request: JobRequest, *, zygote: int) -> None:
    """End processes that wait where an attempt is to begin, until they held as much as it may take.

    The attempts that run, and the parts of those that ended and left a process, fitted there together. They still do
    once the new one has displaced as much as it takes itself, or all that waits.

    Args:
        zygote: process id of the one that begins it, which uses or ends its own waiting process; 0: there is none yet.
    """
    if request.portion is None and request.process == "fresh" and not has_gpu():
        return
    place, left = _place(request, os.getpid())
    found, until = list(_waiting_at(place)), time.monotonic() + _SECONDS
    left -= sum(one.amount for one in found if one.zygote == zygote)
    for one in found:
        seconds = until - time.monotonic()
        if left > 0 < seconds and one.zygote != zygote and one.name not in _mute and _end(one.name, seconds):
            left -= one.amount


def _end(name: str, seconds: float) -> bool:
    """Have a process ended; False: it found another attempt meanwhile, or somebody else had it ended."""
    with socket.socket(socket.AF_UNIX, _kind) as call:
        call.settimeout(seconds)
        try:
            call.connect(f"\0{name}")
            return _is_ours(call) and call.recv(len(_ENDED)) == _ENDED
        except TimeoutError:  # it was stopped
            _mute.add(name)
        except OSError:
            pass
        return False
