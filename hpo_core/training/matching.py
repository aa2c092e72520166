"""Which parts of one state fit another: by name and shape, and which of them are hyperparameters.

Three kinds of things lie in a state, and a start from another trial's checkpoint needs them told apart:

- *state* (weights, moments, counters): the other trial's, where name and shape match;
- *hyperparameters* (what an optimizer or a schedule was built with): one's own;
- *what training did to a hyperparameter*: goes on, so it is the other's where both were built alike.

The last two can only be told apart by how everything looked before the first step: :func:`skeleton`.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, Final

import numpy as np

_DATA: Final = 1000
"""Dicts of more keys are data, not structure; a skeleton leaves them out, and lists likewise."""
UNKNOWN: Final = object()
"""In place of a skeleton's part that is not there."""


def skeleton(value: Any) -> Any:
    """The dicts of a state with their scalars; lists only where they hold dicts or floats; None for all else."""
    if isinstance(value, dict):
        return {key: skeleton(item) for key, item in value.items()} if len(value) <= _DATA else None
    if isinstance(value, list | tuple) and len(value) <= _DATA and any(isinstance(v, dict | float) for v in value):
        return [skeleton(item) for item in value]
    return plain(value) if is_scalar(value) else None


def is_scalar(value: Any) -> bool:
    """A plain value, or a tensor without dimensions (some optimizers keep their learning rate in one)."""
    return value is None or isinstance(value, bool | int | float | str) or shape_of(value) == ()


def plain(value: Any) -> Any:
    """A scalar as Python's own."""
    return value.item() if shape_of(value) == () else value


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Shape of a tensor or an array; None for all else."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return tuple(value.shape)
    return None


def carried(own: Any, built: Any, now: Any, *, factor: bool = False) -> Any:
    """A hyperparameter of the child, after what training did to the parent's.

    The parent's present value where both were built alike, the child's where training left the parent's as it was
    built. Where both differ, the child's, times the parent's change if ``factor`` says so.

    >>> carried(0.3, 0.1, 0.1), carried(0.1, 0.1, 0.01), carried(0.5, 0.25, 0.125, factor=True)
    (0.3, 0.01, 0.25)
    """
    if isinstance(own, list | tuple):
        if all(isinstance(other, list | tuple) and len(other) == len(own) for other in (built, now)):
            return type(own)([carried(*parts, factor=factor) for parts in zip(own, built, now, strict=True)])
        return own
    if not all(is_scalar(value) for value in (own, built, now)):
        return own
    mine, start, there = plain(own), plain(built), plain(now)
    if mine == start:
        wanted = there
    elif there == start or not factor or not all(type(v) in (int, float) for v in (mine, start, there)) or not start:
        wanted = mine
    else:
        wanted = mine * (there / start)
    return own.clone().fill_(wanted) if shape_of(own) == () and hasattr(own, "fill_") else wanted


class Matching:
    """Fits states of the parent into the child's objects, and notes in ``left`` what could not be restored.

    Args:
        names: the study's parameters; a scalar of that name may be a hyperparameter wherever it lies.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.left: list[str] = []
        self._names = names

    def tensors(self, path: str, own: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
        """A module's state: the parent's tensor where name and shape match, else as it was built."""
        fitted = copy.copy(own)
        for key, item in own.items():
            if key not in there:
                self.left.append(f"{path}.{key}: not in the checkpoint")
            elif _is_lazy(item) or shape_of(item) == shape_of(there[key]):
                fitted[key] = there[key]
            else:
                self._differs(f"{path}.{key}", there[key], item)
        self.left += [f"{path}.{key}: not part of the object here" for key in there if key not in own]
        return fitted

    def fit(self, path: str, own: Any, there: Any, built: Any = UNKNOWN, hyper: bool = False) -> Any:
        """Any other state: the parent's, but arrays of another shape and keys that only one of the two has.

        Args:
            built: skeleton of the parent's state before its first step.
            hyper: whether scalars that training left as they were built are hyperparameters, so one's own.
        """
        if isinstance(own, dict) and isinstance(there, dict):
            return self._fit_dict(path, own, there, built, hyper)
        if isinstance(own, list | tuple) and isinstance(there, list | tuple):
            if len(own) == len(there):
                began = built if isinstance(built, list) and len(built) == len(own) else [UNKNOWN] * len(own)
                rows = enumerate(zip(own, there, began, strict=True))
                fitted = [self.fit(f"{path}.{i}", a, b, c, hyper) for i, (a, b, c) in rows]
                return type(there)(fitted) if type(there) in (list, tuple) else there
            if any(shape_of(item) is not None for item in own):
                self.left.append(f"{path}: {len(there)} parts in the checkpoint, {len(own)} here")
                return own
            return there
        if hyper and built is not UNKNOWN and is_scalar(own) and is_scalar(there):
            return own if plain(there) == built else there
        if shape_of(own) is not None and shape_of(own) != shape_of(there):
            self._differs(path, there, own)
            return own
        return there

    def _fit_dict(self, path: str, own: dict[Any, Any], there: dict[Any, Any], built: Any, hyper: bool) -> Any:
        fitted = copy.copy(there)
        began = built if isinstance(built, dict) else {}
        for key, item in there.items():
            if key in own:
                inside = hyper or key == "param_groups" or (key in self._names and is_scalar(own[key]))
                fitted[key] = self.fit(f"{path}.{key}", own[key], item, began.get(key, UNKNOWN), inside)
            elif key in began:  # it was part of how the parent was built, so not of how this one is
                del fitted[key]
                self.left.append(f"{path}.{key}: not part of the object here")
        for key in own:
            if key not in there:
                fitted[key] = own[key]
                self.left.append(f"{path}.{key}: not in the checkpoint")
        return fitted

    def _differs(self, path: str, there: Any, own: Any) -> None:
        self.left.append(f"{path}: {_described(there)} in the checkpoint, {_described(own)} here")


def _described(value: Any) -> str:
    shape = shape_of(value)
    return type(value).__name__ if shape is None else str(shape)


def _is_lazy(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.parameter.is_lazy(value)
