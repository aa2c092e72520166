"""Which checkpoints go first where their number or bytes are limited.

Within a limit, the live checkpoints and the room that running jobs need for theirs stay below it at any time. What
goes first, until the next job fits:

1. fallbacks, the oldest first: they cost nothing unless a disk fails;
2. checkpoints of paused trials, those first whose loss costs the least: the chance that the trial is promoted after
   all (``promotion_chance``) times the units of training behind it, for such a trial starts from scratch;
   between equals the one with less training behind it, then the younger trial. The trial whose turn it is now keeps
   its own. (``removal: final_place``, the rule of earlier studies: the chance to be among the best in the end, alone);
3. once no job runs, so that nothing else would free room: members of the Pareto front but the incumbent, the
   worst in the first objective first, then the last ones of trials that a person had trained beyond the search, and at
   last the checkpoint of the trial whose turn it is.

The incumbent's and those that running or repeated attempts load are pinned. If they leave no room for the next job,
fewer jobs run at once; if none runs, the study halts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Container
from typing import Any, Protocol, cast

from hpo_core.checkpoints.retention import Hold, LiveCheckpoints
from hpo_core.model.events import (
    CheckpointRemoved,
    Event,
    JobCompleted,
    TrialExtensionEnded,
    concerns_search,
)
from hpo_core.search.halving.rungs import AnyRung
from hpo_core.search.method import loss_of
from hpo_core.spec import CheckpointSpec


class Budget:
    """A study's limits on its checkpoints: whether another job fits, and what goes to make it fit.

    A job is expected to write as much as the largest checkpoint so far and 2 % (counters and losses in it change its
    length); until the first result shows how much that is, a limit in bytes lets one job run alone. A checkpoint that
    is larger still can exceed the limit by the difference, until what it needs has been removed.

    Cost: some 0.1 ms more per report (promotion ASHA, 100,000 trials, 500 workers, room for 1,000 to 10,000
    checkpoints, one bracket or three: 0.11 to 0.16 ms of CPU per report in all, 0.03 without a limit); with two
    objectives 1.0 ms, and 0.24 without (4,000 trials, room for 400). Without a limit nothing of this exists.
    """

    def __init__(self, limits: CheckpointSpec, live: LiveCheckpoints) -> None:
        self.limits = limits
        self.live = live
        self.largest: int | None = None
        """Bytes of the largest checkpoint so far; None: not known yet."""
        self._saves = True
        self._old_rule = limits.removal == "final_place"
        self._state = live.state
        self._method = live.method
        self._groups: dict[AnyRung | None, _Group] = {}
        self._places: dict[int, tuple[_Group, _Key]] = {}
        """By trial: where its latest finite result stands."""

    def apply(self, event: Event) -> None:
        """Take note of a fact that the state and the method hold already."""
        self.live.apply(event)
        if type(event) is TrialExtensionEnded:
            self._rest_again(event.trial)
        if type(event) is not JobCompleted:
            return
        if event.checkpoint is not None:
            self.largest = max(self.largest or 0, event.checkpoint.size)
            self._saves = True
        elif event.loss is not None and self.largest is None:
            self.largest = 0
            self._saves = False  # an objective that tracks nothing
        if not concerns_search(event):
            self._rest_again(event.trial)
            return
        contest = self._method.contest(event.bracket, event.rung)
        if contest is not None and event.loss is None:
            return  # whoever compares has ruled it out
        rung = None if contest is None else contest.rung
        group = self._groups.get(rung)
        if group is None:
            group = _Group(event.bracket, event.rung, rung, several=bool(event.losses))
            groups = sorted([*self._groups.values(), group], key=_Group.level)
            self._groups = {group.rung: group for group in groups}
        first = math.inf if event.loss is None else event.loss
        key = (loss_of(event) if contest is not None else first, event.trial)
        self._places[event.trial] = (group, key)
        group.add(key, resting=event.trial in self.live.resting)

    def _rest_again(self, trial: int) -> None:
        """What was pinned while a person had the trial trained further may go again."""
        if trial in self.live.resting and trial in self._places:
            group, key = self._places[trial]
            if key not in group.resting:
                insort(group.resting, key)
            if group.rung not in self._groups:
                self._groups = {g.rung: g for g in sorted([*self._groups.values(), group], key=_Group.level)}

    def over(self, more: int) -> bool:
        """Whether the limit would not hold with so many more jobs than run now."""
        jobs = len(self._state.running) + more
        limits = self.limits
        if limits.max_count is not None and len(self.live) + jobs * self._saves > limits.max_count:
            return True
        if limits.max_bytes is None:
            return False
        if self.largest is None:
            return jobs > 1
        return self.live.bytes + jobs * self.room > limits.max_bytes

    @property
    def room(self) -> int:
        """Bytes that a job may write."""
        return 0 if self.largest is None else self.largest + self.largest // 50

    def removal(self, more: int, turn: int | None = None) -> CheckpointRemoved | None:
        """What goes next so that ``more`` jobs fit; None: they fit, or nothing can go.

        Args:
            turn: the trial that would be granted.
        """
        if not self.over(more):
            return None
        for trial, checkpoint in self.live.fallbacks.values():
            return CheckpointRemoved(trial, checkpoint.resource, 0.0)
        least: tuple[float, int, int, float] | None = None
        for group in list(self._groups.values()):
            choice = self._choice(group, turn)
            if choice is not None and (least is None or choice < least):
                least = choice
                if choice[0] == 0.0:
                    break  # the rungs behind it are higher
        if least is not None:
            _, resource, trial, chance = least
            return CheckpointRemoved(-trial, resource, chance)
        return None if self._state.running else self._last_resort(turn)

    def _choice(self, group: _Group, turn: int | None) -> tuple[float, int, int, float] | None:
        """(expected loss, resource, -trial, chance) of the least likely trial of a rung."""
        resting = self.live.resting

        def status(trial: int) -> bool | None:
            checkpoint = resting.get(trial)
            if checkpoint is None or self._places[trial][0] is not group:
                return None
            return trial != turn and self.live.why(checkpoint.uri) is Hold.RESTING

        worst = group.worst(status)
        if worst is None:
            if not group.resting and self._method.contest(group.bracket, group.place_in_bracket) is None:
                del self._groups[group.rung]  # a barrier was passed: nobody comes here any more
            return None
        trial, place = worst
        chance, resource = self._promoted(group, place), resting[trial].resource
        return chance if self._old_rule else chance * resource, resource, -trial, chance

    def _promoted(self, group: _Group, place: int) -> float:
        """The chance that the trial at a place goes on."""
        contest = self._method.contest(group.bracket, group.place_in_bracket)
        if contest is None:
            return 1.0
        return contest.final_place(place) if self._old_rule else contest.chance(place)

    def _last_resort(self, turn: int | None) -> CheckpointRemoved | None:
        for member, checkpoint in reversed(self._state.front_checkpoints()):
            if self.live.why(checkpoint.uri) is Hold.FRONT:
                return CheckpointRemoved(member.trial, checkpoint.resource, self._chance(member.trial))
        for trial in self._state.trials:
            for checkpoint in trial.further_checkpoints()[:1] if trial.further else ():
                if self.live.why(checkpoint.uri) is Hold.FRONT:
                    return CheckpointRemoved(trial.number, checkpoint.resource, 0.0)
        checkpoint_of_turn = None if turn is None else self.live.resting.get(turn)
        if turn is None or checkpoint_of_turn is None or self.live.why(checkpoint_of_turn.uri) is not Hold.RESTING:
            return None
        return CheckpointRemoved(turn, checkpoint_of_turn.resource, 1.0)

    def _chance(self, trial: int) -> float:
        if trial not in self.live.resting:
            return 0.0
        group, key = self._places[trial]
        return self._promoted(group, group.place(key))

    def shortage(self) -> str:
        """Why no job fits, and the cure."""
        must_stay = "what must stay (the checkpoints of the best so far, and those that waiting jobs load)"
        if self.limits.max_count is not None and len(self.live) + self._saves > self.limits.max_count:
            limit = f"max_count = {self.limits.max_count}"
            need = f"{must_stay} are {len(self.live)}, and a job writes one more"
        else:
            limit = f"max_bytes = {self.limits.max_bytes:,}"
            need = f"{must_stay} are {self.live.bytes:,} bytes, and a job may write {self.room:,} more"
        name, least = self.least
        return (
            f"checkpoints.{limit} leaves no room for a job: {need}. Start a new study with "
            f"checkpoints: {{{name}: {least}}} or more, or make the checkpoints smaller"
        )

    @property
    def least(self) -> tuple[str, int]:
        """The limit that is too small, and the least with which one more job fits."""
        if self.limits.max_count is not None and len(self.live) + self._saves > self.limits.max_count:
            return "max_count", len(self.live) + 2
        return "max_bytes", self.live.bytes + 2 * self.room

    def check(self) -> None:
        """Assert the limit, as far as sizes are known beforehand."""
        self.live.check()
        assert set(self.live.resting) <= set(self._places)
        for group in self._groups.values():
            group.check()


_Key = tuple[Any, int]
"""Loss (or losses) and trial: what results are ordered by."""


class _RanksItself(Protocol):
    """What is asked of a rung whose order changes with each result: ``ParetoRung``."""

    def rank(self, trial: int) -> int: ...

    def worst(self, among: Container[int]) -> tuple[int, int] | None: ...


class _Group:
    """The results of one rung in order, and those of them whose trials rest there.

    Args:
        bracket: of some trial there.
        place_in_bracket: of that rung.
        rung: None: it is decided that all of them go on; their order is of no account.
        several: whether there are several objectives.
    """

    def __init__(self, bracket: int, place_in_bracket: int, rung: AnyRung | None, *, several: bool) -> None:
        self.bracket = bracket
        self.place_in_bracket = place_in_bracket
        self.rung = rung
        self.resting: list[_Key] = []
        self._order: list[_Key] = []
        self._ranked = cast(_RanksItself, rung) if several and rung is not None else None

    def level(self) -> float:
        """Units of training behind its results."""
        return math.inf if self.rung is None else self.rung.level

    def add(self, key: _Key, *, resting: bool) -> None:
        """A finite result."""
        if self._ranked is None:
            insort(self._order, key)
        if resting:
            insort(self.resting, key)

    def place(self, key: _Key) -> int:
        """Among the results, from 1; the lower trial number first between equals."""
        return bisect_left(self._order, key) + 1 if self._ranked is None else self._ranked.rank(key[1])

    def worst(self, status: Callable[[int], bool | None]) -> tuple[int, int] | None:
        """The last trial in order, and its place, of those with status True.

        Those with status None are forgotten: they never rest here again.
        """
        if self._ranked is not None:
            found = {trial: status(trial) for _, trial in self.resting}
            self.resting = [key for key in self.resting if found[key[1]] is not None]
            return self._ranked.worst({trial for trial, free in found.items() if free})
        for i in range(len(self.resting) - 1, -1, -1):
            key = self.resting[i]
            free = status(key[1])
            if free:
                return key[1], self.place(key)
            if free is None:
                del self.resting[i]
        return None

    def check(self) -> None:
        assert self._order == sorted(self._order) and self.resting == sorted(self.resting)
