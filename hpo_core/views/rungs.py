"""The rungs of a study by bracket, with what runs there; many brackets are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from hpo_core.model.events import CeilingRaised, JobCompleted, StudyHalted, TrialAbandoned, TrialStopped
from hpo_core.model.trial import Stage
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.formatting import listed

Place = tuple[int | None, int]
"""A rung: (bracket, or None where all brackets share their rungs; place in its ladder)."""


class RungNames:
    """The place and the name of each rung of a study; the bracket is named only where there are several.

    Where brackets share their rungs, a job of bracket ``b`` and rung ``k`` stands at rung ``b + k`` of the one
    ladder, for bracket ``b`` enters it there.
    """

    def __init__(self, spec: StudySpec) -> None:
        outline = spec.search.outline()
        self.shared = outline.shared_rungs
        self.several = outline.several_brackets

    def place(self, bracket: int, rung: int) -> Place:
        """(bracket, or None where rungs are shared; place in its ladder)."""
        return (None, bracket + rung) if self.shared else (bracket, rung)

    def label(self, bracket: int, rung: int) -> str:
        """``rung 2``, or ``rung 2 of bracket 1``."""
        own, place = self.place(bracket, rung)
        named = own is not None and (self.several or own > 0)  # an extended study may get its second bracket late
        return f"rung {place} of bracket {own}" if named else f"rung {place}"

    def stop_line(self, event: TrialStopped) -> str:
        """``stopped at rung 1 (place 5 of 12)``."""
        return f"stopped at {self.label(event.bracket, event.rung)} (place {event.rank} of {event.results})"

    def ceiling_line(self, event: CeilingRaised) -> str:
        """Which rung opened, and what was not stable."""
        rung, near = event.rung, event.tolerance
        equal = f"losses no more than {near:.3g} apart count as equal" if near else "no two losses counted as equal"
        return (
            f"rung {rung} (trained to {event.level:,}) opened, for more training had changed the order: of the trials "
            f"at rung {rung - 1}, trial {event.trial} came to place {event.place}, where rung {rung - 2} had "
            f"{_trials(event.expected)} ({equal})"
        )


def halt_words(spec: StudySpec, halted: StudyHalted) -> str:
    """Why a study halted, and what a resume does; the reason alone where no rule of the study did it."""
    if not halted.rule:
        return halted.reason
    stop = spec.stop
    after = {
        "total_resource": f"grants {stop.total_resource:,} more" if stop.total_resource else "",
        "seconds": f"drives it for {stop.seconds:g} seconds more" if stop.seconds else "",
        "target": "goes on for a better one",
    }[halted.rule]
    return f"stop rule met: {halted.reason}; a resume {after}"


def _trials(numbers: tuple[int, ...], most: int = 6) -> str:
    if len(numbers) == 1:
        return f"trial {numbers[0]}"
    return f"one of the trials {listed(numbers, most)}"


def is_unlimited(spec: StudySpec) -> bool:
    """True if only a stop rule ends the study: no number of configurations was given."""
    return spec.search.outline().endless


def is_stopping(spec: StudySpec) -> bool:
    """True if trials go on at once or never, instead of waiting for promotion."""
    return spec.search.outline().stopping


def entry_levels(spec: StudySpec) -> dict[int, int]:
    """Bracket to the level at which its trials enter the rungs that all brackets share; empty where none are shared."""
    return dict(spec.search.outline().entrances)


FEW = 6
"""At most this many brackets are shown one by one."""

State = Literal["to come", "open", "finished"]
_SUMMED = ("results", "promoted", "waiting", "expected", "units", "running", "stopped", "abandoned")


@dataclass(slots=True)
class RungView:
    """A rung of one bracket, or the same rung of several brackets of one shape, summed."""

    rung: int
    level: int
    """Units of training behind each result."""
    results: int = 0
    promoted: int = 0
    """Trials that went on to the next rung."""
    waiting: int = 0
    """Trials that will go on and have no slot yet."""
    expected: int = 0
    units: int = 0
    is_open: bool = True
    running: int = 0
    """Jobs under way to this rung."""
    stopped: int = 0
    abandoned: int = 0
    """Trials that rank last here; counted among the results."""
    best: float | None = None
    """Smallest finite loss here."""

    def add(self, other: RungView) -> None:
        """Sum up the same rung of another bracket."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.best = min((best for best in (self.best, other.best) if best is not None), default=None)


