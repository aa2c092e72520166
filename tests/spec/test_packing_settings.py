from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import load_spec
from hpo_core.spec.packing import PackingSpec
from tests.report.packed_study import packed_study

FILE = """
study: packed
metric: {name: loss}
space: {width: {type: int, low: 8, high: 64}}
search: {method: random, configs: 4, max_resource: 2}
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("own", ["", "packing: true\n", "packing: false\n", "packing: null\n", "packing: {most: 3}\n"])
def test_settings_are_changed_whatever_the_file_says(study_file: Path, own: str) -> None:
    study_file.write_text(FILE + own)
    changes = ["packing.policy=worst_fit", "packing.memory.CPU=2GB", "packing.demand.memory=2GB"]
    packing = load_spec(study_file, changes).packing
    assert packing.policy == "worst_fit" and packing.memory == {"CPU": "2GB"}
    assert packing.demand.memory == "2GB"
    assert packing.most == (3 if "most" in own else PackingSpec().most)


def test_it_is_turned_on_and_off(study_file: Path) -> None:
    assert load_spec(study_file).packing is None
    assert load_spec(study_file, ["packing=true"]).packing == PackingSpec()
    assert load_spec(study_file, ["packing=true", "packing.most=2"]).packing == PackingSpec(most=2)
    study_file.write_text(FILE + "packing: {most: 3}\n")
    assert load_spec(study_file, ["packing=false"]).packing is None


def test_one_amount_holds_for_all_architectures(study_file: Path) -> None:
    packing = load_spec(study_file, ["packing.memory=8GB", "packing.oversubscribe=2"]).packing
    assert packing.memory_limit("A100") == 8_000_000_000 and packing.ratio("CPU") == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("packing.most=0", "most"),
        ("packing.memory=12", "must be 1MB or more"),
        ("packing.memory=true", "memory"),
        ("packing.oversubscribe=0.5", "must be from 1 to 100"),
        ("packing.mps=maybe", "mps"),
        ("packing.demand.memory=2GB * width", "packing.demand.function"),
        ('packing.by=["depth"]', "no parameter of the space"),
    ],
)
def test_bad_values_are_refused_where_they_were_typed(study_file: Path, change: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as found:
        load_spec(study_file, [change])
    assert change in str(found.value)


def test_mps_is_refused_with_more_processes_than_it_serves(study_file: Path) -> None:
    with pytest.raises(SpecError, match="48 processes"):
        load_spec(study_file, ["packing.mps=auto", "packing.most=49"])
    load_spec(study_file, ["packing.mps=off", "packing.most=49"])


def test_a_rerun_packs_like_its_source() -> None:
    entries = packed_study({"method": "random", "configs": 3}, reports=3, failures=0)
    assert rerun_spec(entries, "again").packing == PackingSpec(oversubscribe={"A100": 1.5})
