"""The process that shows a study in Prefect: ``python -m hpo_flows.study_run.prefect_follower SHOWN``.

It waits for the Prefect server, runs the flow ``tune`` for a study that a command drives, and follows the journal: a
task run for each job or rung, with the times of the journal, also for jobs that ended before the server was there.

Standard input brings an ``Ending`` when the controller ends. Where it ends without one, the controller died. Standard
output takes a JSON value per line: null once the flow run is there, else a text for the person at the terminal.
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
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from hpo_core.execution.loop import Observer
from hpo_core.journal.protocol import Journal
from hpo_core.journal.sql import is_alive, open_journal
from hpo_core.model.errors import JournalError, StudyNotFoundError
from hpo_core.model.events import Entry
from hpo_core.pool.store import live_rows
from hpo_core.pool.words import standings
from hpo_core.security.credentials import without_credentials
from hpo_core.security.masking import mask_logs, masked
from hpo_core.study import Study
from hpo_flows.liveness.shown_runs import OWN_SERVER, ShownRun, report_killed_runs
from hpo_flows.prefect_api.connection import PrefectServerError, configured_api, point_prefect_at
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.prefect_process import Ending, Shown

POLL_SECONDS = 0.3
JOURNAL_SECONDS = 5.0
"""Until a journal that cannot be reached is tried again."""
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
        self._parent = os.getppid()
        threading.Thread(target=self._read, name="controller", daemon=True).start()

    def _read(self) -> None:
        said, alive = b"", True
        while alive:
            alive = os.getppid() == self._parent  # a process that it forked may hold the pipe
            while select.select([0], [], [], POLL_SECONDS if alive else 0)[0]:
                if not (found := os.read(0, 65536)):
                    alive = False
                    break
                said += found
        with contextlib.suppress(msgspec.MsgspecError):
            self.ending = msgspec.json.decode(said, type=Ending)
        self.ended.set()
        time.sleep(END_SECONDS)
        self._on_late()

    def tell(self, text: str | None) -> None:
        """Send a text for the person, or None: the flow run is there."""
        with contextlib.suppress(OSError):  # it has ended
            os.write(1, json.dumps(text and masked(text)).encode() + b"\n")


class StudyFollower:
    """Reads a journal as it grows.

    Args:
        start: the first entry that counts as news.
    """

    def __init__(self, name: str, journal: Journal, start: int) -> None:
        self.journal = journal
        self.study = Study.open(name, journal, at=start - 1)

    def news(self) -> list[Entry] | None:
        """The entries that this study has not replayed; None where the journal cannot be read now."""
        try:
            if self.journal.info(self.study.name).entries == self.study.seq:
                return []
            return list(self.journal.entries(self.study.name, self.study.seq))
        except StudyNotFoundError:
            raise
        except JournalError as error:
            log.warning("the journal cannot be read now: %s", error)
            return None


class StudyFlow:
    """The body of the flow run: shows entries until the controller ends."""

    def __init__(
        self, follower: StudyFollower, shown: Shown, controller: Controller, close_server: Callable[[], None]
    ) -> None:
        self._follower = follower
        self._close_server = close_server
        self._shown = shown
        self._note: ShownRun | None = None
        self._controller = controller
        self.flow_run = ""
        self.task_runs = 0
        self.error: Exception | None = None
        """What ended the flow run before the study did."""

    def run(self) -> Any:
        """Show the study in the present flow run; returns the flow run's final state."""
        try:
            return self._run()
        except Exception as error:
            self.error = error  # the flow's engine keeps it in a state
            raise

    def ended(self) -> None:
        """The flow run has its final state."""
        if self._note is not None:
            self._note.ended()

    def _run(self) -> Any:
        from prefect import tags
        from prefect.runtime import flow_run

        from hpo_flows.liveness.api_watch import ApiWatch, api_is_unreachable, wait_for_return
        from hpo_flows.study_run.flow_run import DecisionLog, label_run, task_runs_of
        from hpo_flows.study_run.followed_jobs import FollowedJobs
        from hpo_flows.study_run.prefect_artifacts import StudyArtifacts

        study, controller = self._follower.study, self._controller
        self.flow_run = str(flow_run.id)
        self._note = ShownRun(Path(self._shown.runs_folder), UUID(self.flow_run), which_server(self._shown))
        run = label_run(study.spec, self._shown.action)
        controller.tell(None)
        jobs = FollowedJobs(study, lambda clock: task_runs_of(study, clock))
        artifacts = StudyArtifacts(study, run, pool=self._pool_words if study.spec.share is not None else None)
        observers: list[Observer] = [DecisionLog(study), artifacts, ApiWatch()]
        unreachable = False
        with tags("hpo", study.name):
            while True:
                ended = controller.ended.is_set()  # before the journal is read: what was recorded until then is shown
                news = self._follower.news()
                for entry in news or ():
                    study.replay(entry)
                    report, granted = jobs.show(entry)
                    if report is not None:
                        for observer in observers:
                            observer.on_report(report, granted)
                for observer in observers:
                    observer.on_tick()
                if api_is_unreachable() and not unreachable:
                    unreachable = True
                    controller.tell("The Prefect server does not answer: its pages stop here. The study goes on.")
                if ended and news is not None:
                    break
                if ended:  # END_SECONDS limit it
                    time.sleep(POLL_SECONDS)
                else:
                    controller.ended.wait(POLL_SECONDS)
            jobs.tasks.close(seconds=0.0)
        self.task_runs = jobs.tasks.task_runs
        if not wait_for_return():
            self._close_server()  # it kills one that hangs, and the final state is not waited for in vain
        else:
            for observer in observers:
                observer.close()
            if controller.ending is not None and controller.ending.links:
                artifacts.finish(controller.ending.links)
        return _final_state(study, controller.ending)

    def _pool_words(self) -> str:
        """How the study stands in its pool; empty where that cannot be read."""
        study = self._follower.study
        try:
            found = standings(live_rows(self._follower.journal, is_alive)).get(study.name)
        except JournalError:
            return ""
        return "" if found is None else found.words


