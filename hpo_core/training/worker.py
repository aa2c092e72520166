"""Functions that a Dask worker runs: over plain bytes, on the process's pool of trainers."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import msgspec

from hpo_core.model.hops import Doubt, Unit
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.placement.mps import MpsDaemons
from hpo_core.training.partitions.held_partitions import doubt_partition, seen_signature
from hpo_core.training.partitions.loaded_partitions import signature_here
from hpo_core.training.request import JobRequest, decode_request, encode_report
from hpo_core.training.trainer_pool import TrainerPool
from hpo_core.training.visible_devices import seen_devices, watch_devices

_pool = TrainerPool()
"""The one pool of this process: tasks of all studies that the worker serves share it."""
atexit.register(_pool.close_all)
_OF_NO_PARTITION = RESULTS | {Outcome.PREEMPTED, Outcome.STORAGE, Outcome.CHECKPOINT_BAD}
"""How a unit ends that may not have failed for its partition."""
_mps = MpsDaemons()
"""Those of the GPUs that jobs of this process share."""


def train_job(request_bytes: bytes) -> bytes:
    """Run one encoded JobRequest in a child process and return the encoded Report."""
    request = decode_request(request_bytes)
    if (unit := request.job.unit) is not None:
        return _train_unit(request, unit)
    share = request.share
    if share is None or not share.gpu or not request.mps:
        return _encoded(request, _pool.run(request))
    with _mps.used(share.device) as pipes:
        shared = msgspec.structs.replace(request, share=msgspec.structs.replace(share, mps=pipes))
        return _encoded(request, _pool.run(shared))


def _train_unit(request: JobRequest, unit: Unit) -> bytes:
    name, signature = unit.partition, seen_signature(request.folder, unit.partition)
    before = signature or signature_here(request, name)
    report = _pool.run(msgspec.structs.replace(request, signature=signature))
    unexplained = report.outcome not in _OF_NO_PARTITION and report.doubt is msgspec.UNSET
    if unexplained and signature_here(request, name) != before:
        message = f"Partition {name} changed, or went, while it was trained on: {report.message}"
        report = msgspec.structs.replace(report, outcome=Outcome.LOST, message=message, doubt=Doubt(name))
    if report.doubt is not msgspec.UNSET:
        report = msgspec.structs.replace(report, doubt=Doubt(name, doubt_partition(request.folder, name)))
    return _encoded(request, report)


def lost_report(request_bytes: bytes, message: str) -> bytes:
    """The encoded Report of a job that nobody trained."""
    request = decode_request(request_bytes)
    job = request.job
    return _encoded(request, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=message))


def _encoded(request: JobRequest, report: Report) -> bytes:
    unit = request.job.unit
    return encode_report(report if unit is None else msgspec.structs.replace(report, unit=unit.number))


def cancel_job(trial: int, attempt: int, folder: str | None = None, unit: int | None = None) -> bool:
    """End an attempt that runs here or is on its way; return whether it was running.

    Args:
        folder: the study's folder, where several studies share the workers: their names may repeat, folders do not.
        unit: only this unit of it, where models hop.
    """
    return _pool.cancel(trial, attempt, folder, unit)


def limit_job(trial: int, attempt: int, folder: str, memory: int) -> bool:
    """Let an attempt take no more of its device from now on; return whether it runs here.

    Args:
        folder: the study's folder.
        memory: bytes; what it has taken already it keeps, and it never gets more than its share.
    """
    return _pool.limit(trial, attempt, folder, memory)


def cancel_study(folder: str) -> int:
    """End every running attempt of the study in ``folder``; return how many there were.

    A new controller calls it: on a cluster that outlived the previous one, its attempts still train in vain.
    """
    return _pool.cancel_study(folder)


def heartbeats() -> dict[str, int]:
    """For every attempt that runs here, a number that grows while its trainer's thread goes on."""
    return _pool.heartbeats()


def share_devices(kind: str) -> str:
    """Look at the devices of this computer from now on, for jobs to share them (:mod:`visible_devices`).

    Args:
        kind: ``gpu``, ``cpu`` or ``auto``.

    Returns:
        Why no GPU can be seen; empty where one can, or none was asked for.
    """
    return watch_devices(kind, _pool.processes)


def start_mps() -> str:
    """Start the MPS daemons of the GPUs that :func:`share_devices` sees; returns why some have none, or nothing."""
    seen = {name: facts for devices in seen_devices().values() for name, facts in devices.items()}
    return _mps.prepare(name for name, facts in seen.items() if facts["gpu"])


def usages() -> dict[str, dict[str, Any]]:
    """For every attempt that runs here and whose profile is complete, what it has used so far, as plain data."""
    return _pool.usages()


def prepare_worker(
    objective: str, pythonpath: Sequence[str] = (), threads: int | None = None, *, load: str = ""
) -> None:
    """Import the objective afresh for the next job: idle trainers may hold an older version of its code.

    Args:
        threads: that its jobs compute with.
        load: ``data.load`` of the study, which is looked for as well.

    Raises:
        SpecError: there is no such module or function.
        ObjectiveError: it cannot be imported.
    """
    _pool.prepare(objective, tuple(pythonpath), threads, load=load)


def close_idle(objective: str, pythonpath: Sequence[str] = ()) -> None:
    """End the idle trainers of an objective, on workers that live on and serve other studies."""
    _pool.close_idle(objective, tuple(pythonpath))


def close_all() -> None:
    """End every trainer of this process; running attempts report PREEMPTED."""
    _pool.close_all()
