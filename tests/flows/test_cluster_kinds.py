"""The kinds of clusters: as far as each one's own tools go here. Nothing in here talks to Slurm or Kubernetes."""

from __future__ import annotations

import datetime
import re
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml

from hpo_core import StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import KubernetesClusterSpec, SlurmClusterSpec, TrainingSpec
from hpo_flows.dask.clusters import cluster_of
from hpo_flows.dask.clusters.kind import CONNECTION_TIMEOUT, new_security
from hpo_flows.dask.clusters.kubernetes import (
    KUBERNETES_SCHEDULER,
    KUBERNETES_WORKER,
    kubernetes_name,
    kubernetes_resource,
)
from hpo_flows.dask.clusters.local_cuda import visible_devices
from hpo_flows.dask.clusters.slurm import SlurmJobs
from hpo_flows.dask.clusters.slurm_queue import mark_of, refusal
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec

SLURM = {
    "kind": "slurm", "workers": 3, "cores": 4, "memory": "16GB", "walltime": "2-00:00:00",
    "directives": ["--gres=gpu:1", "--partition=gpu", "--account=lab", "--qos=long"], "prologue": ["module load cuda"],
}  # fmt: skip
KUBERNETES = {
    "kind": "kubernetes", "workers": 3, "image": "registry.example/hpo:1", "cpu": "2", "memory": "8Gi", "gpus": 1,
    "volume_claim": "shared", "mount_path": "/shared",
}  # fmt: skip


RELEASED = threading.Event()


def hold() -> None:
    """A task that holds its thread up."""
    RELEASED.wait()


def study(**cluster: Any) -> StudySpec:
    return make_spec(cluster=cluster, objective="tests.flows.objectives:good", pythonpath=[str(Path.cwd())])


@pytest.mark.parametrize(
    ("cluster", "module", "extra"), [(SLURM, "dask_jobqueue", "slurm"), (KUBERNETES, "dask_kubernetes", "kubernetes")]
)
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
        ({"kind": "kubernetes"}, "cluster.image: is required"),
        ({"kind": "kubernetes", "image": "i", "volume_claim": "c"}, "belong together"),
        ({"kind": "local_cuda", "devices": []}, "cluster.devices"),
        ({"kind": "cloud"}, "there are local, address, slurm, kubernetes, local_cuda"),
    ],
)
def test_wrong_settings_are_refused(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        study(**cluster)


@pytest.fixture
def patient() -> Iterator[None]:
    """Dask's configuration as that of a study whose workers may be cut for long."""
    with dask.config.set({CONNECTION_TIMEOUT: "95s"}):
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
    logs, mark = tmp_path / "logs" / "slurm", mark_of(str(tmp_path))
    assert asked == {
        "-J hpo-digits", f"-e {logs}/hpo-digits-%J.err", f"-o {logs}/hpo-digits-%J.out", "--partition=gpu",
        "--account=lab", "-n 1", "--cpus-per-task=4", "--mem=15G", "-t 2-00:00:00", "--gres=gpu:1",
        "--no-requeue", f"--comment={mark}", "--qos=long",
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


@pytest.mark.usefixtures("patient")
def test_kubernetes_resource_is_what_the_operator_takes() -> None:
    operator = pytest.importorskip("dask_kubernetes", reason="extra 'kubernetes' is not installed")
    jsonschema = pytest.importorskip("jsonschema")
    resource = kubernetes_resource(KubernetesClusterSpec.model_validate(KUBERNETES), "Digits_1")
    (file,) = Path(operator.__file__).parent.rglob("crds/daskcluster.yaml")
    definition = yaml.safe_load(file.read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate(resource, schema)
    broken = resource | {"spec": resource["spec"] | {"worker": {"replicas": "three"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)
    (container,) = resource["spec"]["worker"]["spec"]["containers"]
    amounts = {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert resource["metadata"]["name"] == kubernetes_name("Digits_1") and resource["spec"]["worker"]["replicas"] == 3
    assert container["args"][:4] == KUBERNETES_WORKER and container["resources"]["limits"] == amounts
    assert container["volumeMounts"] == [{"name": "home", "mountPath": "/shared"}]
    (scheduler,) = resource["spec"]["scheduler"]["spec"]["containers"]
    for pod in (container, scheduler):
        assert {"name": "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "value": "95s"} in pod["env"]
    for args in (container["args"], scheduler["args"]):
        assert_is_accepted(args)


def assert_is_accepted(args: list[str]) -> None:
    """The command is a script of what is installed here, and it knows these options."""
    assert args[0] in entry_points(group="console_scripts").names
    from dask.cli import cli
    from distributed.cli import dask_scheduler, dask_worker

    command = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[args[1]]
    assert args[1] in {**cli.commands, **{entry.name: entry for entry in entry_points(group="dask_cli")}}
    command.make_context(args[1], args[2:])


@pytest.mark.parametrize("args", [KUBERNETES_WORKER, KUBERNETES_SCHEDULER], ids=["worker", "scheduler"])
def test_pods_run_commands_that_are_there(args: list[str]) -> None:
    assert_is_accepted(args)


def test_studies_never_share_a_cluster_of_kubernetes() -> None:
    """A study connects to what has its name, and removes it at its end."""
    long = "resnet-" + "x" * 90
    names = ["digits-1", "Digits_1", "digits.1", f"{long}-a", f"{long}-b", "A"]
    found = [kubernetes_name(name) for name in names]
    assert len(set(found)) == len(names) and kubernetes_name("digits-1") == found[0]
    for name in found:
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 50


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


def test_devices_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert visible_devices() == ["2", "5"]


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
