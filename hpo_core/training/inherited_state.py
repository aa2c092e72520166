"""InheritedState: starts a trial from its parent's checkpoint (population based training).

A state holds three kinds of values, which a start from another trial's checkpoint treats differently:

- *state* (weights, moments, counters): the parent's, where name and shape match;
- *hyperparameters* (what an optimizer or a schedule was built with): the child's own;
- *changes that training made to a hyperparameter*: continued, so the parent's value where both were built alike.

The last two can only be distinguished by the values before the first step: :func:`scalars_of`. If both trials have the
same parameters, everything that fits is the parent's, to the bit.

An optimizer's moments come from the parent, parameter by parameter; its settings are the child's. A schedule is the
child's own, advanced to the step of the parent's, so that from there on every learning rate follows from the child's
parameters. ``load_state_dict`` alone would leave the parent's learning rates in place. Random streams continue where
the parent's stopped, so a trial and its ancestors are one training with changing parameters. Source: Jaderberg et al.
2017, Population Based Training.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import UNRESTORED_LINES, Params
from hpo_core.training.saved_state import is_module, is_torch, put_state, state_of

Names = list[tuple[str, tuple[int, ...]]]
_MAX_STRUCTURE: Final = 1000
"""Dicts and lists with more items are data, not structure; :func:`scalars_of` leaves them out."""
ABSENT: Final = object()
"""Stands for an initial value that is not known."""


def scalars_of(value: Any) -> Any:
    """A copy of a state with its dicts and scalars alone.

    Lists stay only where they hold dicts or floats; None replaces all else.
    """
    if isinstance(value, dict):
        return {key: scalars_of(item) for key, item in value.items()} if len(value) <= _MAX_STRUCTURE else None
    if (
        isinstance(value, list | tuple)
        and len(value) <= _MAX_STRUCTURE
        and any(isinstance(v, dict | float) for v in value)
    ):
        return [scalars_of(item) for item in value]
    return plain(value) if is_scalar(value) else None


def is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str) or shape_of(value) == ()


def plain(value: Any) -> Any:
    return value.item() if shape_of(value) == () else value


def shape_of(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, np.ndarray) or is_torch(value, "Tensor"):
        return tuple(value.shape)
    return None


def carry_change(child: Any, initial: Any, now: Any, *, factor: bool = False) -> Any:
    """The child's hyperparameter after the change that training made to the parent's.

    The parent's present value, if both were built alike; the child's, if training left the parent's unchanged. If
    both differ, the child's, times the parent's change where ``factor`` is set.

    Args:
        child: as the child's code built it.
        initial: the parent's value before its first step.
        now: the parent's value in the checkpoint.
        factor: whether the change is a factor, as for learning rates.

    >>> carry_change(0.3, 0.1, 0.1), carry_change(0.1, 0.1, 0.01), carry_change(0.5, 0.25, 0.125, factor=True)
    (0.3, 0.01, 0.25)
    """
    if isinstance(child, list | tuple):
        if all(isinstance(other, list | tuple) and len(other) == len(child) for other in (initial, now)):
            return type(child)([carry_change(*parts, factor=factor) for parts in zip(child, initial, now, strict=True)])
        return child
    if not all(is_scalar(value) for value in (child, initial, now)):
        return child
    own, before, after = plain(child), plain(initial), plain(now)
    if own == before:
        value = after
    elif after == before or not factor or not all(type(v) in (int, float) for v in (own, before, after)) or not before:
        value = own
    else:
        value = own * (after / before)
    return child.clone().fill_(value) if shape_of(child) == () and hasattr(child, "fill_") else value


def _described(value: Any) -> str:
    shape = shape_of(value)
    return type(value).__name__ if shape is None else str(shape)


def is_optimizer(item: Any) -> bool:
    return not is_module(item) and isinstance(getattr(item, "param_groups", None), list)


def is_schedule(item: Any) -> bool:
    return is_torch(item, "optim.lr_scheduler.LRScheduler")


def parameter_names(tracked: Mapping[str, Any]) -> dict[str, Names]:
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


def advance_schedule(schedule: Any, parent: dict[str, Any]) -> None:
    """Advance a newly built schedule to the step of ``parent`` (another schedule's state); sets learning rates.

    Raises:
        ObjectiveError: the schedule ends before that step.
    """
    position = _position(parent)
    steps = position - _position(schedule.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "step() before optimizer.step()": those steps were the parent's
            if is_torch(schedule, "optim.lr_scheduler.CosineAnnealingWarmRestarts"):
                schedule.step(position + parent["T_cur"] % 1)  # it may have been stepped by fractions
            else:
                for _ in range(steps):
                    schedule.step()
    except ValueError as error:
        raise ObjectiveError(
            f"{type(schedule).__qualname__} cannot be brought to step {position}, where the parent's stands ({error}). "
            "Build it for as many steps as a trial of the last generation will have behind it."
        ) from error


def _position(state: dict[str, Any]) -> int:
    return int(state["last_epoch"] if "last_epoch" in state else _position(state["_schedulers"][0]))


def is_step_based(schedule: Any) -> bool:
    return not is_torch(schedule, "optim.lr_scheduler.ReduceLROnPlateau")


def _required_keys(item: Any, group: dict[str, Any], parent: dict[str, Any]) -> set[Any]:
    """Keys that each parameter's state must have.

    Needed where the child switched a setting on (amsgrad, momentum): the parent's state may then lack what the first
    step creates. Found by one step of a new optimizer on a dummy parameter.
    """
    if not any(is_scalar(v) and plain(v) and key in parent and not plain(parent[key]) for key, v in group.items()):
        return set()
    torch = sys.modules["torch"]
    dummy = torch.nn.Parameter(torch.zeros(1))
    dummy.grad = torch.zeros(1)
    try:
        probe = type(item)([{**{k: v for k, v in group.items() if k != "param_names"}, "params": [dummy]}])
        probe.step()
        return set(probe.state[dummy])
    except Exception:  # one that needs more than this to make a step is trusted with what it gets
        return set()


def clone_value(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True))
        )
    one, other = plain(one), plain(other)
    if type(one) is float and type(other) is float:
        return math.isclose(one, other, rel_tol=tolerance)
    return bool(one == other)


def describe(tracked: Mapping[str, Any], built: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """The part of a checkpoint that is for child trials that start from it, as a tree.

    Args:
        tracked: the trial's tracked objects.
        built: their states before the first step, as :func:`initial_state` gives them.
        params: the trial's parameters.
    """
    optimizers = {
        name: {"kind": type(tracked[name]).__qualname__, "parameters": names}
        for name, names in parameter_names(tracked).items()
    }
    return {"params": params, "built": dict(built), "optimizers": optimizers}


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
        """The study's parameters; a scalar of such a name may be a hyperparameter anywhere in a state."""
        self._unrestored: list[str] = []
        """What did not fit, and why."""

    def restore_early(self, name: str, item: Any) -> None:
        """Restore a module or generator as soon as it is tracked: other objects may be built on it."""
        if name in self._states and not is_restored_late(item):
            self._restore(name, item)

    def restore(self, tracked: Mapping[str, Any]) -> tuple[str, ...]:
        """Restore all tracked objects; return what was left as built, and why: at most ``UNRESTORED_LINES``.

        Raises:
            ObjectiveError: an object's ``load_state_dict()`` raised on the state that was matched for it.
        """
        lines = self._unrestored = [f"{name}: not in the checkpoint" for name in tracked if name not in self._states]
        lines += [f"{name}: not tracked here" for name in self._states if name not in tracked]
        known = {name: item for name, item in tracked.items() if name in self._states}
        for name, item in known.items():
            if not is_restored_late(item):
                self._restore(name, item)
        names = parameter_names(tracked)
        schedules = {name: item for name, item in known.items() if is_schedule(item)}
        for name, item in known.items():
            if is_optimizer(item):
                own = {key: schedules.pop(key) for key, s in list(schedules.items()) if s.optimizer is item}
                with self._as_objective_error(name):
                    self._restore_optimizer(name, item, names[name], own)
        for name, item in schedules.items():  # their optimizer is not tracked
            with self._as_objective_error(name):
                if is_step_based(item) and not self._unchanged:
                    advance_schedule(item, self._states[name])
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
            if is_module(item):
                fitted = self._tensors(name, item.state_dict(), parent)
            else:
                initial = ABSENT if self._unchanged else self._initial.get(name, ABSENT)
                hyper = is_optimizer(getattr(item, "optimizer", None))
                fitted = self._fit(name, state_of(item), parent, initial=initial, hyper=hyper)
            item.load_state_dict(fitted)

    def _restore_optimizer(self, name: str, item: Any, names: Names, schedules: Mapping[str, Any]) -> None:
        # Settings (`param_groups`) are the child's, moments the parent's; the optimizer's schedules are advanced.
        step_based = {key: s for key, s in schedules.items() if is_step_based(s) and not self._unchanged}
        groups = [{k: clone_value(v) for k, v in group.items()} for group in item.state_dict()["param_groups"]]
        for key, schedule in step_based.items():
            advance_schedule(schedule, self._states[key])
        parent = self._states[name]["param_groups"]
        built = (self._initial.get(name) or {}).get("param_groups") or []
        for i, (group, moved) in enumerate(zip(groups, item.state_dict()["param_groups"], strict=True)):
            now = parent[i] if i < len(parent) else {}
            before = built[i] if i < len(built) else now
            for key in group.keys() - {"params", "param_names"}:
                if self._unchanged:
                    group[key] = now.get(key, group[key])
                elif step_based and (key == "lr" or not _same(group[key], moved[key])):
                    group[key] = now[key] if key in now and _same(moved[key], now[key], 1e-9) else moved[key]
                elif key in now:
                    group[key] = carry_change(group[key], before.get(key, now[key]), now[key], factor=key == "lr")
        state = self._moments(name, item, names, groups)
        item.load_state_dict({**item.state_dict(), "state": state, "param_groups": groups})
        for key, schedule in schedules.items():
            if key in step_based:
                schedule._last_lr = [clone_value(group["lr"]) for group in item.param_groups]
            else:
                self._restore(key, schedule)

    def _moments(self, name: str, item: Any, names: Names, groups: list[dict[str, Any]]) -> dict[int, Any]:
        """State per parameter (momentum, second moments), for parameters that the parent had too.

        Args:
            names: name and shape of the optimizer's parameters, in order.
            groups: its settings.
        """
        described, parent = self._optimizers.get(name), self._states[name]
        if not described:
            return {}
        if described["kind"] != type(item).__qualname__:
            kind = type(item).__qualname__
            self._unrestored.append(f"{name}: state of {described['kind']} in the checkpoint, {kind} here")
            return {}
        places = [index for group in parent["param_groups"] for index in group["params"]]
        known = {(path, tuple(shape)): places[i] for i, (path, shape) in enumerate(described["parameters"])}
        state: dict[int, Any] = {}
        remaining = iter(names)
        absent = 0
        for group, before in itertools.zip_longest(groups, parent["param_groups"][: len(groups)]):
            required = set() if before is None else _required_keys(item, group, before)
            for index, key in zip(group["params"], remaining, strict=False):
                moments = parent["state"].get(known.get(key))
                if key not in known or (moments is not None and not required <= set(moments)):
                    absent += 1
                elif moments is not None:
                    state[index] = moments
        if absent:
            self._unrestored.append(f"{name}: state of {absent} of {len(names)} parameters")
        return state

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

    def _fit(self, path: str, child: Any, parent: Any, *, initial: Any = ABSENT, hyper: bool = False) -> Any:
        """Any other state: the parent's, except arrays of another shape and keys that only one of the two has.

        Args:
            path: name of this part of the state, for ``unrestored``.
            initial: the parent's state before its first step, as :func:`scalars_of` gives it.
            hyper: whether scalars that training left unchanged are hyperparameters, so the child's own.
        """
        if isinstance(child, dict) and isinstance(parent, dict):
            return self._fit_dict(path, child, parent, initial=initial, hyper=hyper)
        if isinstance(child, list | tuple) and isinstance(parent, list | tuple):
            if len(child) == len(parent):
                known = initial if isinstance(initial, list) and len(initial) == len(child) else [ABSENT] * len(child)
                rows = enumerate(zip(child, parent, known, strict=True))
                fitted = [self._fit(f"{path}.{i}", a, b, initial=c, hyper=hyper) for i, (a, b, c) in rows]
                return type(parent)(fitted) if type(parent) in (list, tuple) else parent
            if any(shape_of(item) is not None for item in child):
                self._unrestored.append(f"{path}: {len(parent)} parts in the checkpoint, {len(child)} here")
                return child
            return parent
        if hyper and initial is not ABSENT and is_scalar(child) and is_scalar(parent):
            return child if plain(parent) == initial else parent
        if shape_of(child) is not None and shape_of(child) != shape_of(parent):
            self._note_shapes(path, parent, child)
            return child
        return parent

    def _fit_dict(self, path: str, child: dict[Any, Any], parent: dict[Any, Any], *, initial: Any, hyper: bool) -> Any:
        fitted = copy.copy(parent)
        known = initial if isinstance(initial, dict) else {}
        for key, item in parent.items():
            if key in child:
                inside = hyper or key == "param_groups" or (key in self._names and is_scalar(child[key]))
                fitted[key] = self._fit(f"{path}.{key}", child[key], item, initial=known.get(key, ABSENT), hyper=inside)
            elif key in known:  # the parent was built with it, the child was not
                del fitted[key]
                self._unrestored.append(f"{path}.{key}: not part of the object here")
        for key in child:
            if key not in parent:
                fitted[key] = child[key]
                self._unrestored.append(f"{path}.{key}: not in the checkpoint")
        return fitted

    def _note_shapes(self, path: str, parent: Any, child: Any) -> None:
        self._unrestored.append(f"{path}: {_described(parent)} in the checkpoint, {_described(child)} here")

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
