"""Where training writes nothing is imported from, and a recorded study may import from no other place than a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_flows.deployed.flows import recorded_study
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.study_run.session import Session
from tests.conftest import make_spec


def test_the_home_is_no_import_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path / "home")
    code = str(tmp_path / "code")
    planted = [str(home.folder), str(home.folder / "studies" / "x" / "scratch"), str(tmp_path / "code" / ".." / "home")]
    spec = make_spec(objective="json:loads", pythonpath=[planted[0], code, *planted[1:]])
    session = Session(home, "world", spec=spec)
    assert session.executor._spec.pythonpath == [code]
    assert "nothing is imported from" in caplog.text
    session.close()


@pytest.mark.parametrize("place", ["home/studies", "project/../other"])
def test_import_folders_of_a_recorded_study_need_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Whoever can write to the journal, with a command say, must not choose what a deployment's worker imports."""
    monkeypatch.setenv("HPO_HOME", str(tmp_path / "project" / "home"))
    monkeypatch.setenv("HPO_ALLOWED_OBJECTIVES", "json")
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(tmp_path / "project"))
    home = Home()
    folder = tmp_path / place if place != "home" and not place.startswith("home/") else tmp_path / "project" / place
    journal = home.open_journal()
    Study.create(make_spec(objective="json:loads", pythonpath=[str(folder)]), journal)
    Study.create(
        make_spec(study="good", objective="json:loads", pythonpath=[str(tmp_path / "project" / "code")]), journal
    )
    with pytest.raises(NotAllowedError, match="pythonpath"):
        recorded_study("world")
    with pytest.raises(NotAllowedError, match="pythonpath"):
        Permissions.of_environment().check(Study.open("world", journal, at=0).spec)
    assert recorded_study("good").name == "good"
    journal.close()
