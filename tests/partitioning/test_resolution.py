from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model import limits
from hpo_core.model.errors import SpecError, StorageError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning.resolution import Manifest, with_partitions
from hpo_core.spec.data import DataSpec
from tests.spec.test_data_settings import data_of, spec_with

DIGEST = "0f" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with ``shards``: two partitions, one for validation, and their manifest."""
    shards = tmp_path / "data" / "shards"
    shards.mkdir(parents=True)
    files = {name: PartitionFile(name=name, count=3, bytes=5, digest=DIGEST) for name in ("p-0", "p-1", "v-0")}
    for name in files:
        (shards / name).write_bytes(b"12345")
    manifest = Manifest(partitions=[files["p-0"], files["p-1"]], validation=[files["v-0"]])
    (shards / "manifest.json").write_text(manifest.text())
    return tmp_path / "data"


def resolved(folder: Path, environment: dict[str, str] | None = None, **data: Any) -> DataSpec:
    return data_of(with_partitions(spec_with(folder=str(folder), **data), environment or {}))


def test_a_manifest_says_counts_and_digests_and_a_pattern_takes_files_as_they_are(folder: Path) -> None:
    data = resolved(folder, partitions="shards/manifest.json", validation="shards/manifest.json")
    assert data.files[0] == PartitionFile(name="shards/p-0", count=3, bytes=5, digest=DIGEST)
    assert [file.name for file in data.validation_files] == ["shards/v-0"]
    (alone,) = resolved(folder, partitions="shards/p-1").files
    assert alone == PartitionFile(name="shards/p-1", bytes=5)


def test_names_that_are_no_utf_8_are_refused_in_one_line(folder: Path) -> None:
    (folder / "shards" / os.fsdecode(b"p-\xff")).write_bytes(b"12345")
    with pytest.raises(StorageError, match=r"^data.partitions = .*udcff' has a name that is no UTF-8") as told:
        resolved(folder, partitions="shards/p-*")
    assert "\n" not in str(told.value)
    odd = folder.parent / os.fsdecode(b"\xff")
    folder.rename(odd)
    with pytest.raises(SpecError, match="data.folder: .*, or a byte of a name that is no UTF-8; remove it"):
        resolved(odd, partitions="shards/p-0")


def test_files_of_a_pattern_are_in_the_order_in_which_people_sort(folder: Path) -> None:
    for i in range(12):
        (folder / "shards" / f"q-{i}").write_bytes(b"1" * i)
    data = resolved(folder, partitions="shards/q-*")
    assert [file.bytes for file in data.files] == list(range(12))
    assert data.files[1] == PartitionFile(name="shards/q-1", bytes=1)


def test_a_manifest_lists_files_that_are_on_workers_alone(folder: Path, tmp_path: Path) -> None:
    for name in ("p-0", "p-1", "v-0"):
        (folder / "shards" / name).unlink()
    data = resolved(folder, partitions="shards/manifest.json", validation="shards/manifest.json")
    assert [file.name for file in data.files] == ["shards/p-0", "shards/p-1"]
    assert [file.name for file in data.validation_files] == ["shards/v-0"]
    away = tmp_path / "copied.json"
    (folder / "shards" / "manifest.json").rename(away)
    data = resolved(Path("/nowhere"), partitions=str(away))
    assert [file.name for file in data.files] == ["p-0", "p-1"], "elsewhere: its names are those below the folder"


def test_a_list_is_completed_where_it_can_be(folder: Path) -> None:
    (folder / "alone").write_bytes(b"123")
    data = resolved(folder, partitions=["shards/p-0", "alone", "far-away", {"name": "shards/p-1", "count": 3}])
    assert data.files == (
        PartitionFile(name="alone", bytes=3),
        PartitionFile(name="far-away"),
        PartitionFile(name="shards/p-0", bytes=5),
        PartitionFile(name="shards/p-1", count=3, bytes=5),
    )
    assert resolved(folder, partitions=[file.model_dump() for file in data.files]).files == data.files
    stated = [{"name": "alone", "bytes": 7}]
    assert resolved(folder, partitions=stated).files[0].bytes == 7, "that of the workers may be another one"


def test_one_file_in_both_is_refused(folder: Path) -> None:
    (folder / "shards" / "manifest.json").unlink()
    with pytest.raises(SpecError, match=r"Study 'hopping': data: 'shards/p-0' is in partitions and in validation"):
        resolved(folder, partitions="shards/p-*", validation="shards/*-0")


def test_a_pattern_that_takes_what_was_split_off_for_validation_is_refused(folder: Path) -> None:
    (folder / "shards" / "validation-00000-of-00001.npz").write_bytes(b"12345")
    with pytest.raises(SpecError, match=r"it matches 'shards/validation-00000-of-00001\.npz'"):
        resolved(folder, partitions="shards/*")


def test_more_partitions_than_there_may_be_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS", 1)
    with pytest.raises(SpecError, match=r"2 files match in .*at most 1 partitions"):
        resolved(folder, partitions="shards/p-*")


@pytest.mark.parametrize("pattern", ["shards/x-*", "nowhere/*", "shards"])
def test_a_pattern_that_matches_no_file_is_refused(folder: Path, pattern: str) -> None:
    with pytest.raises(SpecError, match=r"no file matches in .*data"):
        resolved(folder, partitions=pattern)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12345")
    (folder / "shards" / "p-1").unlink()
    (folder / "shards" / "p-1").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError, match=r"shards/p-1 is a link that leads out"):
        resolved(folder, partitions="shards/p-*")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is no manifest that this version reads"),
        ("[]", "is no manifest"),
        ('{"format": 1}', "partitions: Field required"),
        ('{"format": 2, "partitions": []}', "format"),
        ('{"partitions": [{"name": "../x"}]}', "leads out of"),
        ('{"partitions": []}', "names no partitions for that"),
    ],
)
def test_a_broken_manifest_is_refused_by_name(folder: Path, content: str, says: str) -> None:
    (folder / "shards" / "manifest.json").write_text(content)
    with pytest.raises(SpecError, match=f"manifest.json.*{says}"):
        resolved(folder, partitions="shards/manifest.json")
