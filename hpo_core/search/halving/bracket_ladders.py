"""The ladders of ASHA's brackets, and which trial stands where."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.events import (
    Event,
    JobCompleted,
    JobGranted,
    SamplerExhausted,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.search.halving.brackets import Assignment, BracketPlan
from hpo_core.search.halving.rungs import AnyRung, Ladder
from hpo_core.search.method import Promote, RungStatus, Sample


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
        kind = type(event)
        if kind is JobGranted:
            assert isinstance(event, JobGranted)
            if not event.retry:
                self.running += 1
                stage = event.stage
                if stage.rung:
                    self.rung(stage.bracket, stage.rung - 1).promote(event.trial)
        elif kind is JobCompleted:
            assert isinstance(event, JobCompleted)
            self.running -= 1
            self._rung_of[event.trial] = event.stage.rung
        elif kind is TrialAbandoned:
            assert isinstance(event, TrialAbandoned)
            if self.is_at(event):
                self.rung(event.bracket, event.rung).withdraw(event.trial)
                self.ruled_out.append(event.trial)
            else:
                self.running -= 1
        elif kind is TrialCreated:
            assert isinstance(event, TrialCreated)
            self.assignment.take(event.bracket)
            self._bracket_of.append(event.bracket)
            self._rung_of.append(-1)
        elif kind is StudyExtended:
            assert isinstance(event, StudyExtended)
            self.assignment.widen(event.configs)
        elif kind is SamplerExhausted:
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
