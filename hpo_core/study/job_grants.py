"""Grants: the next job of a study, one to be tried again or one of the search."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from msgspec import UNSET

from hpo_core.checkpoints.retention import Budget
from hpo_core.model.devices.inventory import Demand, slots_demand
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.events import (
    Event,
    JobGranted,
    Reproduced,
    SamplerExhausted,
    StudyHalted,
    TrialCreated,
)
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Checkpoint, Generation, Params, Rung, Stage
from hpo_core.search.method import WAIT, Action, Finish, Promote, Reproduce, Sample, Wait
from hpo_core.state import TrialRecord
from hpo_core.state.worker_losses import MOST_DEFERRED
from hpo_core.study.parts import StudyParts

_NOTHING = frozenset({Wait, Finish})


class Grants:
    """Decides which job a free slot gets. Holds no state of its own."""

    def __init__(self, parts: StudyParts) -> None:
        self._parts = parts
        self._spec, self._state, self._method = parts.spec, parts.state, parts.method
        self._limits_resource = parts.spec.stop.total_resource is not None
        self._rungs: dict[tuple[int, int], Rung] = {}

    # What is asked for.

    def fill(self) -> Iterator[Event]:
        state = self._state
        while (room := state.capacity - state.slots_in_use) > 0:
            before = len(state.running)
            yield from self.one(room)
            if len(state.running) == before:
                return
            if self._limits_resource:
                yield from self.stop_if_due()

    def make_room(self, more: int, turn: int | None = None) -> Iterator[Event]:
        while self._parts.budget is not None and (removal := self._parts.budget.removal(more, turn)) is not None:
            yield removal

    def stop_if_due(self) -> Iterator[Event]:
        due = self._parts.rules.due(self._state) if self._state.halted is None else None
        if due is not None:
            yield StudyHalted(due[1], due[0])

    # Questions.

    def next_again(self) -> tuple[int | None, Action]:
        """The trial to be tried again now, or None, and what the method wants instead.

        Failed ones come first, but those that keep losing their workers let other work go before them.
        """
        waiting = self._state.waiting
        if not waiting:
            return None, self._method.next_action()
        most, losses = self._spec.training.most_losses, self._state.losses
        if most is None:
            return waiting[0], WAIT
        ready = next((number for number in waiting if not losses.defers(number, most)), None)
        if ready is None and len(waiting) <= MOST_DEFERRED:
            action = self._method.next_action()
            if self._state.running or isinstance(action, Sample | Promote | Reproduce):
                return None, action
        return (waiting[0] if ready is None else ready), WAIT

    def fitting(self, most: int) -> int:
        budget = self._parts.budget
        return most if budget is None else budget.fitting(most, _loaded(self.next_again()[1]))

    def check(self) -> None:
        state, budget = self._state, self._parts.budget
        room = state.capacity - state.slots_in_use
        if room <= 0:
            return
        if state.halted is None:
            again, action = self.next_again()
            idle = again is None and not isinstance(action, Sample | Promote | Reproduce)
            idle = idle or (budget is not None and bool(state.running) and budget.over(1))
            idle = idle or self._size(again).slots > room
            assert idle, f"a slot is idle although {action} could run"

    # One grant.

    def one(self, room: int | None = None) -> Iterator[Event]:
        """Grant one job, if there is one that fits.

        Args:
            room: slots that it may take; None: whatever the capacity.
        """
        state = self._state
        if state.halted is not None:
            return
        again, action = self.next_again()
        demand = self._size(again)
        if room is not None and demand.slots > room:
            return
        if again is None and type(action) in _NOTHING:
            return
        if (budget := self._parts.budget) is not None and not (yield from self._fits(budget, _loaded(action))):
            return
        number = len(state.trials)
        if again is not None:
            failed = state.trials[again].granted
            assert failed is not None
            number, stage, target = again, failed.stage, failed.target
        elif isinstance(action, Promote):
            number, target = action.trial, action.target
            stage = self._rung(number, action.bracket, action.rung)
        elif isinstance(action, Sample):
            created = self._sampled(number, action.bracket)
            yield created
            if isinstance(created, SamplerExhausted):
                yield from self.one(room)  # the method wants no further configuration now
                return
            stage, target = self._rung(number, action.bracket, action.rung), action.target
        else:
            assert isinstance(action, Reproduce)
            if action.params is None and action.parent is None:
                yield self._sampled(number, 0)
            else:
                params = self._propose(number) if action.params is None else action.params
                assert params is not None, "a population has a sampler without an end"
                yield TrialCreated(number, 0, params, action.parent)
            yield Reproduced(
                number,
                action.initiator,
                action.opponent,
                parent=action.parent,
                member=action.member,
                generation=action.generation,
            )
            stage, target = Generation(action.member, action.generation), action.target
        trial = state.trials[number]
        start = self._start_of(trial)
        retry = again is not None
        yield JobGranted(number, trial.attempts, stage, target=target, checkpoint=start, retry=retry, demand=demand)

    def _fits(self, budget: Budget, loaded: int | None = None) -> Generator[Event, None, bool]:
        # Make room for the checkpoint of one more job; return whether it fits.
        yield from self.make_room(1, loaded)
        if not budget.over(1):
            return True
        if not self._state.running:
            yield StudyHalted(budget.shortage())
        return False

    def _size(self, again: int | None = None) -> Demand:
        # Return the demand of the next job: one of the search, or that of trial `again`, which failed.
        failed = None if again is None else self._state.trials[again].granted
        return slots_demand(self._parts.sizes.next(failed))

    def _rung(self, trial: int, bracket: int, rung: int) -> Stage:
        # The stage of a job at a rung; rungs are few and grants many, so there is one value for each.
        if self._state.has_members:
            born = self._state.reproduced.get(trial)
            return Generation(trial if born is None else born.member, rung)
        found = self._rungs.get((bracket, rung))
        if found is None:
            found = self._rungs[bracket, rung] = Rung(bracket, rung)
        return found

    def _sampled(self, number: int, bracket: int) -> TrialCreated | SamplerExhausted:
        # A trial with the configuration that is first in the queue, else with one of the sampler.
        queue = self._state.queue
        given = given_values(self._spec.search_space(), queue[0], "configuration") if queue else None
        params = self._propose(number, given)
        if params is None:
            return SamplerExhausted(number)
        return TrialCreated(number, bracket, params, queued=True if queue else UNSET)

    def _propose(self, number: int, given: Params | None = None) -> Params | None:
        try:
            return self._parts.sampler.propose(number) if given is None else self._parts.sampler.propose(number, given)
        except HpoError:
            raise
        except Exception as error:
            raise SpecError(
                f"Study {self._spec.study!r}: sampler {self._spec.sampler.name} cannot propose trial {number}: "
                f"{type(error).__name__}: {error}. Nothing was recorded for it; correct the sampler's arguments or "
                "choose another one."
            ) from error

    def _start_of(self, trial: TrialRecord) -> Checkpoint | None:
        # Ancestors are asked only where trial and parent have nothing to load; the oldest ones are removed already.
        if not trial.results and trial.parent is None:
            return None
        parent = None if trial.parent is None else self._state.trials[trial.parent]
        if trial.checkpoint() is not None or parent is None or parent.checkpoint() is not None:
            return self._state.start_of(trial.number)
        return self._state.start_of(trial.number, set(self._method.ruled_out))


def _loaded(action: Action) -> int | None:
    return action.trial if isinstance(action, Promote) else getattr(action, "parent", None)
