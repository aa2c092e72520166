"""InheritedState: starts a trial from its parent's checkpoint (population based training).

If both trials have the same parameters, everything that fits is the parent's, to the bit. Else

- weights, moments, counters and random streams are the parent's, where name and shape match;
- settings of an optimizer are the child's, as its code built it;
- a schedule is the child's, advanced to the step of the parent's; one that follows a metric begins anew;
- a number in any other state is the child's if it is named like a parameter of the study.

``load_state_dict`` alone would leave the parent's learning rates in place. Random streams continue where the parent's
stopped, so a trial and its ancestors are one training with changing parameters. Source: Jaderberg et al. 2017,
Population Based Training.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import UNRESTORED_LINES, Params
from hpo_core.training.saved_state import is_module, is_torch, put_state, state_of

Names = list[tuple[str, tuple[int, ...]]]
_SWITCHES = ("amsgrad", "centered", "momentum")
"""Settings of torch's optimizers that need a moment of their own: one that is switched on begins without moments."""


def shape_of(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, np.ndarray) or is_torch(value, "Tensor"):
        return tuple(value.shape)
    return None


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str) or shape_of(value) == ()


def is_optimizer(item: Any) -> bool:
    return not is_module(item) and isinstance(getattr(item, "param_groups", None), list)


def _is_schedule(item: Any) -> bool:
    return is_torch(item, "optim.lr_scheduler.LRScheduler")


def _is_late(item: Any) -> bool:
    return is_optimizer(item) or _is_schedule(item)


def _parameter_names(tracked: Mapping[str, Any]) -> dict[str, Names]:
    """Name and shape of each tracked optimizer's parameters, in order.

    Names come from the tracked modules; a parameter of none of them is named by group and index.
    """
    names = {
        id(parameter): f"{name}.{path}"
        for name, module in tracked.items()
        if is_module(module)
        for path, parameter in module.named_parameters(remove_duplicate=False)
    }
    return {
        name: [
            (names.get(id(parameter), f"group {g}, parameter {i}"), tuple(parameter.shape))
            for g, group in enumerate(item.param_groups)
            for i, parameter in enumerate(group["params"])
        ]
        for name, item in tracked.items()
        if is_optimizer(item)
    }


