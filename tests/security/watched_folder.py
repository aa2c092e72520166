"""A folder like ``/tmp``, in which the kernel (inotify) notes each name that is ever made."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CREATED = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO
_EVENT = struct.Struct("iIII")
_RANDOM = re.compile(r"(tmp|hpo-[a-z]+-|prefect-workspace-attempt-)?[a-z0-9_]{8}(prefect)?|etilqs_[0-9a-f]{8,16}")
"""Names that Python's ``tempfile`` makes up (eight characters), and SQLite."""


class Made(NamedTuple):
    name: str
    mode: str
    """``drwx------``; empty: it was gone before one could look."""

    @property
    def is_private(self) -> bool:
        """Whether nobody can know its name before, or look into it."""
        return _RANDOM.fullmatch(self.name) is not None and self.mode[4:] in ("", "------")


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[Made]]:
    """What is made in a folder from now on, however short it lives; complete after the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    notices = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    assert notices >= 0, os.strerror(ctypes.get_errno())
    assert libc.inotify_add_watch(notices, os.fsencode(folder), _CREATED) >= 0
    made: list[Made] = []
    ended = threading.Event()

    def look(seconds: float) -> bool:
        if not select.select([notices], [], [], seconds)[0]:
            return False
        events, place = os.read(notices, 1 << 16), 0
        while place < len(events):
            length = _EVENT.unpack_from(events, place)[3]
            place += _EVENT.size
            name = os.fsdecode(events[place : place + length].rstrip(b"\0"))
            place += length
            mode = ""
            with contextlib.suppress(FileNotFoundError):
                mode = stat.filemode((folder / name).lstat().st_mode)
            made.append(Made(name, mode))
        return True

    def follow() -> None:
        while look(0.1) or not ended.is_set():
            pass

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join()
        os.close(notices)
