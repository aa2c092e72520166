"""From a command to a study driven in this process: start what is missing, run, say how it ended.

Prefect shows it in a process of its own (``prefect_process.py``), or with ``--no-prefect`` not at all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from hpo_core.cli.output import RunResult, err, out, print_run_result
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.placement.gpus import available_cores
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import notices, oversubscription
from hpo_core.study import Study
from hpo_core.tracking.tracker_links import optuna_links, read_place
from hpo_core.views.failure_reasons import command_after, cure_words, failures_of, next_command, no_result_words
from hpo_core.views.summary import extension_of, notices_of, summarize
from hpo_flows.early_interrupt import raise_at_interrupt
from hpo_flows.prefect_api.connection import (
    check_access,
    check_api,
    configured_api,
    forbid_ephemeral_servers,
    prepare_environment,
)
from hpo_flows.prefect_api.shared_server import START_TIMEOUT, SharedServer
from hpo_flows.prefect_pages.prefect_process import ERROR_LENGTH, PrefectProcess, Shown, shown_parameters, tags_of
from hpo_flows.prefect_pages.shown_runs import SHOWN_RUNS
from hpo_flows.serve_home import mlflow_page
from hpo_flows.study_run.session import Session, Summary

HALTED = 7
MOST_FAILED = 9
INTERRUPTED = 130


def launch(
    home: Home,
    name: str,
    action: str,
    as_json: bool,
    *,
    spec: StudySpec | None = None,
    file: str = "STUDY.yaml",
    force: bool = False,
    extend: int = 0,
    prefect: bool | None = None,
    prefect_timeout: float | None = None,
    train: tuple[int | None, int] | None = None,
) -> None:
    """Start what is missing, drive the study in this process, say how it ended.

    Args:
        file: the study's file as the user named it, for the command that is named at the end.
        prefect: whether it is shown in Prefect; None: as the study says.
        prefect_timeout: seconds that a Prefect server may take to start without progress.
    """
    began = time.time()
    session = Session(home, name, spec=spec, force=force, extend=extend, train=train)
    shown = session.spec.prefect.enabled if prefect is None else prefect
    timeout = prefect_timeout or START_TIMEOUT
    server: SharedServer | None = None
    pages: PrefectProcess | None = None
    waits = False
    crowded = oversubscription(session.spec, available_cores(), os.environ)
    for notice in [*(notices(spec) if spec is not None else ()), *filter(None, [crowded])]:
        err.print(Text(notice, style="yellow"), soft_wrap=True)
    board = out.is_terminal and not as_json
    session.trackers.is_awaited = not board
    say = session.say = partial(_say, out if board else err, as_json)
    try:
        signal.signal(signal.SIGTERM, _as_interrupt)
        raise_at_interrupt()
        if shown and find_spec("prefect") is None:
            raise HpoError(
                "Prefect is not installed, and the study is to be shown in it. Install it with `pip install "
                "'hpo-core[all]'`, or run the study without it: --no-prefect."
            )
        if shown:
            server = _find_api(home, timeout)
        where = Address(server, say)
        where.tell()
        session.start_cluster()
        if shown:
            what = Shown(
                study=name,
                action=action,
                start=1 if spec is not None else session.journal.info(name).entries,
                began=began,
                parameters=shown_parameters(session.spec),
                tags=tags_of(session.spec),
                server_folder="" if server is None else str(server.folder),
                runs_folder=str(home.make_folder(SHOWN_RUNS)),
                start_timeout=timeout,
            )
            try:
                pages = PrefectProcess(
                    what,
                    session.folder,
                    journal=session.journal_url,
                    say=partial(_say, out if board else err, False),  # with --json as well
                    on_shown=where.look_and_tell,
                )
            except (OSError, HpoError) as error:
                err.print(f"Prefect does not show this study, which goes on: {terminal_text(str(error))}")
        services = ", Prefect API" if shown else ""
        services += ", MLflow projection" if session.home.tracking_uri(session.spec) is not None else ""
        services += ", Optuna projection" if optuna_links(session.home, session.spec) else ""
        say(f"starting: {session.spec.cluster.title}{services} ...")
        session.wait_for_cluster()
        if dashboard := session.executor.dashboard:
            say(f"Dask dashboard: {dashboard}")
        _show_in_terminal(session, board, as_json)

        _, summary = session.run()
        if pages is not None:
            pages.end(links=summary.links)
        warning = session.trackers.finish()
        if warning:
            err.print(warning, style="yellow")
        waits = pages is not None and session.trackers.is_awaited
        _finish(session, summary, as_json, file)
    except KeyboardInterrupt:
        if pages is not None:
            pages.end(interrupted=True)
        try:
            known = session.name in [info.name for info in home.open_journal().studies()]
            cure = f"`hpo resume {name}` goes on." if known else "The study was not begun yet; start it again."
        except HpoError:
            cure = f"`hpo resume {name}` goes on once the journal can be reached."
        if session.train is not None:
            cure = f"`hpo extend {name} --trial {session.train[0]} --to {session.train[1]}` goes on."
        err.print(f"\nInterrupted; nothing is lost. {cure}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if pages is not None:
            pages.end(error=masked(str(error))[:ERROR_LENGTH] or type(error).__name__)
        raise
    finally:
        session.close()
        if waits and pages is not None and not pages.wait():
            err.print("Prefect does not show all of this study; the journal has it.", style="yellow")
        if server is not None:
            server.let_go()


def _find_api(home: Home, start_timeout: float) -> SharedServer | None:
    """Check the API that the user's settings name; without one, begin to start the home's own server."""
    if (api := configured_api()) is not None:
        check_api(api)
        check_access(api)
        forbid_ephemeral_servers()
        return None
    server = SharedServer(home.folder / "prefect", start_timeout)
    prepare_environment(server.folder)
    server.start()
    return server


class Address:
    """Tells where the home's own Prefect server is, once: before the first job, or as soon as it is known."""

    def __init__(self, server: SharedServer | None, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._told = ""

    def tell(self) -> None:
        """Tell it where it is known, and was not told."""
        if self._server is not None and self._server.url not in ("", self._told):
            self._told = self._server.url
            self._say(f"Prefect UI while it runs: {self._told} ({self._password()}), once its server has started")

    def look_and_tell(self) -> None:
        """The same of the server that runs now: the process that shows the study may have started another one."""
        if self._server is not None:
            self._server.read_address()
        self.tell()

    def _password(self) -> str:
        """The password itself to a person only: what is no terminal may be a log that others read."""
        assert self._server is not None
        named = f"password: see auth in {self._server.secrets_file}"
        return f"password {self._server.auth}" if err.is_terminal else named


def _show_in_terminal(session: Session, board: bool, as_json: bool) -> None:
    from hpo_flows.progress import LiveBoard, PlainLines

    if board:
        session.add_observer(lambda study: LiveBoard(study, out, session.placed))
    elif not as_json:

        def write(line: str) -> None:
            print(terminal_text(line), flush=True)

        session.add_observer(lambda study: PlainLines(study, write, session.placed))


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _say(console: Console, as_json: bool, line: str) -> None:
    """Above the board, where there is one."""
    if not as_json:
        console.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Session, summary: Summary, as_json: bool, file: str) -> None:
    study = Study.open(session.name, session.journal, reading=True)
    place = read_place(session.folder)
    known = summarize(study)
    further = None if session.train is None else extension_of(study, *session.train)
    result = RunResult(
        study=known.study,
        status=summary.status,
        reason=summary.reason,
        rule=known.rule if summary.reason else "",
        method=known.method,
        trials=known.trials,
        jobs=known.jobs,
        seconds=round(summary.seconds, 1),
        metric=known.metric,
        failures=failures_of(study.state),
        best=known.best,
        front=known.front,
        notices=notices_of(study),
        trained_further=further,
        mlflow=summary.links.get("MLflow") if place is None else mlflow_page(session.home, place),
        optuna=optuna_links(session.home, session.spec).get("Optuna"),
        checkpoint=None if known.checkpoint is None else summary.links.get("Checkpoint", known.checkpoint),
        report=summary.report,
    )
    following, then = next_command(study, file), command_after(study, file)
    print_run_result(result, following=following, then=then, folder=str(session.folder), as_json=as_json)
    if further is not None:
        if not further.reached:
            raise HpoError(further.words)
        return
    if summary.status != "finished":
        raise typer.Exit(HALTED)
    if words := no_result_words(study):
        raise HpoError(f"Study {study.name!r} ended without a single result: {words}. {cure_words(study, file)}")
    if result.failures.most_failed:
        raise typer.Exit(MOST_FAILED)