def _advance(schedule: Any, parent: dict[str, Any]) -> None:
    """Advance a newly built schedule to the step of ``parent`` (another schedule's state); sets learning rates.

    Raises:
        ObjectiveError: the schedule ends before that step.
    """
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
    optimizers = {
        name: {"kind": type(tracked[name]).__qualname__, "parameters": names}
        for name, names in _parameter_names(tracked).items()
    }
    return {"params": params, "optimizers": optimizers}


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
        self._optimizers: dict[str, Any] = described.get("optimizers", {})
        self._unchanged = described.get("params") == params
        self._names: frozenset[str] = frozenset() if self._unchanged else frozenset(params)
        """The study's parameters: a number of such a name is the child's anywhere in a state."""
        self._unrestored: list[str] = []
        """What did not fit, and why."""

    def restore_early(self, name: str, item: Any) -> None:
        """Restore a module or generator as soon as it is tracked: other objects may be built on it."""
        if name in self._states and not _is_late(item):
            self._restore(name, item)

    def restore(self, tracked: Mapping[str, Any]) -> tuple[str, ...]:
        """Restore all tracked objects; return what was left as built, and why: at most ``UNRESTORED_LINES``.

        Raises:
            ObjectiveError: an object's ``load_state_dict()`` raised on the state that was matched for it.
        """
        lines = self._unrestored = [f"{name}: not in the checkpoint" for name in tracked if name not in self._states]
        lines += [f"{name}: not tracked here" for name in self._states if name not in tracked]
        names = _parameter_names(tracked)
        known = {name: item for name, item in tracked.items() if name in self._states}
        for name, item in sorted(known.items(), key=lambda one: is_optimizer(one[1]) - 2 * (not _is_late(one[1]))):
            # modules, then schedules, which set the optimizers' learning rates, then optimizers
            with self._as_objective_error(name):
                if is_optimizer(item):
                    self._restore_optimizer(name, item, names[name])
                elif _is_schedule(item) and not self._unchanged:
                    _advance(item, self._states[name])
                else:
                    self._restore(name, item)
        more = len(lines) - UNRESTORED_LINES
        return tuple(lines) if more <= 0 else (*lines[: UNRESTORED_LINES - 1], f"and {more + 1} more")

    def _restore(self, name: str, item: Any) -> None:
        parent = self._states[name]
        if not hasattr(item, "state_dict"):
            try:
                put_state(item, parent)
            except Exception as error:  # a generator of another kind, which begins a stream of its own
                self._unrestored.append(f"{name}: {error}")
            return
        with self._as_objective_error(name):
            fitted = self._tensors(name, item.state_dict(), parent) if is_module(item) else None
            item.load_state_dict(self._fitted(name, state_of(item), parent) if fitted is None else fitted)

    def _restore_optimizer(self, name: str, item: Any, names: Names) -> None:
        described, parent, kind = self._optimizers.get(name), self._states[name], type(item).__qualname__
        state = item.state_dict()
        if described is not None and described["kind"] != kind:
            self._unrestored.append(f"{name}: state of {described['kind']} in the checkpoint, {kind} here")
        elif described is not None:
            groups, before = state["param_groups"], parent["param_groups"]
            known = dict(
                zip(
                    [(path, tuple(shape)) for path, shape in described["parameters"]],
                    [(index, group) for group in before for index in group["params"]],
                    strict=True,
                )
            )
            own = [(index, group) for group in groups for index in group["params"]]
            found = {}
            for key, (index, group) in zip(names, own, strict=True):
                if key in known and not any(group.get(one) and not known[key][1].get(one) for one in _SWITCHES):
                    found[index] = parent["state"].get(known[key][0])
            if len(found) < len(names):
                self._unrestored.append(f"{name}: state of {len(names) - len(found)} of {len(names)} parameters")
            state["state"] = {index: moments for index, moments in found.items() if moments is not None}
            if self._unchanged and [len(one["params"]) for one in groups] == [len(one["params"]) for one in before]:
                state["param_groups"] = before
        item.load_state_dict(state)

    def _tensors(self, path: str, child: dict[str, Any], parent: dict[str, Any]) -> dict[str, Any]:
        # A module's state: the parent's tensors where name and shape match, the child's elsewhere.
        fitted = copy.copy(child)
        for key, item in child.items():
            if key not in parent:
                self._unrestored.append(f"{path}.{key}: not in the checkpoint")
            elif is_torch(item, "nn.parameter.UninitializedTensorMixin") or shape_of(item) == shape_of(parent[key]):
                fitted[key] = parent[key]
            else:
                self._note_shapes(f"{path}.{key}", parent[key], item)
        self._unrestored += [f"{path}.{key}: not part of the object here" for key in parent if key not in child]
        return fitted

    def _fitted(self, path: str, child: Any, parent: Any) -> Any:
        # Any other state: the parent's, without arrays of another shape and what only the child has.
        if isinstance(child, dict) and isinstance(parent, dict):
            fitted = copy.copy(parent)
            for key, item in child.items():
                if key not in parent:
                    self._unrestored.append(f"{path}.{key}: not in the checkpoint")
                own = key not in parent or (key in self._names and _is_scalar(item))
                fitted[key] = item if own else self._fitted(f"{path}.{key}", item, parent[key])
            return fitted
        if shape_of(child) is not None and shape_of(child) != shape_of(parent):
            self._note_shapes(path, parent, child)
            return child
        return parent

    def _note_shapes(self, path: str, parent: Any, child: Any) -> None:
        there, here = (str(shape_of(value) or type(value).__name__) for value in (parent, child))
        self._unrestored.append(f"{path}: {there} in the checkpoint, {here} here")

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
