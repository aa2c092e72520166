from __future__ import annotations

import hashlib
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpo_core.model.errors import SpecError, StorageError
from hpo_core.partitioning.holdings import Holdings
from hpo_core.partitioning.resolution import read_manifest, with_partitions
from hpo_core.partitioning.splitting import partition_data
from tests.spec.test_data_settings import data_of, spec_with

X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 2


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    return tmp_path / "data.npz"


def rows_of(folder: Path, names: list[str]) -> list[tuple[Any, ...]]:
    """Examples of ``.npz`` partitions, sorted."""
    found = []
    for name in names:
        with np.load(folder / name) as part:
            assert list(part) == ["x", "y"]
            found += [(*map(float, x), int(y)) for x, y in zip(part["x"], part["y"], strict=True)]
    return sorted(found)


EXPECTED = sorted((*map(float, x), int(y)) for x, y in zip(X, Y, strict=True))


def test_names_manifest_and_what_a_study_and_a_worker_make_of_them(npz: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    manifest = partition_data(npz, shards, parts=3, seed=5, stratify="y", validation=0.2, validation_parts=2)
    assert [file.name for file in manifest.partitions] == [f"part-{i:05d}-of-00003.npz" for i in range(3)]
    assert [file.name for file in manifest.validation] == [f"validation-{i:05d}-of-00002.npz" for i in range(2)]
    assert [file.count for file in manifest.partitions] == [6, 5, 5]
    assert [file.count for file in manifest.validation] == [2, 2]
    assert manifest.fields == {"x": {"dtype": "<f4", "shape": [3]}, "y": {"dtype": Y.dtype.str, "shape": []}}
    assert (manifest.source, manifest.seed, manifest.stratify, manifest.kind) == (str(npz), 5, "y", "npz")
    assert read_manifest(shards / "manifest.json") == manifest
    for file in (*manifest.partitions, *manifest.validation):
        content = (shards / file.name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.digest)
    assert len(list(shards.iterdir())) == 6, "nothing else is left"
    names = [file.name for file in (*manifest.partitions, *manifest.validation)]
    assert rows_of(shards, names) == EXPECTED
    data = data_of(
        with_partitions(
            spec_with(partitions="shards/manifest.json", validation="shards/manifest.json", folder=str(tmp_path)), {}
        )
    )
    assert [file.count for file in data.files] == [6, 5, 5]
    held = Holdings(tmp_path, [*data.files, *data.validation_files]).look()
    assert len(held.names) == 5 and not held.problems


def test_arrays_of_other_shapes_and_kinds_give_the_same_files(npz: Path, tmp_path: Path) -> None:
    pair = namedtuple("pair", "x y")
    sources: list[Any] = [npz, {"x": X, "y": Y}, (X, Y), pair(X, Y), (torch.from_numpy(X), torch.from_numpy(Y))]
    found = [
        partition_data(source, tmp_path / f"to-{i}", parts=3, stratify="y").model_copy(update={"source": ""})
        for i, source in enumerate(sources)
    ]
    assert all(one == found[0] for one in found[1:])
    assert rows_of(tmp_path / "to-0", [file.name for file in found[0].partitions]) == EXPECTED


def test_a_function_is_called_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_of_partitions.py").write_text(
        "import numpy as np\ndef arrays():\n    return {'x': np.arange(9)}\ndef stream():\n    yield 1\nnothing = 3\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    folders = [str(tmp_path)]

    def split_by(name: str, to: str) -> Any:
        return partition_data(f"lab_of_partitions:{name}", tmp_path / to, parts=2, import_folders=folders)

    assert [file.count for file in split_by("arrays", "a").partitions] == [5, 4]
    with pytest.raises(SpecError, match="generator, which is no array.*def arrays"):
        split_by("stream", "b")
    with pytest.raises(SpecError, match="has no function 'nothing'"):
        split_by("nothing", "b")
    with pytest.raises(SpecError, match="there is no module 'lab_that_is_not'"):
        partition_data("lab_that_is_not:f", tmp_path / "b", parts=2)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"parts": 21}, "parts = 21, but there are 20 examples"),
        ({"parts": 17, "validation": 0.2}, "parts = 17, but there are 16 examples to train on"),
        ({"parts": 0}, "parts = 0 must be from 1"),
        ({"parts": 10**6}, "parts = 1,000,000 must be from 1 to 1,000"),
        ({"seed": -1}, "seed = -1"),
        ({"stratify": "z"}, "stratify = 'z' is not there; the data have x, y"),
        ({"stratify": "x"}, r"stratify = 'x' has values of shape \(3,\)"),
        ({"validation": 1.0}, "validation = 1 must be a share"),
        ({"validation": float("nan")}, "validation = nan must be a share"),
        ({"validation": 0.01}, "validation = 0.01 of 20 examples are 0, too few"),
        ({"validation": 0.1, "validation_parts": 3}, "validation = 0.1 of 20 examples are 2, too few for 3 files"),
        ({"validation_parts": 3}, "validation is 0"),
    ],
)
def test_what_cannot_be_split_so_is_refused(npz: Path, tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        partition_data(npz, tmp_path / "to", **({"parts": 2} | arguments))
    assert not list((tmp_path / "to").iterdir() if (tmp_path / "to").exists() else []), "nothing is left of it"


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "holds no array"),
        ({"x": X, "y": Y[:7]}, r"different lengths \(x 20, y 7\)"),
        ({"x": np.array(3)}, "x is one value and no array"),
        ({"x": np.array([{}, []], dtype=object)}, "x holds Python objects.*unpickle"),
        ({"x": [[1], [2, 3]]}, "x is no array"),
        ([1, 2.5], "of type list, which is no array. Read other data by a function of yours"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        partition_data(arrays, tmp_path / "to", parts=2)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "trap.npz", x=np.array([Trap(), Trap()], dtype=object))
    with pytest.raises(SpecError, match=r"trap.npz: holds Python objects"):
        partition_data(tmp_path / "trap.npz", tmp_path / "to", parts=2)
    assert not (tmp_path / "sprung").exists()


