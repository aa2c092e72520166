"""``hpo simulate``: plays scenarios, and prints the time and cost of a study before anything starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo_core.execution.virtual import Faults, make_workers
from hpo_core.home import Home
from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.replay.audit import damage_named
from hpo_core.simulation.learning_curves import AnalyticCurves
from hpo_core.simulation.past import RULES, PastCurves, PastStudy, read_past
from hpo_core.simulation.repeats import (
    LINEAR,
    PlayedRun,
    Scenario,
    ScenarioAnswer,
    World,
    common_target,
    expected_jobs,
    play,
    simulated_spec,
)
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.assembly import notices
from hpo_core.spec.sections import StopSpec
from hpo_core.spec.study_file import changed, settings_of, split_change
from hpo_core.study import Study
from hpo_core.terminal.output import AsJson, HomeOption, JournalOption, err, out, print_json, print_rows
from hpo_core.views.formatting import Spread, duration, number

MOST_SCENARIOS = 24


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question to ``hpo simulate``: a field for each of its options."""

    study_file: Annotated[
        Path | None, typer.Argument(help="The study's YAML file; default: the description in --from-journal.")
    ] = None
    workers: Annotated[
        list[int] | None, typer.Option("--workers", help="Number of workers; repeatable, to compare.")
    ] = None
    repeat: Annotated[int, typer.Option("--repeat", help="Repeats, each with its own seed.")] = 25
    from_journal: Annotated[
        str | None, typer.Option("--from-journal", help="Learning curves and durations of this past study.")
    ] = None
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Another search method; repeatable, to compare.")
    ] = None
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as search.reduction_factor=3; the same key again: values to compare."),
    ] = None
    target: Annotated[float | None, typer.Option("--target", help="Value of the metric that is good enough.")] = None
    stragglers: Annotated[
        float, typer.Option("--stragglers", help="Durations times 1 + |z|, z normal with this standard deviation.")
    ] = 0.0
    drops: Annotated[
        float, typer.Option("--drops", help="Chance that a job is dropped and granted again, per time of one unit.")
    ] = 0.0
    seconds_per_unit: Annotated[
        float | None, typer.Option("--seconds-per-unit", help="Seconds of one unit of training.")
    ] = None


def make_scenarios(question: Question, past: PastStudy | None) -> list[Scenario]:
    """Every combination of the numbers of workers and of the alternatives among the changes.

    Raises:
        SpecError: a change is wrong, the number of workers is not known, or there are too many combinations.
    """
    asked: Sequence[int | None] = question.workers or ()
    alternatives: dict[tuple[str, ...], list[str]] = {}
    for change in [*(f"search.method={name}" for name in question.method or ()), *(question.changes or ())]:
        alternatives.setdefault(split_change(change)[0], []).append(change)
    several = math.prod(len(changes) for changes in alternatives.values())
    if several > MOST_SCENARIOS**2:  # some may fall together below
        raise SpecError(f"That makes {shown(several)} combinations; ask for at most {MOST_SCENARIOS} at once.")
    combinations = list(itertools.product(*alternatives.values()))
    if len(alternatives.get(("search", "method"), ())) > 1:
        combinations = list(dict.fromkeys(map(_fitting, combinations)))
    specs = [(changes, _spec(question, past, changes)) for changes in combinations]
    if (asked_for := len(specs) * max(1, len(asked))) > MOST_SCENARIOS:
        raise SpecError(f"That makes {asked_for} combinations; ask for at most {MOST_SCENARIOS} at once.")
    faults = Faults(stragglers=question.stragglers, drops=question.drops)
    varied = [changes for changes in alternatives.values() if len(changes) > 1]
    found = []
    for count in asked or [None]:
        for changes, spec in specs:
            size = count if count is not None else _own_workers(spec)
            scales = spec.cluster.scales if count is None else None
            words = [_short(change) for change in changes if any(change in several for several in varied)]
            if not words or len(asked) > 1:
                words.insert(0, f"{scales or format(size, ',')} worker{'s' if size > 1 else ''}")
            least = None if scales is None else scales.min
            found.append(Scenario(", ".join(words), spec, make_workers(size), faults, tuple(changes), least=least))
    return found