@dataclass(slots=True)
class BracketView:
    """A bracket, several of one shape together, or (without a number) the rungs that all brackets share."""

    numbers: list[int]
    state: State
    rungs: list[RungView] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Units of training at its base rung."""
        return self.rungs[0].level

    @property
    def name(self) -> str:
        """Number of the bracket or brackets: ``2``, ``0, 5, 10``, ``0, 5 … 95 (20)``."""
        if len(self.numbers) <= 3:
            return ", ".join(map(str, self.numbers))
        first, second, last = self.numbers[0], self.numbers[1], self.numbers[-1]
        return f"{first}, {second} … {last} ({len(self.numbers)})"

    @property
    def total(self) -> RungView:
        """Sum of all rungs, at the base rung's place."""
        sums = RungView(self.rungs[0].rung, self.rungs[0].level)
        for rung in self.rungs:
            sums.add(rung)
        return sums


def bracket_views(study: Study, *, details: bool = False) -> list[BracketView]:
    """The brackets of a study, each with its rungs from the bottom up.

    Args:
        details: also ``best``, ``stopped`` and ``abandoned``, which read every trial; else O(rungs + running jobs).
    """
    state, names = study.state, RungNames(study.spec)
    views: dict[int | None, BracketView] = {}
    rungs: dict[Place, RungView] = {}
    for status in study.method.rungs():
        own = {name: value for name, value in msgspec.structs.asdict(status).items() if name != "bracket"}
        rungs[status.bracket, status.rung] = RungView(**own)
        view = views.setdefault(status.bracket, BracketView([] if status.bracket is None else [status.bracket], "open"))
        view.rungs.append(rungs[status.bracket, status.rung])

    def rung_at(at: Stage | TrialAbandoned, level: int) -> RungView:
        place = names.place(at.bracket, at.rung)
        if place not in rungs:  # an endless ladder grows with its first result there
            rungs[place] = RungView(place[1], level, expected=1)
            views[place[0]].rungs.append(rungs[place])
        return rungs[place]

    busy = {state.trials[number].bracket for number in state.waiting}
    for grant in state.running.values():
        busy.add(grant.stage.bracket)
        rung_at(grant.stage, grant.target).running += 1
    unlimited = is_unlimited(study.spec)
    for bracket, view in views.items():
        if bracket is None or bracket in busy:
            continue
        if not any(rung.results for rung in view.rungs):
            view.state = "to come"
        elif not unlimited and not any(rung.units for rung in view.rungs):
            view.state = "finished"
    for trial in state.trials if details else ():
        for result in trial.results:
            rung = rung_at(result.stage, result.resource)
            if result.loss is not None and not result.violation and (rung.best is None or result.loss < rung.best):
                rung.best = result.loss
        if trial.stopped is not None:
            rungs[names.place(trial.stopped.bracket, trial.stopped.rung)].stopped += 1
        if (gone := trial.abandoned) is not None:
            rung_at(gone, trial.resource).abandoned += 1
    return list(views.values())


def grouped_brackets(views: Sequence[BracketView], few: int = FEW) -> list[BracketView]:
    """Few brackets as they are; of many, those that begin at the same level summed up, in the order of the first."""
    if len(views) <= few:
        return list(views)
    found: dict[int, BracketView] = {}
    for view in views:
        together = found.setdefault(view.start, BracketView([], view.state))
        if together.state != view.state:
            together.state = "open"
        together.numbers += view.numbers
        for rung in view.rungs[len(together.rungs) :]:
            together.rungs.append(RungView(rung.rung, rung.level, is_open=rung.is_open))
        for sums, rung in zip(together.rungs, view.rungs, strict=False):
            sums.add(rung)
    return list(found.values())


