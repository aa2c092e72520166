"""Dask schedulers behind tls://: a study shows its certificate; deployments can require that there is one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from hpo_core.model.errors import SpecError
from hpo_core.model.events import JobCompleted
from hpo_core.spec.sections import AddressClusterSpec
from hpo_flows.dask.clusters.address import RunningScheduler, security_of
from hpo_flows.dask.clusters.kind import ClusterError, new_security
from tests.faults.test_real_study import ROOT, Real

QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

CONFIGURED = tuple(f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY"))
"""Variables of Dask's configuration, in the order of :func:`certificate`."""


def dask_configuration(files: dict[str, str]) -> dict[str, str]:
    names = ("ca-file", "client.cert", "client.key")
    return {f"distributed.comm.tls.{name}": path for name, path in zip(names, files.values(), strict=True)}


def certificate(folder: Path) -> dict[str, str]:
    """A certificate that is its own authority, and its key, as files."""
    made = new_security()
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


@pytest.mark.slow
def test_a_study_trains_on_a_scheduler_behind_tls(
    scheduler: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, files = scheduler
    for name, variable in zip(files, CONFIGURED, strict=True):
        monkeypatch.setenv(variable, files[name])
    cluster = {"kind": "address", "address": address}
    real = Real(tmp_path, "good", cluster=cluster, search={"method": "random", "configs": 4, "max_resource": 2})
    process = real.start()
    assert process.wait(600) == 0, real.log.read_text()[-3000:]
    study = real.assert_whole()
    entries = list(real.home.open_journal().entries("real"))
    workers = {e.worker for entry in entries for e in entry.events if isinstance(e, JobCompleted)}
    assert workers and all(worker.startswith("tls://") for worker in workers)
    assert "PRIVATE KEY" not in str([entry.stimulus for entry in entries]), "keys are not kept"
    assert study.spec.cluster.kind == "address"


@pytest.mark.parametrize("shown", [pytest.param("another certificate", marks=pytest.mark.slow), "none"])
def test_a_scheduler_with_tls_refuses_clients_without_certificate(
    scheduler: tuple[str, dict[str, str]], tmp_path: Path, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo_flows.dask.clusters.address.CONNECT_SECONDS", 6.0)  # it tries again and again for so long
    address, _ = scheduler
    if shown == "none":
        with pytest.raises((ClusterError, SpecError), match="needs certificates"):
            RunningScheduler(AddressClusterSpec(address=address), "study", str(tmp_path)).connect()
        return
    others = dask_configuration(certificate(tmp_path / "other"))
    with dask.config.set(others), pytest.raises(ClusterError, match="or the certificates"):
        RunningScheduler(AddressClusterSpec(address=address), "study", str(tmp_path)).connect()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    files = certificate(tmp_path / "keys")
    cluster = AddressClusterSpec(address="tls://h:1")
    with dask.config.set(dask_configuration(files)):
        assert security_of(cluster) is not None
        Path(files["tls_key"]).unlink()
        with pytest.raises(SpecError, match="certificates for tls://h:1 cannot be used"):
            security_of(cluster)
