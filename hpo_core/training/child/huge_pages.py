"""Gathers the zygote's memory into huge pages, which makes each fork cheaper.

A fork copies one page-table entry per huge page instead of 512. Measured with torch loaded: fork, first writes and
exit of a child took 15 ms before and 7 ms after.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

_HUGE_PAGE = 1 << 21
_MADV_COLLAPSE = 25  # Linux 6.1; anything older answers EINVAL and nothing changes


def use_huge_pages(max_seconds: float = 2.0) -> None:
    """Collapse resident anonymous memory into huge pages, best effort, for about ``max_seconds`` at most."""
    try:
        madvise = ctypes.CDLL(None).madvise
        maps = Path("/proc/self/smaps").read_text()
    except (OSError, AttributeError):
        return
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    deadline = time.monotonic() + max_seconds
    for low, high in _resident_areas(maps):
        for start in range(-(-low // _HUGE_PAGE) * _HUGE_PAGE, high // _HUGE_PAGE * _HUGE_PAGE, _HUGE_PAGE):
            if time.monotonic() > deadline:
                return
            madvise(start, _HUGE_PAGE, _MADV_COLLAPSE)


def _resident_areas(maps: str) -> list[tuple[int, int]]:
    """Private anonymous areas that are mostly in memory; collapsing an empty one (a stack) would fill it."""
    areas = []
    low = high = 0
    for line in maps.splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            anonymous = rest[0] == "rw-p" and (len(rest) == 4 or rest[4] == "[heap]")
            low, high = (int(edge, 16) for edge in first.split("-")) if anonymous else (0, 0)
        elif first == "Rss:" and high - low >= _HUGE_PAGE and int(rest[0]) * 1024 > (high - low) // 2:
            areas.append((low, high))
    return areas
