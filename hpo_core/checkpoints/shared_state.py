"""SharedState: memory through which a training process hands one state to its worker, which writes it to its file.

A file without a name (``memfd``) that both have open. The process copies the bytes of the checkpoint's file into it and
trains the next attempt; its worker reads them from there. While it does, it holds a lock on the memory, and the process
waits with its next state: so there is one such state at most.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hpo_core.checkpoints.tree_codec import memory_of

_PIECE = 1 << 20
"""Bytes that are read at once."""


class SharedState:
    """One end of the memory; at most one state is in it.

    Args:
        descriptor: of the memory, in a process that inherited it; None: make it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("hpo-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # nobody can cut what another one reads
        self._file = io.FileIO(descriptor, "r+")  # closed with the last user of this object
        self._mapped: mmap.mmap | None = None

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    @property
    def size(self) -> int:
        """Bytes of the largest state so far."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def mapped(self) -> int:
        """Bytes of it that count as memory of this process."""
        return 0 if self._mapped is None else len(self._mapped)

    def fill(self, parts: Sequence[Any]) -> list[memoryview]:
        """Copy a state in, once nobody reads the one before; returns where its parts lie.

        Args:
            parts: of the file, as ``tree_parts`` gives them; tensors come straight from their device.

        Raises:
            OSError: there is not so much memory, or the training function closed the descriptor.
        """
        size = sum(map(len, parts))
        self._wait()
        if size > self.size:
            os.ftruncate(self._file.fileno(), size)
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self._file.fileno(), self.size)
        places, whole, position = [], memoryview(self._mapped), 0
        for part in parts:
            place = whole[position : position + len(part)]
            if isinstance(part, bytes | memoryview | np.ndarray):
                place[:] = memory_of(part)
            elif len(place):
                import torch

                torch.frombuffer(place, dtype=torch.uint8).copy_(part)
            places.append(place)
            position += len(part)
        return places

    def _wait(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def lock(self) -> None:
        """Let nobody change the state until :meth:`unlock`, or the end of this process."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        """Let the next state come."""
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def read(self, size: int, check: Callable[[], None]) -> Iterator[memoryview]:
        """The state in pieces; each is valid until the next one.

        Args:
            size: bytes of the state.
            check: called before each piece; what it raises ends the reading.
        """
        piece = memoryview(bytearray(min(size, _PIECE)))
        for position in range(0, size, _PIECE):
            check()
            count = os.preadv(self._file.fileno(), [piece[: size - position]], position)
            if count < min(size - position, _PIECE):
                raise EOFError(f"the state has {position + count} bytes, not {size}")
            yield piece[:count]
