"""Asynchronous successive halving (Li et al., MLSys 2020, Algorithm 2, 3.3 and 5.1).

The rules of the stopping variant are in :mod:`hpo_core.search.asha_stopping`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hpo_core.model.arithmetic import as_written
from hpo_core.model.events import Event, JobCompleted, TrialAbandoned
from hpo_core.search.asha_stopping import AshaStopping
from hpo_core.search.brackets import Assignment, BracketPlan, Brackets
from hpo_core.search.method import DONE, WAIT, Action, Promote, RungStatus, SearchMethod, loss_of
from hpo_core.search.rungs import Ladder, default_min_resource, highest_rung, rung_levels, too_few
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

WINDOW = 200
"""Latest readings that an estimate is the median of."""
LEAST = 5
"""Readings before there is an estimate."""
_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal variable."""


class NoiseEstimate:
    """Standard deviation of the noise in a difference of two losses, at each level.

    Given the noise of one loss it is ``sqrt(2)`` times that. Else it is estimated from the curves of trials that
    went on from the level: of two that stood next to each other there, the difference should run straight over
    the level and the two points behind it; how far the middle one is off that line is noise. Neighbours,
    since the noise of bad configurations says little about that of good ones, and what is common to both
    curves cancels. While a level has fewer than ``LEAST`` such readings, its noise counts as zero.

    This is the jitter from point to point. What another seed would have changed for good stays out of it.
    """

    def __init__(self, fixed: float | None) -> None:
        self._fixed = fixed
        self._last: dict[int, tuple[int, float]] = {}
        self._levels: dict[int, _Level] = {}

    @classmethod
    def create(cls, setting: float | Literal["auto"] | None) -> NoiseEstimate | None:
        """None where promotions ignore noise."""
        if setting is None:
            return None
        return cls(None if setting == "auto" else setting)

    @property
    def reads_curves(self) -> bool:
        return self._fixed is None

    def add(self, event: JobCompleted) -> None:
        """Learn from a result and its curve."""
        if self._fixed is not None:
            return
        before = self._last.get(event.trial)
        if before is not None and math.isfinite(before[1]):
            behind = [point for point in event.curve if point[0] > before[0] and math.isfinite(point[1])][:2]
            if len(behind) == 2:
                self._levels.setdefault(before[0], _Level()).add((before, behind[0], behind[1]))
        self._last[event.trial] = (event.resource, math.inf if event.loss is None else event.loss)

    def of_difference(self, level: int) -> float:
        """Standard deviation of the noise in a difference of two losses at a level; 0 while unknown."""
        if self._fixed is not None:
            return math.sqrt(2) * self._fixed
        found = self._levels.get(level)
        return found.estimate if found is not None else 0.0


_Point = tuple[int, float]
"""(resource, loss)"""


class _Level:
    """Trials that went on from one level, by their loss there."""

    __slots__ = ("_readings", "_starts", "estimate")

    def __init__(self) -> None:
        self._starts: list[tuple[float, _Point, _Point]] = []
        self._readings: deque[float] = deque(maxlen=WINDOW)
        self.estimate = 0.0

    def add(self, points: tuple[_Point, _Point, _Point]) -> None:
        """Take a reading against the trial whose loss at the level is nearest, where it has the same resources."""
        (start, loss), first, second = points
        place = bisect_left(self._starts, (loss,))
        near = self._starts[max(0, place - 1) : place + 1]
        insort(self._starts, (loss, first, second))
        if not near:
            return
        other, other_first, other_second = min(near, key=lambda one: abs(one[0] - loss))
        if (other_first[0], other_second[0]) != (first[0], second[0]):
            return
        weight = (second[0] - first[0]) / (second[0] - start)  # of the level on the line, at the first point
        line = weight * (loss - other) + (1 - weight) * (second[1] - other_second[1])
        off = abs(first[1] - other_first[1] - line)
        if math.isfinite(off):
            self._readings.append(off / math.sqrt(1 + weight**2 + (1 - weight) ** 2))
        if len(self._readings) >= LEAST:
            self.estimate = statistics.median(self._readings) / _MEDIAN


