"""One trial trained beyond its search: its numbers, its checkpoints, what rules and pictures make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.checkpoints.storage import files_of_attempt
from hpo_core.journal.codec import decode_entry
from hpo_core.model.errors import HpoError
from hpo_core.model.events import JobGranted, StudyHalted, TrialExtensionEnded
from hpo_core.model.trial import FURTHER
from hpo_core.replay.audit import audit
from hpo_core.report import write_report
from hpo_core.report.comparison import Comparison
from hpo_core.report.series import read_series
from hpo_core.report.study_page import course
from hpo_core.simulation.past import read_past
from hpo_core.tracking.mlflow_runs import trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.training.attempt import run_attempt
from hpo_core.training.request import JobRequest
from hpo_core.views.trial_story import trial_story
from tests.checkpoints.test_checkpoints import Disk
from tests.conftest import World, completed, failed, fresh, make_spec
from tests.golden.make import FOLDER
from tests.methods import ALL, facts, spec_of

LADDER = {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


def network(trial: Any) -> None:
    """A network with dropout, momentum and noise of three global generators in every step."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["x"] * 0.01, momentum=0.9)
    trial.track(model=model, optimizer=optimizer)
    for _ in trial.steps():
        inputs = torch.randn(16, 4)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean() + float(np.random.random())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss=float(loss))


def trained(study: Study, jobs: list[Job], folder: Path) -> None:
    """Real training in this process, in the order of the grants."""
    spec = study.spec
    while jobs:
        job = jobs.pop(0)
        seed = spec.training_seed(job.trial)
        request = JobRequest(study="s", job=job, objective="a:b", metric="loss", seed=seed, folder=str(folder))
        report = run_attempt(network, request)
        assert report.outcome is Outcome.COMPLETED, report.detail
        jobs += study.tell_report(report)


def test_in_two_goes_it_ends_where_one_go_ends_to_the_last_bit(tmp_path: Path) -> None:
    study = fresh(make_spec(search=LADDER))
    trained(study, study.set_capacity(2), tmp_path)
    best = study.best
    assert best is not None and study.finished
    winner = study.state.trials[best.trial]
    (job,) = study.train_further(to=60)
    assert job.checkpoint is not None and job.checkpoint.resource == winner.resource
    trained(study, [job], tmp_path)
    further = winner.further[-1]
    assert further.checkpoint is not None
    assert further.checkpoint.uri == f"checkpoints/trial-{best.trial:05d}/further-attempt-{job.attempt}.safetensors"
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.glob(files_of_attempt(best.trial, job.attempt))] == [
        further.checkpoint.uri
    ]

    once = fresh(make_spec(search={"method": "random", "configs": 9, "max_resource": 60}))
    (tmp_path / "once").mkdir()
    trained(once, once.set_capacity(1), tmp_path / "once")
    same = once.state.trials[best.trial].results[-1]
    assert once.state.trials[best.trial].params == winner.params and same.checkpoint is not None
    assert further.metrics == same.metrics
    mine = load_file(tmp_path / further.checkpoint.uri)
    theirs = load_file(tmp_path / "once" / same.checkpoint.uri)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("limits", [None, {"max_count": 8}, {"max_bytes": 800}], ids=["all", "count", "bytes"])
@pytest.mark.parametrize("name", ALL)
def test_its_checkpoints_are_there_when_loaded_and_stay(name: str, limits: dict[str, int] | None) -> None:
    world = Disk(3, workers=3, failures=0.05)
    study = fresh(spec_of(name, checkpoints=limits or {}), MemoryJournal(), world)
    world.through(study)
    numbers = [t.number for t in study.state.trials if t.results and t.loss is not None][:3]
    assert study.best is not None
    world.failures = 0.0
    for to in (100, 200):
        jobs = [
            job for number in dict.fromkeys([*numbers, study.best.trial]) for job in study.train_further(number, to)
        ]
        world.through(study, jobs)
        study.check()
    assert study.finished
    for number in numbers:
        last = study.state.trials[number].further[-1].checkpoint
        assert last is not None and last.resource == 200
        assert last.uri in world.files or limits is not None
        (grant,) = [
            g for g in facts(study.journal.entries("world"), JobGranted) if (g.trial, g.target) == (number, 200)
        ]
        assert grant.checkpoint is not None and grant.checkpoint.resource == 100, "it did not go on from its own"
    assert audit(study.journal.entries("world")).clean


def test_where_nothing_was_kept_it_starts_from_an_ancestor_or_from_scratch() -> None:
    world = Disk(4, workers=3)
    study = fresh(spec_of("sha"), MemoryJournal(), world)
    world.through(study)
    loser = next(
        t.number for t in study.state.trials if not t.further and study.checkpoints.further_start(t.number) is None
    )
    (job,) = study.train_further(loser, 30)
    assert job.checkpoint is None and study.state.trials[loser].results[-1].checkpoint is not None
    study.tell_report(failed(job, Outcome.CRASHED))
    (job,) = study.state.wanted()
    assert job.retry and job.checkpoint is None
    study.tell_report(world.report(job))

    world = Disk(4, workers=3)
    study = fresh(spec_of("pbt"), MemoryJournal(), world)
    world.through(study)
    children = [t for t in study.state.trials if t.parent is not None and study.state.start_of(t.number) is not None]
    child = children[-1]
    (job,) = study.train_further(child.number, 50)
    assert job.checkpoint is not None and job.params == child.params
    bad = failed(job, Outcome.CHECKPOINT_BAD)
    study.tell_report(bad)
    study.check()
    (job,) = study.state.wanted()
    assert job.checkpoint is None or job.checkpoint.resource < 50
    world.through(study, [job])
    assert study.finished and child.resource == 50


