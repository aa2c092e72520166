"""The hop policies by name: to add one is to add a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.hopper.hop_policies import HopPolicy, Randomized, Remaining
from hpo_core.model.rng import Stream

POLICIES: dict[str, Callable[[Stream], HopPolicy]] = {
    "remaining": lambda rng: Remaining(),
    "randomized": Randomized,
}
"""Policies by name; each is made with the stream that its draws come from."""
