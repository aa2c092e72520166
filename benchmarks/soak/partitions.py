"""Partitions of the soak: deleted, replaced, moved away, and put back."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from objective import PARTITIONS, content


class Partitions:
    """Files that models hop over, in a folder that all workers of a lane share.

    Args:
        folder: for them alone.
        random: draws which one is broken.
    """

    def __init__(self, folder: Path, random: random.Random) -> None:
        self.folder = folder
        self._random = random
        folder.mkdir(parents=True)
        for number in range(1, PARTITIONS + 1):
            self._path(number).write_bytes(content(number))

    def listed(self) -> list[dict[str, Any]]:
        """As ``data.partitions`` of a study."""
        return [
            {"name": self._path(number).name, "bytes": len(content(number)),
             "digest": hashlib.sha256(content(number)).hexdigest()}
            for number in range(1, PARTITIONS + 1)
        ]  # fmt: skip

    def faults(self) -> dict[str, Callable[[float], None]]:
        """By name, what is done for so many seconds; afterwards all partitions are whole."""
        return {
            "deleted": self._delete,
            "replaced": self._replace,
            "written to": self._write,
            "moved away": self._move,
            "blinked": lambda seconds: self._move(0.0),
        }

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number}.txt"

    def _drawn(self) -> int:
        return self._random.randint(1, PARTITIONS)

    def _delete(self, seconds: float) -> None:
        """As ``rm``, and later ``cp``, which is slow."""
        number = self._drawn()
        self._path(number).unlink()
        time.sleep(seconds)
        whole = content(number)
        with self._path(number).open("wb", buffering=0) as file:
            for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
                file.write(part)
                time.sleep(0.5)

    def _replace(self, seconds: float) -> None:
        """By another one of the same size, as ``mv`` does, and back."""
        number = self._drawn()
        for found in (content(number + 1000), content(number)):
            beside = self.folder / "beside"
            beside.write_bytes(found)
            beside.replace(self._path(number))
            if found != content(number):
                time.sleep(seconds)

    def _write(self, seconds: float) -> None:
        """Into the file itself: the end of another one."""
        number = self._drawn()
        whole, other = content(number), content(number + 1000)
        for found in (whole[:1000] + other[1000:], whole):
            with self._path(number).open("r+b", buffering=0) as file:
                file.write(found)
            if found != whole:
                time.sleep(seconds)

    def _move(self, seconds: float) -> None:
        """The whole folder: a mount that is gone, or blinks."""
        away = self.folder.with_suffix(".away")
        self.folder.rename(away)
        time.sleep(seconds)
        away.rename(self.folder)
