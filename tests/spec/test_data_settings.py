from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.data import DataSpec
from hpo_core.study import Study

FILE = """
study: hopping
objective: lab:train
metric: {name: loss}
space: {width: {type: int, low: 8, high: 64}}
search: {method: random, configs: 4, max_resource: 2}
"""
PLAIN: dict[str, Any] = {
    "study": "hopping",
    "objective": "lab:train",
    "metric": {"name": "loss"},
    "space": {"width": {"type": "int", "low": 8, "high": 64}},
    "search": {"method": "random", "configs": 4, "max_resource": 2},
}
DIGEST = "0f" * 32


def spec_with(**data: Any) -> StudySpec:
    return StudySpec.from_plain(PLAIN | {"data": data})


def data_of(spec: StudySpec) -> DataSpec:
    assert spec.data is not None
    return spec.data


def test_names_are_sorted_as_people_sort() -> None:
    data = data_of(spec_with(partitions=["b-10", "b-9", {"name": "a", "count": 3, "bytes": 7, "digest": DIGEST}]))
    assert [file.name for file in data.files] == ["a", "b-9", "b-10"]
    assert data.files[0] == PartitionFile(name="a", count=3, bytes=7, digest=DIGEST)
    assert data.is_resolved and data.validation_files == ()


@pytest.mark.parametrize(
    ("partitions", "says"),
    [
        ([], "at least one is needed"),
        ("", "is empty"),
        (3, "write a pattern such as"),
        ({"name": "a"}, "write a pattern such as"),
        ("/srv/*.npz", "is absolute; .* set data.folder"),
        ("../*.npz", "leads out of data.folder"),
        ("shards/**/*.npz", r"\*\* is not taken"),
        (["/srv/a.npz"], "is absolute"),
        (["shards/../../a.npz"], "leads out of data.folder"),
        (["."], "leads out of data.folder"),
        (["shards//a.npz"], "write .shards/a.npz"),
        (["a", "b", "a"], "names .a. twice"),
        ([{"name": "a", "count": 0}], "count.*greater than or equal to 1"),
        ([{"name": "a", "digest": "sha256:1"}], "digest"),
        ([{"name": "a", "size": 3}], "unknown key"),
        ([{"count": 3}], "partitions.0.name: is required"),
        (["a" * 2000], "1000 characters"),
        ([str(i) for i in range(limits.PARTITIONS + 1)], "at most 1,000 partitions"),
    ],
)
def test_bad_partitions_are_refused(partitions: Any, says: str) -> None:
    with pytest.raises(SpecError, match=f"(?s)data.*{says}"):
        spec_with(partitions=partitions)


def test_an_error_in_a_list_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(FILE + "data:\n  partitions:\n    - a\n    - {name: b, count: 0}\n")
    with pytest.raises(SpecError, match=r"study.yaml:10: data.partitions.1.count: "):
        load_spec(path)


def test_nothing_is_trained_and_validated_on() -> None:
    with pytest.raises(SpecError, match="is in partitions and in validation"):
        spec_with(partitions=["a", "b"], validation=["b"])


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"packing": {}}, "a worker trains one unit at a time.*drop packing.*several workers"),
        ({"training": {"gang": 2}}, "one worker at a time; set training.gang to 1, or drop data"),
        ({"style": "optuna"}, r"train\(trial\)"),
        ({"objective": None}, "give objective"),
    ],
)
def test_what_cannot_hop_is_refused_with_its_cure(others: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        StudySpec.from_plain(PLAIN | {"data": {"partitions": ["a"]}} | others)
    StudySpec.from_plain(PLAIN | others)


def test_settings_come_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(FILE)
    assert load_spec(path).data is None
    changes = ['data.partitions=["p-2", "p-1"]', "data.folder=shards", "data.scheduler=randomized", "data.concurrent=3"]
    data = data_of(load_spec(path, changes))
    assert [file.name for file in data.files] == ["p-1", "p-2"]
    assert data.folder == str(tmp_path / "shards") and data.scheduler == "randomized" and data.concurrent == 3
    assert data_of(load_spec(path, ["data.partitions=p-*.npz"])).partitions == "p-*.npz"
    assert data_of(load_spec(path, ["data.partitions=p-*.npz"])).folder == str(tmp_path), "the study file's folder"
    assert data_of(load_spec(path, ["data.partitions=p", "data.folder=/srv/p"])).folder == "/srv/p"


def test_the_code_that_loads_partitions_belongs_to_the_study_s_code() -> None:
    assert list(spec_with(partitions=["a"]).functions.values()) == ["lab:train"]
    assert list(spec_with(partitions=["a"], load="lab.io:read").functions.values()) == ["lab:train", "lab.io:read"]


def test_the_journal_keeps_the_list(tmp_path: Path) -> None:
    (tmp_path / "p-1.npz").write_bytes(b"12345")
    spec = spec_with(partitions="p-*.npz", folder=str(tmp_path))
    with pytest.raises(SpecError, match="with_partitions"):
        Study.create(spec)
    study = Study.create(with_partitions(spec))
    job = study.ask()
    assert job is not None
    (tmp_path / "p-2.npz").write_bytes(b"1")
    (tmp_path / "p-1.npz").write_bytes(b"changed")
    recorded = (PartitionFile(name="p-1.npz", bytes=5),)
    assert data_of(Study.open("hopping", study.journal).spec).files == recorded
    again = rerun_spec(list(study.journal.entries("hopping")), "again")
    assert data_of(with_partitions(again)).files == recorded, "a rerun trains on what its source trained on"
