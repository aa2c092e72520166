"""Heartbeat monitor: calls a flow run Crashed whose process sends no heartbeat.

A process that vanished (power cut, ``kill -9`` of everything) reports nothing. Flow processes of ``hpo worker`` send
Prefect a heartbeat; an automation on the server calls a run Crashed that sent none for a while and has not ended.
"""

from __future__ import annotations

from datetime import timedelta

HEARTBEAT_SECONDS = 30
"""Prefect sends no faster ones."""
LIMIT_SECONDS = 90
AUTOMATION = "hpo: a run without a sign of life has crashed"
NO_HEARTBEAT = f"No sign of life for {LIMIT_SECONDS} s: its process or machine is gone. Retry it, or run `resume`."

_OVER = (
    "Completed",
    "Failed",
    "Crashed",
    "Cancelled",
    "TimedOut",
    "Paused",
    "Suspended",
    "Scheduled",
    "AwaitingRetry",
    "Resuming",
)
"""States of a run that has no process. Not Cancelling: of a process that is gone it would be the last one."""


def make_automation() -> None:
    """Make (or mend) the automation on the configured server; one that a person switched off stays so."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    sign = "prefect.flow-run.heartbeat"
    ours: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": "prefect.tag.hpo"}
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(AUTOMATION)
        wanted = AutomationCore(
            name=AUTOMATION,
            description="Made by `hpo deploy`.",
            enabled=known[0].enabled if known else True,
            trigger=EventTrigger(
                posture=Posture.Proactive,
                match_related=ResourceSpecification(ours),
                after={sign},
                expect={sign, *(f"prefect.flow-run.{state}" for state in _OVER)},
                for_each={"prefect.resource.id"},
                threshold=1,
                within=timedelta(seconds=LIMIT_SECONDS),
            ),
            actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=NO_HEARTBEAT, force=True)],
        )
        if known:
            client.update_automation(known[0].id, wanted)
        else:
            client.create_automation(wanted)
