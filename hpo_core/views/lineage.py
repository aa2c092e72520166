"""Which trial continued which other trial's training: a fold over the journal (PBT, Li et al. 2019, 3.9.2).

Trials of other methods have no parent; their lineage is themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry, JobCompleted, JobGranted, Reproduced, StudyCreated, TrialCreated
from hpo_core.model.trial import Checkpoint, Params


class Birth(msgspec.Struct, frozen=True):
    """Origin of a trial."""

    trial: int
    params: Params
    parent: int | None = None
    """Trial whose training it continues; None: it began from nothing."""
    initiator: int | None = None
    """The trial whose place it took; None in generation 0."""
    opponent: int | None = None
    """Trial that the initiator met; None: nobody."""
    member: int = 0
    """Place in the population."""
    generation: int = 0
    explored: tuple[str, ...] = ()
    """Parameters that differ from the parent's, by name; empty without a parent."""


class Stretch(msgspec.Struct, frozen=True):
    """One result: what was trained to get it."""

    trial: int
    start: int
    """Units of training behind what it started from."""
    end: int
    origin: int | None
    """The trial whose training it continued at ``start``; None where it began from nothing."""


class Segment(msgspec.Struct, frozen=True):
    """Parameters that the units of training ``start`` to ``end - 1`` were trained with."""

    start: int
    end: int
    params: Params
    trial: int


class Lineage:
    """All births of a study and what was trained between them."""

    def __init__(self) -> None:
        self.study = ""
        self.births: list[Birth] = []
        """Births by trial."""
        self.children: dict[int, list[int]] = {}
        self._results: dict[int, list[Stretch]] = {}
        self._granted: dict[int, JobGranted] = {}
        self._owners: dict[str, int] = {}  # checkpoint -> the trial that wrote it
        self._keepers: set[int] = set()  # trials that wrote one

    def apply(self, event: object) -> None:
        """Take note of a fact; others than the five kinds that matter are passed over."""
        if isinstance(event, TrialCreated):
            before = None if event.parent is None else self.births[event.parent].params
            explored = () if before is None else _differences(before, event.params)
            self.births.append(Birth(event.trial, event.params, event.parent, member=event.trial, explored=explored))
            if event.parent is not None:
                self.children.setdefault(event.parent, []).append(event.trial)
        elif isinstance(event, Reproduced):
            self.births[event.child] = msgspec.structs.replace(
                self.births[event.child],
                initiator=event.initiator,
                opponent=event.opponent,
                member=event.member,
                generation=event.generation,
            )
        elif isinstance(event, JobGranted):
            self._granted[event.trial] = event
        elif isinstance(event, JobCompleted):
            self._completed(event)
        elif isinstance(event, StudyCreated):
            self.study = str(event.spec.get("study", ""))

    def _completed(self, event: JobCompleted) -> None:
        grant = self._granted.get(event.trial)
        start, origin = self._origin(event.trial, None if grant is None else grant.checkpoint)
        self._results.setdefault(event.trial, []).append(Stretch(event.trial, start, event.resource, origin))
        if event.checkpoint is not None:
            self._owners.setdefault(event.checkpoint.uri, event.trial)
            self._keepers.add(event.trial)

    def _origin(self, trial: int, checkpoint: Checkpoint | None) -> tuple[int, int | None]:
        if checkpoint is not None:
            return checkpoint.resource, self._owners.get(checkpoint.uri, trial)
        known: int | None = trial
        while known is not None and known not in self._keepers:  # a loop by hand keeps its checkpoints to itself
            if results := self._results.get(known):
                return results[-1].end, known
            known = self.births[known].parent
        return 0, None

    # Questions.

    def birth(self, trial: int) -> Birth:
        """Birth of one trial.

        Raises:
            HpoError: there is no such trial.
        """
        if not 0 <= trial < len(self.births):
            raise HpoError(
                f"Study {self.study!r} has no trial {trial}; its trials are 0 to {len(self.births) - 1}."
                if self.births
                else f"Study {self.study!r} has no trial yet."
            )
        return self.births[trial]

    def ancestry(self, trial: int) -> list[int]:
        """Trials from the oldest ancestor to the trial itself.

        Raises:
            HpoError: there is no such trial.
        """
        path = [self.birth(trial).trial]
        while (parent := self.births[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def generations(self) -> int:
        """Number of generations that have begun."""
        return 1 + max((birth.generation for birth in self.births), default=-1)

    def survivors(self) -> set[int]:
        """Trials of the last generation and all whose training went into one of them."""
        last = self.generations() - 1
        ends = (birth.trial for birth in self.births if birth.generation == last)
        return {ancestor for trial in ends for ancestor in self.ancestry(trial)}

    def schedule(self, trial: int, resource: int | None = None) -> list[Segment]:
        """The parameters along the training that led to a trial's result.

        It follows the weights: where a lost checkpoint made a trial go back to an older one of its ancestors, what
        was trained in between is not in it.

        Args:
            resource: which result; default: the one that trained longest.

        Raises:
            HpoError: there is no such trial, or no such result yet.
        """
        self.birth(trial)
        results = self._results.get(trial, [])
        found = [stretch for stretch in results if resource is None or stretch.end == resource]
        if not found:
            known = ", ".join(str(stretch.end) for stretch in results) or "none yet"
            wanted = "" if resource is None else f" at {resource}"
            raise HpoError(f"Study {self.study!r}, trial {trial} has no result{wanted} (results: {known}).")
        path = [found[-1]]
        while path[-1].origin is not None and path[-1].start > 0:
            before = [s for s in self._results.get(path[-1].origin, []) if s.end == path[-1].start]
            if not before:
                raise HpoError(
                    f"Study {self.study!r}, trial {path[-1].trial} started at {path[-1].start}, where trial "
                    f"{path[-1].origin} has no result; the journal is not whole."
                )
            path.append(before[-1])
        segments: list[Segment] = []
        for stretch in reversed(path):
            start = stretch.start
            if segments and segments[-1].trial == stretch.trial:
                start = segments.pop().start
            segments.append(Segment(start, stretch.end, self.births[stretch.trial].params, stretch.trial))
        return segments


def read_lineage(entries: Iterable[Entry]) -> Lineage:
    """Fold a study's entries."""
    lineage = Lineage()
    for entry in entries:
        for event in entry.events:
            lineage.apply(event)
    return lineage


def _differences(before: Params, after: Params) -> tuple[str, ...]:
    missing = object()
    return tuple(n for n in {**before, **after} if before.get(n, missing) != after.get(n, missing))
