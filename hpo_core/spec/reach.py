"""Whether a search can train a configuration to its maximum resource, and where it ends otherwise.

By the rule, ``floor(n / eta)`` of ``n`` results leave a rung. ASHA promotes a few more while a rung fills
(mispromotions), so that its end above that is luck; an extension makes its rungs wider. Therefore a synchronous
bracket that cannot reach R is refused, as the assertion of Algorithm 1 does, and ASHA's is told before the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpo_core.spec.search import AshaSearch, PashaSearch, ShaSearch

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec

_MOST = 2**40
"""No advice to use more configurations than that."""


def check_reach(spec: StudySpec) -> None:
    """Refuse a search that never ends, or surely trains nothing to its maximum resource.

    Raises:
        ValueError: value, rule and cure.
    """
    search = spec.search
    if isinstance(search, AshaSearch) and search.variant == "stopping" and search.max_resource is None:
        raise ValueError(
            "search.variant = stopping needs max_resource: the first reduction_factor - 1 trials of each rung always "
            "go on, so without an upper limit they would never end; give max_resource, or use variant: promotion"
        )
    if isinstance(search, ShaSearch):
        levels, eta = search.levels()[search.early_stopping_rate :], search.reduction_factor
        needed = math.ceil(eta ** (len(levels) - 1) - 1e-9)
        if search.configs < needed:
            raise ValueError(
                f"search.configs = {search.configs} is too small for {len(levels)} rungs with reduction_factor = "
                f"{eta:g}: floor(configs / reduction_factor^k) trials reach rung k, so none would be trained to "
                f"max_resource = {search.max_resource}. Give configs of at least {needed:,} (reduction_factor to the "
                f"power {len(levels) - 1}), or raise min_resource or early_stopping_rate"
            )


def notices(spec: StudySpec, extra: int = 0) -> list[str]:
    """What a user should know before the start: that, by the rule, no trial is trained to the maximum resource.

    Args:
        extra: configurations asked for after the study was created.
    """
    found = []
    search = spec.search
    top = getattr(search, "max_resource", None)
    units = spec.stop.total_resource
    if units is not None and top is not None and units < top:
        found.append(
            f"stop.total_resource = {units:,} ends the study before a trial can reach max_resource = {top:,}; raise "
            "the one or lower the other."
        )
    if not isinstance(search, AshaSearch | PashaSearch) or top is None or search.configs is None:
        return found
    if isinstance(search, AshaSearch) and search.variant == "stopping":  # the first of each rung always go on
        return found
    configs = search.configs + extra
    reached = highest_level(search, configs)
    if reached < top:
        needed = configs_to_reach(search, configs)
        more = f"at least {needed:,} configurations" if needed else "more configurations"
        found.append(
            f"By the rule floor(n / {search.reduction_factor:g}) no trial is promoted beyond {reached:,} of "
            f"max_resource = {top:,}: {configs:,} configurations are too few. Use {more}, a larger min_resource, or a "
            "smaller max_resource; or extend the study later."
        )
    return found


def highest_level(search: AshaSearch | PashaSearch, configs: int) -> int:
    """The highest level that a trial reaches by the rule, if nothing fails and without mispromotions."""
    levels, eta = search.levels(), search.reduction_factor
    shared = isinstance(search, AshaSearch) and search.rung_system == "shared"
    entering = _entering(search, configs)
    if shared:
        return levels[_climb(entering, len(levels), eta)]
    return max(levels[s + _climb({0: n}, len(levels) - s, eta)] for s, n in entering.items() if n)


def _climb(entering: Mapping[int, int], rungs: int, eta: float) -> int:
    """The highest rung of a ladder that holds a result.

    Args:
        entering: by rung, configurations that begin there.
    """
    highest, here = 0, 0
    for k in range(rungs):
        here = int(here // eta) + entering.get(k, 0)
        if here:
            highest = k
    return highest


def _entering(search: AshaSearch | PashaSearch, configs: int) -> dict[int, int]:
    """By bracket, how many configurations it gets."""
    if isinstance(search, PashaSearch):
        return {0: configs}
    from hpo_core.search.halving.brackets import assignment_of

    found: Sequence[int] = assignment_of(search, configs, seed=0).expected()
    return dict(zip(search.brackets, found, strict=True))


def configs_to_reach(search: AshaSearch | PashaSearch, configs: int) -> int | None:
    """So many configurations are enough for the maximum resource; None: more than anybody has."""
    top = search.levels()[-1]
    enough = max(1, configs)
    while highest_level(search, enough) < top:
        enough *= 2
        if enough > _MOST:
            return None
    short = enough // 2
    while enough - short > 1:
        middle = (short + enough) // 2
        if highest_level(search, middle) < top:
            short = middle
        else:
            enough = middle
    return enough
