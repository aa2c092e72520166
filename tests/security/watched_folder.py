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
    """A file or folder that appeared."""

    name: str
    mode: str
    """``drwx------``; empty: it was gone before one could look."""

    @property
    def is_private(self) -> bool:
        """Whether nobody can know its name before, or look into it."""
        return _RANDOM.fullmatch(self.name) is not None and self.mode[4:] in ("", "------")


class WatchedFolder:
    """Notes what is made in a folder, however short it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Made] = []
        libc = ctypes.CDLL(None, use_errno=True)
        self._notices = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        assert self._notices >= 0, os.strerror(ctypes.get_errno())
        assert libc.inotify_add_watch(self._notices, os.fsencode(folder), _CREATED) >= 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            if select.select([self._notices], [], [], 0.1)[0]:
                self._note(os.read(self._notices, 1 << 16))

    def _note(self, events: bytes) -> None:
        place = 0
        while place < len(events):
            length = _EVENT.unpack_from(events, place)[3]
            place += _EVENT.size
            name = os.fsdecode(events[place : place + length].rstrip(b"\0"))
            place += length
            mode = ""
            with contextlib.suppress(FileNotFoundError):
                mode = stat.filemode((self.folder / name).lstat().st_mode)
            self.made.append(Made(name, mode))

    def close(self) -> None:
        """Read what is left, and watch no more."""
        self._ended.set()
        self._thread.join()
        while select.select([self._notices], [], [], 0)[0]:
            self._note(os.read(self._notices, 1 << 16))
        os.close(self._notices)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[WatchedFolder]:
    """Watch a folder for a while."""
    watching = WatchedFolder(folder)
    try:
        yield watching
    finally:
        watching.close()
