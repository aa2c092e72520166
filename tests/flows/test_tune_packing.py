"""``hpo tune-packing`` on real Dask workers and in real processes; a later study uses what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.packed_runs import ROOT, Packed, most_at_once

RATIOS = ("--ratios", "1,3", "--seconds", "2")
STUDY: dict[str, Any] = {
    "objective": "ratio_objectives:dispatch",
    "pythonpath": [str(ROOT / "tests" / "training")],
    "space": {
        "do": {"type": "categorical", "choices": ["waits", "computes", "fails"]},
        "x": {"type": "float", "low": 0.0, "high": 1.0},
    },
    "search": {"method": "random", "configs": 12, "max_resource": 400},
    "cluster": {"kind": "local", "workers": 1},
    "packing": {
        "devices": "cpu",
        "memory": "600MB",
        "most": 6,
        "demand": {"memory": "50MB", "compute": 50, "cores": 1},
    },
}


@pytest.mark.slow
def test_the_ratio_found_is_used_by_later_studies_unless_one_is_stated(tmp_path: Path) -> None:
    packed = Packed(tmp_path, **STUDY)
    said = " ".join(packed.run("tune-packing", "study.yaml", "do=waits", *RATIOS, "--units", "100000").split())
    assert "Best: 3" in said and "ratio 3: 6 at once on CPU" in said
    assert not list(packed.home.folder.glob("tune-packing-*")), "nothing is left of what it trained"
    assert "packed" not in packed.run("list"), "it is no study"
    listed = json.loads(packed.run("history", "list", "--json"))
    assert [one["oversubscribe"] for one in listed if "oversubscribe" in one] == [3.0]
    plain = yaml.safe_load((tmp_path / "study.yaml").read_text())
    plain["space"]["do"]["choices"] = ["waits"]
    (tmp_path / "waits.yaml").write_text(yaml.safe_dump(plain))
    said = packed.run("tune", "waits.yaml")
    assert "Jobs may claim the compute 3 times on CPU" in said and most_at_once(packed.ended()) == 6
    said = packed.run("tune", "waits.yaml", "--name", "stated", "--set", "packing.oversubscribe=1")
    assert "may claim" not in said


@pytest.mark.slow
def test_jobs_that_compute_keep_to_1_and_mistakes_are_said_in_words(tmp_path: Path) -> None:
    packed = Packed(tmp_path, **STUDY)
    said = packed.run("tune-packing", "study.yaml", "do=computes", *RATIOS, "--units", "100000", "--json")
    found = json.loads(said[said.index("\n{") :] if "\n{" in said else said[said.index("{") :])["CPU"]
    assert found["best"] == 1 and found["speedup"] == 1 and found["end"] == ""
    said = packed.run("tune-packing", "study.yaml", "do=fails", *RATIOS, code=1)
    assert "ended with error: ValueError: no such data" in said and "Traceback" not in said
    assert "--ratios: 0.5 must be from 1" in packed.run("tune-packing", "study.yaml", "--ratios", "0.5,1", code=2)
    assert "write numbers" in packed.run("tune-packing", "study.yaml", "--ratios", "a", code=2)
    assert "no parameter" in packed.run("tune-packing", "study.yaml", "nothing=3", code=2)