class AshaSearch(HalvingSettings):
    """Asynchronous successive halving (Li et al. 2020), promotion or stopping variant, one or more brackets.

    With only ``configs`` and ``max_resource`` given, the paper's production defaults apply (5.1): eta 4, at
    most five rungs, brackets 0, 1 and 2 as far as they hold two rungs. Once ``min_resource`` or
    ``reduction_factor`` is given, bracket 0 alone is the default.
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
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=ETA)
    preset: Literal["aggressive", "standard", "conservative"] | None = Field(
        default=None,
        description="Brackets by name (ASHA 5.1): aggressive, bracket 0 alone; standard, brackets 0, 1 and 2 as far as "
        "they hold two rungs; conservative, all of them.",
    )
    brackets: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        min_length=1,
        description="Early-stopping rates: bracket s starts at rung level s; 0 stops most aggressively. 'all' works.",
    )
    assignment: Literal["budget", "proportional", "loop"] = Field(
        default="budget",
        description="How new configurations go to brackets: equal resource for each; drawn in proportion to the base "
        "rungs of synchronous Hyperband; or looped through in blocks of these sizes.",
    )
    rung_system: Literal["per_bracket", "shared"] = Field(
        default="per_bracket",
        description="Whether brackets have rungs of their own or compete in one system.",
    )
    noise: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Standard deviation of the metric's noise: while new configurations are left, promote only what "
        "leads by more than sqrt(2) times it; auto: estimated from the learning curves.",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_brackets(cls, data: Any) -> Any:
        """Resolve ``brackets`` that are absent, ``all`` or a preset, so that the journal holds numbers."""
        if not isinstance(data, dict):
            return data
        preset = str(data.get("preset"))
        known = preset in ("aggressive", "standard", "conservative")
        open_brackets = data.get("brackets", "default") in ("default", "all", None)
        if not (open_brackets or known):
            return data
        everything = data.get("brackets") == "all"
        smallest, top, eta = data.get("min_resource"), data.get("max_resource"), data.get("reduction_factor", 4)
        numbers = [v for v in (smallest, top, eta) if v is not None]
        if any(isinstance(v, bool) or not isinstance(v, int | float) or v < 1 or v > 2**53 for v in numbers) or not (
            isinstance(eta, int | float) and eta >= 1.1
        ):
            return data | {"brackets": [0]}  # the fields themselves will be refused
        if top is None or (smallest is not None and smallest > top):
            if everything or known:
                word = f"preset = {preset}" if known else "brackets = all"
                raise ValueError(
                    f"{word} needs max_resource, which limits their number; give it, or a list of brackets"
                )
            return data | {"brackets": [0]}
        exact = as_written(eta)
        rungs = len(rung_levels(int(smallest or default_min_resource(int(top), exact)), int(top), exact))
        if known:
            meant = {"aggressive": [0], "standard": _standard(rungs), "conservative": list(range(rungs))}[preset]
            given = list(range(rungs)) if everything else data.get("brackets")
            if given not in (None, "default", meant):
                raise ValueError(f"preset = {preset} means brackets {meant}, and others are given; drop one of the two")
            return data | {"brackets": meant}
        if everything:
            return data | {"brackets": list(range(rungs))}
        standard = smallest is None and "reduction_factor" not in data
        return data | {"brackets": _standard(rungs) if standard else [0]}

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
        if self.noise is not None and self.variant == "stopping":
            raise ValueError("noise delays promotions, and the stopping variant has none; use variant: promotion")
        return self

    def plan(self) -> BracketPlan:
        """The plan from which rungs and brackets are built."""
        return BracketPlan(
            brackets=self.brackets,
            levels=self.levels(),
            reduction_factor=self.eta,
            endless=self.max_resource is None,
            shared=self.rung_system == "shared" and len(self.brackets) > 1,
            rule=self.assignment,
        )

    def create(self, context: SearchContext) -> SearchMethod:
        if self.variant == "stopping":
            return AshaStopping(self.plan(), self.configs, seed=context.seed, objectives=context.objectives)
        return Asha(self, context.seed, context.objectives)

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

    def check_objectives(self, objectives: int) -> None:
        if objectives > 1 and self.noise is not None:
            raise ValueError("search.noise is the noise of one metric, and there are several; drop it")

    def notices(self, extra: int) -> list[str]:
        if self.max_resource is None or self.configs is None or self.variant == "stopping":
            return []  # in the stopping variant the first of each rung always go on
        return too_few(self.highest_level, self.max_resource, self.configs + extra, self.reduction_factor)

    def highest_level(self, configs: int) -> int:
        """The highest level that a trial reaches by the rule, if nothing fails and without mispromotions."""
        plan = self.plan()
        levels, eta = plan.levels, plan.reduction_factor
        entering = dict(zip(plan.brackets, Assignment(plan, configs).expected(), strict=True))
        if self.rung_system == "shared":
            return levels[highest_rung(entering, len(levels), eta)]
        return max(levels[s + highest_rung({0: n}, len(levels) - s, eta)] for s, n in entering.items() if n)

    @classmethod
    def without_derived(cls, search: Mapping[str, Any], changed: Collection[str]) -> dict[str, Any]:
        """Drop brackets that followed from a preset if that, or the rungs, changed."""
        decide = {"preset", "max_resource", "min_resource", "reduction_factor"}
        if search.get("preset") is None or "brackets" in changed or not decide & set(changed):
            return dict(search)
        return {name: value for name, value in search.items() if name != "brackets"}


class Asha(SearchMethod):
    """The promotion variant: promote a candidate, else sample, else wait.

    The base rungs take ``configs`` configurations in all; after that the study drains (5.1, "Using n as ASHA's
    stopping criterion"). A trial that was abandoned counts in the rung it was heading for, last.
    """

    def __init__(self, settings: AshaSearch, seed: int = 0, objectives: int = 1) -> None:
        self.settings = settings
        self.brackets = Brackets(settings.plan(), settings.configs, seed=seed, objectives=objectives)
        self.ruled_out = self.brackets.ruled_out
        self.noise = NoiseEstimate.create(settings.noise)
        self.reads_curves = self.noise is not None and self.noise.reads_curves

    def next_action(self) -> Action:
        brackets = self.brackets
        doubtful: Promote | None = None
        for ladder, k in brackets.candidates():
            rung = ladder.rungs[k]
            trial = rung.candidate()
            if trial is not None:
                action = brackets.promote(ladder, trial, k + 1)
                if self.noise is None or rung.margin() > self.noise.of_difference(rung.level):
                    return action
                doubtful = doubtful or action
        return brackets.sample() or doubtful or (WAIT if brackets.running else DONE)

    def grantable(self, most: int) -> int:
        count = self.brackets.samples_left(most)
        for ladder, k in self.brackets.candidates():
            if count >= most:
                break
            count += ladder.rungs[k].promotable()
        return min(count, most)

    def apply(self, event: Event) -> None:
        if type(event) is JobCompleted:
            stage = event.stage
            self.brackets.rung(stage.bracket, stage.rung).add(event.trial, loss_of(event))
            if event.loss is None or self.brackets.is_top(stage.bracket, stage.rung):
                self.ruled_out.append(event.trial)
            if self.noise is not None:
                self.noise.add(event)
        elif type(event) is TrialAbandoned and not self.brackets.is_at(event):
            self.brackets.rung(event.bracket, event.rung).add(event.trial, None)
        self.brackets.apply(event)

    def rungs(self) -> list[RungStatus]:
        return self.brackets.rungs()

    def check(self) -> None:
        self.brackets.check()


def _standard(rungs: int) -> list[int]:
    """The three most aggressive brackets, as far as they hold two rungs (ASHA 5.1)."""
    return list(range(max(1, min(3, rungs - 1))))
