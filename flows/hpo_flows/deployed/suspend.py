"""Suspend in the Prefect UI: the process ends, the study can be gone on with, and Resume does so in a new process.

Prefect itself would notice only at the end of the flow, for the study's loop asks no task run for permission.
"""

from __future__ import annotations

import logging
import threading
import time
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.states import Running

from hpo_core.home import Home
from hpo_core.model.trial import Job, Report
from hpo_core.study import Study
from hpo_flows.liveness.heartbeat_files import begin_heartbeats
from hpo_flows.liveness.heartbeat_monitor import NO_HEARTBEAT

ASK_SECONDS = 3.0


class Suspension:
    """An observer that ends the drive once somebody suspended the flow run.

    Raises:
        Pause: from :meth:`tick`, which the driver takes as an interrupt and Prefect as the state it has already.
    """

    def __init__(self, study: Study, flow_run: UUID) -> None:
        del study
        self._flow_run = flow_run
        self._asked = time.monotonic()
        self._thread: threading.Thread | None = None
        self._state: State | None = None

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """Results change nothing here."""

    def on_tick(self) -> None:
        if self._state is not None:
            raise Pause("suspended", state=self._state)
        now = time.monotonic()
        if now - self._asked >= ASK_SECONDS and (self._thread is None or not self._thread.is_alive()):
            self._asked = now
            self._thread = threading.Thread(target=self._ask, name="suspension", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Nothing is open."""

    def _ask(self) -> None:
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(self._flow_run).state
                if state is not None and state.is_crashed() and state.message == NO_HEARTBEAT:
                    # the server was away for long, and took heartbeats it missed for heartbeats we did not send
                    client.set_flow_run_state(self._flow_run, Running(), force=True)
                    attempt = client.read_flow_run(self._flow_run).run_count  # which this has raised
                    begin_heartbeats(Home().folder, self._flow_run, attempt)
        except Exception as error:
            logging.getLogger(__name__).debug("asking for the flow run's state: %s", error)
            return
        if state is not None and state.is_paused():
            self._state = state
