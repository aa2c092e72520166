"""InheritedState: starts a trial from its parent's checkpoint (population based training).

What fits is restored; hyperparameters stay the child's own. ``matching`` decides what fits and what is a
hyperparameter. If both trials have the same parameters, everything
that fits is the parent's, to the bit. Random streams continue where the parent's stopped, so a trial and its ancestors
are one training with changing parameters. Source: Jaderberg et al. 2017, Population Based Training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import UNRESTORED_LINES, Params
from hpo_core.training.matching import (
    ABSENT,
    Matching,
    Names,
    advance_schedule,
    clone_value,
    describe_optimizers,
    fit_groups,
    fit_moments,
    is_optimizer,
    is_schedule,
    is_step_based,
    parameter_names,
    scalars_of,
)
from hpo_core.training.saved_state import is_module, put_state, state_of


def describe(tracked: Mapping[str, Any], built: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """What a checkpoint records for child trials that start from it, as a tree.

    Args:
        tracked: the trial's tracked objects.
        built: their states before the first step, as :func:`initial_state` gives them.
        params: the trial's parameters.
    """
    return {"params": params, "built": dict(built), "optimizers": describe_optimizers(tracked)}


def initial_state(item: Any) -> Any:
    """Scalars of a tracked object before its first step; None for modules and generators, which are all state."""
    if is_module(item) or not hasattr(item, "state_dict"):
        return None
    try:
        state = item.state_dict()
        return scalars_of({"param_groups": state["param_groups"]} if is_optimizer(item) else state)
    except Exception:  # some objects have no state before their first use
        return None


def is_restored_late(item: Any) -> bool:
    """Whether it is restored only by ``steps()``: optimizers and schedules, on which more may still be built."""
    return is_optimizer(item) or is_schedule(item)


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
        self._initial: dict[str, Any] = described.get("built", {})
        self._optimizers: dict[str, Any] = described.get("optimizers", {})
        self._unchanged = described.get("params") == params
        self._names: frozenset[str] = frozenset() if self._unchanged else frozenset(params)

    def restore_early(self, name: str, item: Any) -> None:
        """Restore a module or generator as soon as it is tracked: other objects may be built on it."""
        if name in self._states and not is_restored_late(item):
            self._restore(name, item, Matching(self._names))

    def restore(self, tracked: Mapping[str, Any]) -> tuple[str, ...]:
        """Restore all tracked objects; return what was left as built, and why.

        Raises:
            ObjectiveError: an object's ``load_state_dict()`` raised on the state that was matched for it.
        """
        matching = Matching(self._names)
        matching.unrestored += [f"{name}: not in the checkpoint" for name in tracked if name not in self._states]
        matching.unrestored += [f"{name}: not tracked here" for name in self._states if name not in tracked]
        known = {name: item for name, item in tracked.items() if name in self._states}
        for name, item in known.items():
            if not is_restored_late(item):
                self._restore(name, item, matching)
        names = parameter_names(tracked)
        schedules = {name: item for name, item in known.items() if is_schedule(item)}
        for name, item in known.items():
            if is_optimizer(item):
                own = {key: schedules.pop(key) for key, s in list(schedules.items()) if s.optimizer is item}
                with self._as_objective_error(name):
                    self._restore_optimizer(name, item, names=names[name], schedules=own, matching=matching)
        for name, item in schedules.items():  # their optimizer is not tracked
            with self._as_objective_error(name):
                if is_step_based(item) and not self._unchanged:
                    advance_schedule(item, self._states[name])
                else:
                    self._restore(name, item, matching)
        return _shortened(matching.unrestored)

    def _restore(self, name: str, item: Any, matching: Matching) -> None:
        parent = self._states[name]
        if not hasattr(item, "state_dict"):
            try:
                put_state(item, parent)
            except Exception as error:  # a generator of another kind, which begins a stream of its own
                matching.unrestored.append(f"{name}: {error}")
            return
        with self._as_objective_error(name):
            if is_module(item):
                fitted = matching.tensors(name, item.state_dict(), parent)
            else:
                initial = ABSENT if self._unchanged else self._initial.get(name, ABSENT)
                hyper = is_optimizer(getattr(item, "optimizer", None))
                fitted = matching.fit(name, state_of(item), parent, initial=initial, hyper=hyper)
            item.load_state_dict(fitted)

    def _restore_optimizer(
        self, name: str, item: Any, *, names: Names, schedules: Mapping[str, Any], matching: Matching
    ) -> None:
        parent = self._states[name]
        step_based = {key: s for key, s in schedules.items() if is_step_based(s) and not self._unchanged}
        initial = (self._initial.get(name) or {}).get("param_groups") or []
        groups = fit_groups(
            item,
            parent["param_groups"],
            initial=None if self._unchanged else initial,
            schedules=step_based,
            states=self._states,
        )
        described = self._optimizers.get(name)
        state = (
            fit_moments(name, item, names=names, groups=groups, parent=parent, described=described, matching=matching)
            if described
            else {}
        )
        item.load_state_dict({**item.state_dict(), "state": state, "param_groups": groups})
        for key, schedule in schedules.items():
            if key in step_based:
                schedule._last_lr = [clone_value(group["lr"]) for group in item.param_groups]
            else:
                self._restore(key, schedule, matching)

    @contextlib.contextmanager
    def _as_objective_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except ObjectiveError:
            raise
        except Exception as error:
            raise ObjectiveError(
                f"{name!r} refuses the state from the checkpoint of trial {self._parent} ({type(error).__name__}: "
                f"{error}). What does not match by name and shape was left out already; let its load_state_dict() "
                "accept that, or mark the parameters it depends on as static."
            ) from error


def _shortened(lines: list[str]) -> tuple[str, ...]:
    """The first ``UNRESTORED_LINES`` lines; the last one then counts the rest."""
    if len(lines) <= UNRESTORED_LINES:
        return tuple(lines)
    return (*lines[: UNRESTORED_LINES - 1], f"and {len(lines) - UNRESTORED_LINES + 1} more")
