"""All samplers: ours by their names, and Optuna's by their class names.

A new sampler of ours is a file in this folder and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpo_core.samplers.finite_lists import EXHAUSTIVE
from hpo_core.samplers.random_sampler import RandomSampler
from hpo_core.samplers.sampler import Sampler, SamplerContext

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
