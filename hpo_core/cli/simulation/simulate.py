"""``hpo simulate``: what a study would take, before anything is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from hpo_core.cli.output import err, out, print_json
from hpo_core.cli.simulation.simulated_scenarios import Question, make_scenarios
from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.replay.audit import damage_named
from hpo_core.report.simulated import MEDIANS, SPREADS, Simulated, endings, table, write_simulated
from hpo_core.simulation.analytic import AnalyticCurves
from hpo_core.simulation.device_list import source_of, taken_for_granted
from hpo_core.simulation.partitioned_data import RULES as HOPPING_RULES
from hpo_core.simulation.past import PastStudy, read_past
from hpo_core.simulation.past_curves import RULES, PastCurves
from hpo_core.simulation.repeats import (
    LINEAR,
    Scenario,
    ScenarioAnswer,
    World,
    common_target,
    expected_jobs,
    play,
    taken_as_linear,
)
from hpo_core.simulation.simulated_needs import SimulatedNeeds
from hpo_core.spec import (
    StopSpec,
    StudySpec,
    limits,
    notices,
)
from hpo_core.study import Study
from hpo_core.views.formatting import Spread

GAP = 3
OF_POLICIES = (
    "time to the end",
    "times sooner",
    "occupancy",
    "device-hours",
    "lost or failed attempts",
)
"""Columns that a terminal has room for; the page has all."""
MADE_UP = (
    "The learning curves are made up: they show schedules and costs. Losses, and with them times to a target, will be "
    "others. --from-journal NAME takes curves and durations from a study of your own.",
)


def simulate(question: Question, home: Home, *, picture: str | None = None, as_json: bool = False) -> None:
    """Simulate, print, and write the picture (``off``: none; None: in the home folder)."""
    simulated = answer(question, home)
    path = None
    if picture != "off":
        place = Path(picture) if picture else home.make_folder("simulations") / f"{simulated.study}.html"
        path = write_simulated(simulated, place.absolute())
    if as_json:
        print_json(facts(simulated) | {"picture": None if path is None else str(path)})
        return
    print_simulated(simulated)
    if path is not None:
        out.print(Text(f"picture  {path}"), soft_wrap=True)


def parse_numbers(option: str, text: str) -> list[float]:
    """``1,1,0.5``.

    Raises:
        SpecError: a part is no number.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} {text}: write numbers with commas between them, as 1,1,0.5.") from None


