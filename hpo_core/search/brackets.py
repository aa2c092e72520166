"""Brackets of ASHA: their ladders, and the bracket of each new configuration (ASHA 3.2 and 5.1).

Bracket ``s`` begins at level ``s`` of the ladder: 0 stops most aggressively, the last one is random search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import Number
from hpo_core.model.rng import Stream


def hyperband_size(bracket: int, rungs: int, reduction_factor: Number) -> int:
    """Base rung of a bracket in synchronous Hyperband, ``ceil((s_max+1)/(s+1) * eta**s)``.

    That paper counts ``s`` from the other end; ``bracket`` is counted as everywhere here.

    >>> [hyperband_size(s, 6, 3) for s in range(6)]
    [243, 98, 41, 18, 9, 6]
    """
    s = rungs - 1 - bracket
    return math.ceil(rungs * Fraction(reduction_factor) ** s / (s + 1))


def ladder_budget(levels: Sequence[int], reduction_factor: Number) -> Fraction:
    """Average resource of a bracket's configurations, in units of R; mispromotions do not count.

    A result counts with its whole level, as in the table of total budgets of the paper on ASHA (Figure 1b): rung ``k``
    takes ``eta**-k`` of the configurations to ``levels[k]``. Where R / r is a power of eta this is the paper's formula.

    >>> [ladder_budget([4**k for k in range(s, 5)], 4) for s in range(3)] == [5 / 256, 4 / 64, 3 / 16]
    True
    """
    total = sum((level / Fraction(reduction_factor) ** k for k, level in enumerate(levels)), Fraction())
    return total / levels[-1]


def split_width(width: int, budgets: Sequence[Fraction]) -> list[int]:
    """Share configurations among brackets so that each uses the same resource.

    Rounded by largest remainders; between equal ones the lower bracket first.

    Args:
        budgets: resource per configuration of each bracket.

    >>> split_width(1000, [5 / 256, 4 / 64, 3 / 16])
    [706, 221, 73]
    """
    inverse = [1 / budget for budget in budgets]
    total = sum(inverse)
    exact = [width * weight / total for weight in inverse]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: width - sum(shares)]:
        shares[i] += 1
    return shares


class BracketPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The brackets of an ASHA search."""

    brackets: list[int]
    """Ascending early-stopping rates."""
    levels: list[int]
    """Rung levels of bracket 0; the first alone where the ladder is endless."""
    reduction_factor: Number
    endless: bool = False
    """True if there is no maximum resource."""
    shared: bool = False
    """True if several brackets compete in one system of rungs."""
    rule: str = "budget"
    """Rule by which configurations go to brackets, see :class:`Assignment`."""


class Assignment:
    """Chooses the bracket of the next configuration by how many went to each bracket, and by nothing else.

    Args:
        plan: its ``rule`` is ``budget`` (keep to :func:`split_width` at all times), ``proportional`` (draw in
            proportion to :func:`hyperband_size`) or ``loop`` (go through the brackets in blocks of these sizes).
        width: configurations in all, None for no limit.
        seed: of the study, for draws.
    """

    def __init__(self, plan: BracketPlan, width: int | None, seed: int = 0) -> None:
        self.brackets, levels, eta = list(plan.brackets), plan.levels, plan.reduction_factor
        rungs = self.brackets[-1] + 1 if plan.endless else len(levels)
        self._rule = plan.rule if len(self.brackets) > 1 else "one"
        self._seed = seed
        self._sizes = [hyperband_size(s, rungs, eta) for s in self.brackets]
        self._budgets = [] if plan.endless else [ladder_budget(levels[s:], eta) for s in self.brackets]
        self._weights = [1 / budget for budget in self._budgets]
        self.created = [0] * len(self.brackets)
        self.total = 0
        self.width = width
        self.quota: list[int] = []
        self.widen(0)

    def widen(self, configs: int) -> None:
        if self.width is not None:
            self.width += configs
            if self._rule == "budget":
                self.quota = split_width(self.width, self._budgets)
                self._raise_quotas()

    def close(self) -> None:
        self.width = self.total
        self.quota = list(self.created) if self._rule == "budget" else []

    def _raise_quotas(self) -> None:
        # Raise quotas that lie below what a bracket already has; the fullest others give.
        # Rounding makes that possible after an extension.
        for i, made in enumerate(self.created):
            while self.quota[i] < made:
                giver = max(range(len(self.quota)), key=lambda j: (self.quota[j] - self.created[j], -j))
                self.quota[giver] -= 1
                self.quota[i] += 1

    def next(self) -> int | None:
        """Index (into ``brackets``) of the next configuration's bracket; None at the full width."""
        if self.width is not None and self.total >= self.width:
            return None
        if self._rule == "one":
            return 0
        if self._rule == "loop":
            place = self.total % sum(self._sizes)
            for i, size in enumerate(self._sizes):
                if place < size:
                    return i
                place -= size
        if self._rule == "proportional":
            point = Stream(self._seed, "bracket", self.total).uniform() * sum(self._sizes)
            for i, size in enumerate(self._sizes):
                if point < size:
                    return i
                point -= size
            return len(self._sizes) - 1
        shares: Sequence[Number] = self.quota or self._weights
        free = [i for i, share in enumerate(shares) if not self.quota or self.created[i] < share]
        return min(free, key=lambda i: ((2 * self.created[i] + 1) / shares[i], i))

    def take(self, bracket: int) -> None:
        self.created[self.brackets.index(bracket)] += 1
        self.total += 1

    def expected(self) -> list[int]:
        if self.width is None:
            return list(self.created)
        if self._rule == "one":
            return [self.width]
        if self._rule == "budget":
            return list(self.quota)
        if self.total == self.width:
            return list(self.created)
        if self._rule == "loop":
            rounds, rest = divmod(self.width, sum(self._sizes))
            counts = []
            for size in self._sizes:
                counts.append(rounds * size + min(size, rest))
                rest -= min(size, rest)
            return counts
        left = self.width - self.total
        return [
            made + round(left * size / sum(self._sizes)) for made, size in zip(self.created, self._sizes, strict=True)
        ]