def test_a_truncated_source_is_refused(npz: Path, tmp_path: Path) -> None:
    npz.write_bytes(npz.read_bytes()[:-40])
    with pytest.raises(SpecError, match=r"data.npz: cannot be read .*incomplete"):
        partition_data(npz, tmp_path / "to", parts=2)


@pytest.mark.parametrize("name", ["data.csv", "nothing.npz", "folder"])
def test_sources_that_nobody_reads_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "data.csv").write_text("1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match=f"{name}: "):
        partition_data(tmp_path / name, tmp_path / "to", parts=2)


def test_a_folder_that_is_not_empty_is_left_alone(npz: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (to / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"is not empty \(notes.txt\)"):
        partition_data(npz, to, parts=2)
    with pytest.raises(SpecError, match="is a file"):
        partition_data(npz, to / "notes.txt", parts=2)
    assert [path.name for path in to.iterdir()] == ["notes.txt"]


def test_what_a_killed_run_left_is_no_obstacle_and_no_way_out(npz: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (tmp_path / "victim").write_text("mine")
    (to / ".part-00000-of-00002.npz.partial").symlink_to(tmp_path / "victim")
    (to / ".manifest.json.partial").write_text("{")
    partition_data(npz, to, parts=2)
    assert (tmp_path / "victim").read_text() == "mine"
    assert len(list(to.iterdir())) == 3


def test_a_full_disk_leaves_nothing(npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def full(arrays: Any, file: Any) -> None:
        written.append(file.write(b"x"))
        if len(written) == 2:
            raise OSError(28, "No space left on device", str(tmp_path / "to" / "x"))

    monkeypatch.setattr("hpo_core.partitioning.splitting.write_npz", full)
    with pytest.raises(StorageError, match="No space left on device. No manifest was written"):
        partition_data(npz, tmp_path / "to", parts=3)
    assert len(written) == 2 and not list((tmp_path / "to").iterdir())


def test_a_data_set_of_scikit_learn_is_its_data_and_target(tmp_path: Path) -> None:
    """Its other entries are names and text."""
    pytest.importorskip("sklearn")
    partition_data("sklearn.datasets:load_iris", tmp_path / "shards", parts=3)
    parts = [np.load(path) for path in sorted((tmp_path / "shards").glob("*.npz"))]
    assert [sorted(part.files) for part in parts] == [["x", "y"]] * 3
    assert [part["x"].shape for part in parts] == [(50, 4)] * 3
    assert sorted(np.concatenate([part["y"] for part in parts])) == [0] * 50 + [1] * 50 + [2] * 50


def test_a_file_of_one_array_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    with file.open("wb") as opened:
        np.save(opened, np.zeros(3))
    with pytest.raises(SpecError, match=r"is one array and no .npz archive; save it with numpy.savez"):
        partition_data(str(file), tmp_path / "parts", parts=2)
