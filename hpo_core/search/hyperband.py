"""Synchronous Hyperband: successive halving in all brackets, the most aggressive first (Li et al., JMLR 2018)."""

from __future__ import annotations

from hpo_core.search.halving.brackets import hyperband_size
from hpo_core.search.sha import Halving
from hpo_core.spec import HyperbandSearch


def create_hyperband(settings: HyperbandSearch, objectives: int) -> Halving:
    """All brackets ``rounds`` times; bracket ``b`` of the study has early-stopping rate ``b % brackets``."""
    levels = settings.levels()
    eta = settings.reduction_factor
    plan = [(hyperband_size(s, len(levels), eta), levels[s:]) for s in range(len(levels))]
    return Halving(plan, sum(size for size, _ in plan) * settings.rounds, eta, objectives)