def _fitting(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Without the settings that the method among the changes does not know: others of the comparison do."""
    split = [split_change(change) for change in changes]
    known = settings_of(next(value for keys, value in split if keys == ("search", "method")))
    return tuple(
        change
        for change, (keys, _) in zip(changes, split, strict=True)
        if not known or keys[0] != "search" or keys[1:2] == () or keys[1] in known
    )


def _spec(question: Question, past: PastStudy | None, changes: Sequence[str]) -> StudySpec:
    if question.study_file is not None:
        return load_spec(question.study_file, changes)
    if past is None:
        raise SpecError("Give a study's YAML file, or --from-journal NAME, or both.")
    if not changes:
        return past.spec
    where = f"study {past.spec.study!r} with {', '.join(changes)}"
    plain = past.spec.plain() | {"warm_start": None}  # filled in, it may be large; simulations leave it out
    return StudySpec.from_plain(changed(plain, changes), where)


def _own_workers(spec: StudySpec) -> int:
    if spec.cluster.size is not None:
        return spec.cluster.size
    raise SpecError(
        f"Study {spec.study!r} does not say how many workers it has (cluster.kind = {spec.cluster.kind!r}), and a "
        "simulation looks at no cluster; say how many to play, for example --workers 4."
    )


def _short(change: str) -> str:
    key, _, value = change.partition("=")
    return value if key == "search.method" else f"{key.rpartition('.')[2]} {value}"


MADE_UP = (
    "The learning curves are made up: they show schedules and costs. Losses, and with them times to a target, will be "
    "others. --from-journal NAME takes curves and durations from a study of your own.",
)


SPREADS = "Median of the repeats; in brackets the quartiles: half of all repeats lie between them."


@dataclass(frozen=True, slots=True)
class Simulated:
    """All answers to one question, with the words around them."""

    study: str
    metric: str
    sign: float
    """Factor between the metric and a loss."""
    answers: tuple[ScenarioAnswer, ...]
    target: float | None
    """A loss."""
    target_given: bool
    source: str
    """Source of curves and durations."""
    limits: tuple[str, ...]
    """Assumptions of the simulation."""

    @property
    def repeats(self) -> int:
        return len(self.answers[0].runs)

    def heading(self) -> str:
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return f"{self.study}: simulated {times}"


def table(simulated: Simulated) -> list[tuple[str, list[str]]]:
    """(figure, one cell per scenario): the median, and in brackets the quartiles."""
    found = [answer.figures(simulated.target) for answer in simulated.answers]
    scenarios = [answer.scenario for answer in simulated.answers]
    metric, sign = simulated.metric, simulated.sign
    rows: list[tuple[str, list[str]]] = []

    def add(label: str, key: str, show: Callable[[float], str], missing: str = "never") -> None:
        runs = simulated.repeats
        rows.append((label, [_cell(one[key], show, runs, missing) for one in found]))

    add("time to the end", "seconds", duration)
    if simulated.target is not None:
        goal = f"time to {metric} {'≤' if sign > 0 else '≥'} {number(simulated.target * sign)}"
        add(goal, "seconds_to_target", duration)
    tops = {scenario.max_resource for scenario in scenarios}
    if tops != {None}:
        top = f"R = {tops.pop():,}" if len(tops) == 1 else "R"
        add(f"first trial at {top}", "seconds_to_first_at_max", duration)
        add(f"trials at {top}", "trials_at_max", _whole, "–")
    add("utilization", "utilization", lambda share: f"{100 * share:.0f} %")
    add("worker-hours", "worker_seconds", _hours)
    add("trials", "trials", _whole)
    add("jobs", "jobs", _whole)
    add("units of training", "resource", _whole)
    if any(run.failed for answer in simulated.answers for run in answer.runs):
        add("lost or failed attempts", "failed_attempts", _whole)
        add("worker-hours lost", "lost_worker_seconds", _hours)
    add(f"best {metric}", "best_loss", lambda loss: number(loss * sign), "none")
    return rows


def _whole(value: float) -> str:
    return f"{round(value):,}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.3g}" if hours < 1000 else f"{round(hours):,}"


def _cell(spread: Spread | None, show: Callable[[float], str], runs: int, missing: str) -> str:
    if spread is None:
        return missing
    middle, low, high = show(spread.median), show(spread.low), show(spread.high)
    cell = middle if low == high else f"{middle} ({low} – {high})"
    return cell if spread.count == runs else f"{cell}, in {spread.count} of {runs}"


def endings(simulated: Simulated) -> list[str]:
    """One line for each reason for which repeats ended early."""
    return [
        f"{answer.scenario.name}: {count} of {len(answer.runs)} repeats ended early ({reason})."
        for answer in simulated.answers
        for reason, count in answer.endings().items()
    ]


def simulate_study(
    *,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Estimate what a study would take, on virtual workers; nothing is trained."""
    simulated = answer(Question(**options), Home(home, journal))
    if as_json:
        print_json(facts(simulated))
    else:
        print_simulated(simulated)


*_own, _options = signature(simulate_study, eval_str=True).parameters.values()
simulate_study.__signature__ = Signature(  # type: ignore[attr-defined]
    [*signature(Question, eval_str=True).parameters.values(), *_own]
)


def answer(question: Question, home: Home) -> Simulated:
    """Play all scenarios.

    Raises:
        SpecError: the question makes no sense, or asks what the past study does not know.
        StudyNotFoundError: the journal holds no study of that name.
    """
    repeats = question.repeat
    if repeats < 1:
        raise SpecError(f"--repeat {repeats}: give at least 1.")
    past = None
    if question.from_journal is not None:
        with closing(home.read_journal()) as journal, damage_named(journal, question.from_journal):
            past = read_past(journal.entries(question.from_journal), seconds_per_unit=question.seconds_per_unit)
    answers = []
    scenarios = make_scenarios(question, past)
    for scenario in scenarios:
        _check_jobs(scenario)
    with err.status("simulating") as status:
        for scenario in scenarios:
            world = _world(question, scenario, past)
            runs = []
            for repeat in range(repeats):
                status.update(f"simulating {scenario.name}: {repeat + 1} of {repeats}")
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
        source=_source(question, past),
        limits=_limits(question, past, answers, target_given=wanted is not None or target is None),
    )


