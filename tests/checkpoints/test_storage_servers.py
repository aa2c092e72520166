"""Checkpoints on a real S3 and SFTP server: what is sent, and what happens while the server is away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpo_core.checkpoints import files, storage
from hpo_core.checkpoints.storage import Removals
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.events import JobCompleted, JobGranted
from tests.checkpoints.saving import save
from tests.faults.test_real_study import Real
from tests.storage_servers import S3, SECRET, Sftp, s3, sftp

TREE = {"weights": np.arange(50_000.0)}


@pytest.fixture
def on_s3() -> Iterator[S3]:
    with s3() as server:
        yield server


@pytest.fixture(params=["s3", "sftp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[S3 | Sftp, str]]:
    """A server, and the URL of a study's checkpoints on it."""
    if request.param == "s3":
        with s3() as server:
            yield server, "s3://bucket/hpo/study"
    else:
        with sftp(tmp_path / "sshd") as other:
            yield other, f"sftp://127.0.0.1:{other.port}{tmp_path}/hpo/study"


def uri(base: str, attempt: int) -> str:
    return f"{base}/trial-00001/rung-0-attempt-{attempt}.safetensors"


@pytest.mark.slow
def test_a_server_that_restarts_costs_no_checkpoint(served: tuple[S3 | Sftp, str], tmp_path: Path) -> None:
    """Connections that were open are closed by it, and new ones are refused for a time."""
    server, base = served
    first = save(tmp_path, uri(base, 1), TREE, resource=1)
    server.stop()
    starter = threading.Timer(2.0, server.start)
    starter.start()
    second = save(tmp_path, uri(base, 2), TREE, resource=1)
    starter.join()
    for saved in (first, second):
        server.stop()
        server.start()
        assert files.load(tmp_path, saved, base)["weights"].tolist() == TREE["weights"].tolist()
    server.stop()
    server.start()
    assert sorted(storage.all_files(tmp_path, base)) == [first.uri, second.uri]
    server.stop()
    server.start()
    assert storage.exists(tmp_path, first.uri, base)
    server.stop()
    server.start()
    storage.remove(tmp_path, first.uri, base)
    assert storage.all_files(tmp_path, base) == [second.uri]
    with pytest.raises(CheckpointError, match="is missing"):
        files.load(tmp_path, first, base)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_told_and_not_made(on_s3: S3, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no no-such-bucket"):
        storage.check_base("s3://no-such-bucket-anywhere/hpo/study")
    storage.check_base("s3://bucket/hpo/study")
    assert not storage.all_files(tmp_path, "s3://bucket/hpo/study") and on_s3.requests["DELETE"] == 1


@pytest.mark.slow
def test_wrong_credentials_are_refused_and_stay_unsaid(on_s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASOMEBODYELSE")
    with pytest.raises(StorageError, match="PermissionError") as raised:
        storage.check_base("s3://bucket/hpo/study")
    assert SECRET not in str(raised.value) and on_s3.refused


def test_removals_at_a_url_hold_nobody_up(tmp_path: Path) -> None:
    """The thread that asks renews the study's lease."""
    gate, removed = threading.Event(), []
    removals = Removals(tmp_path, "memory://bucket/study")
    removals.run(lambda: removed.append(gate.wait(600)))
    removals.run(lambda: removed.append("second"))
    assert not removed
    gate.set()
    removals.drain()
    assert removed == [True, "second"]
    local = Removals(tmp_path, "checkpoints")
    local.run(lambda: removed.append("at once"))
    assert removed[-1] == "at once"


@pytest.mark.slow
def test_what_a_failed_attempt_left_is_looked_for_and_removed(on_s3: S3, tmp_path: Path) -> None:
    """As likewise in hpo_core/checkpoints/README.md."""
    base = "s3://bucket/hpo/study"
    for attempt in (1, 2):
        save(tmp_path, uri(base, attempt), TREE, resource=1)
    on_s3.requests.clear()
    left = storage.attempt_files(tmp_path, base, 1, 2)
    assert left == [uri(base, 2)] and on_s3.requests == {"HEAD": 1, "GET": 1}  # a LIST is a GET
    on_s3.requests.clear()
    storage.remove(tmp_path, left[0], base)
    assert on_s3.requests == {"DELETE": 1} and storage.all_files(tmp_path, base) == [uri(base, 1)]


@pytest.mark.slow
def test_a_study_asks_a_server_for_what_its_jobs_need(on_s3: S3, tmp_path: Path) -> None:
    """Its 13 jobs or more, the probe of the process whose threads its workers are, and two looks at all files."""
    real = Real(tmp_path, "heavy", configs=9, checkpoints={"folder": "s3://bucket/hpo"})
    real.finish()
    events = [event for entry in real.home.open_journal().entries("real") for event in entry.events]
    done = [event.checkpoint for event in events if isinstance(event, JobCompleted) and event.checkpoint is not None]
    read = [event.checkpoint for event in events if isinstance(event, JobGranted) and event.checkpoint is not None]
    asked = dict(on_s3.requests)
    assert sum(on_s3.written.values()) == sum(checkpoint.size for checkpoint in done) + 3
    assert sum(on_s3.read.values()) == sum(checkpoint.size for checkpoint in read) and read
    removed = len(done) - len(real.checkpoint_files())
    trials = len({event.trial for event in events if isinstance(event, JobGranted)})
    assert removed and asked == {
        "PUT": len(done) + 1,
        "HEAD": len(done) + 1 + 2,
        "GET": len(read) + 2 + trials,
        "DELETE": removed + 1,
    }
