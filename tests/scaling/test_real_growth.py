"""Trials that grow on a real Dask cluster: ranks on gloo, measured, audited, trained again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.events import JobGranted
from hpo_core.replay.audit import audit
from tests.flows.conftest import Runner

pytestmark = pytest.mark.slow

GROWING: dict[str, Any] = {
    "objective": "tests.gangs.lab:train",
    "space": {"lr": {"type": "float", "low": 0.001, "high": 0.05, "log": True}},
    "cluster": {"kind": "local", "workers": 4},
    "training": {"gang": "auto"},
}


def sizes(folder: Path, name: str) -> tuple[dict[tuple[int, int], int], Study]:
    journal = Home(folder).read_journal()
    entries = list(journal.entries(name))
    assert audit(entries).clean
    granted = [event for entry in entries for event in entry.events if isinstance(event, JobGranted)]
    return {(event.trial, event.target): event.demand.slots for event in granted}, Study.open(
        name, journal, reading=True
    )


def test_the_last_trial_gets_two_slots_and_so_does_its_rerun(tmp_path: Path) -> None:
    hpo = Runner(tmp_path, {})
    search = {"method": "random", "configs": 3, "max_resource": 3}
    file = hpo.study(**GROWING, search=search, scaling={"speedups": {"2": 1.9}})
    assert hpo.json("tune", file, "--no-prefect")["status"] == "finished"
    found, study = sizes(hpo.home, "toy")
    assert sorted(found.values()) == [1, 1, 2]
    hpo("rerun", "toy", "--as", "again", "--no-prefect")
    again, rerun = sizes(hpo.home, "again")
    assert again == found
    losses = [[trial.loss for trial in one.state.trials] for one in (study, rerun)]
    assert losses[0] == losses[1], "the same sizes give the same bits"


def test_a_study_measures_how_fast_its_gangs_are(tmp_path: Path) -> None:
    hpo = Runner(tmp_path, {})
    search = {"method": "asha", "configs": 6, "max_resource": 9, "reduction_factor": 3}
    assert hpo.json("tune", hpo.study(**GROWING, search=search), "--no-prefect")["status"] == "finished"
    found, study = sizes(hpo.home, "toy")
    assert 2 in found.values()
    assert study.state.speeds is not None and study.state.speeds.relative[2] > 0


def test_trials_grow_from_one_slot_to_two_and_to_four(tmp_path: Path) -> None:
    """Speed-ups are given, for on two busy cores no gang is sure to be faster."""
    hpo = Runner(tmp_path, {})
    search = {"method": "sha", "configs": 8, "min_resource": 1, "max_resource": 8, "reduction_factor": 2}
    growing = GROWING | {"objective": "tests.gangs.lab:train_as_on_devices"}
    file = hpo.study(**growing, search=search, scaling={"speedups": {2: 2.0, 4: 4.0}})
    assert hpo.json("tune", file, "--no-prefect")["status"] == "finished"
    found, study = sizes(hpo.home, "toy")
    at = {target: [size for (_, reached), size in found.items() if reached == target] for target in (1, 2, 4, 8)}
    assert at[1] == [1] * 8 and len(at[2]) == 4 and at[4] == [2, 2] and at[8] == [4], at
    assert set(at[2]) <= {1, 2}, "four are left for four slots"
    assert study.state.failed_attempts == 0
