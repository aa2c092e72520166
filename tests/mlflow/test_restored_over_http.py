"""A study tracked by a real MLflow server comes back into an empty home, over HTTP alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_core.tracking.mlflow_client import open_client
from tests.flows.conftest import Runner
from tests.mlflow.test_mlflow_follow import QUIET

LIMIT = 600


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def server(tmp_path: Path, empty_store: Path, free_port: int) -> Iterator[str]:
    """The address of an MLflow server that keeps all files itself."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    uri = f"http://127.0.0.1:{free_port}"
    process = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "mlflow"), "server", "--backend-store-uri", "sqlite:///mlflow.db",
            "--artifacts-destination", str(folder / "files"), "--host", "127.0.0.1", "--port", str(free_port),
            "--workers", "1",
        ],
        env=os.environ | QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT
        while not _answers(uri):
            assert process.poll() is None and time.monotonic() < deadline, "the MLflow server does not answer"
            time.sleep(0.2)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # the web server and its children are in this group
        process.wait(LIMIT)


@pytest.mark.slow
def test_a_study_tracked_over_http_is_imported_audited_and_rerun_in_an_empty_home(
    server: str, tmp_path: Path, make_hpo: Callable[[Path], Runner]
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first, second = make_hpo(tmp_path / "first"), make_hpo(tmp_path / "second")
    first.environment["MLFLOW_TRACKING_URI"] = server
    first("tune", first.study(tracking={}))
    told = first.json("show", "toy")
    client = open_client(server)
    (found,) = client.search_runs(["1"], "tags.`hpo.kind` = 'study'")
    assert found.info.artifact_uri.startswith("mlflow-artifacts:"), "files go over HTTP, too"

    first.home.rename(tmp_path / "gone")
    code = str(Path(__file__).parents[2])
    from_server = ["import", "--from-mlflow", found.info.run_id, "--tracking-uri", server, "--code", code]
    assert f"imported from MLflow run {found.info.run_id}" in second(*from_server)
    assert second("audit", "toy").startswith("clean:")
    back = second.json("show", "toy")
    assert back["best"] == told["best"]
    second("rerun", "toy", "--as", "again")
    assert second("audit", "again").startswith("clean:")
    assert second.json("show", "again")["best"]["value"] == told["best"]["value"]
    assert "exists already" in second(*from_server, code=3)
