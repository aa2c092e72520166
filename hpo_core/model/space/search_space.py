"""The parameters of a study, their order, and the conditions between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpo_core.model.rng import Stream
from hpo_core.model.short_text import shown
from hpo_core.model.space.listed import ListedParameter
from hpo_core.model.space.parameter import ParameterType, same_scalar, scalar_key
from hpo_core.model.trial import Params


class SearchSpace:
    """The parameters of a study, ordered so that conditions come after what they name.

    Raises:
        ValueError: a condition names an unknown parameter, a value that cannot occur, or a cycle.
    """

    def __init__(self, parameters: Mapping[str, ParameterType]) -> None:
        self.parameters: dict[str, ParameterType] = dict(parameters)
        choices: dict[str, set[tuple[bool, Any]]] = {}
        for name, parameter in self.parameters.items():
            for other, wanted in parameter.conditions().items():
                above = self.parameters.get(other)
                if above is None:
                    raise ValueError(
                        f"space.{name}.when names {other!r}, which is no parameter of this space; "
                        f"known: {_some(self.parameters)}"
                    )
                if isinstance(above, ListedParameter):
                    known = choices.setdefault(other, {scalar_key(choice) for choice in above.listed()})
                    strange = [value for value in wanted if scalar_key(value) not in known]
                else:
                    strange = [value for value in wanted if not above.contains(value)]
                if strange:
                    raise ValueError(
                        f"space.{name}.when wants {other} = {strange[0]!r}, a value that {other} never takes; "
                        "use one that its range or choices contain"
                    )
        self.order = self._sorted()
        self._conditions = {name: self.parameters[name].conditions() for name in self.order}

    def _sorted(self) -> tuple[str, ...]:
        """Sort parameters: those without conditions first, then those that depend on them.

        Within each wave they stay in the given order.
        """
        above = {name: len(parameter.when) for name, parameter in self.parameters.items()}
        below: dict[str, list[str]] = {name: [] for name in self.parameters}
        for name, parameter in self.parameters.items():
            for other in parameter.when:
                below[other].append(name)
        place = {name: i for i, name in enumerate(self.parameters)}
        done: list[str] = []
        wave = [name for name, count in above.items() if not count]
        while wave:
            done += wave
            ready = []
            for name in wave:
                for other in below[name]:
                    above[other] -= 1
                    if not above[other]:
                        ready.append(other)
            wave = sorted(ready, key=place.__getitem__)
        if len(done) < len(self.parameters):
            waiting = [name for name, count in above.items() if count]
            raise ValueError(
                f"space: the conditions of {_some(waiting)} form a circle; a parameter may depend only "
                "on ones that do not depend on it"
            )
        return tuple(done)

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether ``name`` matters given the values of the parameters before it in :attr:`order`."""
        return all(
            other in values and any(same_scalar(values[other], value) for value in wanted)
            for other, wanted in self._conditions[name].items()
        )

    def above(self, name: str) -> list[str]:
        """The parameters that the condition of ``name`` asks about."""
        return list(self._conditions[name])

    def condition_in_words(self, name: str) -> str:
        """When ``name`` takes part, for messages."""
        return " and ".join(
            f"{other} is {' or '.join(map(shown, wanted))}" for other, wanted in self._conditions[name].items()
        )

    def draw(self, stream: Stream, given: Mapping[str, Any] | None = None) -> Params:
        """One configuration, each active parameter independently; inactive ones are absent.

        Args:
            given: values that are taken as they are.
        """
        values: Params = {}
        for name in self.order:
            if not self._conditions[name] or self.is_active(name, values):
                fixed = given is not None and name in given
                values[name] = given[name] if given and fixed else self.parameters[name].draw(stream)
        return values

    def complaints(self, values: Mapping[str, Any]) -> list[str]:
        """What is wrong with a configuration; empty: nothing."""
        found = [f"{name} is no parameter of this space" for name in values if name not in self.parameters]
        for name in self.order:
            active = self.is_active(name, values)
            if active and name not in values:
                found.append(f"{name} is missing")
            elif not active and name in values:
                found.append(f"{name} is given although its condition does not hold")
            elif active and not self.parameters[name].contains(values[name]):
                found.append(f"{name} = {values[name]!r} lies outside its range or choices")
        return found


def _some(names: Iterable[str]) -> str:
    """The first ten of many names."""
    listed = list(names)
    more = f" and {len(listed) - 10:,} more" if len(listed) > 10 else ""
    return ", ".join(listed[:10]) + more
