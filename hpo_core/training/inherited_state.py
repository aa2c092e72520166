"""InheritedState: starts a trial from its parent's checkpoint (population based training).

If both trials have the same parameters, everything is the parent's, to the bit. Else

- weights, moments, counters and random streams are the parent's;
- settings of an optimizer are the child's, as its code built it;
- a schedule is the child's, advanced to the step of the parent's; one that follows a metric begins anew;
- a number in any other state is the child's if it is named like a parameter of the study.

What is tracked must have the parent's names, kinds and shapes. ``load_state_dict`` alone would leave the parent's
learning rates in place. Random streams continue where the parent's stopped, so a trial and its ancestors are one
training with changing parameters. Source: Jaderberg et al. 2017, Population Based Training.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Params
from hpo_core.training.saved_state import is_module, is_torch, put_state, state_of


def is_optimizer(item: Any) -> bool:
    return not is_module(item) and isinstance(getattr(item, "param_groups", None), list)


def _is_schedule(item: Any) -> bool:
    return is_torch(item, "optim.lr_scheduler.LRScheduler")


def _is_late(item: Any) -> bool:
    return is_optimizer(item) or _is_schedule(item)


def _advance(schedule: Any, parent: dict[str, Any]) -> None:
    # Advance a newly built schedule to the step of the parent's, whose state this is; it sets learning rates.
    if is_torch(schedule, "optim.lr_scheduler.ReduceLROnPlateau"):
        return
    position = _position(parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "step() before optimizer.step()": those steps were the parent's
            for _ in range(position - _position(schedule.state_dict())):
                schedule.step()
    except ValueError as error:
        raise ObjectiveError(
            f"{type(schedule).__qualname__} cannot be brought to step {position}, where the parent's stands ({error}). "
            "Build it for as many steps as a trial of the last generation will have behind it."
        ) from error


def _position(state: dict[str, Any]) -> int:
    return int(state["last_epoch"] if "last_epoch" in state else _position(state["_schedulers"][0]))


def describe(tracked: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """The part of a checkpoint that is for child trials that start from it, as a tree."""
    kinds = {name: {"kind": type(item).__qualname__} for name, item in tracked.items() if is_optimizer(item)}
    return {"params": params, "optimizers": kinds}


class InheritedState:
    """The state that a child trial takes over from its parent's checkpoint.

    Args:
        state: the checkpoint's content, as :class:`TrialHandle` wrote it.
        params: the child's parameters.
        parent: number of the parent trial, for messages.
    """

    def __init__(self, state: Mapping[str, Any], params: Params, parent: int) -> None:
        self._parent = parent
        self._states: dict[str, Any] = state["tracked"]
        described = state.get("description", {})
        self._kinds = {name: one["kind"] for name, one in described.get("optimizers", {}).items()}
        self._unchanged = described.get("params") == params
        self._names: frozenset[str] = frozenset() if self._unchanged else frozenset(params)
        """The study's parameters: a number of such a name is the child's anywhere in a state."""

    def restore_early(self, name: str, item: Any) -> None:
        """Restore a module or generator as soon as it is tracked: other objects may be built on it."""
        if name in self._states and not _is_late(item):
            self._restore(name, item)

    def restore(self, tracked: Mapping[str, Any]) -> None:
        """Restore all tracked objects.

        Raises:
            ObjectiveError: other objects are tracked than in the checkpoint, or one refuses its state.
        """
        if different := sorted(tracked.keys() ^ self._states.keys()):
            raise ObjectiveError(
                f"The checkpoint of trial {self._parent} was written with {', '.join(map(repr, self._states))}, and "
                f"{', '.join(map(repr, different))} are tracked in one of both. {_CURE}"
            )
        for name, item in sorted(tracked.items(), key=lambda one: is_optimizer(one[1]) - 2 * (not _is_late(one[1]))):
            self._restore(name, item)  # modules, then schedules, which set the optimizers' rates, then optimizers

    def _restore(self, name: str, item: Any) -> None:
        parent = self._states[name]
        with self._as_objective_error(name):
            if self._unchanged or is_module(item) or not hasattr(item, "state_dict"):
                put_state(item, parent)
            elif is_optimizer(item):
                if (kind := type(item).__qualname__) != self._kinds.get(name, kind):
                    raise ValueError(f"it is of {self._kinds[name]}, and {kind} is tracked here")
                item.load_state_dict(item.state_dict() | {"state": parent["state"]})
            elif _is_schedule(item):
                _advance(item, parent)
            else:
                item.load_state_dict(self._with_own(state_of(item), parent))

    def _with_own(self, child: Any, parent: Any) -> Any:
        # The parent's state, but for numbers that are named like a parameter.
        if not isinstance(child, dict) or not isinstance(parent, dict):
            return parent
        return {
            key: child[key]
            if key in self._names and isinstance(child.get(key), bool | int | float | str)
            else self._with_own(child.get(key), state)
            for key, state in parent.items()
        }

    @contextlib.contextmanager
    def _as_objective_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except ObjectiveError:
            raise
        except Exception as error:
            raise ObjectiveError(
                f"{name!r} refuses the state from the checkpoint of trial {self._parent}. {_CURE} "
                f"({type(error).__name__}: {error})"
            ) from error


_CURE = (
    "A parameter that changes names, kinds or shapes of what is tracked belongs in search.static of the study, in "
    "Python hpo.Pbt(static=[...]): a member then has its parent's value."
)
