from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import optuna
import pytest

from hpo_core import Job, Report, Study
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.events import JobCompleted, JobGranted, TrialAbandoned
from hpo_core.model.trial import Outcome
from hpo_core.optuna.optuna_sampler import OptunaSampler
from hpo_core.replay.audit import audit
from hpo_core.search.method import Infeasible
from hpo_core.search.pareto_rungs import ParetoRung
from hpo_core.views.summary import constraint_words, summarize
from tests.conftest import World, make_spec, played
from tests.methods import spec_of

NAMES = ["size", "time"]


class Constrained(World):
    """Values of two constraints beside the losses; they change as a trial trains, and are sometimes NaN."""

    def report(self, job: Job) -> Report:
        found = super().report(job)
        if found.outcome is not Outcome.COMPLETED:
            return found
        draw = random.Random(repr((job.trial, job.target)))
        values = {name: round(draw.uniform(-2, 1), 1) for name in NAMES}
        bad = draw.random() < 0.03
        if bad:
            values["time"] = math.nan
        metrics = found.metrics | values | ({"gain": draw.random()} if self.several else {})
        return Report(
            trial=job.trial,
            attempt=job.attempt,
            outcome=Outcome.DIVERGED if bad else Outcome.COMPLETED,
            metrics=metrics,
            curve=found.curve,
            checkpoint=found.checkpoint,
        )

    several = False


def play(name: str, **changes: Any) -> Study:
    world = Constrained(6, failures=0.05, nans=0.05)
    world.several = name.startswith("pareto-")
    return played(spec_of(name, **({"constraints": NAMES} | changes)), world)


def rank(event: JobCompleted) -> tuple[float, float] | None:
    """(total violation, loss) of one result from what was reported alone; None where it is not finite."""
    values = [event.metrics[name] for name in (*NAMES, "loss") if name in event.metrics]
    if len(values) < 3 or not all(map(math.isfinite, values)):
        return None
    return sum(max(0.0, value) for value in values[:2]), values[2]


def events(study: Study) -> Iterator[Any]:
    for entry in study.journal.entries(study.name):
        yield from entry.events


@pytest.mark.parametrize(
    "name", ["asha", "asha-endless", "hyperband", "stopping", "pbt", "random", "pareto-sha", "pareto-pbt"]
)
def test_the_best_is_feasible_and_the_study_is_audited(name: str) -> None:
    study = play(name)
    results = [e for e in events(study) if type(e) is JobCompleted]
    found = [(rank(e), e) for e in results]
    infeasible = [e for key, e in found if key is not None and key[0] > 0]
    assert 0 < len(infeasible) < len(results) and study.state.infeasible_results == len(infeasible)
    assert [e.violation > 0 for _, e in found] == [key is not None and key[0] > 0 for key, _ in found]
    assert all((e.loss is None) == (key is None) for key, e in found)
    best = study.best
    assert best is not None
    feasible = [key[1] for key, _ in found if key is not None and key[0] == 0]
    if not name.startswith("pareto-"):
        assert best.loss == min(feasible)
    else:
        points = [(e.metrics["loss"], -e.metrics["gain"]) for key, e in found if key is not None and key[0] == 0]
        front = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
        assert {member.losses for member in study.front} == front
    study.check()
    lines = [encode_entry(entry) for entry in study.journal.entries(study.name)]
    report = audit(map(decode_entry, lines))
    assert report.clean, report.findings
    again = Study.from_entries(map(decode_entry, lines))
    assert again.best == best and again.state.infeasible_results == len(infeasible)