def _check_jobs(scenario: Scenario) -> None:
    """Refuse what would be played for days; a stop rule ends a study earlier, at a time that nobody knows yet."""
    spec = simulated_spec(scenario, 0)
    jobs = expected_jobs(Study.create(spec))
    if jobs > limits.SIMULATED_JOBS and spec.stop == StopSpec():
        raise SpecError(
            f"{scenario.name}: the search plans {jobs:,} jobs, and at most {limits.SIMULATED_JOBS:,} are simulated; "
            "lower its configurations (--set search.configs=1000), or give a stop rule (--set stop.total_resource=999)."
        )


def _world(question: Question, scenario: Scenario, past: PastStudy | None) -> Callable[[StudySpec, int], World]:
    """Where a scenario's repeats are played: one world for all, or each with its own order of past trials."""
    if past is not None:

        def of_the_past(spec: StudySpec, repeat: int) -> World:
            curves = PastCurves(past, spec, repeat)
            return World(curves, curves, past.has_checkpoints)

        return of_the_past
    curves = AnalyticCurves(
        scenario.spec,
        scenario.spec.seed,
        seconds_per_unit=1.0 if question.seconds_per_unit is None else question.seconds_per_unit,
    )
    return lambda spec, repeat: World(curves)


def _source(question: Question, past: PastStudy | None) -> str:
    if past is not None:
        return f"Curves and durations: {past.describe()}."
    if question.seconds_per_unit is None:
        return "Made-up curves; 1 second a unit of training (--seconds-per-unit says otherwise)."
    return f"Made-up curves; {question.seconds_per_unit:g} s a unit of training."


def _limits(
    question: Question,
    past: PastStudy | None,
    answers: Sequence[ScenarioAnswer],
    *,
    target_given: bool,
) -> tuple[str, ...]:
    said = [(one.scenario.name, notice) for one in answers for notice in notices(one.scenario.spec)]
    found = [notice if len(answers) == 1 else f"{name}: {notice}" for name, notice in said]
    found += MADE_UP if past is None else RULES
    if past is not None:
        jobs = sum(run.jobs for one in answers for run in one.runs)
        guessed = sum(run.guessed for one in answers for run in one.runs)
        found.insert(len(said), f"{100 * guessed / max(1, jobs):.0f} % of the results lie beyond what was recorded.")
    if any(one.scenario.spec.hops for one in answers):
        found.append("Models do not hop here: each worker has all data.")
    if any(one.scenario.spec.packs for one in answers):
        found.append("Jobs share no devices here: each worker runs one job at a time.")
    if any(one.scenario.spec.measures_speedups for one in answers):
        found += LINEAR
    if any(one.scenario.spec.shares for one in answers):
        found.append("A study that shares slots is played alone: it has all of them.")
    if question.drops:
        found.append("A dropped job is noticed at that moment, and granted again at once.")
    if not target_given:
        found.append("No target was given: the goal is the best that every repeat of every scenario came to.")
    if len(answers[0].scenario.spec.objectives) > 1:
        found.append("Best, target and band are those of the first metric.")
    return tuple(found)


def print_simulated(simulated: Simulated) -> None:
    out.say(simulated.heading(), style="bold")
    out.say(simulated.source)
    rows = table(simulated)
    names = [one.scenario.name for one in simulated.answers]
    out.print()
    print_rows(out, [{"": label} | dict(zip(names, cells, strict=True)) for label, cells in rows])
    out.print()
    out.say(SPREADS, style="dim")
    for line in [*endings(simulated), *simulated.limits]:
        out.say(f"- {line}", style="dim")


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
    return {
        "name": one.scenario.name,
        "workers": len(one.scenario.workers),
        "changes": list(one.scenario.changes),
        "figures": {key: None if spread is None else dataclasses.asdict(spread) for key, spread in figures.items()}
        | {"best": None if best is None else dataclasses.asdict(_as_metric(best, sign))},
        "rungs": [{"trained_to": level, "results": count} for level, count in one.rungs()],
        "runs": [_run_facts(run, target, sign) for run in one.runs],
    }


def _run_facts(run: PlayedRun, target: float | None, sign: float) -> dict[str, Any]:
    figures = run.figures(target)
    best = figures.pop("best_loss")
    return {"seed": run.seed, "ended": run.ended, **figures} | {
        "best": None if best is None else best * sign,
        "best_params": run.best,
        "best_resource": run.best_resource,
    }


def _as_metric(spread: Spread, sign: float) -> Spread:
    if sign > 0:
        return spread
    return Spread(-spread.median, -spread.high, -spread.low, least=-spread.most, most=-spread.least, count=spread.count)
