"""Explore: a parent's parameters, changed a little (PBT, Li et al. 2019, 3.5.2; ASHA A.3 for the resampling).

Scalars are multiplied by one of the factors, ordered choices move to a neighbour, categorical ones are drawn anew;
static parameters stay, and what depends on others changes only where it is active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_core.model.rng import Stream
from hpo_core.model.space import Change, SearchSpace
from hpo_core.model.trial import Params

MOST_CHANGES = 100


class Explorer:
    """Draws depend on the seed and the child's number alone.

    Args:
        settings: factors, resampling probability, and bounds narrower than the space.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        *,
        factors: Sequence[float],
        resample: float,
        bounds: Mapping[str, tuple[float, float]],
    ) -> None:
        self._space = space
        self._resample = resample
        self._seed = seed
        self._changes = {name: Change(tuple(factors), bounds.get(name)) for name in space.order}

    def explore(self, parent: Params, number: int) -> Params:
        """Parameters of child ``number``. Parameters that a changed choice makes active are drawn.

        A forbidden combination is changed anew; after :data:`MOST_CHANGES` of them a whole configuration is drawn.
        """
        for attempt in range(MOST_CHANGES):
            values = self._changed(parent, number, f"again-{attempt}/" if attempt else "")
            if not self._space.has_forbidden or not self._space.forbidden_by(values):
                return values
        return self._space.draw(Stream(self._seed, "explore", number))

    def _changed(self, parent: Params, number: int, purpose: str) -> Params:
        values: Params = {}
        for name in self._space.order:
            if not self._space.is_active(name, values):
                continue
            parameter, change = self._space.resolved(name, values), self._changes[name]
            stream = Stream(self._seed, f"explore/{purpose}{name}", number)
            if name not in parent:
                values[name] = parameter.draw_changed(stream, change)
            elif parameter.static:
                fits = not self._space.is_dependent(name) or parameter.contains(parent[name])
                values[name] = parent[name] if fits else parameter.draw_changed(stream, change)
            elif stream.uniform() < self._resample:
                values[name] = parameter.draw_changed(stream, change)
            else:
                values[name] = parameter.changed(parent[name], stream, change)
        return values
