"""Memory and processor time of one process, as Linux tells them in ``/proc``."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Pages(NamedTuple):
    """Anonymous and shared memory of one process in bytes, that on swap space included; no mapped files."""

    held: int
    """What it has mapped, whoever else has mapped it, too."""
    proportional: int
    """The same, with a page that n processes share counted as 1/n."""


def read_text(path: str) -> bytes:
    """A file of ``/proc`` in two system calls and a half; ``OSError`` if the process is gone or not ours."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def kilobytes(text: bytes, name: bytes) -> int | None:
    """Bytes that the line ``name: 12 kB`` says; None: the kernel does not write that line."""
    at = text.find(b"\n" + name + b":")
    return None if at < 0 else int(text[at + len(name) + 2 : text.index(b"kB", at)]) * 1024


def resident(pid: int | str) -> int:
    """Anonymous and shared memory that a process has mapped, in bytes; pages it shares with others count whole."""
    return _held(read_text(f"/proc/{pid}/status"))


def anonymous(pid: int | str) -> int:
    """Anonymous memory of a process in bytes, that on swap space included; pages shared since a fork count whole."""
    status = read_text(f"/proc/{pid}/status")
    return sum(kilobytes(status, name) or 0 for name in (b"RssAnon", b"VmSwap"))


def _held(status: bytes) -> int:
    return sum(kilobytes(status, name) or 0 for name in (b"RssAnon", b"RssShmem", b"VmSwap"))


class Growth(NamedTuple):
    """Memory of this process that it did not inherit, in bytes."""

    now: int
    peak: int
    """Largest so far. Files that were mapped at that time, and are not now, are in it: the kernel keeps one number."""


def own_growth(before: int, *, faults: bool = False) -> Growth:
    """What this process holds, and held at most, beyond what it inherited.

    Args:
        before: what :func:`resident` said at its start.
        faults: count inherited pages that it wrote to in the peak, as well: at most one for each page fault. After a
            while that is far too many, for memory that is freed and taken again faults each time.
    """
    status = read_text("/proc/self/status")
    largest, files = kilobytes(status, b"VmHWM") or 0, kilobytes(status, b"RssFile") or 0
    growth = max(0, _held(status) - before)
    peak = max(growth, largest - files - before)
    if not faults:
        return Growth(growth, peak)
    touched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()
    return Growth(growth, max(peak, min(touched, peak + before)))


def data_size() -> int:
    """Bytes of this process that ``RLIMIT_DATA`` counts now."""
    return kilobytes(read_text("/proc/self/status"), b"VmData") or 0


def pages(pid: int | str) -> Pages | None:
    """None where the kernel does not tell what is shared.

    The kernel looks at each page: about 1 ms for 100 MB.
    """
    text = read_text(f"/proc/{pid}/smaps_rollup")
    anonymous, part = kilobytes(text, b"Anonymous"), kilobytes(text, b"Pss_Anon")
    if anonymous is None or part is None:
        return None
    swapped, swapped_part = kilobytes(text, b"Swap") or 0, kilobytes(text, b"SwapPss") or 0
    return Pages(anonymous + swapped, part + (kilobytes(text, b"Pss_Shmem") or 0) + swapped_part)


class Times(NamedTuple):
    """Of one process."""

    parent: int
    cpu: float
    """Seconds of processor time, with those of its ended children that it waited for."""


def times(pid: int) -> Times:
    """Parent and processor time; ``OSError`` if the process is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return Times(int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