def parse_changes_of_cluster(option: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """``COUNT@SECONDS``, each.

    Raises:
        SpecError: a part is not of that form.
    """
    found = []
    for text in texts:
        count, _, seconds = text.partition("@")
        try:
            found.append((int(count), float(seconds)))
        except ValueError:
            raise SpecError(f"{option} {text}: write COUNT@SECONDS, as 10@3600.") from None
    return found


def answer(question: Question, home: Home) -> Simulated:
    """Play all scenarios.

    Raises:
        SpecError: the question makes no sense, or asks what the past study does not know.
        StudyNotFoundError: the journal holds no study of that name.
    """
    if question.repeat < 1:
        raise SpecError(f"--repeat {question.repeat}: give at least 1.")
    past = None
    if question.from_journal is not None:
        journal = home.read_journal()
        try:
            with damage_named(journal, question.from_journal):
                past = read_past(journal.entries(question.from_journal), seconds_per_unit=question.seconds_per_unit)
        finally:
            journal.close()
    answers = []
    scenarios = make_scenarios(question, past, home)
    needs = _needs(scenarios)
    for scenario in scenarios:
        _check_jobs(scenario)
    with err.status("simulating") as status:
        for scenario in scenarios:
            world = _world(question, scenario, past, needs)
            runs = []
            for repeat in range(question.repeat):
                status.update(f"simulating {scenario.name}: {repeat + 1} of {question.repeat}")
                runs.append(play(scenario, world, repeat))
            answers.append(ScenarioAnswer(scenario, tuple(runs)))
    spec = scenarios[0].spec
    wanted = question.target if question.target is not None else spec.stop.target
    target = wanted * spec.metric.sign if wanted is not None else common_target(answers)
    return Simulated(
        study=spec.study,
        metric=spec.metric.name,
        sign=spec.metric.sign,
        answers=tuple(answers),
        target=target,
        target_given=wanted is not None,
        source=_source(question, past, scenarios[0]),
        limits=_limits(question, past, answers, target_given=wanted is not None or target is None, needs=needs),
    )


def _check_jobs(scenario: Scenario) -> None:
    """Refuse what would be played for days; a stop rule ends a study earlier, at a time that nobody knows yet."""
    spec = scenario.spec.model_copy(update={"warm_start": None})
    jobs = expected_jobs(Study.create(spec))
    if jobs > limits.SIMULATED_JOBS and spec.stop == StopSpec(running=spec.stop.running):
        raise SpecError(
            f"{scenario.name}: the search plans {jobs:,} jobs, and at most {limits.SIMULATED_JOBS:,} are simulated; "
            "lower its configurations (--set search.configs=1000), or give a stop rule (--set stop.total_resource=999)."
        )


def _needs(scenarios: Sequence[Scenario]) -> dict[int, SimulatedNeeds]:
    """By identity of a spec: what its jobs need, the same for each policy."""
    found: dict[int, SimulatedNeeds] = {}
    for scenario in scenarios:
        if scenario.cluster is not None and id(scenario.spec) not in found:
            found[id(scenario.spec)] = scenario.cluster.needs(scenario.spec)
    return found


def _world(
    question: Question, scenario: Scenario, past: PastStudy | None, known: dict[int, SimulatedNeeds]
) -> Callable[[StudySpec, int], World]:
    """Where a scenario's repeats are played: one world for all, or each with its own order of past trials."""
    needs = known.get(id(scenario.spec))
    if past is not None:

        def of_the_past(spec: StudySpec, repeat: int) -> World:
            curves = PastCurves(past, spec, repeat)
            return World(curves, curves, past.has_checkpoints, needs)

        return of_the_past
    curves = AnalyticCurves(
        scenario.spec,
        scenario.spec.seed,
        seconds_per_unit=1.0 if question.seconds_per_unit is None else question.seconds_per_unit,
        overhead=question.overhead,
        cost_spread=question.cost_spread,
    )
    return lambda spec, repeat: World(curves, needs=needs)


def _source(question: Question, past: PastStudy | None, scenario: Scenario) -> str:
    if scenario.cluster is None:
        return _source_of_curves(question, past)
    if scenario.cluster.measured_durations:
        return f"Made-up curves; durations as measured or stated. {source_of(scenario.cluster)}"
    return f"{_source_of_curves(question, past)} {source_of(scenario.cluster)}"


def _source_of_curves(question: Question, past: PastStudy | None) -> str:
    if past is not None:
        return f"Curves and durations: {past.describe()}."
    if question.seconds_per_unit is None:
        return "Made-up curves; 1 second a unit of training (--seconds-per-unit says otherwise)."
    beside = f", {question.overhead:g} s a job beside" if question.overhead else ""
    return f"Made-up curves; {question.seconds_per_unit:g} s a unit of training{beside}."


def _limits(
    question: Question,
    past: PastStudy | None,
    answers: Sequence[ScenarioAnswer],
    *,
    target_given: bool,
    needs: dict[int, SimulatedNeeds],
) -> tuple[str, ...]:
    said = [(one.scenario.name, notice) for one in answers for notice in notices(one.scenario.spec)]
    found = [notice if len(answers) == 1 else f"{name}: {notice}" for name, notice in said]
    found += MADE_UP if past is None else RULES
    if past is not None:
        jobs = sum(run.jobs for one in answers for run in one.runs)
        guessed = sum(run.guessed for one in answers for run in one.runs)
        found.insert(
            len(said), f"{100 * guessed / max(1, jobs):.0f} % of the results lie beyond what was recorded: guessed."
        )
    if any(one.scenario.placed is not None for one in answers):
        found += HOPPING_RULES
    if any(taken_as_linear(one.scenario.spec) for one in answers):
        found += LINEAR
    if any(one.scenario.spec.share is not None for one in answers):
        found.append("A study that shares slots is played alone: it has all of them.")
    if needs:
        failed = any(run.failed for one in answers for run in one.runs)
        found += taken_for_granted(list(needs.values()), failed=failed)
    if question.drops:
        fate = "its trial is gone" if question.drop == "abandon" else "its job is granted again at once"
        found.append(f"A dropped job is noticed at that moment, and {fate}.")
    if not target_given:
        found.append("No target was given: the goal is the best that every repeat of every scenario came to.")
    if len(answers[0].scenario.spec.objectives) > 1:
        found.append("Best, target and band are those of the first metric.")
    return tuple(found)


def print_simulated(simulated: Simulated) -> None:
    """For people."""
    out.print(Text(simulated.heading(), style="bold"))
    out.print(Text(simulated.source), soft_wrap=True)
    rows = table(simulated, quartiles=not simulated.shared)
    if simulated.shared:
        _print_below_each_other(simulated, rows)
    else:
        _print_side_by_side(simulated, rows)
    out.print()
    out.print(Text(MEDIANS if simulated.shared else SPREADS, style="dim"))
    for line in [*endings(simulated), *simulated.limits]:
        out.print(Text(f"- {line}", style="dim"))


def _print_below_each_other(simulated: Simulated, rows: Sequence[tuple[str, list[str]]]) -> None:
    """Policies are many: a line for each."""
    shown_rows = [row for row in rows if row[0] in OF_POLICIES]
    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    found.add_column(no_wrap=True)
    for label, _ in shown_rows:
        found.add_column(Text(label), justify="right")
    for place, one in enumerate(simulated.answers):
        found.add_row(Text(one.scenario.name), *(cells[place] for _, cells in shown_rows))
    out.print()
    out.print(found)


def _print_side_by_side(simulated: Simulated, rows: Sequence[tuple[str, list[str]]]) -> None:
    labels = ["", *(label for label, _ in rows)]
    columns = [[one.scenario.name, *(cells[k] for _, cells in rows)] for k, one in enumerate(simulated.answers)]
    while columns:
        here = [labels, columns.pop(0)]
        while columns and _width([*here, columns[0]]) <= out.width:
            here.append(columns.pop(0))
        shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for column in here:
            shown.add_column(Text(column[0]), no_wrap=True)
        for cells in zip(*(column[1:] for column in here), strict=True):
            shown.add_row(*cells)
        out.print()
        out.print(shown)


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(GAP + max(map(len, column)) for column in columns) - GAP


def facts(simulated: Simulated) -> dict[str, Any]:
    """For programs: metrics, not losses; seconds."""
    sign = simulated.sign
    return {
        "study": simulated.study,
        "metric": simulated.metric,
        "repeats": simulated.repeats,
        "source": simulated.source,
        "limits": list(simulated.limits),
        "target": None if simulated.target is None else simulated.target * sign,
        "target_given": simulated.target_given,
        "scenarios": [_scenario_facts(one, simulated.target, sign) for one in simulated.answers],
    }


def _scenario_facts(one: ScenarioAnswer, target: float | None, sign: float) -> dict[str, Any]:
    figures = one.figures(target)
    best = figures.pop("best_loss")
    if one.scenario.cluster is None:
        del figures["occupancy"]
    return {
        "name": one.scenario.name,
        "workers": len(one.scenario.workers),
        **_cluster_facts(one.scenario),
        "changes": list(one.scenario.changes),
        "figures": {key: None if spread is None else dataclasses.asdict(spread) for key, spread in figures.items()}
        | {"best": None if best is None else dataclasses.asdict(_as_metric(best, sign))},
        "rungs": [{"trained_to": level, "results": count} for level, count in one.rungs()],
        "runs": [
            {
                "seed": run.seed,
                "ended": run.ended,
                "seconds": run.seconds,
                "seconds_to_target": None if target is None else run.reached(target),
                "seconds_to_first_at_max": run.first_full,
                "trials_at_max": run.full,
                "trials": run.trials,
                "jobs": run.jobs,
                "failed_attempts": run.failed,
                "resource": run.resource,
                "utilization": run.utilization,
                "worker_seconds": run.offered,
                **({} if run.occupancy is None else {"occupancy": run.occupancy}),
                "best": None if run.loss is None else run.loss * sign,
                "best_params": run.best,
                "best_resource": run.best_resource,
            }
            for run in one.runs
        ],
    }


def _cluster_facts(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    return {} if cluster is None else {"policy": cluster.policy, "devices": [one.name for one in cluster.devices]}


def _as_metric(spread: Spread, sign: float) -> Spread:
    if sign > 0:
        return spread
    return Spread(-spread.median, -spread.high, -spread.low, least=-spread.most, most=-spread.least, count=spread.count)
