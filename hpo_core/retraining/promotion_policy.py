"""Decisions of a retraining: drift check, retrain or tune, and whether a challenger replaces the champion.

In the promotion test three things move the difference (Dietterich 1998, Approximate statistical tests for comparing
supervised classification learning algorithms): the draw of the validation examples, the draw of the training examples,
and the randomness of training. The spread over seeds shows the last of them alone. The variance of the difference of
the means is here

- ``s1^2/K1 + s2^2/K2`` of the seeds of both sides (Welch 1947);
- ``d^2/n`` of the n validation examples, d being the deviation of the paired differences of their losses;
- ``TRAINING_DRAW * d^2/n`` for the training examples. One training set on each side does not show this part. Nadeau and
  Bengio (2003, Inference for the generalization error) add n/m of it, m being the number of training examples; the test
  does not know m and takes n/m for 1/2.

Its degrees of freedom follow Satterthwaite (1946). On new draws of the digits of ``examples/retrain`` (200 for each of
three configurations, n/m = 0.7) 4 to 6 % of tests of equals were significant at a level of 5 %; by the seeds alone 23
to 35 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from hpo_core.model.errors import SpecError


class Rules(BaseModel):
    """When to tune again, and what a challenger must show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repeats: int = Field(default=5, ge=2, le=50, description="Seeds that each configuration is trained with.")
    drift_limit: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Kolmogorov-Smirnov distance of the champion's losses per example, from "
        "which on parameters are tuned again instead of trained again.",
    )
    level: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Level of the one-sided Welch test of a challenger, over seeds and examples.",
    )
    margin: float = Field(default=0.0, ge=0, description="A gain up to it is not worth a change; unit: the metric's.")
    timeout: float = Field(default=3600.0, gt=0, description="Seconds that one evaluation may take.")


class ExampleLosses(msgspec.Struct, frozen=True):
    loss: float
    mean: float
    examples: int
    losses: tuple[float, ...]
    """Loss of each example, in one order for all models; an evenly spaced part of very many."""


class ExampleNoise(msgspec.Struct, frozen=True):
    """Variance of the difference of two mean losses, as other examples were drawn."""

    examples: int
    variance: float


def example_noise(champion: Sequence[ExampleLosses], challenger: Sequence[ExampleLosses]) -> ExampleNoise | None:
    """Estimate the noise of the validation examples from the models' losses of the same examples.

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


def _is_mean(models: Sequence[ExampleLosses]) -> bool:
    losses = [model.loss for model in models]
    constants = [model.loss - model.mean for model in models]
    allowed = 0.01 * (max(losses) - min(losses)) + 1e-5 * max(map(abs, losses))
    return all(map(math.isfinite, constants)) and max(constants) - min(constants) <= allowed


TRAINING_DRAW = 0.5
"""Variance by the draw of the training examples, as a share of that by the draw of the validation examples."""


class Verdict(msgspec.Struct, frozen=True):
    """Result of a one-sided Welch test over seeds and examples; all values are losses (smaller is better)."""

    champion: tuple[float, ...]
    challenger: tuple[float, ...]
    margin: float
    level: float
    """Significance level, after Bonferroni's correction for several challengers."""
    p_value: float
    examples: int = 0
    """Number of examples whose draw the test counts as noise; 0: it counts that of seeds alone."""

    @property
    def gain(self) -> float:
        """Champion's mean loss minus the challenger's; positive where the challenger is better."""
        return fmean(self.champion) - fmean(self.challenger)

    @property
    def wins(self) -> bool:
        return self.p_value < self.level

    @property
    def finding(self) -> str:
        more = f" by more than {self.margin:g}" if self.margin else ""
        return f"{'better' if self.wins else 'not proven better'}{more}"

    def words(self, metric: str, sign: float) -> str:
        sides = [
            f"{fmean(values) * sign:.5g} ± {stdev(values):.2g} ({len(values)} seeds)"
            for values in (self.challenger, self.champion)
        ]
        noise = f"seeds and {self.examples:,} examples" if self.examples else "seeds"
        return (
            f"mean {metric} on the new data: challenger {sides[0]}, champion {sides[1]}; the challenger is "
            f"{self.finding}: one-sided Welch test over {noise}, p = {self.p_value:.2g}, level {self.level:g}"
        )


