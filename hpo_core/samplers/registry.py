"""All samplers: ours by their names, and Optuna's by their class names.

A new sampler of ours is a file in this folder and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpo_core.model.short_text import some
from hpo_core.model.space import CategoricalParameter, NormalParameter, NumberParameter, SearchSpace
from hpo_core.samplers.exhaustive_sampler import EXHAUSTIVE
from hpo_core.samplers.sampler import RandomSampler, Sampler, SamplerContext

OURS: dict[str, Callable[[SamplerContext], Sampler]] = {
    "random": lambda context: RandomSampler(context.space, context.seed),
}
"""Samplers without arguments, whose answers follow from the seed and the trial's number alone."""


def create(name: str, arguments: Mapping[str, Any], context: SamplerContext) -> Sampler:
    """The sampler of that name."""
    if name in OURS:
        return OURS[name](context)
    from hpo_core.samplers.exhaustive_sampler import ExhaustiveSampler
    from hpo_core.samplers.optuna_sampler import OptunaSampler  # Optuna costs half a second to import

    if name in EXHAUSTIVE:
        return ExhaustiveSampler(name, arguments, context)
    return OptunaSampler(name, arguments, context)


def check(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a sampler that does not exist, or arguments that it does not take.

    Raises:
        ValueError: with the names that would do.
    """
    if name not in OURS:
        from hpo_core.samplers.optuna_sampler import check_sampler

        check_sampler(name, arguments)
    elif arguments:
        raise ValueError(f"sampler {name} takes no arguments, got {', '.join(arguments)}; drop them")


def check_objectives(name: str, arguments: Mapping[str, Any], objectives: int) -> None:
    """Refuse a sampler that knows one objective only, for a study with several.

    Raises:
        ValueError: with samplers that would do.
    """
    if objectives > 1 and name not in OURS:
        from hpo_core.samplers.optuna_sampler import check_objectives as check_them

        check_them(name, arguments, objectives)


def check_population(name: str) -> None:
    """Refuse a sampler with a finite list of configurations for a population, which draws new ones at any time.

    Raises:
        ValueError: with samplers that would do.
    """
    if name in EXHAUSTIVE:
        raise ValueError(
            f"sampler {name} has a finite list of configurations, and a population begins anew at any time; use "
            "random or TPESampler"
        )


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
