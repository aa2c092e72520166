"""ProcessTree: the processes below one, found through ``/proc``. Linux only."""

from __future__ import annotations

import os
from collections.abc import Container

from hpo_core.training.resources.proc_files import Times, times


class ProcessTree:
    """Finds the descendants of a process again and again.

    Not every kernel lists the children of a process, so all processes are looked at; one that is known to be none of
    ours is not read twice.

    Args:
        root: id of the process.
        without: children of it that do not count, nor what they start.
    """

    def __init__(self, root: int, without: Container[int] = ()) -> None:
        self._root = root
        self._without = without
        self._foreign: set[int] = set()

    def add(self, pid: int) -> None:
        """A process of ours was started; another one may have had its number before."""
        self._foreign.discard(pid)

    def descendants(self) -> dict[int, Times]:
        """Id and times of each process below the root, which is not among them."""
        numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 (half the time)
        self._foreign &= numbers
        found: dict[int, Times] = {}
        for pid in numbers - self._foreign - {self._root}:
            try:
                found[pid] = times(pid)
            except (OSError, ValueError, IndexError):  # it ended meanwhile
                continue
        ours = _below({self._root}, {pid: one for pid, one in found.items() if pid not in self._without})
        others = {pid: one for pid, one in found.items() if pid not in ours}
        # not all of the others: the parent of one of ours may have ended between two reads
        self._foreign |= _below({0, *self._foreign}, others).keys()
        return ours


def _below(level: set[int], processes: dict[int, Times]) -> dict[int, Times]:
    found: dict[int, Times] = {}
    while level:
        level = {pid for pid, one in processes.items() if one.parent in level and pid not in found}
        found |= {pid: processes[pid] for pid in level}
    return found
