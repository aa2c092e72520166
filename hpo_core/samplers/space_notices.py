"""What a sampler makes of the parts of a search space that it cannot express; said once, at the start of a study."""

from __future__ import annotations

from hpo_core.model.short_text import some
from hpo_core.model.space import CategoricalParameter, NormalParameter, NumberParameter, SearchSpace


def notices(name: str, space: SearchSpace, *, ours: bool, listed: bool) -> list[str]:
    """A line for each kind of part that is not drawn as it is written.

    Args:
        name: of the sampler.
        ours: whether it draws from the space itself.
        listed: whether the search method lists its configurations (a grid), so that nothing is drawn.
    """
    parts = space.parameters
    weighted = [one for one, p in parts.items() if isinstance(p, CategoricalParameter) and p.weights is not None]
    if listed:
        return [f"A grid tries every choice of {some(weighted)} alike; their weights say nothing."] if weighted else []
    if ours:
        return []
    normal = [one for one, p in parts.items() if isinstance(p, NormalParameter)]
    dependent = [one for one in parts if space.is_dependent(one)]
    stepped = [one for one, p in parts.items() if isinstance(p, NumberParameter) and p.is_stepped_log()]
    found = []
    if weighted:
        found.append(f"{name} takes all choices of {some(weighted)} as equally likely; their weights say nothing.")
    if normal:
        found.append(f"{name} sees {some(normal)} by its distribution function, from 0 to 1; Optuna has none of these.")
    if dependent:
        found.append(f"{name} sees {some(dependent)} as a share, from 0 to 1, of the range that other values give it.")
    if stepped:
        found.append(f"{name} sees {some(stepped)} without its step, and its answers are rounded to it.")
    if space.has_forbidden:
        found.append(
            f"{name} knows nothing of forbidden combinations: where it proposes one it is asked again, and after 100 "
            "times a configuration is drawn at random."
        )
    return found
