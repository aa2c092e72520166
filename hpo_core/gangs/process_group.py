"""The process group of a gang: set up before the training function is called, ended after it.

The ranks find each other through a file in the study's private folder: no port listens for that, and who cannot read
the folder cannot join. The connections between them are gloo's, and NCCL's where each rank has a GPU of its own; on one
computer they are bound to the loopback interface. torch is imported here, after the objective's own imports.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil

from hpo_core.model.devices.measurement import Usage, UsageField
from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.training.request import RankPlace

ARRIVAL_SECONDS = 1800.0
"""Seconds that a rank waits for the others, whose workers may import the objective, or be busy."""
_LOOPBACK = "lo"
_NO_GPU = "-"
_LONGEST = 7 * 86_400.0
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "gloo/transport",
    "nccl error",
    "ncclremoteerror",
)
_DISTRIBUTED = {"DistBackendError", "DistNetworkError", "DistStoreError"}


class GangError(HpoError):
    """The ranks of a gang did not come together: no fault of the trial."""


def rank_places(hosts: Sequence[str], store: Path) -> list[RankPlace]:
    """Places of a gang's ranks, by the host of each; ``store`` is the file where they find each other."""
    return [
        RankPlace(
            rank=rank,
            size=len(hosts),
            local_rank=hosts[:rank].count(host),
            local_size=hosts.count(host),
            store=str(store),
        )
        for rank, host in enumerate(hosts)
    ]


def join(place: RankPlace, *, stall_timeout: float | None = None, alive: Callable[[], None] = lambda: None) -> None:
    """Wait for the other ranks, and set up torch.distributed with them.

    Args:
        stall_timeout: seconds after which a rank that waits for another one is ended by its limits; a collective waits
            longer than that, so that the limits say which rank hangs.
        alive: called while it waits: that is no step of training.

    Raises:
        GangError: another rank did not come.
        ObjectiveError: torch is not installed.
    """
    try:
        import torch
        import torch.distributed as distributed
    except ImportError as error:
        raise ObjectiveError(
            f"training.gang = {place.size} needs torch, which the worker's environment lacks ({error}); install it "
            "there, or set training.gang to 1."
        ) from error
    store = distributed.FileStore(place.store, place.size)  # type: ignore[attr-defined]
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    _set_environment(place, visible)
    device, gpu = _own_gpu(torch, place, visible)
    gpus = _arrive(store, place, gpu, alive)
    settings: dict[str, Any] = {"backend": "gloo"}
    if _NO_GPU not in gpus and len(set(gpus)) == place.size:
        torch.cuda.set_device(device)
        settings = {"backend": "cpu:gloo,cuda:nccl"}
    distributed.init_process_group(
        **settings,
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=_LONGEST if stall_timeout is None else min(_LONGEST, 2 * stall_timeout + 600)),
    )


def leave() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group()


def is_lost_peer(error: BaseException) -> bool:
    if any(kind.__name__ in _DISTRIBUTED for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _LOST_PEER)


def _set_environment(place: RankPlace, gpus: int) -> None:
    # Variables that Lightning, Accelerate and torch itself read.
    # They take the local rank for the number of a GPU. So ranks that see one GPU each, their own, are told that each is
    # alone on a node.
    # Args:
    #     gpus: that this process sees.
    local = min(place.local_size, gpus or place.local_size)
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "NODE_RANK": str(place.rank // local),
    }
    if place.local_size == place.size:  # nothing need listen outside of this computer
        os.environ |= {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}


def _own_gpu(torch: Any, place: RankPlace, gpus: int) -> tuple[int, str]:
    if not gpus:
        return 0, _NO_GPU
    device = place.local_rank % gpus
    return device, f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def _arrive(store: Any, place: RankPlace, gpu: str, alive: Callable[[], None]) -> list[str]:
    # Say that this rank is here and wait for the others; returns the GPU of each.
    keys = [f"arrived/{rank}" for rank in range(place.size)]
    store.set(keys[place.rank], gpu)
    waited, pause = Stopwatch(2.0, time.monotonic), 0.005
    while not store.check(keys):
        alive()
        if waited.elapsed() > ARRIVAL_SECONDS:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise GangError(
                f"Rank {', '.join(missing)} of {place.size} did not come within {ARRIVAL_SECONDS:g} s. See whether "
                f"its worker is there and reaches {place.store}."
            )
        time.sleep(pause)
        pause = min(0.2, 2 * pause)
    return [store.get(key).decode() for key in keys]


LOST_PEER = "lost its connection to the other ranks"
"""Words in the message of a rank that ended because another one did."""


def is_cause(report: Report) -> bool:
    return report.outcome is Outcome.LOST and LOST_PEER not in report.message


def gang_report(reports: Sequence[Report]) -> Report:
    """Make one report of the reports of a gang's ranks.

    Rank 0's report where all ranks have a result. Else that of the rank that ended it, with its number in the message:
    not one that was cancelled for it, or lost its connection by it; of several, the one that ended first.

    Args:
        reports: of all ranks, by rank.
    """
    facts: dict[str, Any] = {
        "started": min(report.started or report.ended for report in reports),
        "ended": max(report.ended for report in reports),
        "usage": usage_of_ranks(reports),
    }
    failed = [(rank, report) for rank, report in enumerate(reports) if report.outcome not in RESULTS]
    if not failed:
        return msgspec.structs.replace(reports[0], **facts)
    rank, cause = min(failed, key=lambda one: (_distance(one[1]), one[1].ended, one[0]))
    if any(report.message != cause.message for report in reports):  # else it is what they found together
        others = [
            f"rank {number}: {report.outcome.value}{': ' if report.message else ''}{report.message}"
            for number, report in enumerate(reports)
            if number != rank
        ]
        facts["message"] = f"Rank {rank} of {len(reports)}: {cause.message}"
        facts["detail"] = "\n".join(filter(None, (cause.detail, "The other ranks:", *others)))
    return msgspec.structs.replace(cause, checkpoint=None, **facts)


def _distance(report: Report) -> int:
    if report.outcome is Outcome.PREEMPTED:
        return 9
    if report.outcome is Outcome.LOST:
        return 8 if LOST_PEER in report.message else 2
    if report.outcome is Outcome.HUNG:
        return 4 if f"was {psutil.STATUS_SLEEPING}" in report.message else 3
    return 1


def usage_of_ranks(reports: Sequence[Report]) -> UsageField:
    known = [one.usage for one in reports if isinstance(one.usage, Usage)]
    if not known:
        return msgspec.UNSET
    device = [one.device_memory for one in known if one.device_memory is not None]
    return msgspec.structs.replace(
        known[0],
        memory=sum(one.memory for one in known),
        cores=round(sum(one.cores for one in known), 3),
        device_memory=sum(device) if device else None,
    )
