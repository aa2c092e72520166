"""Explore: a parent's parameters, changed a little (PBT, Li et al. 2019, 3.5.2; ASHA A.3 for the resampling).

Scalars are multiplied by one of the factors, ordered choices move to a neighbour, categorical ones are drawn anew;
static parameters stay, and what depends on others changes only where it is active.
"""

from __future__ import annotations

from typing import Any

from hpo_core.model.rng import Stream
from hpo_core.model.space import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    OrdinalParameter,
    Parameter,
    SearchSpace,
    same_scalar,
)
from hpo_core.model.trial import Params
from hpo_core.spec import PbtSearch


class Explorer:
    """Draws depend on the seed and the child's number alone.

    Args:
        settings: factors, resampling probability, and bounds narrower than the space.
    """

    def __init__(self, space: SearchSpace, settings: PbtSearch, seed: int) -> None:
        self._space = space
        self._factors = tuple(settings.perturb)
        self._resample = settings.resample_probability
        self._bounds = settings.bounds
        self._freezes = settings.rules == 1  # floats with a step stay where a factor rounds back
        self._seed = seed

    def explore(self, parent: Params, number: int) -> Params:
        """Parameters of child ``number``. Parameters that a changed choice makes active are drawn."""
        values: Params = {}
        for name in self._space.order:
            if not self._space.is_active(name, values):
                continue
            parameter = self._space.parameters[name]
            stream = Stream(self._seed, f"explore/{name}", number)
            if name not in parent:
                values[name] = self._draw(name, parameter, stream)
            elif parameter.static:
                values[name] = parent[name]
            else:
                values[name] = self._change(name, parameter, parent[name], stream)
        return values

    def _draw(self, name: str, parameter: Parameter, stream: Stream) -> Any:
        if isinstance(parameter, FloatParameter | IntParameter):
            return self._clip(name, parameter, parameter.draw(stream))
        return parameter.draw(stream)

    def _change(self, name: str, parameter: Parameter, value: Any, stream: Stream) -> Any:
        if stream.uniform() < self._resample:
            return self._draw(name, parameter, stream)
        if isinstance(parameter, OrdinalParameter):
            return _neighbour(parameter, value, stream)
        if isinstance(parameter, CategoricalParameter):
            return parameter.draw(stream)
        return self._scale(name, parameter, value, stream.choice(self._factors))

    def _scale(self, name: str, parameter: FloatParameter | IntParameter, value: float, factor: float) -> float | int:
        """``value * factor`` inside the range; 0, which no factor moves, goes by that share of the range.

        Where that rounds back to the same value, it is the next one in that direction.
        """
        width = parameter.high - parameter.low
        wanted = value * factor if value else value + (factor - 1) * width
        changed = self._clip(name, parameter, wanted)
        step = parameter.step
        if isinstance(parameter, FloatParameter) and self._freezes:
            step = None
        if step is not None and abs(changed - value) < step / 2 and factor != 1:
            up = (wanted > value) if value else factor > 1
            changed = self._clip(name, parameter, value + (step if up else -step))
        return changed

    def _clip(self, name: str, parameter: FloatParameter | IntParameter, value: float) -> float | int:
        low, high = self._bounds.get(name, (parameter.low, parameter.high))
        value = min(max(value, low), high)
        if parameter.step is not None and not (isinstance(parameter, IntParameter) and parameter.log):
            value = parameter.low + round((value - parameter.low) / parameter.step) * parameter.step
            while value > high:
                value -= parameter.step
            while value < low:
                value += parameter.step
        if isinstance(parameter, IntParameter):
            return round(value)
        return float(min(max(value, parameter.low), parameter.high))


def _neighbour(parameter: OrdinalParameter, value: Any, stream: Stream) -> Any:
    """The next lower or the next higher choice; at an end the only one there is."""
    choices = parameter.choices
    at = next(i for i, choice in enumerate(choices) if same_scalar(choice, value))
    near = [i for i in (at - 1, at + 1) if 0 <= i < len(choices)]
    return choices[stream.choice(near)] if near else value