@pytest.mark.parametrize("name", ["asha", "asha-brackets"])
def test_asha_promotes_the_best_candidate_by_violation_and_loss(name: str) -> None:
    study = play(name)
    judged: dict[tuple[int, int], dict[int, tuple[float, float, int]]] = {}
    left: dict[tuple[int, int], set[int]] = {}
    promotions = behind = 0
    eta = study.spec.search.reduction_factor  # type: ignore[union-attr]
    for event in events(study):
        if type(event) is JobCompleted:
            key = rank(event)
            value = (math.inf, math.inf) if key is None else key
            judged.setdefault((event.bracket, event.rung), {})[event.trial] = (*value, event.trial)
        elif type(event) is TrialAbandoned:
            judged.setdefault((event.bracket, event.rung), {})[event.trial] = (math.inf, math.inf, event.trial)
        elif type(event) is JobGranted and event.rung and not event.retry:
            below = (event.bracket, event.rung - 1)
            ranked = sorted(judged[below].values())
            top = [trial for *_, trial in ranked[: int(len(ranked) // eta)]]
            free = [trial for trial in top if trial not in left.setdefault(below, set())]
            assert free and event.trial == free[0], f"{event} was promoted, {free} are candidates"
            left[below].add(event.trial)
            promotions += 1
            own = judged[below][event.trial]
            behind += any(k[1] < own[1] and k[0] > own[0] for k in ranked)
    assert promotions > 3 and behind, "no promotion passed over an infeasible result with a smaller loss"


@pytest.mark.parametrize("name", ["pbt", "pareto-pbt"])
def test_a_member_goes_on_from_a_trial_that_violates_less(name: str) -> None:
    study = play(name)
    compared = 0
    for child, event in study.state.reproduced.items():
        if event.opponent is None or event.parent is None:
            continue
        one, other = (study.state.trials[number].results for number in (event.initiator, event.opponent))
        if one and other and rank(one[-1]) and rank(other[-1]):
            a, b = rank(one[-1]), rank(other[-1])
            assert a is not None and b is not None
            if a[0] != b[0]:
                assert event.parent == (event.initiator if a[0] < b[0] else event.opponent), f"trial {child}"
                compared += 1
    assert compared > 3


def results_at_random(draw: random.Random, count: int, objectives: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        losses = tuple(float(draw.randint(0, 4)) for _ in range(objectives))
        loss = losses[0] if objectives == 1 else losses
        kind = draw.random()
        found.append(None if kind < 0.1 else Infeasible(draw.choice([0.5, 1.0, 2.0]), loss) if kind < 0.5 else loss)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_rung_of_several_objectives_ranks_infeasible_results_behind_its_fronts(seed: int) -> None:
    draw, rung, plain = random.Random(seed), ParetoRung(1, 3), ParetoRung(1, 3)
    found = results_at_random(draw, 24, 2)
    for trial, loss in enumerate(found):
        rung.add(trial, loss)
        if not isinstance(loss, Infeasible) and loss is not None:
            plain.add(trial, loss)
        if draw.random() < 0.1 and found[gone := draw.randrange(trial + 1)] is not None:
            rung.withdraw(gone)
            if not isinstance(found[gone], Infeasible):
                plain.withdraw(gone)
            found[gone] = None
        rung.check()
    infeasible = [t for t in range(24) if isinstance(found[t], Infeasible)]
    infeasible.sort(key=lambda t: (found[t].violation, found[t].losses, t))
    feasible = [t for t in plain.ranking() if found[t] is not None]
    assert rung.ranking() == feasible + infeasible + [t for t in range(24) if found[t] is None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints": ["loss"]}, "'loss' is a metric of the study already"),
        ({"constraints": ["a", "a"]}, "names one twice"),
        ({"constraints": [""]}, "names have 1 to"),
        ({"constraints": "size"}, "constraints"),
        ({"sampler": {"name": "TPESampler", "constraints_func": "f"}}, "report its values with the metric"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(**changes)


def test_ask_and_tell_want_every_constraint() -> None:
    study = Study.create(make_spec(constraints=NAMES))
    job = study.ask()
    assert job is not None
    with pytest.raises(ObjectiveError, match="constraint 'time' is None"):
        study.tell(job, {"loss": 0.1, "size": 0.0})
    study.tell(job, {"loss": 0.1, "size": 0.5, "time": 0.25})
    assert study.best is None and summarize(study).infeasible == 1
    assert constraint_words(study.spec, 1) == "size, time at most 0; 1 result violates them"
    job = study.ask()
    study.tell(job, {"loss": 0.05, "size": math.inf, "time": -1.0})
    assert study.state.trials[1].loss is None and study.best is None
    job = study.ask()
    study.tell(job, {"loss": 0.9, "size": 0.0, "time": -1.0})
    assert study.best is not None and study.best.loss == 0.9


def test_a_target_counts_feasible_results_alone() -> None:
    study = Study.create(make_spec(constraints=["size"], stop={"target": 0.5}))
    for size, status in ((1.0, "open"), (-1.0, "halted")):
        job = study.ask()
        study.tell(job, {"loss": 0.1, "size": size})
        assert study.status == status


def constraints_of(shown: optuna.trial.FrozenTrial) -> list[float]:
    """What a sampler sees: `FrozenTrial.constraints` is of Optuna 5."""
    by_name = getattr(shown, "constraints", None)
    return list(shown.system_attrs["constraints"]) if by_name is None else list(by_name.values())


@pytest.mark.parametrize("name", ["TPESampler", "NSGAIISampler"])
def test_samplers_of_optuna_are_shown_the_constraints(name: str) -> None:
    arguments = {"population_size": 5} if name == "NSGAIISampler" else {"n_startup_trials": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = {"method": "asha", "configs": 20, "max_resource": 9, "reduction_factor": 3}
        spec = make_spec(constraints=NAMES, sampler={"name": name, **arguments}, search=search)
        study = played(spec, Constrained(6, failures=0.05))
    assert isinstance(study.sampler, OptunaSampler)
    compared = 0
    for trial, shown in zip(study.state.trials, study.sampler._study.get_trials(deepcopy=False), strict=True):
        finite = {r.resource: r for r in trial.results if r.loss is not None}
        # GPSampler of Optuna 4 asks the storage, the others look at the trial
        assert study.sampler._storage.get_trial_system_attrs(shown._trial_id) == shown.system_attrs
        if shown.state == optuna.trial.TrialState.COMPLETE:
            at = next(r for r in finite.values() if r.loss == shown.value)
            assert constraints_of(shown) == [at.metrics[n] for n in NAMES]
            compared += 1
        elif shown.state == optuna.trial.TrialState.PRUNED and finite:
            assert constraints_of(shown) == [finite[max(finite)].metrics[n] for n in NAMES]
            compared += 1
    assert compared > 3
