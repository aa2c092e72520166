"""``hpo enqueue`` gives a configuration to a study that nobody drives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.journal.protocol import Owner
from hpo_core.model.errors import HpoError, StudyBusyError
from hpo_core.replay.audit import audit
from hpo_flows.command import app
from tests.conftest import make_spec


def enqueue(home: Home, *params: str) -> str:
    found = CliRunner().invoke(app, ["enqueue", "idle", "--params", *params, "--home", str(home.folder)])
    if found.exception is not None:
        raise found.exception
    return found.output


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path)
    Study.create(make_spec(study="idle"), found.open_journal())
    return found


def test_the_configuration_is_the_next_and_the_journal_says_so(home: Home) -> None:
    assert "enqueued in idle" in enqueue(home, "x=0.125", "c=b")
    assert list(Study.open("idle", home.read_journal(), reading=True).state.queue) == [{"x": 0.125, "c": "b"}]
    assert audit(home.read_journal().entries("idle")).clean
    with pytest.raises(HpoError, match="'y'"):
        enqueue(home, "y=1")


def test_a_study_that_runs_is_left_alone(home: Home) -> None:
    with closing(home.open_journal()) as journal:
        journal.claim("idle", Owner("elsewhere", 1, 0.0))
        with pytest.raises(StudyBusyError, match="loses nothing: then this command, then `hpo resume idle`"):
            enqueue(home, "x=0.125")
    assert not Study.open("idle", home.read_journal(), reading=True).state.queue
