"""A checkpoint URI comes out of a journal: nothing outside of the study's base is read or removed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from hpo_core import Study
from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.storage import all_files, attempt_files, local_path, remove
from hpo_core.execution.loop import CheckpointCleanup
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Checkpoint, Job, Outcome, Rung
from hpo_core.tracking.mlflow_client import KnownRun
from hpo_core.tracking.run_artifacts import write_files
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.training.attempt import run_attempt
from tests.checkpoints.saving import save
from tests.conftest import completed, make_spec
from tests.job_requests import make_request

TREE = {"tracked": {}, "random": {}, "metrics": {}, "weights": np.arange(3.0)}


@pytest.fixture
def victim(tmp_path: Path) -> Checkpoint:
    """Somebody else's file, and a reference to it whose size and digest are right."""
    return save(tmp_path, "thesis/chapter.safetensors", TREE, resource=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "study"
    (made / "checkpoints" / "trial-00000").mkdir(parents=True)
    return made


def bad_uris(tmp_path: Path) -> list[str]:
    file = tmp_path / "thesis" / "chapter.safetensors"
    return [
        "../../thesis/chapter.safetensors",
        "checkpoints/../../../thesis/chapter.safetensors",
        "checkpoints/trial-00000/../../../../thesis/chapter.safetensors",
        str(file),
        file.as_uri(),
        f"local://{file}",
        "checkpoints/",
        "checkpoints",
        "logs/trial-00000-attempt-0.log",
        "s3://bucket/thesis/chapter.safetensors",
        "",
    ]


def test_files_outside_the_study_are_neither_loaded_nor_removed(
    tmp_path: Path, folder: Path, victim: Checkpoint
) -> None:
    for uri in bad_uris(tmp_path):
        bad = msgspec.structs.replace(victim, uri=uri)
        with pytest.raises(CheckpointError, match="does not lie below"):
            checkpoints.load(folder, bad, "checkpoints")
        remove(folder, uri, "checkpoints")
    job = Job(0, 1, Rung(0, 0), 2, {}, bad)
    request = make_request(job=job, folder=str(folder))
    report = run_attempt(lambda trial: None, request)
    assert report.outcome is Outcome.CHECKPOINT_BAD and "does not lie below" in report.message
    assert (tmp_path / "thesis" / "chapter.safetensors").exists()


@pytest.mark.parametrize(
    ("base", "uri"),
    [
        ("s3://bucket/base", "s3://bucket/base/../x/a.safetensors"),
        ("s3://bucket/base", "s3://bucket/base/%2e%2e/x"),
        ("s3://bucket/base", "s3://bucket/based/x"),
        ("s3://bucket/base", "s3://bucket/base"),
        ("s3://bucket/base", "s3://bucket/base//x"),
        ("s3://bucket/base", "checkpoints/x"),
        ("s3://bucket/base", "s3://bucket/base/s3://other/x"),
        ("file:///srv/base", "file:///srv/base/%2e%2e/x"),
        ("file:///srv/base", "file:///srv/base/a%2f..%2f..%2fx"),
        ("file:///srv/base", "file:///srv/other/x"),
    ],
)
def test_urls_outside_the_base_are_refused(tmp_path: Path, base: str, uri: str) -> None:
    with pytest.raises(CheckpointError, match="does not lie below"):
        local_path(tmp_path, uri, base)
    remove(tmp_path, uri, base)


def test_checkpoints_below_the_base_are_found(tmp_path: Path, folder: Path) -> None:
    good = "trial-00000/rung-0-attempt-0.safetensors"
    assert local_path(folder, f"checkpoints/{good}", "checkpoints") == folder / "checkpoints" / good
    assert local_path(folder, f"s3://bucket/base/{good}", "s3://bucket/base") is None
    (tmp_path / "a b").mkdir()
    base = (tmp_path / "a b").as_uri()
    assert local_path(folder, f"{base}/{good}", base) == tmp_path / "a b" / good
    (tmp_path / "link").symlink_to(tmp_path / "a b")  # how a user comes to the base is the user's affair
    base = (tmp_path / "link").as_uri()
    saved = save(folder, f"{base}/{good}", TREE, resource=1)
    assert checkpoints.load(folder, saved, base)["weights"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["checkpoints", "checkpoints/trial-00000", "file"])
def test_symbolic_links_are_not_followed(tmp_path: Path, folder: Path, where: str) -> None:
    """Somebody's folder, or file, looks like checkpoints of this study."""
    uri = "checkpoints/trial-00000/rung-0-attempt-0.safetensors"
    theirs = tmp_path / "thesis"
    saved = save(theirs, uri, TREE, resource=1)
    (folder / "checkpoints" / "trial-00000").rmdir()
    (folder / "checkpoints").rmdir()
    place = folder / (uri if where == "file" else where)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(theirs / place.relative_to(folder))
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        checkpoints.load(folder, saved, "checkpoints")
    with pytest.raises(StorageError, match="is a symbolic link"):
        save(folder, uri, TREE, resource=1)
    assert all_files(folder, "checkpoints") == attempt_files(folder, "checkpoints", 0, 0) == []
    remove(folder, uri, "checkpoints")
    study = Study.create(make_spec())
    cleanup = CheckpointCleanup(study, folder)
    cleanup.sweep()
    assert (theirs / uri).exists()


def test_a_foreign_uri_in_a_journal_is_not_copied_to_mlflow(tmp_path: Path, folder: Path, victim: Checkpoint) -> None:
    study = Study.create(make_spec())
    job = study.ask()
    bad = msgspec.structs.replace(victim, uri="../../thesis/chapter.safetensors")
    study.tell_report(completed(job, 0.5, checkpoint=bad))
    fold = TrackedStudy()
    for entry in study.journal.entries("world"):
        fold.add(entry)
    best = fold.state.best_checkpoint()
    assert best is not None and (folder / best.uri).exists()

    class Client:
        """Any upload is one too many."""

    class Store:
        client = Client()

    write_files(Store(), KnownRun("1", "RUNNING", None, False, {}), fold, folder)  # type: ignore[arg-type]
