"""64 workers on eight hosts that join and leave, one a second; what they cost in memory and processor time."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from hpo_core.model.events import AttemptFailed, CapacityChanged, JobCompleted
from hpo_core.model.trial import Outcome
from tests.hosts.conftest import MakeLab
from tests.hosts.lab import Host, Lab, Process
from tests.hosts.studies import LIMIT, Cluster, FarStudy

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(3600)]

WORKERS, HOSTS = 64, 8
NEEDED = 10 * 2**30
"""Bytes of memory that must be free: 64 workers, a training process and its parent for each."""
CHURN = 30
"""Workers that leave while as many join."""
LEFT = 8
"""Workers that are left for the end."""


def join(cluster: Cluster, host: Host, number: int) -> Process:
    """One more worker; without a nanny, which would start it again where it is to leave."""
    return host.python(
        "dask.__main__", "worker", cluster.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
        "--host", host.name, "--name", f"{host.name}-{number}", "--local-directory", "/tmp/dask",
        *cluster._options(), env=cluster._settings, log=f"worker-{number}.log",
    )  # fmt: skip


def memory_of(lab: Lab) -> dict[str, tuple[int, int]]:
    """Processes and their megabytes by what they are, pages that several share divided among them."""
    found: Counter[str] = Counter()
    bytes_of: Counter[str] = Counter()
    for host in lab:
        for process in host.processes():
            with contextlib.suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                kinds = (kind for kind in ("__main__ worker", "__main__ scheduler", "hpo_flows") if kind in command)
                kind = next(kinds, "training")
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                shared = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
                if shared is not None:
                    found[kind] += 1
                    bytes_of[kind] += int(shared[1])
    return {kind: (found[kind], round(bytes_of[kind] / 1024)) for kind in found}


def processor_seconds(process: Process) -> float:
    """Of the process that a command started, and its children."""
    spent = 0.0
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            spent += sum(one.cpu_times()[:2])
    return spent


def test_64_workers_join_and_leave_one_a_second_and_each_result_counts_once(make_lab: MakeLab, shared: Path) -> None:
    free = psutil.virtual_memory().available
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free memory, and {free >> 30} are")
    lab = make_lab(HOSTS + 2)
    cluster = Cluster(lab, shared, scheduler="h1", workers="")
    hosts = [lab[f"h{number + 3}"] for number in range(HOSTS)]
    study = FarStudy(
        shared, cluster, objective="tests.slurm.objectives:paced",
        space={
            "x": {"type": "float", "low": -1.0, "high": 1.0}, "pause": {"type": "categorical", "choices": [6.0, 10.0]},
        },
        search={"method": "asha", "configs": 500, "min_resource": 1, "max_resource": 4, "reduction_factor": 4},
        training={"retries": {"lost": 10}},
    )  # fmt: skip
    workers = [join(cluster, hosts[0], 0)]
    process = study.tune("h2")
    began = time.monotonic()
    for number in range(1, WORKERS):
        time.sleep(max(0.0, began + number - time.monotonic()))
        workers.append(join(cluster, hosts[number % HOSTS], number))

    def slots() -> int:
        return ([0] + [event.inventory.slots for event in study.events(CapacityChanged)])[-1]

    study.until(lambda: slots() == WORKERS, process)
    print(f"64 workers asked for one a second: all there after {time.monotonic() - began:.0f} s")
    study.until(lambda: len(lab["h3"].processes("worker")) >= WORKERS // HOSTS, process)
    time.sleep(20)
    print(f"memory: {memory_of(lab)}")
    marks = [(time.monotonic(), processor_seconds(process), processor_seconds(cluster.scheduler))]
    done = len(study.events(JobCompleted))
    left = 0
    for number in range(WORKERS, WORKERS + CHURN):  # one leaves, one joins
        workers.pop(0).send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        left += 1
        workers.append(join(cluster, hosts[number % HOSTS], number))
        time.sleep(1)
    marks.append((time.monotonic(), processor_seconds(process), processor_seconds(cluster.scheduler)))
    (began, *before), (ended, *after) = marks
    shares = [round(100 * (late - early) / (ended - began)) for early, late in zip(before, after, strict=True)]
    jobs = len(study.events(JobCompleted)) - done
    print(
        f"{CHURN} left and joined in {ended - began:.0f} s, {jobs} results; controller, scheduler: {shares} % of a core"
    )
    while len(workers) > LEFT and process.poll() is None:
        workers.pop(0).send_signal(signal.SIGTERM)
        left += 1
        time.sleep(1)
    process.wait(LIMIT)
    assert process.returncode == 0, process.said
    lost = study.events(AttemptFailed)
    there = [event.inventory.slots for event in study.events(CapacityChanged)]
    print(f"{left} workers left, {len(lost)} attempts lost, {len(study.events(JobCompleted))} results")
    print(f"{max(there)} slots, then {there[-1]}")
    assert {event.outcome for event in lost} <= {Outcome.LOST} and len(lost) <= left
    assert max(there) >= WORKERS > min(there[there.index(max(there)) :])
    study.whole()
