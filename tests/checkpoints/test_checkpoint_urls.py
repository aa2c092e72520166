"""Checkpoints at a URL: written, verified and removed through fsspec, with the same outcomes as in a folder."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.storage import all_files, attempt_files, remove
from hpo_core.model.errors import CheckpointError, SpecError, StorageError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.attempt import run_attempt
from tests.checkpoints.saving import save
from tests.conftest import make_spec
from tests.job_requests import make_request
from tests.training.test_training_handle import Counter

TREE = {"weights": np.arange(1000.0), "name": "x"}


@pytest.fixture(params=["memory", "local", "file"])
def base(request, tmp_path):
    """A place behind fsspec in this process, one on disk, and one that is a folder after all."""
    if request.param == "memory":
        yield "memory://bucket/study"
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
    else:
        (tmp_path / "shared").mkdir()
        yield f"{request.param}://{tmp_path}/shared/study"


@pytest.fixture
def saved(base, tmp_path):
    return save(tmp_path, f"{base}/trial-00001/rung-0-attempt-2.safetensors", TREE, resource=3)


def test_a_checkpoint_at_a_url_has_the_same_bytes_as_in_a_folder(saved, base, tmp_path):
    read = checkpoints.load(tmp_path, saved, base)
    assert read["weights"].tolist() == TREE["weights"].tolist() and read["name"] == "x"
    here = save(tmp_path, "a.safetensors", TREE, resource=3)
    assert (here.digest, here.size) == (saved.digest, saved.size)


def test_checkpoints_at_a_url_are_listed_by_their_uri_and_removed(saved, base, tmp_path):
    assert attempt_files(tmp_path, base, 1, 2) == all_files(tmp_path, base) == [saved.uri]
    assert attempt_files(tmp_path, base, 1, 3) == attempt_files(tmp_path, base, 0, 2) == []
    remove(tmp_path, saved.uri, base)
    remove(tmp_path, saved.uri, base)
    assert all_files(tmp_path, base) == []


def test_missing_truncated_and_corrupt_files_at_a_url_are_reported(saved, base, tmp_path):
    other = save(tmp_path, f"{base}/trial-00002/b.safetensors", {"x": 1}, resource=1)
    with pytest.raises(CheckpointError, match="bytes, 1 were written"):
        checkpoints.load(tmp_path, msgspec.structs.replace(saved, size=1), base)
    with pytest.raises(CheckpointError, match="corrupt"):
        checkpoints.load(tmp_path, msgspec.structs.replace(saved, digest="0" * 64), base)
    remove(tmp_path, saved.uri, base)
    with pytest.raises(CheckpointError, match=r"is missing\..*from an older one"):
        checkpoints.load(tmp_path, saved, base)
    assert checkpoints.load(tmp_path, other, base) == {"x": 1}


@pytest.mark.parametrize("url", ["memory://nowhere/s/t/a", "nosuchprotocol://x/s/t/a"])
def test_an_unreachable_url_is_a_storage_error_not_a_bad_checkpoint(url, tmp_path):
    gone = checkpoints.Checkpoint(uri=url, digest="", resource=1, size=1)
    with pytest.raises(StorageError, match=f"Checkpoint {url} cannot be read"):
        checkpoints.load(tmp_path, gone, url.rpartition("/t/")[0])


def test_a_failed_write_halts_the_study_and_fails_no_trial(tmp_path):
    with pytest.raises(StorageError, match="cannot be written: .*nosuchprotocol"):
        save(tmp_path, "nosuchprotocol://x/s/t/a", TREE, resource=1)


def test_a_trial_continues_from_a_checkpoint_at_a_url(base, tmp_path):
    def train(trial):
        counter = Counter()
        trial.track(counter=counter)
        for _ in trial.steps():
            counter.value += 1
            trial.report(loss=float("nan") if counter.value > 5 else counter.value)

    def run(target, checkpoint):
        job = Job(5, target, Rung(0, 0), target, {}, checkpoint)
        return run_attempt(train, make_request(
            study="s", job=job, objective="a:b", metric="loss", seed=1, folder=str(tmp_path), checkpoint_base=base,
        ))  # fmt: skip

    first = run(2, None)
    second = run(5, first.checkpoint)
    assert (first.metrics, second.metrics) == ({"loss": 2.0}, {"loss": 5.0})
    assert second.checkpoint.uri == f"{base}/trial-00005/rung-0-attempt-5.safetensors"
    assert second.checkpoint.parent == first.checkpoint.uri
    assert run(9, second.checkpoint).outcome is Outcome.DIVERGED
    away = msgspec.structs.replace(second.checkpoint, uri="nosuchprotocol://x/s/t/a")
    assert run(9, away).outcome is Outcome.CHECKPOINT_BAD  # it does not lie where this study's checkpoints do
    assert sorted(all_files(tmp_path, base)) == sorted([first.checkpoint.uri, second.checkpoint.uri])


@pytest.mark.parametrize(
    "url", ["/shared/hpo", "s3://key:secret@bucket/hpo", "s3://bucket/*", "s3://bucket/a/../b", "file:///a/%2e%2e/b"]
)
def test_uris_outside_the_base_are_refused(url):
    with pytest.raises(SpecError, match="checkpoints.folder"):
        make_spec(checkpoints={"folder": url})
