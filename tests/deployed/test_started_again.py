"""A flow run that Prefect starts again finds what it did before, and takes no study from another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from hpo_core.home import Home
from hpo_core.journal import protocol
from hpo_core.journal.protocol import Owner
from hpo_core.journal.sql import SqlJournal, current_owner
from hpo_core.model.errors import StudyBusyError, StudyNotFoundError
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows.deployed.study_runs import resumed
from tests.deployed.deployment_server import TOY


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With study toy, of nine configurations."""
    monkeypatch.setenv("HPO_HOME", str(tmp_path))
    monkeypatch.delenv("HPO_JOURNAL", raising=False)
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "tests.flows.objectives")
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", os.pathsep.join(TOY["pythonpath"]))
    Study.create(StudySpec.from_plain(TOY), Home().open_journal())
    return Home()


@pytest.fixture
def other() -> Iterator[Owner]:
    """A controller that lives."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield Owner(current_owner().host, process.pid, protocol.started(process.pid))


def started(run: UUID, configs: int, *, until: str = "the end", take_over: bool = False) -> int:
    """What a process of the run does, up to its death; how many configurations it asks for."""
    session = resumed("toy", run, configs, take_over=take_over)
    extend = session._extend
    if until != "the marker" and extend:
        study = Study.open("toy", session.journal)
        study.epoch = session.journal.info("toy").epoch
        study.extend(extend)
    session.close()
    return extend


def test_configurations_are_asked_for_once(home: Home) -> None:
    run = uuid4()
    assert started(run, 16, until="the marker") == 16, "it died before the journal had them"
    assert started(run, 16) == 16
    assert started(run, 16) == 0, "retried after a crash: 36 trials where 20 were asked for, once"
    another = uuid4()
    assert started(another, 8) == 8
    assert started(run, 16) == 0, "an old run retried after another one"
    study = Study.open("toy", home.open_journal(), reading=True)
    assert study.state.extra_configs == 24


def test_a_run_that_is_retried_leaves_a_study_to_who_drives_it(home: Home, other: Owner) -> None:
    old = uuid4()
    assert started(old, 0) == 0
    journal: SqlJournal = home.open_journal()
    epoch = journal.claim("toy", other)
    with pytest.raises(StudyBusyError, match=f"process {other.pid}.*take_over"):
        started(old, 0, take_over=True)
    with pytest.raises(StudyBusyError, match="Wait for it or end it"):
        started(old, 0)
    assert journal.info("toy").epoch == epoch, "nothing was taken"
    session = resumed("toy", uuid4(), 0, take_over=True)
    assert session._force, "who asks for it gets it"
    session.close()


def test_a_study_that_its_run_never_began_is_to_be_retried(home: Home) -> None:
    with pytest.raises(StudyNotFoundError, match="'never'.*is to be retried, not resumed"):
        resumed("never", uuid4(), 0, take_over=False)
