"""Arithmetic of the comparison: means, intervals, wins and losses, choices that leave one family out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Regrets = NDArray[np.float64]
"""After each percent of the budget."""
SHOWN = (10, 25, 50, 100)
"""Percent of the budget."""
SAMPLES = 10_000
LEAST_SEEDS = 3
"""On a problem, for a verdict on it."""


class Run(NamedTuple):
    """Names one search."""

    problem: str
    system: str
    seed: int


Runs = Mapping[Run, Regrets]


@dataclass(frozen=True)
class Pairs:
    """Searches of two systems with the same problems and seeds, by problem: arrays of [seeds, percents]."""

    ours: dict[str, Regrets]
    theirs: dict[str, Regrets]

    @classmethod
    def of(cls, runs: Runs, ours: str, theirs: str, problems: Iterable[str]) -> Pairs:
        """Those that both have played."""
        found: dict[str, list[int]] = {}
        for run in runs:
            if run.system == ours and run._replace(system=theirs) in runs:
                found.setdefault(run.problem, []).append(run.seed)
        names = [name for name in problems if name in found]
        return cls(
            *(
                {name: np.array([runs[Run(name, system, seed)] for seed in sorted(found[name])]) for name in names}
                for system in (ours, theirs)
            )
        )

    @property
    def searches(self) -> int:
        return sum(len(one) for one in self.ours.values())

    @property
    def seeds(self) -> tuple[int, int]:
        """Fewest and most on a problem."""
        counts = [len(one) for one in self.ours.values()]
        return min(counts), max(counts)

    def only(self, problems: Iterable[str]) -> Pairs:
        kept = [name for name in problems if name in self.ours]
        return Pairs({name: self.ours[name] for name in kept}, {name: self.theirs[name] for name in kept})

    def at(self, percent: int) -> dict[str, Any]:
        """Means over problems of the means over seeds; difference and ratio with 95 % intervals.

        Intervals are from bootstrap samples of problems, and of seeds within each; both systems keep their pairs.
        """
        ours, theirs = ([one[:, percent] for one in side.values()] for side in (self.ours, self.theirs))
        mean, base = (float(np.mean([one.mean() for one in side])) for side in (ours, theirs))
        drawn = resampled(ours, theirs)
        apart = drawn[:, 0] - drawn[:, 1]
        ratios = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-4)  # regrets are kept to four digits
        return {
            "mean": round(mean, 4),
            "base": round(base, 4),
            "difference": [round(mean - base, 4), *interval(apart)],
            "ratio": [round(mean / base, 3), *interval(ratios, 3)] if base else None,
        }

    def verdicts(self, percent: int) -> dict[str, str]:
        """By problem with enough seeds: better or worse beyond noise (95 % over seeds), or equal."""
        found = {}
        for name, ours in self.ours.items():
            if len(ours) < LEAST_SEEDS:
                continue
            drawn = resampled([ours[:, percent]], [self.theirs[name][:, percent]])
            low, high = interval(drawn[:, 0] - drawn[:, 1], 9)
            found[name] = "worse" if low > 0 else "better" if high < 0 else "equal"
        return found


def resampled(ours: Sequence[Regrets], theirs: Sequence[Regrets], samples: int = SAMPLES) -> NDArray[np.float64]:
    """Means of both systems in bootstrap samples, [samples, 2]; one array of seeds per problem."""
    rng = np.random.default_rng(0)
    picked = [rng.integers(0, len(one), (samples, len(one))) for one in ours]
    both = np.stack(
        [[one[pick].mean(axis=1) for one, pick in zip(side, picked, strict=True)] for side in (ours, theirs)]
    )
    if len(ours) > 1:
        problems = rng.integers(0, len(ours), (1, len(ours), samples))
        both = np.take_along_axis(both, np.broadcast_to(problems, both.shape), axis=1)
    found: NDArray[np.float64] = both.mean(axis=1).T
    return found


def interval(values: NDArray[np.float64], digits: int = 4) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return round(float(low), digits), round(float(high), digits)


def compared(pairs: Pairs, families: Mapping[str, str]) -> dict[str, Any]:
    """Everything that is published of one system against another."""
    verdicts = pairs.verdicts(100)
    by_family: dict[str, list[str]] = {}
    for name in pairs.ours:
        by_family.setdefault(families[name], []).append(name)
    return {
        "searches": pairs.searches,
        "seeds": list(pairs.seeds),
        "at": {f"{percent} %": pairs.at(percent) for percent in SHOWN},
        "better": [name for name, verdict in verdicts.items() if verdict == "better"],
        "equal": [name for name, verdict in verdicts.items() if verdict == "equal"],
        "worse": [name for name, verdict in verdicts.items() if verdict == "worse"],
        "families": {
            family: {f"{percent} %": pairs.only(names).at(percent) for percent in (25, 100)}
            for family, names in by_family.items()
        },
        "problems": {
            name: [round(float(side[name][:, 100].mean()), 4) for side in (pairs.ours, pairs.theirs)]
            for name in pairs.ours
        },
        "curve": np.mean([one.mean(axis=0) for one in pairs.ours.values()], axis=0)[::2].round(4).tolist(),
    }


def chosen_elsewhere(
    runs: Runs, candidates: Sequence[str], families: Mapping[str, str], name: str
) -> tuple[dict[Run, Regrets], dict[str, str]]:
    """A choice among candidates, made without a family, judged on it: leave one family out.

    Args:
        runs: of all candidates, on problems of several families.
        candidates: systems.
        families: by problem.
        name: of the choice, as a system.

    Returns:
        Runs of the choice: on each family those of the candidate with the lowest mean regret (at 25, 50 and 100 % of
        the budget, over the problems of all other families, each with the seeds that all candidates have played); and
        that candidate by family.
    """
    common = {run._replace(system="") for run in runs if run.system in candidates}
    common = {run for run in common if all(run._replace(system=one) in runs for one in candidates)}
    found, chosen = dict[Run, Regrets](), dict[str, str]()
    for family in sorted({families[run.problem] for run in common}):
        others = [run for run in common if families[run.problem] != family]
        if not others:
            raise ValueError(
                f"All common searches are of one family, {family}; a choice needs another one to be made on."
            )

        def mean(one: str, others: Sequence[Run] = others) -> float:
            of_problem: dict[str, list[float]] = {}
            for run in others:
                value = float(runs[run._replace(system=one)][[25, 50, 100]].mean())
                of_problem.setdefault(run.problem, []).append(value)
            return float(np.mean([np.mean(values) for values in of_problem.values()]))

        best: Callable[[str], float] = mean
        chosen[family] = min(candidates, key=best)
        for run in common:
            if families[run.problem] == family:
                found[run._replace(system=name)] = runs[run._replace(system=chosen[family])]
    return found, chosen
