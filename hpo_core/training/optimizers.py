"""Optimizers and learning rate schedules of a trial that starts from another one's checkpoint.

Moments come from the parent, parameter by parameter where name and shape match; settings are the child's. A
schedule is the child's own, brought to the step where the parent's stands, so that from there on every learning
rate is what the child's parameters say: not the parent's, which ``load_state_dict`` alone would leave in place.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.matching import Matching, carried, is_scalar, plain

Names = list[tuple[str, tuple[int, ...]]]


def is_module(item: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.nn.Module)


def is_optimizer(item: Any) -> bool:
    """torch's, or one that keeps its settings like torch's."""
    return not is_module(item) and isinstance(getattr(item, "param_groups", None), list)


def is_schedule(item: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.optim.lr_scheduler.LRScheduler)


def parameter_names(tracked: Mapping[str, Any]) -> dict[str, Names]:
    """For each tracked optimizer: name and shape of its parameters, in order.

    Names come from the tracked modules; a parameter of none of them goes by its place.
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


def describe_optimizers(tracked: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its optimizers besides their state, as a tree."""
    return {
        name: {"kind": type(tracked[name]).__qualname__, "parameters": names}
        for name, names in parameter_names(tracked).items()
    }


def advance(schedule: Any, there: dict[str, Any]) -> None:
    """Bring a schedule as built to the step where ``there`` (another one's state) stands; sets learning rates.

    Raises:
        ObjectiveError: the schedule ends before that step.
    """
    torch = sys.modules["torch"]
    position = _position(there)
    steps = position - _position(schedule.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "step() before optimizer.step()": those steps were the parent's
            if isinstance(schedule, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts):
                schedule.step(position + there["T_cur"] % 1)  # it may have been stepped by fractions
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


def is_counted(schedule: Any) -> bool:
    """Whether steps alone drive it; ReduceLROnPlateau looks at a metric."""
    return not isinstance(schedule, sys.modules["torch"].optim.lr_scheduler.ReduceLROnPlateau)


def fit_groups(
    item: Any,
    there: list[dict[str, Any]],
    built: list[dict[str, Any]] | None,
    schedules: Mapping[str, Any],
    states: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The settings (``param_groups``) with which the child's optimizer goes on; advances its schedules.

    Args:
        there: the parent's groups now.
        built: the parent's groups before its first step; None where the two trials have the same parameters.
        schedules: tracked schedules of this optimizer that steps alone drive; ``states`` holds the parent's.
    """
    own = item.state_dict()["param_groups"]
    own = [{key: copied(value) for key, value in group.items()} for group in own]
    for name, schedule in schedules.items():
        advance(schedule, states[name])
    groups = []
    for i, (group, moved) in enumerate(zip(own, item.state_dict()["param_groups"], strict=True)):
        now = there[i] if i < len(there) else {}
        start = built[i] if built is not None and i < len(built) else now
        fitted = dict(group)
        for key in group:
            if key in ("params", "param_names"):
                continue
            if built is None:
                fitted[key] = now.get(key, group[key])
            elif schedules and (key == "lr" or not _same(group[key], moved[key])):
                fitted[key] = now[key] if key in now and _same(moved[key], now[key], 1e-9) else moved[key]
            elif key in now:
                fitted[key] = carried(group[key], start.get(key, now[key]), now[key], factor=key == "lr")
        groups.append(fitted)
    return groups


def fit_moments(
    name: str,
    item: Any,
    names: Names,
    groups: list[dict[str, Any]],
    there: dict[str, Any],
    described: Any,
    found: Matching,
) -> dict[int, Any]:
    """What the optimizer keeps per parameter (momentum, second moments), for parameters that the parent had too."""
    if described["kind"] != type(item).__qualname__:
        found.left.append(f"{name}: state of {described['kind']} in the checkpoint, {type(item).__qualname__} here")
        return {}
    places = [index for group in there["param_groups"] for index in group["params"]]
    known = {(path, tuple(shape)): places[i] for i, (path, shape) in enumerate(described["parameters"])}
    state: dict[int, Any] = {}
    remaining = iter(names)
    absent = 0
    for i, group in enumerate(groups):
        needed = _needed(item, group, there["param_groups"][i]) if i < len(there["param_groups"]) else set()
        for index, key in zip(group["params"], remaining, strict=False):
            moments = there["state"].get(known.get(key))
            if key not in known or (moments is not None and not needed <= set(moments)):
                absent += 1
            elif moments is not None:
                state[index] = moments
    if absent:
        found.left.append(f"{name}: state of {absent} of {len(names)} parameters")
    return state


def _needed(item: Any, group: dict[str, Any], there: dict[str, Any]) -> set[Any]:
    """Keys that each parameter's state must have. Asked where a setting was switched on (amsgrad, momentum), for
    then the parent's state may lack what the first step would have made; found by one step on a stand-in."""
    if not any(is_scalar(v) and plain(v) and key in there and not plain(there[key]) for key, v in group.items()):
        return set()
    torch = sys.modules["torch"]
    stand_in = torch.nn.Parameter(torch.zeros(1))
    stand_in.grad = torch.zeros(1)
    try:
        probe = type(item)([{**{k: v for k, v in group.items() if k != "param_names"}, "params": [stand_in]}])
        probe.step()
        return set(probe.state[stand_in])
    except Exception:  # one that needs more than this to make a step is trusted with what it gets
        return set()


def copied(value: Any) -> Any:
    """A setting that does not change with the group's: learning rates may be tensors, changed in place."""
    return value.clone() if hasattr(value, "clone") else value


def _same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(
            _same(a, b, tolerance) for a, b in zip(one, other, strict=True)
        )  # fmt: skip
    one, other = plain(one), plain(other)
    if type(one) is float and type(other) is float:
        return math.isclose(one, other, rel_tol=tolerance)
    return bool(one == other)
