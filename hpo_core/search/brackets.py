"""Brackets of ASHA: their ladders, and the bracket of each new configuration (ASHA 3.2 and 5.1).

Bracket ``s`` begins at level ``s`` of the ladder: 0 stops most aggressively, the last one is random search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import Number
from hpo_core.model.events import (
    Event,
    JobCompleted,
    JobGranted,
    SamplerExhausted,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.rng import Stream
from hpo_core.search.method import Promote, RungStatus, Sample
from hpo_core.search.rungs import AnyRung, Ladder


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
    endless: bool
    """Whether there is no maximum resource."""
    shared: bool
    """Whether several brackets compete in one system of rungs."""
    rule: str
    """How configurations go to brackets, see :class:`Assignment`."""


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
        """Allow more configurations in all."""
        if self.width is not None:
            self.width += configs
            if self._rule == "budget":
                self.quota = split_width(self.width, self._budgets)
                self._raise_quotas()

    def close(self) -> None:
        """Allow no more configurations than there are."""
        self.width = self.total
        self.quota = list(self.created) if self._rule == "budget" else []

    def _raise_quotas(self) -> None:
        """Raise quotas that lie below what a bracket already has; the fullest others give.

        Rounding makes that possible after an extension.
        """
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
        """A configuration went to this bracket (its early-stopping rate)."""
        self.created[self.brackets.index(bracket)] += 1
        self.total += 1

    def expected(self) -> list[int]:
        """Configurations per bracket at the full width (so far, without one)."""
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


class Brackets:
    """The ladders of all brackets, and the place of each trial.

    Own rungs: one ladder per bracket. Shared: one ladder; a trial of bracket ``s`` enters it at level ``s``.
    """

    def __init__(self, plan: BracketPlan, configs: int | None, *, seed: int, objectives: int = 1) -> None:
        levels, eta = plan.levels, plan.reduction_factor
        self.endless = plan.endless
        self.shared = plan.shared
        self.assignment = Assignment(plan, configs, seed)
        full = Ladder(levels, eta, endless=self.endless)
        starts = [0] if self.shared else plan.brackets
        self.ladders = [
            Ladder([full.level(s)] if self.endless else levels[s:], eta, objectives=objectives, endless=self.endless)
            for s in starts
        ]
        self._ladder_of = dict(zip(starts, self.ladders, strict=True))
        self._bracket_of: list[int] = []
        self._rung_of: list[int] = []  # by trial: of its latest result, -1 without one
        self.running = 0
        self.ruled_out: list[int] = []

    def place(self, bracket: int, rung: int) -> tuple[Ladder, int]:
        """The ladder and the place in it of rung ``rung`` of a bracket."""
        return (self.ladders[0], bracket + rung) if self.shared else (self._ladder_of[bracket], rung)

    def rung(self, bracket: int, rung: int) -> AnyRung:
        """The rung where trials of a bracket stand."""
        ladder, k = self.place(bracket, rung)
        return ladder.rung(k)

    def is_top(self, bracket: int, rung: int) -> bool:
        """Whether no rung lies above, be it open or not."""
        ladder, k = self.place(bracket, rung)
        return not ladder.endless and k == len(ladder.rungs) - 1

    def sample(self) -> Sample | None:
        """A new configuration; None once all were sampled."""
        found = self.assignment.next()
        if found is None:
            return None
        bracket = self.assignment.brackets[found]
        ladder, k = self.place(bracket, 0)
        return Sample(bracket, 0, ladder.level(k))

    def samples_left(self, most: int) -> int:
        """How many configurations may still be sampled, counted up to ``most``."""
        width = self.assignment.width
        return most if width is None else min(most, max(0, width - self.assignment.total))

    def promote(self, ladder: Ladder, trial: int, k: int) -> Promote:
        """The action that takes a trial to place ``k`` of a ladder."""
        bracket = self._bracket_of[trial]
        return Promote(trial, bracket, k - bracket if self.shared else k, ladder.level(k))

    def candidates(self) -> list[tuple[Ladder, int]]:
        """The rungs that trials may leave, as (ladder, place).

        The highest level comes first, between equal levels the lower bracket.
        """
        if len(self.ladders) == 1:
            return [(self.ladders[0], k) for k in self.ladders[0].sources()]
        places = [(-ladder.rungs[k].level, i, k) for i, ladder in enumerate(self.ladders) for k in ladder.sources()]
        return [(self.ladders[i], k) for _, i, k in sorted(places)]

    def is_at(self, event: TrialAbandoned) -> bool:
        """Whether the trial stood at that rung, and was not on its way there."""
        return self._rung_of[event.trial] >= event.rung

    def apply(self, event: Event) -> None:
        """Take note of an event; the two variants add results themselves."""
        if type(event) is JobGranted:
            if not event.retry:
                self.running += 1
                stage = event.stage
                if stage.rung:
                    self.rung(stage.bracket, stage.rung - 1).promote(event.trial)
        elif type(event) is JobCompleted:
            self.running -= 1
            self._rung_of[event.trial] = event.stage.rung
        elif type(event) is TrialAbandoned:
            if self.is_at(event):
                self.rung(event.bracket, event.rung).withdraw(event.trial)
                self.ruled_out.append(event.trial)
            else:
                self.running -= 1
        elif type(event) is TrialCreated:
            self.assignment.take(event.bracket)
            self._bracket_of.append(event.bracket)
            self._rung_of.append(-1)
        elif type(event) is StudyExtended:
            self.assignment.widen(event.configs)
        elif type(event) is SamplerExhausted:
            self.assignment.close()

    def rungs(
        self,
        waiting: Callable[[AnyRung], int] = lambda rung: rung.promotable(),
        leaving: Callable[[int], int] | None = None,
    ) -> list[RungStatus]:
        """All rungs as people see them (the arguments are those of :func:`ladder_status`)."""
        brackets, made = self.assignment.brackets, self.assignment.created
        entering = self.assignment.expected()
        if self.shared:
            ways = dict(zip(brackets, zip(entering, made, strict=True), strict=True))
            return ladder_status(None, self.ladders[0], ways, waiting=waiting, leaving=leaving)
        return [
            status
            for i, (bracket, ladder) in enumerate(zip(brackets, self.ladders, strict=True))
            for status in ladder_status(bracket, ladder, {0: (entering[i], made[i])}, waiting=waiting, leaving=leaving)
        ]

    def check(self) -> None:
        assert self.running >= 0
        assert self.assignment.width is None or self.assignment.total <= self.assignment.width
        for ladder in self.ladders:
            ladder.check()
            for k, (below, above) in enumerate(zip(ladder.rungs, ladder.rungs[1:], strict=False)):
                entered = 0
                if self.shared and k + 1 in self.assignment.brackets:
                    entered = self.assignment.created[self.assignment.brackets.index(k + 1)]
                assert above.size <= below.promoted + entered, "a rung holds more results than trials that went there"


def ladder_status(
    bracket: int | None,
    ladder: Ladder,
    entering: dict[int, tuple[int, int]],
    *,
    waiting: Callable[[AnyRung], int] = lambda rung: rung.promotable(),
    leaving: Callable[[int], int] | None = None,
) -> list[RungStatus]:
    """A ladder as people see it.

    Args:
        entering: by the place where new configurations enter, (expected in all, those that did).
        waiting: how many trials of a rung will leave it, as known now.
        leaving: how many of so many results are expected to leave a rung in the end; default ``floor(n / eta)``.
    """
    leaving = leaving or (lambda results: int(results // ladder.reduction_factor))
    found: list[RungStatus] = []
    for k, rung in enumerate(ladder.rungs):
        is_open = ladder.endless or k <= ladder.ceiling
        fresh, entered = entering.get(k, (0, 0))
        climbing = 0
        if k and is_open:
            below = found[-1]
            climbing = below.promoted + below.waiting
            if below.results < below.expected:  # who leaves it is not known yet
                climbing = max(climbing, leaving(below.expected))
        expected = max(rung.size, climbing + fresh)
        fresh_left = max(0, fresh - entered)
        climbing_left = max(0, expected - rung.size - fresh_left)
        step = rung.level - (ladder.rungs[k - 1].level if k else 0)
        can_leave = ladder.endless or k < ladder.ceiling
        found.append(
            RungStatus(
                bracket,
                k,
                rung.level,
                results=rung.size,
                promoted=rung.promoted,
                waiting=waiting(rung) if can_leave else 0,
                expected=expected,
                units=fresh_left * rung.level + climbing_left * step,
                is_open=is_open,
            )
        )
    return found
