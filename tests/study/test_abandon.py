"""Trials that are given up: by the rule about lost workers, or by a person."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.home import Home
from hpo_core.journal.sql import current_owner
from hpo_core.model.errors import HpoError, StudyNotFoundError
from hpo_core.model.events import AttemptFailed, TrialAbandoned
from hpo_core.replay.audit import audit
from hpo_core.views.states import trial_story
from hpo_flows.command import app
from tests.conftest import World, failed, fresh, make_spec
from tests.methods import facts

RANDOM = {"method": "random", "configs": 12, "max_resource": 3}


class Cluster:
    """Plays a study: ``poison`` trials lose their worker always, any attempt with some probability."""

    def __init__(self, *, workers: int, poison: set[int] | range = frozenset(), flaky: float = 0.0, seed: int = 0):  # type: ignore[assignment]
        self.world = World(seed, workers=workers)
        self.poison = poison
        self.flaky = flaky
        self.random = random.Random(seed)

    def report(self, job: Job) -> Any:
        if job.trial in self.poison or self.random.random() < self.flaky:
            return failed(job, Outcome.LOST, "the zygote process ended with signal 9", worker="tcp://a")
        return self.world.good(job)

    def play(self, study: Study) -> Study:
        running = list(study.set_capacity(self.world.workers))
        while running:
            # those that die do so at once
            running.sort(key=lambda job: job.trial not in self.poison)
            running += study.tell_report(self.report(running.pop(0)))
            study.check()
        entries = list(study.journal.entries("world"))
        assert audit(entries).clean
        return study


def study_of(**changes: Any) -> Study:
    return fresh(make_spec(**{"search": RANDOM, **changes}), MemoryJournal())


def abandoned(study: Study) -> set[int]:
    return {trial.number for trial in study.state.trials if trial.abandoned is not None}


def losses(study: Study, trial: int) -> int:
    return sum(e.trial == trial for e in facts(study.journal.entries("world"), AttemptFailed))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("poison", [{0}, {3, 4, 8}])
def test_poison_trials_are_abandoned_and_the_others_finish(workers: int, poison: set[int]) -> None:
    study = Cluster(workers=workers, poison=poison).play(study_of())
    assert study.status == "finished" and study.state.halted is None
    assert abandoned(study) == poison
    for number in poison:
        assert 3 <= losses(study, number) <= 11
    story = trial_story(study, min(poison))
    assert any("worker or zygote died" in line for line in story), story


def test_the_default_is_three_and_the_reason_says_what_others_did() -> None:
    study = Cluster(workers=4, poison={2}).play(study_of())
    assert losses(study, 2) == 3
    reason = study.state.trials[2].abandoned.reason  # type: ignore[union-attr]
    assert reason.startswith("its worker or zygote died 3 times while it ran; of the other trials meanwhile ")
    assert "ended by themselves and 0 lost theirs: the zygote process ended with signal 9" in reason


def test_one_that_is_left_alone_is_abandoned_after_more() -> None:
    """Nothing else is to be done, so nothing can be compared; but others have ended before."""
    study = Cluster(workers=1, poison={11}).play(study_of())
    assert abandoned(study) == {11} and losses(study, 11) == 7
    assert study.status == "finished"


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("search", [RANDOM, {"method": "asha", "configs": 30, "max_resource": 27}])
def test_a_dying_cluster_abandons_nobody(workers: int, search: dict[str, Any]) -> None:
    cluster = Cluster(workers=workers)
    study = study_of(search=search)
    running = list(study.set_capacity(workers))
    for _ in range(6):
        running += study.tell_report(cluster.report(running.pop(0)))
    cluster.flaky = 1.0
    while running:
        running += study.tell_report(cluster.report(running.pop(0)))
        study.check()
    assert study.state.halted is not None and "other trials did no better" in study.state.halted.reason
    assert f"hpo abandon {study.name} --trial" in study.state.halted.reason
    assert not abandoned(study)
    assert len(study.state.trials) <= 6 + 2 * workers + 4, "trial after trial was opened in vain"
    assert audit(study.journal.entries("world")).clean

    study.recover("on new workers")  # and again: each controller has its own count
    cluster.flaky = 0.0
    cluster.play(study)
    assert study.status == "finished" and not abandoned(study)


def test_losses_with_the_controller_count_nothing() -> None:
    study = study_of()
    study.set_capacity(2)
    for number in range(30):
        study.recover(f"controller {number}")
        study.set_capacity(2)
        study.check()
    assert study.state.halted is None and not abandoned(study)
    World().play(study, study.state.wanted())
    assert study.status == "finished" and not abandoned(study)


def test_a_running_trial() -> None:
    study = study_of()
    first = study.set_capacity(2)[0]
    study.abandon(first.trial)
    kinds = [type(event) for event in list(study.journal.entries("world"))[-1].events]
    assert kinds == [AttemptFailed, TrialAbandoned]
    assert study.state.trials[first.trial].failures[-1].outcome is Outcome.PREEMPTED
    assert study.set_capacity(2), "the slot is given to another"
    study.tell_report(World().good(first))
    assert study.state.ignored_reports == 1
    World().play(study, [*study.state.wanted()])
    assert study.status == "finished" and abandoned(study) == {first.trial}
    assert audit(study.journal.entries("world")).clean


def test_what_cannot_be_abandoned() -> None:
    study = study_of()
    with pytest.raises(HpoError, match="has no trial 0; it has none yet"):
        study.abandon(0)
    World().play(study)
    with pytest.raises(HpoError, match="has no trial 12; it has trials 0 to 11"):
        study.abandon(12)
    with pytest.raises(HpoError, match="trial 3 will not go on anyway"):
        study.abandon(3)
    study = study_of()
    study.set_capacity(1)
    study.abandon(0)
    with pytest.raises(HpoError, match="trial 0 is abandoned already"):
        study.abandon(0)


def hpo(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


def test_the_command(tmp_path: Path) -> None:
    journal = Home(tmp_path).open_journal()
    study = Study.create(make_spec(search={"method": "asha", "configs": 9, "max_resource": 9}), journal)
    study.epoch = journal.claim("world", current_owner())
    World(3).play(study, steps=6)
    running = next(iter(study.state.running))
    best = study.best.trial  # its result stands, whatever becomes of it
    paused = next(
        t.number for t in study.state.trials if t.status == "paused" and t.number not in {*study.method.ruled_out, best}
    )

    command = [sys.executable, "-m", "hpo_flows", "abandon", "world", "--trial", str(running)]
    busy = subprocess.run([*command, "--home", str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert busy.returncode == 5, busy.stderr  # this process drives the study, so another one has to ask
    assert "Ctrl-C" in busy.stderr and "hpo resume world" in " ".join(busy.stderr.split())
    journal.release("world", study.epoch)

    for number, where, word in ((running, "on the way to", ""), (paused, "at", ""), (best, "at", ": best so far")):
        done = hpo(tmp_path, "abandon", "world", "--trial", str(number))
        assert done.exit_code == 0, done.stderr
        assert f"abandoned {where} rung" in done.stdout and "a person abandoned it" in done.stdout, done.stdout
        assert done.stdout.splitlines()[-1] == f"now abandoned{word}"
    shown = hpo(tmp_path, "show", "world", "--trial", str(running))
    assert "a person abandoned it" in shown.stdout
    assert hpo(tmp_path, "abandon", "world", "--trial", "99").exit_code == 1
    assert isinstance(hpo(tmp_path, "abandon", "nobody", "--trial", "0").exception, StudyNotFoundError)
    assert hpo(tmp_path, "audit", "world").exit_code == 0

    again = Study.open("world", journal)
    again.epoch = journal.claim("world", current_owner())
    again.recover("me")
    World(4).play(again)
    assert again.status == "finished" and abandoned(again) == {running, paused, best}
    assert hpo(tmp_path, "audit", "world").exit_code == 0
