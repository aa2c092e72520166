"""A flow run that Prefect starts again finds what it did before, and takes no study from another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from hpo_core.home import Home
from hpo_core.journal import protocol
from hpo_core.journal.protocol import Owner
from hpo_core.journal.sql import SqlJournal, current_owner
from hpo_core.model.errors import StudyBusyError, StudyExistsError, StudyNotFoundError
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows.deployed import flows
from hpo_flows.deployed.flows import begin, resumed
from hpo_flows.prefect_pages.tune_flow import tags_of
from hpo_flows.study_run.session import Session
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
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield Owner(current_owner().host, process.pid, protocol.started(process.pid))


def run_named(name: str, *tags: str) -> FlowRun:
    return FlowRun(flow_id=uuid4(), name=name, tags=list(tags))


def started(configs: int, *, dies: bool = False) -> int:
    """A process of a run, up to its death; returns how many configurations it asks for."""
    session = resumed("toy", configs)
    extend = session._extend
    if extend and not dies:
        study = Study.open("toy", session.journal)
        study.epoch = session.journal.info("toy").epoch
        study.extend(extend)
    session.close()
    return extend


def test_configurations_are_asked_for_once(home: Home) -> None:
    assert started(16, dies=True) == 16, "it died before the journal had them"
    assert started(16) == 16
    assert started(16) == 0, "retried after a crash: 36 trials where 20 were asked for, once"
    assert started(24) == 8
    assert started(16) == 0, "an old run retried after another one"
    study = Study.open("toy", home.open_journal(), reading=True)
    assert study.state.extra_configs == 24


def test_a_run_that_is_retried_leaves_a_study_to_who_drives_it(home: Home, other: Owner) -> None:
    journal: SqlJournal = home.open_journal()
    epoch = journal.claim("toy", other)
    with pytest.raises(StudyBusyError, match=f"process {other.pid}.*Wait for it or end it"):
        resumed("toy")
    assert journal.info("toy").epoch == epoch, "nothing was taken"


def test_a_run_goes_on_with_its_own_study_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[bool] = []

    def drive_to_end(session: Session, action: str) -> Any:
        driven.append(session._given is None)
        session.close()

    monkeypatch.setattr(flows, "drive_to_end", drive_to_end)
    spec = StudySpec.from_plain(TOY)
    begin("tune", run_named("tune-toy", *tags_of(spec)), spec)
    new = spec.model_copy(update={"study": "new"})
    begin("tune", run_named("tune-new", *tags_of(new)), new)
    assert driven == [True, False], "the second died before its study began"
    with pytest.raises(StudyExistsError, match="'toy' exists already. Start `resume` with its name"):
        begin("tune", run_named("eager-macaw"), spec)
    with pytest.raises(StudyExistsError, match="'toy' exists already"):
        begin("tune", run_named("tune-toy"), spec)  # a new run that a person named so


def test_a_study_that_its_run_never_began_is_to_be_retried(home: Home) -> None:
    with pytest.raises(StudyNotFoundError, match="'never'.*is to be retried, not resumed"):
        resumed("never")
