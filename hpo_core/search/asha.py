"""Asynchronous successive halving (Li et al., MLSys 2020, Algorithm 2, 3.3 and 5.1), promoting or stopping."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hpo_core.model.arithmetic import as_written
from hpo_core.model.events import (
    Event,
    JobCompleted,
    JobGranted,
    SamplerExhausted,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.model.short_text import did_you_mean
from hpo_core.search.brackets import Assignment, BracketPlan
from hpo_core.search.method import DONE, WAIT, Action, Promote, Rankable, RungStatus, Sample, SearchMethod, loss_of
from hpo_core.search.rungs import AnyRung, Ladder, default_min_resource, highest_rung, rung_levels, too_few
from hpo_core.search.search_settings import (
    CONFIGS,
    ETA,
    MAX,
    MIN,
    HalvingSettings,
    Outline,
    Resource,
    SearchContext,
    SearchProgress,
)

NAMED_SETS = ("aggressive", "standard", "conservative")
"""Sets of brackets with the paper's eta: bracket 0, brackets 0 to 2 (its production set, 5.1), and all of them."""
PAPER_ETA = 4
"""The paper's default (5.1)."""


class AshaSearch(HalvingSettings):
    """Asynchronous successive halving (Li et al. 2020), promotion or stopping variant, one or more brackets.

    With only ``configs`` and ``max_resource`` given, one bracket with eta 3 begins at 1/256 of ``max_resource``: on
    recorded learning curves it ends at less regret than the paper's production defaults (5.1), which ``brackets:
    standard`` names: eta 4, at most five rungs, brackets 0, 1 and 2.
    """

    title: ClassVar[str] = "ASHA"

    method: Literal["asha"] = "asha"
    variant: Literal["promotion", "stopping"] = Field(
        default="promotion",
        description="promotion: trials pause at rungs and the best go on; stopping: each goes on at once or never.",
    )
    configs: int | None = Field(default=None, ge=1, description=CONFIGS)
    max_resource: Resource | None = Field(default=None, description=MAX + " None: no upper limit.")
    min_resource: Resource | None = Field(default=None, description=MIN)
    reduction_factor: float = Field(default=3, ge=1.1, le=1e6, description=ETA)
    brackets: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        default_factory=list,  # never used: they are resolved before
        min_length=1,
        description="Numbers of the brackets. Bracket s begins s rungs higher; 0, the default, ends most trials early. "
        "Or a name: aggressive (0), standard (0 to 2), conservative (all), each with the paper's eta 4; all.",
    )
    assignment: Literal["budget", "proportional", "loop"] = Field(
        default="budget",
        description="How new configurations go to brackets: equal resource for each; drawn in proportion to the base "
        "rungs of synchronous Hyperband; or looped through in blocks of these sizes.",
    )
    rung_system: Literal["per_bracket", "shared"] = Field(
        default="per_bracket",
        description="per_bracket: trials compete within their bracket. shared: trials of all brackets compete.",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_brackets(cls, data: Any) -> Any:
        # Resolve `brackets` that are absent or named, and the first rung, so that the journal holds numbers.
        if not isinstance(data, dict):
            return data
        listed = data.get("brackets") not in (None, *NAMED_SETS, "all")
        name = data.get("brackets")
        if isinstance(name, str) and listed:
            sets = [*NAMED_SETS, "all"]
            raise ValueError(
                f"brackets = {name!r} is no set of brackets: write {', '.join(sets)}, or a list of numbers such as "
                f"[0, 1]. {did_you_mean(name, sets)}".rstrip()
            )
        if name in NAMED_SETS:
            data = {"reduction_factor": PAPER_ETA} | data
        smallest, top, eta = data.get("min_resource"), data.get("max_resource"), data.get("reduction_factor", 3)
        numbers = [v for v in (smallest, top, eta) if v is not None]
        if any(isinstance(v, bool) or not isinstance(v, int | float) or v < 1 or v > 2**53 for v in numbers) or not (
            isinstance(eta, int | float) and eta >= 1.1
        ):
            return data if listed else data | {"brackets": [0]}  # the fields themselves will be refused
        if top is None or (smallest is not None and smallest > top):
            if listed:
                return data
            if name is not None:
                raise ValueError(f"brackets = {name} needs max_resource, which limits their number; give it, or a list")
            return data | {"brackets": [0]}
        if smallest is None and "reduction_factor" not in data:
            smallest = default_min_resource(int(top), PAPER_ETA)
            data = data | {"min_resource": smallest}
        if listed:
            return data
        if name is None:
            return data | {"brackets": [0]}
        exact = as_written(eta)
        rungs = len(rung_levels(int(smallest or default_min_resource(int(top), exact)), int(top), exact))
        most = {"aggressive": 1, "standard": min(3, rungs - 1)}.get(name, rungs)  # standard: with two rungs or more
        return data | {"brackets": list(range(max(1, most)))}

    @model_validator(mode="after")
    def _check(self) -> AshaSearch:
        if sorted(set(self.brackets)) != self.brackets:
            raise ValueError(f"brackets = {self.brackets} must ascend, each once")
        if self.max_resource is None:
            if len(self.brackets) > 1 and self.assignment != "proportional":
                raise ValueError(
                    f"assignment = {self.assignment} weighs brackets by their length, which has no end without "
                    "max_resource; give max_resource, or assignment: proportional"
                )
        else:
            rungs = len(self.levels())
            if self.brackets[-1] >= rungs:
                raise ValueError(
                    f"bracket {self.brackets[-1]} does not exist: there are {rungs} rungs, so brackets go from 0 to "
                    f"{rungs - 1}; drop it, or lower min_resource"
                )
        return self

    def plan(self) -> BracketPlan:
        return BracketPlan(
            brackets=self.brackets,
            levels=self.levels(),
            reduction_factor=self.eta,
            endless=self.max_resource is None,
            shared=self.rung_system == "shared" and len(self.brackets) > 1,
            rule=self.assignment,
        )

    def create(self, context: SearchContext) -> Asha:
        variant = AshaStopping if self.variant == "stopping" else Asha
        return variant(self.plan(), self.configs, seed=context.seed, objectives=context.objectives)

    def outline(self) -> Outline:
        entrances: dict[int, int] = {}
        shared = self.rung_system == "shared" and len(self.brackets) > 1
        if shared:
            ladder = Ladder(self.levels(), self.eta, endless=self.max_resource is None)
            entrances = {bracket: ladder.level(bracket) for bracket in self.brackets}
        return Outline(
            max_resource=self.max_resource,
            reduction_factor=self.reduction_factor,
            endless=self.configs is None,
            several_brackets=len(self.brackets) > 1 and not shared,
            entrances=entrances,
            stopping=self.variant == "stopping",
        )

    def summary(self, progress: SearchProgress) -> str:
        words = f"{self.method} ({self.variant})"
        if len(self.brackets) > 1:
            rungs = "shared rungs" if self.rung_system == "shared" else "rungs of their own"
            words += f", {len(self.brackets)} brackets with {rungs}"
        return words + (", no maximum resource" if self.max_resource is None else "")

    def check_reach(self) -> None:
        if self.variant == "stopping" and self.max_resource is None:
            raise ValueError(
                "search.variant = stopping needs max_resource: the first reduction_factor - 1 trials of each rung "
                "always go on, so without an upper limit they would never end; give max_resource, or use variant: "
                "promotion"
            )

    def notices(self, extra: int) -> list[str]:
        if self.max_resource is None or self.configs is None or self.variant == "stopping":
            return []  # in the stopping variant the first of each rung always go on
        return too_few(self.highest_level, self.max_resource, self.configs + extra, self.reduction_factor)

    def highest_level(self, configs: int) -> int:
        plan = self.plan()
        levels, eta = plan.levels, plan.reduction_factor
        entering = dict(zip(plan.brackets, Assignment(plan, configs).expected(), strict=True))
        if self.rung_system == "shared":
            return levels[highest_rung(entering, len(levels), eta)]
        return max(levels[s + highest_rung({0: n}, len(levels) - s, eta)] for s, n in entering.items() if n)


class Asha(SearchMethod):
    """The promotion variant: promote a candidate, else sample, else wait.

    The base rungs take ``configs`` configurations in all; after that the study drains (5.1, "Using n as ASHA's
    stopping criterion"). A trial that was abandoned counts in the rung it was heading for, last. Brackets have a ladder
    each, or share one: then a trial of bracket ``s`` enters it at level ``s``.
    """

    def __init__(self, plan: BracketPlan, configs: int | None, *, seed: int = 0, objectives: int = 1) -> None:
        levels, eta = plan.levels, plan.reduction_factor
        self.shared = plan.shared
        self.assignment = Assignment(plan, configs, seed)
        full = Ladder(levels, eta, endless=plan.endless)
        starts = [0] if self.shared else plan.brackets
        self.ladders = [
            Ladder([full.level(s)] if plan.endless else levels[s:], eta, objectives=objectives, endless=plan.endless)
            for s in starts
        ]
        self._ladder_of = dict(zip(starts, self.ladders, strict=True))
        self._bracket_of: list[int] = []
        self._rung_of: list[int] = []  # by trial: of its latest result, -1 without one
        self.running = 0
        self.ruled_out: list[int] = []

    def next_action(self) -> Action:
        for ladder, k in self.candidates():
            trial = ladder.rungs[k].candidate()
            if trial is not None:
                return self.promotion(ladder, trial, k + 1)
        return self.sample()

    def grantable(self, most: int) -> int:
        count = self.samples_left(most)
        for ladder, k in self.candidates():
            if count >= most:
                break
            count += ladder.rungs[k].promotable()
        return min(count, most)

    def place(self, bracket: int, rung: int) -> tuple[Ladder, int]:
        return (self.ladders[0], bracket + rung) if self.shared else (self._ladder_of[bracket], rung)

    def rung(self, bracket: int, rung: int) -> AnyRung:
        ladder, k = self.place(bracket, rung)
        return ladder.rung(k)

    def sample(self) -> Action:
        found = self.assignment.next()
        if found is None:
            return WAIT if self.running else DONE
        bracket = self.assignment.brackets[found]
        ladder, k = self.place(bracket, 0)
        return Sample(bracket, 0, ladder.level(k))

    def samples_left(self, most: int) -> int:
        width = self.assignment.width
        return most if width is None else min(most, max(0, width - self.assignment.total))

    def promotion(self, ladder: Ladder, trial: int, k: int) -> Promote:
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

    def apply(self, event: Event) -> None:
        if type(event) is JobCompleted:
            stage = event.stage
            self.running -= 1
            self._rung_of[event.trial] = stage.rung
            ladder, k = self.place(stage.bracket, stage.rung)
            self.rank(event, ladder, k)
        elif type(event) is JobGranted:
            if not event.retry:
                self.running += 1
                stage = event.stage
                if stage.rung:
                    self.rung(stage.bracket, stage.rung - 1).promote(event.trial)
        elif type(event) is TrialCreated:
            self.assignment.take(event.bracket)
            self._bracket_of.append(event.bracket)
            self._rung_of.append(-1)
        elif type(event) is TrialAbandoned:
            rung = self.rung(event.bracket, event.rung)
            if self._rung_of[event.trial] >= event.rung:  # it stood there
                self.withdraw(rung, event.trial)
            else:  # it was on its way there
                self.running -= 1
                rung.add(event.trial, None)
        elif type(event) is StudyExtended:
            self.assignment.widen(event.configs)
        elif type(event) is SamplerExhausted:
            self.assignment.close()

    def rank(self, event: JobCompleted, ladder: Ladder, k: int) -> None:
        ladder.rung(k).add(event.trial, loss_of(event))
        if event.loss is None or ladder.is_top(k):
            self.ruled_out.append(event.trial)

    def withdraw(self, rung: AnyRung, trial: int) -> None:
        rung.withdraw(trial)
        self.ruled_out.append(trial)

    def waiting(self, rung: AnyRung) -> int:
        return rung.promotable()

    def leaving(self, results: int) -> int:
        return int(results // self.ladders[0].reduction_factor)

    def rungs(self) -> list[RungStatus]:
        brackets, made = self.assignment.brackets, self.assignment.created
        ways = list(zip(brackets, zip(self.assignment.expected(), made, strict=True), strict=True))
        if self.shared:
            return self._status(None, self.ladders[0], dict(ways))
        found = [self._status(bracket, self._ladder_of[bracket], {0: way}) for bracket, way in ways]
        return [status for ladder in found for status in ladder]

    def _status(self, bracket: int | None, ladder: Ladder, entering: dict[int, tuple[int, int]]) -> list[RungStatus]:
        # A ladder as people see it.
        found: list[RungStatus] = []
        for k, rung in enumerate(ladder.rungs):
            is_open = ladder.endless or k <= ladder.ceiling
            fresh, entered = entering.get(k, (0, 0))
            climbing = 0
            if k and is_open:
                below = found[-1]
                climbing = below.promoted + below.waiting
                if below.results < below.expected:  # who leaves it is not known yet
                    climbing = max(climbing, self.leaving(below.expected))
            expected = max(rung.size, climbing + fresh)
            fresh_left = max(0, fresh - entered)
            climbing_left = max(0, expected - rung.size - fresh_left)
            step = rung.level - (ladder.rungs[k - 1].level if k else 0)
            found.append(
                RungStatus(
                    bracket,
                    k,
                    rung.level,
                    results=rung.size,
                    promoted=rung.promoted,
                    waiting=self.waiting(rung) if ladder.endless or k < ladder.ceiling else 0,
                    expected=expected,
                    units=fresh_left * rung.level + climbing_left * step,
                    is_open=is_open,
                )
            )
        return found

    def check(self) -> None:
        assert self.running >= 0
        assert self.assignment.width is None or self.assignment.total <= self.assignment.width
        for ladder in self.ladders:
            for rung in ladder.rungs:
                rung.check()
            for k, (below, above) in enumerate(zip(ladder.rungs, ladder.rungs[1:], strict=False)):
                entered = 0
                if self.shared and k + 1 in self.assignment.brackets:
                    entered = self.assignment.created[self.assignment.brackets.index(k + 1)]
                assert above.size <= below.promoted + entered, "a rung holds more results than trials that went there"


class AshaStopping(Asha):
    """The stopping variant: at a rung a trial goes on at once, or it is stopped for good.

    Li et al. 2018 (arXiv:1810.05934v1) and Syne Tune's documentation: a trial goes on where it is among the best
    ``floor(n / eta)`` of the ``n`` results of its rung so far, itself counted, or ``n < eta``. Trials that pass get the
    next free slot, before new configurations. A loss that is not finite stops its trial always.
    """

    def __init__(self, plan: BracketPlan, configs: int | None, *, seed: int = 0, objectives: int = 1) -> None:
        super().__init__(plan, configs, seed=seed, objectives=objectives)
        self._several = objectives > 1
        self._ranked: dict[AnyRung, list[tuple[Rankable, int]]] = {}
        self._passed: deque[Promote] = deque()
        self._stopped: deque[TrialStopped] = deque()

    def next_action(self) -> Action:
        return self._passed[0] if self._passed else self.sample()

    def grantable(self, most: int) -> int:
        return min(most, len(self._passed) + self.samples_left(most))

    def next_fact(self) -> Event | None:
        return self._stopped[0] if self._stopped else None

    def apply(self, event: Event) -> None:
        super().apply(event)
        if type(event) is JobGranted:
            if not event.retry and self._passed and self._passed[0].trial == event.trial:
                self._passed.popleft()
        elif type(event) is TrialStopped:
            self._stopped.popleft()
            self.ruled_out.append(event.trial)

    def rank(self, event: JobCompleted, ladder: Ladder, k: int) -> None:
        rung, trial, loss = ladder.rung(k), event.trial, loss_of(event)
        rung.add(trial, loss)
        if ladder.is_top(k):
            self.ruled_out.append(trial)
            return
        if loss is None or isinstance(loss, tuple) or self._several:
            place = rung.rank(trial)
        else:
            ranked = self._ranked.setdefault(rung, [])
            insort(ranked, (loss, trial))
            place = bisect_right(ranked, (loss, trial))
        eta = ladder.reduction_factor
        if loss is not None and (rung.size < eta or place <= int(rung.size // eta)):
            self._passed.append(self.promotion(ladder, trial, k + 1))
        else:
            self._stopped.append(TrialStopped(trial, event.stage.bracket, event.stage.rung, place, rung.size))

    def withdraw(self, rung: AnyRung, trial: int) -> None:
        super().withdraw(rung, trial)
        self._passed = deque(job for job in self._passed if job.trial != trial)
        if rung in self._ranked:
            self._ranked[rung] = [key for key in self._ranked[rung] if key[1] != trial]

    def waiting(self, rung: AnyRung) -> int:
        return sum(self.rung(job.bracket, job.rung - 1) is rung for job in self._passed)

    def leaving(self, results: int) -> int:
        eta = self.ladders[0].reduction_factor
        free = min(results, math.ceil(eta) - 1)
        return int(free + (results - free) / eta)

    def check(self) -> None:
        assert self.running >= 0
        assert not {p.trial for p in self._passed} & {s.trial for s in self._stopped}
