"""``hpo simulate`` of a study whose models hop between partitions of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from tests.cli.test_simulate_devices import facts, hpo

PLAIN: dict[str, Any] = {
    "study": "hops",
    "metric": {"name": "val_loss"},
    "objective": "tests.conftest:make_spec",
    "space": {"lr": {"type": "float", "low": 0, "high": 1}},
    "search": {"method": "random", "configs": 8, "max_resource": 3},
    "cluster": {"kind": "local", "workers": 4},
}


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_HOME", str(tmp_path / "home"))
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(PLAIN))
    return path


def ends(*words: object) -> list[tuple[float, float]]:
    """Of each scenario: seconds to its end, and with all data on each worker."""
    figures = [scenario["figures"] for scenario in facts(*words)["scenarios"]]
    return [(one["seconds"]["median"], one["seconds_replicated"]["median"]) for one in figures]


def test_equal_models_end_as_soon_as_with_a_copy_on_each_worker(study_file: Path) -> None:
    sizes = [word for size in (1, 2, 4, 8) for word in ("--workers", size)]
    found = ends(study_file, "--partitions", 8, *sizes, "--set", "data.concurrent=8")
    assert found == [(pytest.approx(24 / size), pytest.approx(24 / size)) for size in (1, 2, 4, 8)]


def test_all_models_of_a_one_shot_search_train_at_once(study_file: Path) -> None:
    """17 on eight workers: with two for each worker the last one trained alone, and the end came at 3 s."""
    wanted = "--set", "search.configs=17", "--set", "search.max_resource=1"
    ((hopping, _),) = ends(study_file, "--partitions", 8, "--workers", 8, *wanted)
    assert hopping == pytest.approx(17 / 8)


def test_more_workers_than_partitions_hold_copies(study_file: Path) -> None:
    ((hopping, whole),) = ends(study_file, "--partitions", 2, "--workers", 4, "--set", "data.concurrent=8")
    assert hopping == pytest.approx(whole) == pytest.approx(6.0)


def test_a_study_with_data_is_simulated_on_its_partitions(study_file: Path, tmp_path: Path) -> None:
    data = {"partitions": [{"name": f"part-{n}", "count": n + 1} for n in range(3)], "validation": ["val-0"]}
    study_file.write_text(json.dumps(PLAIN | {"data": data}))
    shown = hpo(study_file, "--workers", 3, "--repeat", 1)
    assert "with all data on each worker" in shown and "data on a worker" in shown and "50 %" in shown
    assert "Models hop: an epoch's time is divided" in " ".join(shown.split())
    assert "with all data on each worker" in (tmp_path / "home" / "simulations" / "hops.html").read_text()
    whole = hpo(study_file, "--workers", 2, "--copies", 2, "--picture", "off", "--repeat", 1)
    assert "data on a worker 100 %" in " ".join(whole.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--partitions", 0), r"--partitions 0 must be from 1 to"),
        (("--partitions", 10**9), r"--partitions 1000000000 must be from 1 to"),
        (("--partitions", 4, "--copies", 0), r"--copies 0 must be at least 1"),
        (("--partitions", 4, "--devices", "2xA100-40GB"), r"--devices and --partitions exclude each other"),
    ],
)
def test_what_makes_no_sense_is_refused(study_file: Path, words: tuple[object, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        hpo(study_file, *words)
