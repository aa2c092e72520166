"""The process that shows a command's study in Prefect: ``python -m hpo_flows.prefect_pages.prefect_follower FILE``.

It waits for the Prefect server, makes the flow run, and follows the journal there: a task run for each job or rung,
with the times of the journal, also for jobs that ended before the server was there.

``FILE`` is an open file that says what to show. Standard input brings an ``Ending`` when the controller ends. Where it
ends without one, the controller died. Standard output takes a JSON value per line: a text for the person at the
terminal, ``SHOWN`` once the flow run is there, ``CANCEL`` once somebody cancelled it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from hpo_core.journal.sql import open_journal
from hpo_core.model.process_priority import PAGES, step_back
from hpo_core.security.masking import mask_logs, masked, without_credentials
from hpo_core.study import Study
from hpo_flows.guarded_server import BEGAN
from hpo_flows.prefect_api.connection import PrefectServerError, configured_api, point_prefect_at
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.prefect_pages.prefect_process import CANCEL, SHOWN, Ending, ShowRequest
from hpo_flows.prefect_pages.shown_runs import OWN_SERVER, ShownRun, end_task_runs, report_killed_runs

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State


_READ_SECONDS = 0.3
END_SECONDS = 120.0
"""How long this process outlives its controller: a server that is still starting is waited for."""

log = logging.getLogger("hpo.prefect")


class Controller:
    """What the controller says, and whether it lives."""

    def __init__(self, on_late: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self.ending: Ending | None = None
        """None after its end: it died."""
        self._on_late = on_late
        self._cancelled = False
        self._parent = os.getppid()
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def _read(self) -> None:
        said, alive = b"", True
        while alive:
            alive = os.getppid() == self._parent  # a process that it forked may hold the pipe
            while select.select([0], [], [], _READ_SECONDS if alive else 0)[0]:
                if not (found := os.read(0, 65536)):
                    alive = False
                    break
                said += found
        with contextlib.suppress(msgspec.MsgspecError):
            self.ending = msgspec.json.decode(said, type=Ending)
        self.ended.set()
        time.sleep(END_SECONDS)
        self._on_late()

    def tell(self, said: str | int) -> None:
        """Send a text for the person, ``SHOWN`` or ``CANCEL``."""
        with contextlib.suppress(OSError):  # it has ended
            os.write(1, json.dumps(masked(said) if isinstance(said, str) else said).encode() + b"\n")

    def on_state(self, _: SyncPrefectClient, state: State[Any]) -> None:
        """Tell the controller, once, that somebody cancelled the flow run."""
        if not self._cancelled and (state.is_cancelling() or state.is_cancelled()):
            self._cancelled = True
            self.tell(CANCEL)


def _final_state(study: Study | None, ending: Ending | None, flow_run: UUID | None, began: datetime) -> Any:
    from prefect.states import Cancelled, Crashed

    from hpo_core.views.failure_reasons import cure_words
    from hpo_flows.prefect_pages.study_pages import end_state, failed_state

    cure = "" if study is None else f"; `hpo resume {study.name}` goes on"
    if ending is None:
        return Crashed(message=f"Its process ended without a word (killed, or the machine went down){cure}.")
    if ending.interrupted:
        return Cancelled(message=f"Interrupted{cure}.")
    if ending.error or study is None:
        return failed_state(ending.error or "It ended before the study was begun.", flow_run, began)
    return end_state(study, lambda words: failed_state(words, flow_run, began), cure_words(study))


def main(given: int) -> int:
    """Show a study until its controller ends; the exit code is 0 where Prefect holds it all.

    Args:
        given: the open file that says what to show, a ``ShowRequest``.
    """
    step_back(PAGES)
    shown = msgspec.json.decode(os.pread(given, os.fstat(given).st_size, 0), type=ShowRequest)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(lambda record: record.name.startswith("hpo"))  # Prefect's own is in Prefect
    logging.getLogger().addHandler(handler)
    mask_logs()
    server = SharedServer(Path(shown.server_folder)) if shown.server_folder else None

    def late() -> None:
        log.error("given up %g s after the study's end", END_SECONDS)
        if server is not None:
            server.close()
        os._exit(1)

    controller = Controller(late)
    try:
        return _main(shown, controller, server)
    except PrefectServerError as error:
        controller.tell(f"Prefect does not show this study, which goes on. {error}")
        log.error("%s", error)
    except Exception as error:
        controller.tell(f"Prefect does not show this study, which goes on ({type(error).__name__}: {error}).")
        log.exception("Prefect failed")
    finally:
        if server is not None:
            server.close()
    return 1


def which_server(shown: ShowRequest) -> str:
    """Tells Prefect servers apart."""
    return OWN_SERVER if shown.server_folder else without_credentials(configured_api() or "")


def _main(shown: ShowRequest, controller: Controller, server: SharedServer | None) -> int:
    # Prefect's own lines go to its API (the UI shows them); an unreachable server is said in a sentence.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    logging.raiseExceptions = False
    if server is not None:
        server.start()
        server.wait(controller.tell)  # before the imports: they would slow down the start of server and workers
        point_prefect_at(server.api_url, server.auth)
    from prefect.client.orchestration import get_client

    from hpo_flows.prefect_api.api_watch import wait_for_return
    from hpo_flows.prefect_pages.study_pages import StudyPages

    began = datetime.fromtimestamp(shown.began, UTC)
    with get_client(sync_client=True) as client:
        killed = report_killed_runs(client, Path(shown.runs_folder), which_server(shown))
        flow_run = _begin_flow_run(client, shown, began)
    note = ShownRun(Path(shown.runs_folder), flow_run.id, which_server(shown))
    controller.tell(SHOWN)
    pages = StudyPages(
        shown.study,
        lambda: open_journal(os.environ["HPO_JOURNAL"], reading=True),
        flow_run=flow_run.id,
        start=shown.start,
        began=shown.began,
        ended=controller.ended,
        say=controller.tell,
        on_state=controller.on_state,
    )
    pages.follow()
    if not wait_for_return():
        if server is not None:
            server.close()  # it kills one that hangs, and the final state is not waited for in vain
        return 1
    ending = controller.ending
    if ending is not None:
        pages.finish(ending.links)
    with get_client(sync_client=True) as client:
        state = _final_state(pages.study, ending, flow_run.id, began)
        client.set_flow_run_state(flow_run.id, state, force=True)  # also of a run that somebody paused
    if not pages.wait_for_states():
        return 1
    with get_client(sync_client=True) as client:
        for run in killed:  # the server has recorded our states by now, so also what it was sent before them
            end_task_runs(client, run)
    note.ended()
    return 0


def _begin_flow_run(client: SyncPrefectClient, shown: ShowRequest, began: datetime) -> FlowRun:
    """Make the flow run of a study, which runs from now on.

    A home's own server notes ``began`` as its start. Others note when they are told, which is before the first job,
    as a cluster takes longer to start than this process.
    """
    from prefect import Flow
    from prefect.states import Running

    made: FlowRun = client.create_flow_run(
        Flow(_begin_flow_run, name="tune", validate_parameters=False),
        name=f"{shown.action}-{shown.study}",
        parameters=shown.parameters,
        context={BEGAN: began.isoformat()},
        tags=shown.tags,
    )
    client.set_flow_run_state(made.id, Running())
    return made


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    logging.shutdown()
    os._exit(code)  # nothing of Prefect's is left to wait for
