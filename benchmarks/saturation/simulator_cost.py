"""The simulator: CPU seconds and memory of one repeat, by trials and virtual workers.

What ``hpo simulate --stragglers 0.5 --drops 0.0001 --repeat 1`` runs, with configurations of different costs (``full``
in simulate_speed.py): ASHA with one bracket, R/r = 256, eta 4.
"""

from __future__ import annotations

from typing import Any

SIZES = [(10_000, 100), (100_000, 100), (100_000, 1_000), (100_000, 10_000), (1_000_000, 10_000)]
CASES = [{"trials": trials, "workers": workers} for trials, workers in SIZES]


def measure(*, trials: int, workers: int) -> dict[str, Any]:
    import simulate_speed

    found = simulate_speed.full("ASHA, one bracket", trials, workers)
    return found | {
        "us_per_job": round(found["cpu_seconds"] / found["reports"] * 1e6, 1),
        "memory_gb": round(simulate_speed.peak() / 1e9, 2),
    }