def promotion_test(
    champion: Sequence[float],
    challenger: Sequence[float],
    *,
    noise: ExampleNoise | None = None,
    margin: float = 0.0,
    level: float = 0.05,
    challengers: int = 1,
) -> Verdict:
    """Test whether the challenger's mean loss is smaller than the champion's by more than ``margin``.

    One-sided Welch test. Where there is no noise at all, the difference decides.

    Args:
        champion: losses of its repeats, at least two, each trained with another seed.
        challenger: losses of its repeats, likewise.
        noise: of the draw of the examples that both were evaluated on; None: not known, then seeds alone count.
        margin: least gain that is worth a change, in units of the metric.
        level: significance level, from 0 to 1.
        challengers: number of challengers of which this is the best one; the level is divided by it (Bonferroni).

    Raises:
        SpecError: fewer than two repeats, or a loss that is not finite.
    """
    from scipy.stats import t

    for name, values in (("champion", champion), ("challenger", challenger)):
        if len(values) < 2 or not all(map(math.isfinite, values)):
            raise SpecError(
                f"The losses of the {name} are {list(values)}; the test needs at least two, all finite. "
                "Nothing can be said from fewer: train it with more seeds."
            )
    parts = [(variance(values) / len(values), len(values) - 1) for values in (champion, challenger)]
    if noise is not None:
        parts.append(((1 + TRAINING_DRAW) * noise.variance, noise.examples - 1))
    gain, total = fmean(champion) - (fmean(challenger) + margin), math.fsum(part for part, _ in parts)
    if total:
        freedom = total**2 / math.fsum(part**2 / count for part, count in parts)
        p_value = float(t.sf(gain / math.sqrt(total), freedom))
    else:
        p_value = 0.0 if gain > 0 else 1.0
    return Verdict(
        tuple(champion),
        tuple(challenger),
        margin,
        level / challengers,
        p_value,
        examples=noise.examples if noise is not None else 0,
    )


MIN_EXAMPLES = 20
"""Least number of examples on each side; with fewer the test says nothing."""


class Drift(msgspec.Struct, frozen=True):
    """Result of a two-sample Kolmogorov-Smirnov test of the champion's losses per example."""

    statistic: float
    """Largest distance between the two distribution functions: 0 (same) to 1 (no overlap)."""
    p_value: float
    limit: float
    level: float
    before: int
    now: int

    @property
    def drifted(self) -> bool:
        return self.statistic >= self.limit and self.p_value < self.level

    def words(self) -> str:
        large = "at or above" if self.statistic >= self.limit else "below"
        sure = "below" if self.p_value < self.level else "not below"
        return (
            f"{'drift' if self.drifted else 'no drift'}: Kolmogorov–Smirnov D = {self.statistic:.3f} is {large} "
            f"{self.limit:g}, p = {self.p_value:.2g} {sure} {self.level:g} "
            f"({self.before} examples before, {self.now} now)"
        )


def check_drift(before: Sequence[float], now: Sequence[float], *, limit: float = 0.2, level: float = 0.01) -> Drift:
    """Test whether the champion's losses per example differ between its own data and the new data.

    Both distance and significance must show it: with many examples any difference is significant, with few any
    distance is large.

    Args:
        before: finite losses on the champion's validation data.
        now: finite losses on the new data.
        limit: least distance D that counts as drift.
    """
    from scipy.stats import ks_2samp

    if min(len(before), len(now)) < MIN_EXAMPLES:
        raise SpecError(
            f"The drift check has {len(before)} losses of the champion's own data and {len(now)} of the new data; it "
            f"needs {MIN_EXAMPLES} of each. Return one loss per example from the evaluation function."
        )
    found = ks_2samp(list(before), list(now))
    return Drift(float(found.statistic), float(found.pvalue), limit, level=level, before=len(before), now=len(now))


TRAINED_AGAIN = "the champion's parameters are trained again on the new data"
TUNED_FOR_DRIFT = "tuned again: the parameters were chosen for other data than these"


def tuned_for_worse(level: float) -> str:
    return (
        "tuned again: trained on the new data, the champion's parameters are significantly worse there than the "
        f"champion itself (one-sided Welch test, level {level:g})"
    )


def is_good_enough(
    champion: Sequence[float], retrained: Sequence[float], *, noise: ExampleNoise | None = None, level: float = 0.05
) -> bool:
    """True unless the champion's parameters, trained again, are worse than the champion on the same data.

    They are as good unless they are significantly worse (one-sided Welch test over seeds and examples, as in
    :func:`~hpo_core.retraining.promotion_policy.promotion_test`). The champion's losses on its own data say nothing
    here: data of another day are harder or easier for every model, and harder ones would begin a search each time.
    """
    return not promotion_test(retrained, champion, noise=noise, level=level).wins
