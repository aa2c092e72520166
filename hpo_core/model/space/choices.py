"""Parameters whose values stand in a list."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.settings import plain
from hpo_core.model.short_text import at_most, some
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.value_tests import Scalar, Test, Value, said, scalar_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class ListedParameter(ParameterType):
    """One of several values; a subclass says which."""

    @abstractmethod
    def listed(self) -> Sequence[Value]:
        """All values, in the order in which people see them."""

    def draw(self, stream: Stream) -> Value:
        return stream.choice(self.listed())

    def contains(self, value: Any) -> bool:
        try:
            return scalar_key(value) in self._places
        except TypeError:  # a dictionary
            return False

    @cached_property
    def _places(self) -> dict[tuple[bool, Any], int]:
        return {scalar_key(value): place for place, value in enumerate(self.listed())}

    def may_pass(self, test: Test) -> bool:
        return any(map(test.holds, self.listed()))

    def taken(self, value: Any) -> Any:
        if self.contains(value):
            return self.from_scale(self.on_scale(value))
        raise ValueError(f"is none of its choices {some(map(said, self.listed()))}; give one of them")

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._optuna_choices)

    def seen(self, value: Any) -> Scalar:
        return self._optuna_choices[self.on_scale(value)]

    def scale(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.listed())))

    def on_scale(self, value: Any) -> int:
        return self._places[scalar_key(value)]

    def from_scale(self, value: Any) -> Value:
        return self.listed()[int(value)]

    @cached_property
    def _optuna_choices(self) -> list[Scalar]:
        # Choices as a copy in Optuna has them: it compares by ==, which takes False for 0; then all are JSON.
        found = [json.dumps(value) if isinstance(value, list) else value for value in self.listed()]
        return found if len(set(found)) == len(found) else list(map(json.dumps, self.listed()))

    def changed(self, value: Any, stream: Stream, factors: Sequence[float]) -> Value:
        return self.draw(stream)

    def neighbour(self, value: Any, stream: Stream) -> Value:
        choices, at = self.listed(), self.on_scale(value)
        near = [i for i in (at - 1, at + 1) if 0 <= i < len(choices)]
        return choices[stream.choice(near)] if near else value

    def share(self, value: Any) -> float | None:
        return None

    def at_share(self, share: float) -> Value:
        return self.listed()[min(int(share * len(self.listed())), len(self.listed()) - 1)]

    def grid_size(self, points: int | list[Any] | None) -> float:
        if points is not None:
            return len(points) if isinstance(points, list) else points
        return len(self.listed())

    def _grid_values(self, name: str, points: int | None) -> list[Any]:
        count = len(self.listed())
        if points is not None and points != count:
            raise SpecError(
                f"search.grid.points.{name} = {points}: it has {count} choices; leave it out, or "
                "give the list of those you want."
            )
        return list(self.listed())

    def check_size(self, where: str) -> None:
        super().check_size(where)
        at_most(f"{where}.choices", len(self.listed()), limits.CHOICES, "choices; use a number with low and high")


class CategoricalParameter(ListedParameter):
    """One of several values; those of an ordinal ascend, and neighbours are alike."""

    public_name: ClassVar[str] = "Choice"

    type: Literal["categorical", "ordinal"] = Field(
        default="categorical", description="ordinal: the choices ascend, and neighbours are alike."
    )
    choices: list[Value] = Field(min_length=1, description="Texts, numbers, true, false, null, or lists of them.")

    if TYPE_CHECKING:

        def __init__(
            self,
            *values: Value | Sequence[Value],
            type: Literal["categorical", "ordinal"] = "categorical",
            choices: Sequence[Value] = (),
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
        ) -> None: ...
    else:

        def __init__(self, *values: Any, **more: Any) -> None:
            """Take the choices by position: one by one, or one list of them."""
            if len(values) == 1 and isinstance(listed := plain(values[0]), list):
                values = tuple(listed)
            if values and "choices" in more:
                raise SpecError("Choice: choices is given twice, by position and by name; drop one.")
            super().__init__(**({"choices": list(values)} if values else {}), **more)

        __init__.__pydantic_base_init__ = True

    @model_validator(mode="after")
    def _check(self) -> CategoricalParameter:
        seen = set()
        for value, key in zip(self.choices, map(scalar_key, self.choices), strict=True):
            try:
                hash(key)
            except TypeError:
                raise ValueError(f"choices holds {said(value)}; a mapping is no value, so give it a name") from None
            if key in seen:
                raise ValueError(f"choices holds {said(value)} twice (1 and 1.0 are one value); list each value once")
            seen.add(key)
        return self

    def listed(self) -> Sequence[Value]:
        return self.choices

    def changed(self, value: Any, stream: Stream, factors: Sequence[float]) -> Value:
        return self.neighbour(value, stream) if self.type == "ordinal" else self.draw(stream)
