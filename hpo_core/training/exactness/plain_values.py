"""State: plain values of a training function that are saved with its trial."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import some

_DEPTH = 20


class State:
    """Plain values that a training loop carries from step to step.

    ::

        state = hpo_core.State(best=1e9, patience=0)
        trial.track(model=model, state=state)
        for epoch in trial.steps():
            loss = train_one_epoch(model)
            state.patience = 0 if loss < state.best else state.patience + 1
            state.best = min(state.best, loss)

    A value is None, a bool, int, float or str, or a list, tuple or dict (with texts as keys) of such. Values go into
    the checkpoint as they are: nothing is executed when they are loaded.

    Raises:
        ObjectiveError: another value, or a name that begins with an underscore.
    """

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("state_dict", "load_state_dict"):
            raise ObjectiveError(f"State(...) has no room for the name {name!r}; use one without a leading underscore.")
        vars(self)[name] = plain_value(value, f"State.{name}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"This State has no value {name!r}; it has {some(vars(self)) or 'none'}.")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, State) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def state_dict(self) -> dict[str, Any]:
        """A copy of the values.

        Raises:
            ObjectiveError: a list or dict got a value that is not plain meanwhile.
        """
        return {name: plain_value(value, f"State.{name}") for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over these values; others that this State has stay."""
        for name, value in state.items():
            setattr(self, name, value)


def plain_value(value: Any, place: str, depth: int = 0) -> Any:
    """A copy of a plain value; numpy's numbers become Python's.

    Raises:
        ObjectiveError: something in it is not plain.
    """
    if value is None or type(value) in (bool, int, str, float):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return value.item()
    if depth < _DEPTH and type(value) in (list, tuple):
        return type(value)(plain_value(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value))
    if depth < _DEPTH and type(value) is dict and all(type(key) is str for key in value):
        return {key: plain_value(item, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    cure = "track the object itself if it has state_dict(), or turn it into one of these"
    if hasattr(value, "item"):
        cure = "use its number: value.item()"
    elif depth >= _DEPTH:
        kind, cure = f"{kind} below {_DEPTH} others", "use fewer levels"
    elif type(value) is dict:
        kind, cure = "dict whose keys are not all texts", "use texts as keys"
    raise ObjectiveError(
        f"{place} got a {kind}; a State holds None, bool, int, float, str, and lists, tuples and dicts of them: {cure}."
    )
