"""The packing policies by name: to add one is to add a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.placement.packing.exact import ExactPacking
from hpo_core.placement.packing.fill import Fill
from hpo_core.placement.packing.policies import FirstFit, PackingPolicy, WorstFit

POLICIES: dict[str, Callable[[], PackingPolicy]] = {
    "fill": Fill,
    "first_fit": lambda: FirstFit(decreasing=False),
    "first_fit_decreasing": lambda: FirstFit(decreasing=True),
    "worst_fit": lambda: WorstFit(decreasing=False),
    "worst_fit_decreasing": lambda: WorstFit(decreasing=True),
    "exact": lambda: ExactPacking(seconds=1.0),
}
"""By the name that ``packing.policy`` gives."""
