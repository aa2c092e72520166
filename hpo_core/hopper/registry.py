"""The hop policies by name: to add one is to add a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.hopper.exact_plan import Exact
from hpo_core.hopper.hop_policy import HopPolicy
from hpo_core.hopper.randomized import Randomized
from hpo_core.hopper.remaining import Remaining
from hpo_core.model.rng import Stream

POLICIES: dict[str, Callable[[Stream], HopPolicy]] = {
    "remaining": lambda rng: Remaining(),
    "randomized": Randomized,
    "exact": lambda rng: Exact(),
}
"""By name; each is made with the stream that its draws come from."""
