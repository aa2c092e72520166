"""The kinds of clusters: as far as each one's own tools go here. Nothing in here talks to Slurm."""

from __future__ import annotations

import datetime
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

from hpo_core import StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import SlurmClusterSpec, TrainingSpec
from hpo_flows.dask.clusters import cluster_of
from hpo_flows.dask.clusters.kind import CONNECTION_TIMEOUT, new_security
from hpo_flows.dask.clusters.slurm import SlurmJobs, refusal
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec

SLURM = {
    "kind": "slurm", "workers": 3, "cores": 4, "memory": "16GB", "walltime": "2-00:00:00",
    "directives": ["--gres=gpu:1", "--partition=gpu", "--account=lab", "--qos=long"],
}  # fmt: skip


RELEASED = threading.Event()


def hold() -> None:
    RELEASED.wait()


def study(**cluster: Any) -> StudySpec:
    return make_spec(cluster=cluster, objective="tests.flows.objectives:good", pythonpath=[str(Path.cwd())])


@pytest.mark.parametrize(("cluster", "module", "extra"), [(SLURM, "dask_jobqueue", "slurm")])
def test_a_missing_package_is_said_with_its_extra(
    cluster: dict[str, Any], module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError, match=rf"cluster.kind = '{extra}' needs .*pip install 'hpo-core\[{extra}\]'"):
        cluster_of(study(**cluster), str(tmp_path)).connect()


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"kind": "slurm", "memory": "much"}, "cluster.memory: .*should match pattern"),
        ({"kind": "slurm", "memory": "0GB"}, "cluster.memory: .*a worker needs some"),
        ({"kind": "slurm", "walltime": "1h"}, "cluster.walltime: .*should match pattern"),
        (
            {"kind": "slurm", "interface": "ib0"},
            "interface: is no setting any more: set jobqueue.slurm.interface",
        ),
        ({"kind": "kubernetes"}, "kind = 'kubernetes' is gone: make the workers with a DaskCluster"),
        ({"kind": "local_cuda", "devices": [0]}, "cluster.devices: is no setting any more: set CUDA_VISIBLE_DEVICES"),
        ({"kind": "cloud"}, "there are local, address, slurm, local_cuda"),
    ],
)
def test_wrong_settings_are_refused(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        study(**cluster)


@pytest.fixture
def patient() -> Iterator[None]:
    """Dask's configuration as that of a study whose workers may be cut for long, and a site's own lines."""
    with dask.config.set({CONNECTION_TIMEOUT: "95s", "jobqueue.slurm.job-script-prologue": ["module load cuda"]}):
        yield


@pytest.mark.usefixtures("patient")
def test_slurm_script_asks_for_what_the_study_says(tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue", reason="extra 'slurm' is not installed")
    cluster = SlurmJobs(SlurmClusterSpec.model_validate(SLURM), "digits", str(tmp_path)).scheduler()
    try:
        script = cluster.job_script()
    finally:
        cluster.close()
    assert "export DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP='95s'" in script.splitlines()
    assert "export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES='[]'" in script.splitlines()
    asked = {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")}
    logs = tmp_path / "logs" / "slurm"
    assert asked == {
        "-J hpo-digits", f"-e {logs}/hpo-digits-%J.err", f"-o {logs}/hpo-digits-%J.out", "--partition=gpu",
        "--account=lab", "-n 1", "--cpus-per-task=4", "--mem=15G", "-t 2-00:00:00", "--gres=gpu:1",
        "--no-requeue", "--qos=long",
    }  # fmt: skip
    command = next(line for line in script.splitlines() if "dask_worker" in line)
    assert f"--local-directory {tmp_path}/dask-scratch-space" in command, "in /tmp others could make it first"
    assert "--nthreads 1" in command and script.index("module load cuda") < script.index(command)


def test_what_sbatch_says_is_one_sentence_with_its_cure() -> None:
    stderr = "sbatch: error: invalid partition specified: gpus\nsbatch: error: Batch job submission failed"
    words = refusal(RuntimeError(f"Command exited.\nstdout:\n\nstderr:\n{stderr}\n\n"))
    assert (
        words.startswith("sbatch refused the job: invalid partition specified: gpus; Batch job") and "\n" not in words
    )
    assert "settings below cluster" in words


def test_a_machine_without_slurm_is_told_from_a_refusal() -> None:
    assert "sbatch cannot be started here" in refusal(FileNotFoundError(2, "No such file or directory", "sbatch"))


def test_a_certificate_is_valid_where_the_clock_is_hours_behind() -> None:
    """A node whose clock was two minutes behind could not join: its certificate was "not yet valid"."""
    from cryptography import x509

    security = new_security()
    assert {security.tls_worker_cert, security.tls_scheduler_cert, security.tls_ca_file} == {security.tls_client_cert}
    certificate = x509.load_pem_x509_certificate(security.tls_client_cert.encode())
    certificate.verify_directly_issued_by(certificate)
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=300)


def test_processes_of_a_study_keep_a_cut_connection_for_longer_than_the_study_waits(tmp_path: Path) -> None:
    """This one; the scripts of the others, above, say what it says."""
    spec = study(kind="local", workers=1).model_copy(update={"training": TrainingSpec(worker_timeout=65)})
    executor = DaskExecutor(spec, str(tmp_path))
    try:
        executor.start()
        told = dask.config.get(CONNECTION_TIMEOUT)
    finally:
        executor.close()
    assert told == "95s" and dask.config.get(CONNECTION_TIMEOUT) == "30s"


def test_a_local_worker_that_a_thread_holds_up_is_replaced(tmp_path: Path) -> None:
    kind = cluster_of(study(kind="local", workers=2), str(tmp_path))
    client = kind.connect()
    try:
        held = client.submit(hold, pure=False)
        (before,) = client.scheduler_info()["workers"]
        client.sync(kind.replace_worker, client, before)
        assert client.submit(int, 7, pure=False).result(timeout=600) == 7
        held.cancel()
        ((after, facts),) = client.scheduler_info()["workers"].items()
        assert after != before and facts["nthreads"] == 2
    finally:
        RELEASED.set()
        client.close()
        kind.close()


@pytest.mark.parametrize(("hops", "threads"), [(False, [3]), (True, [1, 1, 1])])
def test_a_local_cluster_is_one_worker_unless_models_hop_between_them(
    hops: bool, threads: list[int], tmp_path: Path
) -> None:
    kind = cluster_of(study(kind="local", workers=3), str(tmp_path))
    kind.hops = hops
    client = kind.connect()
    try:
        assert sorted(client.nthreads().values()) == threads
    finally:
        client.close()
        kind.close()
