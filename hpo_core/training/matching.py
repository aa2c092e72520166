"""Matching: fits the state of a parent trial into the objects of its child, by name and shape.

A state holds three kinds of values, which a start from another trial's checkpoint treats differently:

- *state* (weights, moments, counters): the parent's, where name and shape match;
- *hyperparameters* (what an optimizer or a schedule was built with): the child's own;
- *changes that training made to a hyperparameter*: continued, so the parent's value where both were built alike.

The last two can only be distinguished by the values before the first step: :func:`scalars_of`.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, Final

import numpy as np

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
    """Whether it is a plain value or a tensor without dimensions (some optimizers hold their learning rate so)."""
    return value is None or isinstance(value, bool | int | float | str) or shape_of(value) == ()


def plain(value: Any) -> Any:
    """A scalar as a Python value."""
    return value.item() if shape_of(value) == () else value


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Shape of a tensor or array; None for anything else."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
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


class Matching:
    """Fits states of the parent into the child's objects; ``unrestored`` lists what did not fit.

    Args:
        names: the study's parameters; a scalar of such a name may be a hyperparameter anywhere in a state.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.unrestored: list[str] = []
        self._names = names

    def tensors(self, path: str, child: dict[str, Any], parent: dict[str, Any]) -> dict[str, Any]:
        """A module's state: the parent's tensors where name and shape match, the child's elsewhere."""
        fitted = copy.copy(child)
        for key, item in child.items():
            if key not in parent:
                self.unrestored.append(f"{path}.{key}: not in the checkpoint")
            elif _is_lazy(item) or shape_of(item) == shape_of(parent[key]):
                fitted[key] = parent[key]
            else:
                self._note_shapes(f"{path}.{key}", parent[key], item)
        self.unrestored += [f"{path}.{key}: not part of the object here" for key in parent if key not in child]
        return fitted

    def fit(self, path: str, child: Any, parent: Any, *, initial: Any = ABSENT, hyper: bool = False) -> Any:
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
                fitted = [self.fit(f"{path}.{i}", a, b, initial=c, hyper=hyper) for i, (a, b, c) in rows]
                return type(parent)(fitted) if type(parent) in (list, tuple) else parent
            if any(shape_of(item) is not None for item in child):
                self.unrestored.append(f"{path}: {len(parent)} parts in the checkpoint, {len(child)} here")
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
                fitted[key] = self.fit(f"{path}.{key}", child[key], item, initial=known.get(key, ABSENT), hyper=inside)
            elif key in known:  # the parent was built with it, the child was not
                del fitted[key]
                self.unrestored.append(f"{path}.{key}: not part of the object here")
        for key in child:
            if key not in parent:
                fitted[key] = child[key]
                self.unrestored.append(f"{path}.{key}: not in the checkpoint")
        return fitted

    def _note_shapes(self, path: str, parent: Any, child: Any) -> None:
        self.unrestored.append(f"{path}: {_described(parent)} in the checkpoint, {_described(child)} here")


def _described(value: Any) -> str:
    shape = shape_of(value)
    return type(value).__name__ if shape is None else str(shape)


def _is_lazy(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.parameter.is_lazy(value)
