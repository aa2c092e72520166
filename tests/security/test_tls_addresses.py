"""Dask schedulers behind tls://: a study shows its certificate; deployments can require that there is one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from distributed.security import Security

from hpo_core import StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.model.events import JobCompleted
from hpo_core.spec import AddressClusterSpec, load_spec
from hpo_flows.dask.clusters.address import RunningScheduler, security_of
from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from tests.conftest import make_spec
from tests.faults.test_real_study import ROOT, Real

QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def certificate(folder: Path) -> dict[str, str]:
    """A certificate that is its own authority, and its key, as files."""
    made = Security.temporary()
    folder.mkdir()
    texts = {"tls_ca_file": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return {name: str(folder / name) for name in texts}


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Address of a scheduler with one worker that take nobody without the certificate, and its files."""
    files = certificate(tmp_path / "trusted")
    options = [f"--{name.replace('_', '-')}={path}" for name, path in files.items()]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tls://127.0.0.1:{port}"
    here = ["--host", "127.0.0.1"]
    commands = [
        ["distributed.cli.dask_scheduler", "--protocol", "tls", "--port", str(port), "--dashboard-address", ":0"],
        ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"],
    ]
    started = [psutil.Popen([sys.executable, "-m", *one, *here, *options], cwd=ROOT, **QUIET) for one in commands]
    yield address, files
    for process in reversed(started):
        for one in (*process.children(recursive=True), process):
            one.kill()
        process.wait(600)


def test_a_study_trains_on_a_scheduler_behind_tls(scheduler: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, files = scheduler
    cluster = {"kind": "address", "address": address, **files}
    real = Real(tmp_path, "good", cluster=cluster, search={"method": "random", "configs": 4, "max_resource": 2})
    process = real.start()
    assert process.wait(600) == 0, real.log.read_text()[-3000:]
    study = real.assert_whole(configs=4)
    entries = list(real.home.open_journal().entries("real"))
    workers = {e.worker for entry in entries for e in entry.events if isinstance(e, JobCompleted)}
    assert workers and all(worker.startswith("tls://") for worker in workers)
    journaled = str([entry.stimulus for entry in entries])
    assert files["tls_key"] in journaled and "PRIVATE KEY" not in journaled, "paths are kept, keys are not"
    assert study.spec.cluster.kind == "address"


@pytest.mark.parametrize("shown", ["another certificate", "none"])
def test_a_scheduler_with_tls_refuses_clients_without_certificate(
    scheduler: tuple[str, dict[str, str]], tmp_path: Path, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo_flows.dask.clusters.address.CONNECT_SECONDS", 6.0)  # it tries again and again for so long
    address, _ = scheduler
    if shown == "none":
        with pytest.raises((ClusterError, SpecError), match="needs certificates"):
            RunningScheduler(AddressClusterSpec(address=address), "study", str(tmp_path)).connect()
        return
    with pytest.raises(ClusterError, match="or the certificates"):
        stranger = AddressClusterSpec(address=address, **certificate(tmp_path / "other"))
        RunningScheduler(stranger, "study", str(tmp_path)).connect()


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"address": "tcp://h:1", "tls_ca_file": "/a", "tls_cert": "/b"}, "are for tls://"),
        ({"address": "tls://h:1", "tls_cert": "/b"}, "tls_ca_file and tls_cert belong together"),
        ({"address": "tls://h:1", "tls_ca_file": "/a", "tls_cert": "-----BEGIN\nx"}, "name its file instead"),
    ],
)
def test_wrong_certificate_files_are_refused_early(cluster: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        make_spec(cluster={"kind": "address", **cluster})
    assert "BEGIN" not in str(refused.value), "a key must not be shown"


def test_certificate_paths_are_relative_to_the_study_file(tmp_path: Path) -> None:
    certificate(tmp_path / "keys")
    names = ("tls_ca_file", "tls_cert", "tls_key")
    cluster = {"kind": "address", "address": "tls://h:1", **{name: f"keys/{name}" for name in names}}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(make_spec(cluster=cluster).plain()))
    spec = load_spec(file)
    assert isinstance(spec.cluster, AddressClusterSpec)
    assert set(spec.cluster.tls_files.values()) == {str(tmp_path / "keys" / name) for name in names}
    assert security_of(spec.cluster) is not None
    assert StudySpec.from_plain(spec.plain()) == spec, "as a resume reads it"
    with pytest.raises(SpecError, match="cluster.tls_ca_file = 'keys/tls_ca_file' is relative"):
        security_of(AddressClusterSpec.model_validate(cluster))
    (tmp_path / "keys" / "tls_key").unlink()
    with pytest.raises(SpecError, match="tls_key = .* cannot be read"):
        security_of(spec.cluster)


def test_a_deployment_can_require_tls() -> None:
    allowed = {
        "HPO_ALLOWED_OBJECTIVES": "models:fit", "HPO_ALLOWED_CLUSTERS": "tcp://a:1,tls://a:1,kubernetes,slurm",
        "HPO_REQUIRE_TLS": "1",
    }  # fmt: skip
    permissions = Permissions.of_environment(allowed)
    lenient = Permissions.of_environment(allowed | {"HPO_REQUIRE_TLS": "0"})
    for cluster, encrypted in (
        ({"kind": "address", "address": "tcp://a:1"}, False),
        ({"kind": "kubernetes", "image": "x"}, False),
        ({"kind": "address", "address": "tls://a:1"}, True),
        ({"kind": "slurm"}, True),
        ({"kind": "local"}, True),
    ):
        spec = make_spec(objective="models:fit", cluster=cluster)
        lenient.check(spec)
        if encrypted:
            permissions.check(spec)
            continue
        with pytest.raises(NotAllowedError, match="HPO_REQUIRE_TLS"):
            permissions.check(spec)