def test_a_job_that_is_given_up_costs_the_trial_nothing() -> None:
    study = fresh(make_spec(search=LADDER, checkpoints={"max_count": 6}))
    world = Disk(5)
    world.through(study)
    best = study.best
    assert best is not None
    before = study.state.trials[best.trial].results
    (job,) = study.train_further(to=90)
    assert study.tell_report(failed(job, Outcome.ERROR, "no such layer")) == []
    trial = study.state.trials[best.trial]
    assert study.finished and trial.abandoned is None and trial.results == before and not trial.further
    assert study.state.abandoned_trials == 0 and study.best == best
    (gone,) = facts(study.journal.entries("world"), TrialExtensionEnded)
    assert (gone.trial, gone.target, gone.reason) == (best.trial, 90, "error once: no such layer")
    assert "not trained further to 90: error once: no such layer" in trial_story(study, best.trial)
    study.check()

    (job,) = study.train_further(to=90)  # asked for anew
    assert study.tell_report(failed(job, Outcome.STORAGE, "disk full")) == [] and study.at_rest
    assert study.status == "halted" and facts(study.journal.entries("world"), StudyHalted)[-1].reason == "disk full"
    study.recover("again")
    (job,) = study.set_capacity(1)
    assert job.rung == FURTHER and job.retry
    study.tell_report(world.report(job))
    assert study.finished and audit(study.journal.entries("world")).clean


def test_no_rule_counts_it_and_none_ends_it() -> None:
    world = World(6, workers=2)
    rules = {"total_resource": 30, "seconds": 1000.0}
    study = fresh(make_spec(search=LADDER, stop=rules), MemoryJournal(), world)
    world.play(study)
    assert study.status == "halted" and study.state.halted is not None
    assert study.state.halted.rule == "total_resource"
    left, seconds, rungs = study.rules.resource_left(study.state), study.rules.seconds, study.method.rungs()
    (job,) = study.train_further(to=1000)
    world.now += 5000
    study.tick()
    study.tell_report(completed(job, -1.0))
    assert study.state.halted.rule == "total_resource" and study.method.rungs() == rungs
    assert study.rules.resource_left(study.state) == left and study.rules.seconds == seconds
    assert study.best is not None and study.best.resource == 1000
    study.recover("on")
    searched = study.state.resource_used
    world.play(study)
    assert study.state.halted is None or study.state.halted.rule == "total_resource"
    assert study.state.resource_used - searched <= 30 + 9
    study.check()


def test_asked_by_hand_in_the_middle_of_an_extension() -> None:
    """The search waits for a trial that trains further and that it wants to promote; nothing runs twice."""
    study = fresh(make_spec(search={**LADDER, "configs": 3}))
    world = World(7)
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": job.params["x"]})
    assert study.finished and study.best is not None
    second = sorted(study.state.trials, key=lambda t: t.params["x"])[1].number
    assert study.state.trials[second].rung == 0
    study.train_further(second, 50)
    job = study.ask()
    assert job is not None and (job.trial, job.rung, job.target) == (second, FURTHER, 50)
    assert study.ask() is None and not study.finished
    study.extend(3)
    jobs = []
    while (new := study.ask()) is not None:
        jobs.append(new)
    for new in jobs:
        study.tell(new, {"loss": 5.0 + new.trial})
    assert study.ask() is None, "the next candidate is the trial that trains"
    study.tell(job, {"loss": 0.0})
    promoted = study.ask()
    assert promoted is not None and (promoted.trial, promoted.target) == (second, 3)
    study.tell(promoted, {"loss": world.loss(promoted)})
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": 9.0})
    study.check()
    assert study.finished and audit(study.journal.entries("world")).clean
    trial = study.state.trials[second]
    assert [r.resource for r in trial.results][:2] == [1, 3] and trial.resource == 50


@pytest.mark.parametrize("to", [True, 2.5, "60", 0, -1, 9, 2**53 + 1])
def test_targets_that_are_none(to: Any) -> None:
    study = fresh(make_spec(search=LADDER))
    World(8).play(study)
    top = next(t.number for t in study.state.trials if t.resource == 9)
    before = study.seq
    with pytest.raises(HpoError, match="must be an integer above"):
        study.train_further(top, to)
    for trial in (-1, 9, True, "0"):
        with pytest.raises(HpoError, match="its trials are 0 to 8"):
            study.train_further(trial, 60)  # type: ignore[arg-type]
    assert study.seq == before


def test_pictures_and_copies_of_a_study_with_it(tmp_path: Path) -> None:
    entries = [decode_entry(line) for line in (FOLDER / "further-format-1.jsonl").read_text().splitlines()]
    page = write_report(entries, tmp_path / "page.html", links={}).read_text()
    assert "Training beyond the search is not drawn here" in page and "trained up to 60" in page
    series = read_series(entries)
    assert sorted({span.target for span in series.spans if span.further}) == [40, 60, 90]
    turns = course(series)
    assert turns is not None and "trial 0 not extended" in turns.body and "no such layer" in turns.body
    assert Comparison.of([entries]).studies[0].study.best is not None
    assert max(read_past(entries).trials[3].curve) == 40

    fold = TrackedStudy()
    steps: dict[int, list[int]] = {}
    for entry in entries:
        fold.add(entry)
        for number in fold.touched:
            steps.setdefault(number, []).extend(p.step for p in fold.trials[number].points if p.key == "loss")
        fold.clear_changes()
    assert fold.status == "finished"
    assert 40 in steps[3] and steps[3] == sorted(set(steps[3])), "a step was logged twice"
    tags = trial_tags(fold, 3, "parent")
    assert "trained further, after 40 units: " in tags["mlflow.note.content"] and tags["hpo.rung"] == "1"
    assert all(promotion.rung != FURTHER for promotion in fold.promotions)
