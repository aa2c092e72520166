"""LoopWatch: warns of modules, optimizers and random generators that a training loop changes and nobody tracks.

``hpo check`` proves that a resume is exact; this is a hint while a study runs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Hashable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.saved_state import is_generator, is_module, is_torch, plain_value, state_of


class LoopWatch:
    """Looks at the local variables of a training function, and at attributes of its ``self``.

    Args:
        frame: of the training function, when its loop begins.
        tracked: the tracked objects, by name.
    """

    def __init__(self, frame: FrameType, tracked: Mapping[str, Any]) -> None:
        modules = [part for item in tracked.values() if is_module(item) for part in item.modules()]
        tensors = [tensor for item in tracked.values() if is_module(item) for tensor in _tensors(item)]
        self._saved = {*map(id, tracked.values()), *map(id, modules), *map(id, tensors)} | _global_generators()
        self._frame: FrameType | None = frame
        self._before = {name: (value, _fingerprint(value)) for name, value in self._untracked()}

    def warnings(self) -> tuple[str, ...]:
        """One line for each variable that changed since the loop began; call it once, at the loop's end."""
        found = {
            id(value): f"{name} ({type(value).__module__.partition('.')[0]} {type(value).__qualname__}) changes in the "
            f"loop and is not tracked: trial.track({name.rpartition('.')[2]}={name})."
            for name, value in self._untracked()
            if name in self._before and self._before[name][0] is value and self._before[name][1] != _fingerprint(value)
        }
        self.close()
        return tuple(found.values())

    def close(self) -> None:
        self._frame, self._before = None, {}

    def _untracked(self) -> Iterator[tuple[str, Any]]:
        found = {} if self._frame is None else dict(self._frame.f_locals)
        owner = found.get("self")
        found |= {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
        for name, value in found.items():
            if is_module(value):
                if not all(id(tensor) in self._saved for tensor in _tensors(value)):
                    yield name, value
            elif id(value) not in self._saved and (is_generator(value) or is_torch(value, "optim.Optimizer")):
                yield name, value


def _fingerprint(value: Any) -> Hashable:
    if is_generator(value):
        state = state_of(value)
        return state.numpy().tobytes() if is_torch(state, "Tensor") else repr(state)
    return tuple(tensor._version for tensor in _tensors(value))


def _tensors(value: Any) -> list[Any]:
    if is_module(value):
        return [*value.parameters(), *value.buffers()]
    return [tensor for group in value.param_groups for tensor in group["params"]]


def _global_generators() -> set[int]:
    torch = sys.modules.get("torch")
    found = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
    return found if torch is None else found | {id(torch.default_generator)}


def untrackable(name: str, item: Any) -> str:
    start = f"trial.track({name}=...) got a {type(item).__module__}.{type(item).__qualname__}".replace(
        " builtins.", " "
    )
    try:
        plain_value(item, name)
    except ObjectiveError:
        return (
            f"{start}, which has no state_dict() and load_state_dict(). Track objects that have both, or a random "
            "generator of python, numpy or torch (of a DataLoader its own one, if any); plain values go into "
            "hpo_core.State(...). Make an iterator anew in each step."
        )
    return (
        f"{start}, which cannot be loaded in place. Keep plain values in a State: state = "
        f"hpo_core.State({name}=...); trial.track(state=state); then use state.{name}."
    )
