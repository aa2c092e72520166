"""Which rung a search reaches by its rule.

By the rule, ``floor(n / eta)`` of ``n`` results leave a rung. ASHA promotes a few more while a rung fills
(mispromotions), so that its end above that is luck; an extension makes its rungs wider. Therefore a synchronous
bracket that cannot reach R is refused, as the assertion of Algorithm 1 does; for ASHA there is a notice that no trial
may get there, until one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpo_core.model.arithmetic import Number

MOST = 2**40
"""No advice to use more configurations than that."""


def highest_rung(entering: Mapping[int, int], rungs: int, reduction_factor: Number) -> int:
    """The highest rung of a ladder that holds a result.

    Args:
        entering: by rung, configurations that begin there.
    """
    highest, here = 0, 0
    for k in range(rungs):
        here = int(here // reduction_factor) + entering.get(k, 0)
        if here:
            highest = k
    return highest


def configs_to_reach(highest_level: Callable[[int], int], top: int, configs: int) -> int | None:
    """How many configurations reach the highest level; None: more than anybody has.

    Args:
        highest_level: that so many configurations reach.
        configs: more than these.
    """
    enough = max(1, configs)
    while highest_level(enough) < top:
        enough *= 2
        if enough > MOST:
            return None
    short = enough // 2
    while enough - short > 1:
        middle = (short + enough) // 2
        if highest_level(middle) < top:
            short = middle
        else:
            enough = middle
    return enough


def too_few(highest_level: Callable[[int], int], top: int, configs: int, reduction_factor: float) -> list[str]:
    """The notice that no trial may be promoted to the maximum resource; empty where the rule promotes one."""
    reached = highest_level(configs)
    if reached >= top:
        return []
    needed = configs_to_reach(highest_level, top, configs)
    more = f"at least {needed:,} configurations" if needed else "more configurations"
    return [
        f"By the rule floor(n / {reduction_factor:g}) {configs:,} configurations bring a trial to {reached:,}, and may "
        f"not bring one to max_resource = {top:,}. Use {more}, a larger min_resource, or a smaller max_resource; or "
        "extend the study later."
    ]
