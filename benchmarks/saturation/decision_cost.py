"""Decisions: microseconds from a result to the jobs granted in turn, journal in memory, up to a million results."""

from __future__ import annotations

import sys
import time
from typing import Any

import result_file

sys.path.insert(0, str(result_file.ROOT / "decide"))

SIZES = [(1_000, 9), (100_000, 9), (20_000, 10_000), (100_000, 10_000), (1_000_000, 10_000)]
CASES = [{"results": results, "slots": slots} for results, slots in SIZES]


def measure(*, results: int, slots: int) -> dict[str, Any]:
    import ours

    from hpo_core.journal.memory import MemoryJournal

    ours.with_study(300, MemoryJournal())  # imports, and the first use of everything
    ours.SLOTS = slots
    began = time.process_time()
    found = ours.with_study(results, MemoryJournal())
    cpu = time.process_time() - began
    return {
        "wall_us": found["mean_us"],
        "cpu_us": round(cpu / results * 1e6, 2),
        "last_tenth_us": found["last_tenth_us"],
        "bytes_per_trial": found["bytes_per_trial"],
    }