def rung_rows(study: Study, views: Sequence[BracketView]) -> list[dict[str, str | int | float]]:
    """A row for every rung, and one for brackets to come, with the columns that say something."""
    stopping, unlimited = is_stopping(study.spec), is_unlimited(study.spec)
    several = len(views) > 1
    rows = []
    for view in views:
        top, short = view.rungs[-1], several and view.state == "to come" and len(view.rungs) > 1
        for rung in [view.total] if short else view.rungs:
            results: str | int = rung.results if unlimited else f"{rung.results} of {rung.expected}"
            rows.append(
                {
                    "bracket": view.name,
                    "state": view.state,
                    "rung": f"{rung.rung}–{top.rung}" if short else rung.rung,
                    "trained to": f"{rung.level}–{top.level}" if short else rung.level,
                    "results": results if rung.is_open else "closed",
                    "running": rung.running,
                    "went on" if stopping else "promoted": rung.promoted,
                    "ready": rung.waiting,
                    "stopped": rung.stopped,
                    "abandoned": rung.abandoned,
                    f"best {study.spec.metric.name}": "" if rung.best is None else study.metric_value(rung.best),
                }
            )
    idle = {name for name in ("running", "ready", "abandoned") if not any(row[name] for row in rows)}
    idle |= set() if several else {"bracket"}
    idle |= set() if several and any(view.state != "open" for view in views) else {"state"}
    idle |= set() if stopping else {"stopped"}
    if all(len(view.rungs) == 1 for view in views):
        idle |= {"went on", "promoted", "ready"}
    return [{name: value for name, value in row.items() if name not in idle} for row in rows]


@dataclass(slots=True)
class Band:
    """One rung as drawn: of one bracket, of several of one shape, or shared by all."""

    ladder: int
    rung: RungView
    results: list[JobCompleted] = field(default_factory=list)


class Bands:
    """All rungs of a study from the bottom up, ladder after ladder, with the results at each.

    A bracket is a ladder. Where there are many, those that begin at the same level share one: rounds of synchronous
    halving or Hyperband repeat each other.
    """

    def __init__(self, study: Study) -> None:
        views = bracket_views(study, details=True)
        self.ladders = grouped_brackets(views)
        self.names = RungNames(study.spec)
        self.all: list[Band] = []
        self._first: dict[int | None, int] = {}
        for i, ladder in enumerate(self.ladders):
            self._first |= dict.fromkeys(ladder.numbers or (None,), len(self.all))
            self.all += [Band(i, rung) for rung in ladder.rungs]
        for trial in study.state.trials:
            for result in trial.results:
                self.all[self.of(result.stage.bracket, result.stage.rung)].results.append(result)

    @property
    def several(self) -> bool:
        """True if there are several ladders to tell apart."""
        return len(self.ladders) > 1

    def of(self, bracket: int, rung: int) -> int:
        """Index of the band where a job of a bracket and rung stands."""
        own, place = self.names.place(bracket, rung)
        return self._first[own] + place

    def base(self, bracket: int) -> int:
        """Index of the lowest band of a bracket's ladder."""
        return self._first[self.names.place(bracket, 0)[0]]

    def at(self, trial: TrialRecord, resource: int) -> int:
        """Index of the band that a trial stands in with so much training: the highest not above it."""
        base = self.base(trial.bracket)
        rungs = self.ladders[self.all[base].ladder].rungs
        return base + max((k for k, rung in enumerate(rungs) if rung.level <= resource), default=0)

    def heading(self, ladder: int) -> str:
        """``Bracket 1: trials start at 4``."""
        view = self.ladders[ladder]
        word = "Brackets" if len(view.numbers) > 1 else "Bracket"
        begun = ", not begun yet" if view.state == "to come" else ""
        return f"{word} {view.name}: trials start at {view.start:,}{begun}"
