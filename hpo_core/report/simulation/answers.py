"""What simulations came to as a table: one column for each scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpo_core.model.partition_file import weights_of
from hpo_core.simulation.repeats import Scenario
from hpo_core.simulation.shared_cluster import ONE_PER_DEVICE
from hpo_core.simulation.statistics import Answer
from hpo_core.views.formatting import Spread, duration, number

SPREADS = "Median of the repeats; in brackets the quartiles: half of all repeats lie between them."

MEDIANS = "Medians of the repeats."


@dataclass(frozen=True, slots=True)
class Simulated:
    """All answers to one question, with the words around them."""

    study: str
    metric: str
    sign: float
    """Factor between the metric and a loss."""
    answers: tuple[Answer, ...]
    target: float | None
    """A loss."""
    target_given: bool
    source: str
    """Where curves and durations come from."""
    limits: tuple[str, ...]
    """What the simulation takes for granted."""

    @property
    def shared(self) -> bool:
        """Whether jobs share devices."""
        return self.answers[0].scenario.cluster is not None

    @property
    def hops(self) -> bool:
        """Whether models hop between partitions of the data."""
        return any(answer.scenario.placed is not None for answer in self.answers)

    @property
    def repeats(self) -> int:
        return len(self.answers[0].runs)

    def heading(self) -> str:
        """What was done, in a line."""
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return f"{self.study}: simulated {times}"


def table(simulated: Simulated, *, quartiles: bool = True) -> list[tuple[str, list[str]]]:
    """(figure, one cell per scenario): the median, and in brackets the quartiles."""
    found = [answer.figures(simulated.target) for answer in simulated.answers]
    runs = simulated.repeats
    metric, sign = simulated.metric, simulated.sign

    def cells(key: str, show: Callable[[float], str], missing: str = "never") -> list[str]:
        return [_cell(figures[key], show, runs, missing=missing, quartiles=quartiles) for figures in found]

    rows = [("time to the end", cells("seconds", duration))]
    if (sooner := times_sooner(simulated)) is not None:
        rows.append(("times sooner", [f"{times:.2f}" for times in sooner]))
    if simulated.hops:
        placed = [(answer.scenario.placed, answer.scenario) for answer in simulated.answers]
        rows.append(("with all data on each worker", cells("seconds_replicated", duration, "–")))
        shares = ["all" if one is None else _percent(one.share(_sizes(of), len(of.workers))) for one, of in placed]
        rows.append(("data on a worker", shares))
    if simulated.target is not None:
        better = "≤" if sign > 0 else "≥"
        goal = f"time to {metric} {better} {number(simulated.target * sign)}"
        rows.append((goal, cells("seconds_to_target", duration)))
    tops = {answer.scenario.max_resource for answer in simulated.answers}
    if tops != {None}:
        top = f"R = {tops.pop():,}" if len(tops) == 1 else "R"
        rows.append((f"first trial at {top}", cells("seconds_to_first_at_max", duration)))
        rows.append((f"trials at {top}", cells("trials_at_max", _whole, "–")))
    if simulated.shared:
        rows.append(("occupancy", cells("occupancy", _percent)))
    rows += [
        ("devices in use" if simulated.shared else "utilization", cells("utilization", _percent)),
        ("device-hours" if simulated.shared else "worker-hours", cells("worker_seconds", _hours)),
        ("trials", cells("trials", _whole)),
        ("jobs", cells("jobs", _whole)),
        ("units of training", cells("resource", _whole)),
    ]
    if any(run.failed for answer in simulated.answers for run in answer.runs):
        rows.append(("lost or failed attempts", cells("failed_attempts", _whole)))
        lost = "job-hours lost" if simulated.shared else "worker-hours lost"
        rows.append((lost, cells("lost_worker_seconds", _hours)))
    rows.append((f"best {metric}", cells("best_loss", lambda loss: number(loss * sign), "none")))
    return rows


def _sizes(scenario: Scenario) -> tuple[float, ...]:
    data = scenario.spec.data
    return (1.0,) if data is None else weights_of(data.files)


def times_sooner(simulated: Simulated) -> list[float] | None:
    """How many times sooner each scenario ends than one job per device, by medians.

    None where that was not played, or where a stop rule or a halt ended a repeat: the work was not the same then.
    """
    if any(answer.endings() for answer in simulated.answers):
        return None
    ends = [answer.figures(None)["seconds"] for answer in simulated.answers]
    found = []
    for answer, end in zip(simulated.answers, ends, strict=True):
        alone = [
            other_end
            for other, other_end in zip(simulated.answers, ends, strict=True)
            if other.scenario.cluster is not None
            and other.scenario.cluster.policy == ONE_PER_DEVICE
            and other.scenario.changes == answer.scenario.changes
        ]
        if not alone or alone[0] is None or end is None or not end.median:
            return None
        found.append(alone[0].median / end.median)
    return found if len(found) > 1 else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _whole(value: float) -> str:
    return f"{round(value):,}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.3g}" if hours < 1000 else f"{round(hours):,}"


def _cell(spread: Spread | None, show: Callable[[float], str], runs: int, *, missing: str, quartiles: bool) -> str:
    if spread is None:
        return missing
    middle, low, high = show(spread.median), show(spread.low), show(spread.high)
    cell = middle if low == high or not quartiles else f"{middle} ({low} – {high})"
    return cell if spread.count == runs else f"{cell}, in {spread.count} of {runs}"


def endings(simulated: Simulated) -> list[str]:
    """One line for each reason for which repeats ended early."""
    return [
        f"{answer.scenario.name}: {count} of {len(answer.runs)} repeats ended early ({reason})."
        for answer in simulated.answers
        for reason, count in answer.endings().items()
    ]
