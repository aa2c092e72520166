"""The controller is killed with SIGKILL after (and before) every entry of a simulated study.

Each controller that dies is a forked process with the real SQLite journal. It drives the study, kills itself at the
chosen moment, and the next one, in this process, recovers; what remains must be whole.
"""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core import Study, StudySpec
from hpo_core.journal.sql import SqlJournal, current_owner
from hpo_core.model.events import Entry, JobCompleted
from hpo_core.replay.audit import audit
from tests.conftest import World, fresh, make_spec
from tests.methods import judge, spec_of


def asha(configs: int) -> StudySpec:
    return make_spec(
        search={"method": "asha", "configs": configs, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
    )


class DeadlyJournal(SqlJournal):
    """Kills its own process at entry ``at``: before it is written, or after it is durable."""

    at = -1
    before = False

    def append(self, study: str, entry: Entry) -> None:
        if entry.seq == self.at and self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(study, entry)
        if entry.seq == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def controller(url: str, spec: StudySpec, *, at: int = -1, before: bool = False) -> None:
    """Drive the study to its end, or to the moment it is killed."""
    journal = DeadlyJournal(url)
    journal.at, journal.before = at, before
    world = World(at, failures=0.05, nans=0.05)
    if not journal.studies():
        Study.create(spec, journal, clock=world.clock)
    epoch = journal.claim("world", current_owner())
    study = Study.open("world", journal, clock=world.clock)
    study.epoch = epoch
    study.recover("controller")
    world.play(study)
    journal.release("world", epoch)
    journal.close()


def in_child(url: str, *, at: int, before: bool, spec: StudySpec) -> int:
    """Run a controller in a forked process; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            controller(url, spec, at=at, before=before)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def assert_whole(url: str, configs: int) -> list[Entry]:
    journal = SqlJournal(url)
    entries = list(journal.entries("world"))
    assert audit(entries).clean
    study = Study.from_entries(entries)
    study.check()
    assert study.status == "finished"
    assert len(study.state.trials) == configs
    assert all(trial.results or trial.abandoned for trial in study.state.trials), "a trial was lost"
    counted = Counter(
        (event.trial, event.rung) for entry in entries for event in entry.events if isinstance(event, JobCompleted)
    )
    assert set(counted.values()) == {1}, "a result was counted twice"
    journal.close()
    return entries


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where possible: SIGKILL does not care for fsync, and hundreds of studies are written."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hpo-test-") as made:
        yield Path(made)


METHODS = ("hyperband", "asha-shared", "pareto-asha-brackets", "stopping-brackets", "sha", "pasha", "grid")


@pytest.mark.parametrize(
    ("spec", "before"),
    [
        pytest.param(asha(8), False, id="asha"),
        pytest.param(spec_of("pbt"), False, id="pbt"),
        *(pytest.param(asha(60), before, id=f"asha-60-{before}", marks=pytest.mark.slow) for before in (False, True)),
        *(pytest.param(spec_of(name), False, id=name, marks=pytest.mark.slow) for name in METHODS),
    ],
)
def test_a_controller_killed_after_each_entry_recovers(folder: Path, spec: StudySpec, before: bool) -> None:
    plan = fresh(spec)
    World(1).play(plan)
    trials = len(plan.state.trials)
    at, killed = 1, 0
    while True:
        url = f"sqlite:///{folder / f'{at}.db'}"
        status = in_child(url, at=at, before=before, spec=spec)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break  # the study ended before entry `at`
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        controller(url, spec)  # in another process than the killed one
        entries = assert_whole(url, trials)
        if len(spec.objectives) == 1:
            judge(spec, entries)
        at += 1
    print(f"{killed} kills")
    assert killed > trials
