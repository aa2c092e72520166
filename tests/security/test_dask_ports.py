"""Nobody without the study's certificate gets in through the ports of its Dask cluster; tls:// schedulers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import dask
import distributed
import psutil
import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import AddressClusterSpec
from hpo_flows.dask.clusters.address import security_of
from hpo_flows.dask.clusters.kind import NO_PAGES, new_security, scheduler_options
from tests.faults.test_real_study import ROOT, Real
from tests.security.listening import sockets_of

ATTACKS = {"client over tcp", "client over tls", "message over tcp", "message over tls", "http"}


def listening(process: psutil.Process) -> dict[int, int]:
    found = {}
    for one in (process, *process.children(recursive=True)):
        try:
            found.update({address.port: one.pid for address in sockets_of(one, "tcp")})
            assert {address.ip for address in sockets_of(one, "tcp")} <= {"127.0.0.1"}
        except psutil.Error:
            continue
    return found


def attacked(mark: Path, ports: list[int]) -> dict[str, dict[str, str]]:
    """What an intruder, in a process of its own, reached at these ports."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.intruder", str(mark), *map(str, ports)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={**os.environ, "DASK_DISTRIBUTED__COMM__RETRY__COUNT": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_refused(found: dict[str, dict[str, str]], ports: Collection[int], folder: Path) -> None:
    """Every attack on each of the ports was refused, and no code of the intruder ran."""
    marks = sorted(path.name for path in folder.glob("mark*"))
    assert not marks, f"code of a stranger was executed: {marks}"
    assert {int(port) for port in found} == set(ports)
    for port, answers in found.items():
        assert set(answers) == ATTACKS
        assert all(answer.startswith("refused") for answer in answers.values()), (port, answers)


@pytest.mark.slow
def test_no_port_of_a_local_study_lets_a_stranger_in(tmp_path: Path) -> None:
    real = Real(tmp_path, search={"method": "random", "configs": 400, "max_resource": 9})
    process = real.start()
    try:
        real.wait_for_entries(4, process)
        real.until(lambda: process.pid in listening(psutil.Process(process.pid)).values(), process)
        ports = listening(psutil.Process(process.pid))
        found = attacked(tmp_path / "mark", sorted(ports))
        assert process.poll() is None, real.log.read_text()[-3000:]
        assert_refused(found, ports, tmp_path)
        before = real.entries()
        real.wait_for_entries(before + 2, process)  # it was not disturbed
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_no_port_of_processes_with_certificates_of_a_study_lets_a_stranger_in(tmp_path: Path) -> None:
    """As those of Slurm's jobs, and of their scheduler: here a nanny and its worker on this machine."""
    where = {"host": "127.0.0.1", "protocol": "tls://", "security": (security := new_security())}
    worker = {"cls": distributed.Nanny, "options": {**where, "nthreads": 1}}
    scheduler = {"cls": distributed.Scheduler, "options": {**where, **scheduler_options(False)}}
    before = listening(psutil.Process())
    with (
        dask.config.set(NO_PAGES),
        distributed.SpecCluster(workers={0: worker}, scheduler=scheduler, security=security) as cluster,
    ):
        ports = listening(psutil.Process()).keys() - before
        addresses = [cluster.scheduler_address, *cluster.scheduler_info["workers"], cluster.workers[0].address]
        assert {int(address.rpartition(":")[2]) for address in addresses} <= ports
        found = attacked(tmp_path / "mark", sorted(ports))
    assert_refused(found, ports, tmp_path)


def certificate(folder: Path) -> dict[str, str]:
    """A certificate that is its own authority, and its key, as files."""
    made = new_security()
    folder.mkdir()
    texts = {"tls_ca_file": made.tls_ca_file, "tls_cert": made.tls_client_cert, "tls_key": made.tls_client_key}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return {name: str(folder / name) for name in texts}


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    files = certificate(tmp_path / "keys")
    cluster = AddressClusterSpec(address="tls://h:1")
    with pytest.raises(SpecError, match="needs certificates"):
        security_of(cluster)
    names = ("ca-file", "client.cert", "client.key")
    with dask.config.set(dict(zip((f"distributed.comm.tls.{name}" for name in names), files.values(), strict=True))):
        assert security_of(cluster) is not None
        Path(files["tls_key"]).unlink()
        with pytest.raises(SpecError, match="certificates for tls://h:1 cannot be used"):
            security_of(cluster)
