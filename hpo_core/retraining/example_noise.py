"""How much the draw of the validation examples alone moves the difference of two configurations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

import msgspec


class Scores(msgspec.Struct, frozen=True):
    """What one trained model came to on some data."""

    loss: float
    """Its metric as a loss: smaller is better."""
    mean: float
    """Mean of its losses per example."""
    examples: int
    losses: tuple[float, ...]
    """Per example, in one order for all models; of very many examples some, evenly spaced."""


class ExampleNoise(msgspec.Struct, frozen=True):
    """Variance of the difference of two mean losses, as other examples were drawn."""

    examples: int
    variance: float


def example_noise(champion: Sequence[Scores], challenger: Sequence[Scores]) -> ExampleNoise | None:
    """Estimate it from the models' losses of the same examples.

    Both sides saw the same examples, so their losses are subtracted example by example, each side's mean over its
    seeds: an example that is hard for everybody says nothing about either (paired differences).

    Returns:
        None where it cannot be told: the metric is not the mean of the losses, but for a constant (an accuracy beside
        cross-entropies); or the models were evaluated on different numbers of examples, which were then drawn for
        each model anew, so that the spread of the seeds holds their noise already.
    """
    models = [*champion, *challenger]
    sizes = {(model.examples, len(model.losses)) for model in models}
    if len(sizes) > 1 or not _is_mean(models):
        return None
    ((examples, compared),) = sizes
    if compared < 2:
        return None
    mine, others = (
        [fmean(values) for values in zip(*(model.losses for model in side), strict=True)]
        for side in (champion, challenger)
    )
    return ExampleNoise(examples, variance([one - other for one, other in zip(mine, others, strict=True)]) / examples)


def _is_mean(models: Sequence[Scores]) -> bool:
    """Whether metrics differ as the means of the losses do; the tolerance is that of 32-bit sums."""
    losses = [model.loss for model in models]
    constants = [model.loss - model.mean for model in models]
    allowed = 0.01 * (max(losses) - min(losses)) + 1e-5 * max(map(abs, losses))
    return all(map(math.isfinite, constants)) and max(constants) - min(constants) <= allowed
