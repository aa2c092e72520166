"""Flow runs whose process is gone: Prefect's heartbeats, and the kernel, which ends flows with their worker.

Prefect's engine sends an event while a flow runs. An automation, made by ``hpo deploy``, calls a deployment's run
Crashed whose heartbeats stop; that needs no process of ours.

HPO_WORKER_PID  set by ``hpo worker`` for its flow processes: the process of the worker
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import psutil

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

HEARTBEAT_SECONDS = 30
"""The smallest that Prefect (3.8) takes; ``hpo worker`` sets it for the flows that it starts."""
LIMIT_SECONDS = 120.0
NO_HEARTBEAT = (
    f"No heartbeat for {LIMIT_SECONDS:.0f} s: its process and its worker are gone. Retry it, or run `resume`."
)
AUTOMATION = "hpo: flow runs without heartbeat"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_NEED_NO_PROCESS = ("Scheduled", "AwaitingRetry", "Paused", "Suspended")
_ENDED = ("Completed", "Failed", "Cancelled", "Crashed", "Skipped")


def report_silent_runs(
    client: SyncPrefectClient, deployments: Iterable[UUID], *, seconds: float = LIMIT_SECONDS
) -> None:
    """Make, or mend, the automation that calls runs of these deployments Crashed whose heartbeats stop."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    trigger = EventTrigger(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *(f"prefect.flow-run.{name}" for name in (*_NEED_NO_PROCESS, *_ENDED))},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification(
            {"prefect.resource.id": [f"prefect.deployment.{one}" for one in deployments]}
        ),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        within=timedelta(seconds=seconds),
    )
    wanted = AutomationCore(
        name=AUTOMATION,
        description="Made by `hpo deploy`: a run whose process is gone is Crashed, and can be retried.",
        trigger=trigger,
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=NO_HEARTBEAT, force=False)],
    )
    if known := client.read_automations_by_name(AUTOMATION):
        client.update_automation(known[0].id, wanted)
    else:
        client.create_automation(wanted)


_PR_SET_PDEATHSIG = 1
WORKER = "HPO_WORKER_PID"
"""Environment variable that a worker sets for its flow processes."""


def end_with_parent() -> None:
    """Have the kernel kill this process once the process that started it has ended, or now if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if (parent := os.environ.get(WORKER)) is not None and not psutil.pid_exists(int(parent)):
        os.kill(os.getpid(), signal.SIGKILL)
