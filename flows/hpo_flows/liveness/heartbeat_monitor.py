"""Calls a flow run Crashed that sends no heartbeat: its process and its worker are gone.

A process that vanished together with its worker (power cut, ``kill -9`` of everything) reports nothing. Every
``hpo worker`` looks at the heartbeats of its home and reports for those.

An automation on the server, which earlier versions had, judged by the events the server had received. Events lag behind
under load (91 s were seen), so it called runs Crashed that had ended, and some that were alive. Now the state is asked
for immediately before, and Crashed is proposed, not forced: the server itself refuses it to a run that has ended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hpo_flows.liveness.heartbeat_files import LIMIT_SECONDS, attempt_of, forget

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas import OrchestrationResult

OLD_AUTOMATION = "hpo: a run without a sign of life has crashed"
NO_HEARTBEAT = (
    f"No heartbeat for {LIMIT_SECONDS:.0f} s: its process and its worker are gone. Retry it, or run `resume`."
)
log = logging.getLogger("hpo.heartbeats")


async def report_silent_run(client: PrefectClient, home: Path, run: UUID) -> str:
    """Propose Crashed for a run without heartbeats that has not ended; returns what came of it.

    A run that waits (scheduled, paused) needs no process; whoever takes it up again begins with a heartbeat.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    try:
        found = await client.read_flow_run(run)
    except ObjectNotFound:
        return "unknown"  # deleted, or of another server with the same home
    state, attempt = found.state, attempt_of(home, run)
    if attempt is not None and found.run_count > attempt:
        forget(home, run)
        return "started again elsewhere"
    if state is None or state.is_scheduled() or state.is_paused() or state.is_final():
        forget(home, run)
        return "has no process"
    answer: OrchestrationResult[Any] = await client.set_flow_run_state(run, Crashed(message=NO_HEARTBEAT), force=False)
    if answer.state is None or not answer.state.is_crashed():
        return "refused"
    log.warning("flow run %s was %s and sends no heartbeat: Crashed", run, state.name)
    return "crashed"


def remove_old_automation() -> None:
    """Remove the automation of earlier versions from the configured server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for known in client.read_automations_by_name(OLD_AUTOMATION):
            client.delete_automation(known.id)