def _final_state(study: Study, ending: Ending | None) -> Any:
    from prefect.states import Cancelled, Completed, Crashed

    from hpo_core.cli.output import best_line
    from hpo_core.views.failure_reasons import no_result_words
    from hpo_core.views.next_command import cure_words
    from hpo_core.views.rung_names import halt_words
    from hpo_flows.study_run.flow_run import failed_state

    cure = f"`hpo resume {study.name}` goes on."
    if ending is None:
        return Crashed(message=f"Its process ended without a word (killed, or the machine went down); {cure}")
    if ending.interrupted:
        return Cancelled(message=f"Interrupted; {cure}")
    if ending.error:
        return failed_state(ending.error)
    halted = study.state.halted
    if halted is not None and not study.finished and not halted.rule:
        return failed_state(f"{halted.reason.rstrip('.')}. {cure_words(study)}")
    if nothing := no_result_words(study):
        return failed_state(f"Ended without a single result: {nothing}. {cure_words(study)}")
    words = "" if study.finished or halted is None else f"{halt_words(study.spec, halted)}; "
    return Completed(message=f"{words}best {best_line(study)}, {study.state.completed_jobs:,} jobs")


def main(given: str) -> int:
    """Show a study until its controller ends; the exit code is 0 where Prefect holds it all."""
    shown = msgspec.json.decode(given, type=Shown)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(lambda record: record.name.startswith("hpo"))  # Prefect's own is in Prefect
    logging.getLogger().addHandler(handler)
    mask_logs()
    server = SharedServer(Path(shown.server_folder), shown.start_timeout) if shown.server_folder else None

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


def which_server(shown: Shown) -> str:
    """Tells Prefect servers apart."""
    return OWN_SERVER if shown.server_folder else without_credentials(configured_api() or "")


def _main(shown: Shown, controller: Controller, server: SharedServer | None) -> int:
    # Prefect's own lines go to its API (the UI shows them); an unreachable server is said in a sentence.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    logging.raiseExceptions = False
    if server is not None:
        server.start()
    from prefect.client.orchestration import get_client

    from hpo_flows.prefect_api.connection import wait_for_final_states
    from hpo_flows.tune import run_in_flow

    if server is not None:
        server.wait(controller.tell)
        point_prefect_at(server.api_url, server.auth)
    follower = _follow(shown, controller)
    flow = StudyFlow(follower, shown, controller, close_server=server.close if server is not None else lambda: None)
    with get_client(sync_client=True) as client:
        report_killed_runs(client, Path(shown.runs_folder), which_server(shown))
    run_in_flow(follower.study.spec, flow.run, return_state=True)
    if flow.error is not None:
        raise flow.error
    if not wait_for_final_states(flow.flow_run, flow.task_runs):
        return 1
    flow.ended()
    return 0


def _follow(shown: Shown, controller: Controller) -> StudyFollower:
    """The study from the journal, which is asked again while it cannot be reached and the controller goes on."""
    while True:
        try:
            return StudyFollower(shown.study, open_journal(os.environ["HPO_JOURNAL"], reading=True), shown.start)
        except StudyNotFoundError:
            raise
        except JournalError as error:
            if controller.ended.is_set():
                raise
            log.warning("the journal cannot be read now: %s", error)
            controller.ended.wait(JOURNAL_SECONDS)


if __name__ == "__main__":
    code = main(sys.argv[1])
    logging.shutdown()
    os._exit(code)  # nothing of Prefect's is left to wait for
