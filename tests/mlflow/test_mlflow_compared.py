"""A comparison of studies in a real MLflow: over experiments, with studies that have no runs there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.report.comparison import Comparison, write_comparison
from hpo_core.tracking.comparison_run import Tracked, log_comparison
from hpo_core.tracking.follower import project_study
from hpo_core.tracking.mlflow_client import open_client
from tests.conftest import World, fresh, make_spec

SEARCH = {"method": "random", "configs": 3, "max_resource": 3}


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Home:
    (tmp_path / "home").mkdir()
    for name in ("home/mlflow.db", "other.db"):
        shutil.copy(empty_store, tmp_path / name)
    return Home(tmp_path / "home")


@pytest.fixture
def journal(home: Home) -> Journal:
    return home.open_journal()


def add(home: Home, journal: Journal, name: str, seed: int, **tracking: str) -> Tracked:
    """A played study, projected where its tracking is on."""
    world = World(seed)
    spec = make_spec(study=name, seed=seed, search=SEARCH, tracking=tracking)
    world.play(fresh(spec, journal, world))
    uri = home.tracking_uri(spec)
    if uri is not None:
        project_study(home, journal, name)
    return Tracked(name, journal.info(name).created, uri, spec.tracking.experiment, home.artifact_location(spec))


def compare(home: Home, journal: Journal, studies: list[Tracked]) -> tuple[dict[str, str], dict[str, str]]:
    comparison = Comparison.of([list(journal.entries(study.study)) for study in studies])
    page = write_comparison(comparison, home.comparison_path([study.study for study in studies]))
    return log_comparison(comparison.facts(), page, studies)


def runs(client: Any, kind: str) -> list[Any]:
    experiments = [found.experiment_id for found in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`hpo.kind` = '{kind}'", max_results=1000))


def test_trials_of_all_experiments_are_compared(home: Home, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one named has its tracking off, the last one was never copied."""
    asked: dict[str, list[str]] = {}

    def keep(uri: str, experiments: list[str], found: list[str]) -> str:
        asked.update(experiments=experiments, runs=found)
        return "the page"

    monkeypatch.setattr("hpo_core.tracking.comparison_run.compare_url", keep)  # a store without a server has no pages
    studies = [
        add(home, journal, "off", 1, mlflow="off"),
        add(home, journal, "one", 2, experiment="first"),
        add(home, journal, "two", 3, experiment="second"),
        add(home, journal, "late", 4, experiment="second"),
    ]
    uri = studies[1].tracking_uri
    assert uri is not None
    client = open_client(uri)
    for run in runs(client, "trial"):
        if run.data.tags["hpo.study"] == "late":
            client.delete_run(run.info.run_id)

    links, missing = compare(home, journal, studies)
    assert links["MLflow comparison"] == "the page"
    assert set(missing) == {"off", "late"}
    assert missing["off"] == "its tracking is off" and "`hpo project late`" in missing["late"]
    of_run = {run.info.run_id: run for run in runs(client, "trial")}
    compared = [of_run[run_id] for run_id in asked["runs"]]
    assert [run.data.tags["hpo.study"] for run in compared] == ["one"] * 3 + ["two"] * 3
    ids = {name: client.get_experiment_by_name(name).experiment_id for name in ("first", "second")}
    assert asked["experiments"] == [ids["first"], ids["second"]]
    (run,) = runs(client, "comparison")
    assert run.info.experiment_id == client.get_experiment_by_name("first-comparisons").experiment_id
    assert json.loads(run.data.tags["hpo.studies"]) == ["off", "one", "two", "late"]


def test_another_store_and_an_experiment_that_is_not_there(home: Home, journal: Journal, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    one, far = add(home, journal, "one", 1), add(home, journal, "far", 2, mlflow=other)
    absent = add(home, journal, "absent", 3, mlflow="off")
    absent = Tracked("absent", absent.created, one.tracking_uri, "none such")
    _, missing = compare(home, journal, [one, far, absent])
    assert missing["far"] == f"it is tracked at {other}"
    assert "no trial of it is in experiment 'none such'" in missing["absent"]
    assert open_client(str(one.tracking_uri)).get_experiment_by_name("none such") is None, "looked up, not made"


def test_a_study_created_again_is_not_mixed_with_the_deleted_one(home: Home, journal: Journal) -> None:
    one = add(home, journal, "one", 1)
    again = Tracked("one", one.created + 1.0, one.tracking_uri, one.experiment)
    assert set(compare(home, journal, [again])[1]) == {"one"}
