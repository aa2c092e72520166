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
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.prefect_pages.prefect_process import ERROR_LENGTH, PrefectProcess, ShowRequest, shown_parameters, tags_of
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
    train: tuple[int | None, int] | None = None,
) -> None:
    """Start what is missing, drive the study in this process, say how it ended.

    Args:
        file: the study's file as the user named it, for the command that is named at the end.
        prefect: whether it is shown in Prefect; None: as the study says.
    """
    began = time.time()
    session = Session(home, name, spec=spec, force=force, extend=extend, train=train)
    shown = session.spec.prefect != "off" if prefect is None else prefect
    server: SharedServer | None = None
    pages: PrefectProcess | None = None
    waits_for_pages = False
    crowding = oversubscription(session.spec, available_cores(), os.environ)
    for notice in [*(notices(spec) if spec is not None else ()), *filter(None, [crowding])]:
        err.print(Text(notice, style="yellow"), soft_wrap=True)
    has_board = out.is_terminal and not as_json
    session.trackers.is_awaited = not has_board
    say = session.say = partial(_say, out if has_board else err, as_json)
    try:
        signal.signal(signal.SIGTERM, _as_interrupt)
        raise_at_interrupt()
        if shown:
            server = _find_api(home)
        tell_address = _address_teller(server, say)
        session.start_cluster()
        if shown:
            request = ShowRequest(
                study=name,
                action=action,
                start=1 if spec is not None else session.journal.info(name).entries,
                began=began,
                parameters=shown_parameters(session.spec),
                tags=tags_of(session.spec),
                server_folder="" if server is None else str(server.folder),
                runs_folder=str(home.make_folder(SHOWN_RUNS)),
            )
            try:
                pages = PrefectProcess(
                    request,
                    session.folder,
                    journal=session.journal_url,
                    say=partial(_say, out if has_board else err, False),  # with --json as well
                    on_shown=tell_address,
                )
            except (OSError, HpoError) as error:
                err.print(f"Prefect does not show this study, which goes on: {terminal_text(str(error))}")
        services = {
            "Prefect API": shown,
            "MLflow projection": session.home.tracking_uri(session.spec) is not None,
            "Optuna projection": bool(optuna_links(session.home, session.spec)),
        }
        started = [session.spec.cluster.title, *(title for title, is_used in services.items() if is_used)]
        say(f"starting: {', '.join(started)} ...")
        session.wait_for_cluster()
        if dashboard := session.executor.dashboard:
            say(f"Dask dashboard: {dashboard}")
        _show_in_terminal(session, has_board, as_json)

        _, summary = session.run()
        if pages is not None:
            pages.end(links=summary.links)
        if warning := session.trackers.finish():
            err.print(warning, style="yellow")
        waits_for_pages = pages is not None and session.trackers.is_awaited
        _finish(session, summary, as_json, file)
    except KeyboardInterrupt:
        if pages is not None:
            pages.end(interrupted=True)
        err.print(f"\nInterrupted; nothing is lost. {_how_to_go_on(session)}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if pages is not None:
            pages.end(error=masked(str(error))[:ERROR_LENGTH] or type(error).__name__)
        raise
    finally:
        session.close()
        if waits_for_pages and pages is not None and not pages.wait():
            err.print("Prefect does not show all of this study; the journal has it.", style="yellow")
        if server is not None:
            server.let_go()


def _how_to_go_on(session: Session) -> str:
    """The command that goes on with an interrupted study."""
    name = session.name
    if session.train is not None:
        return f"`hpo extend {name} --trial {session.train[0]} --to {session.train[1]}` goes on."
    try:
        known = name in [info.name for info in session.home.open_journal().studies()]
    except HpoError:
        return f"`hpo resume {name}` goes on once the journal can be reached."
    return f"`hpo resume {name}` goes on." if known else "The study was not begun yet; start it again."


def _find_api(home: Home) -> SharedServer | None:
    """Check the API that the user's settings name; without one, begin to start the home's own server."""
    if find_spec("prefect") is None:
        raise HpoError(
            "Prefect is not installed, and the study is to be shown in it. Install it with `pip install "
            "'hpo-core[all]'`, or run the study without it: --no-prefect."
        )
    if (api := configured_api()) is not None:
        check_api(api)
        check_access(api)
        forbid_ephemeral_servers()
        return None
    server = SharedServer(home.folder / "prefect")
    prepare_environment(server.folder)
    server.start()
    return server


def _address_teller(server: SharedServer | None, say: Callable[[str], None]) -> Callable[[], None]:
    """Tell the address of the home's own Prefect server, if known; returns a function that tells a new address."""
    told = ""

    def tell() -> None:
        nonlocal told
        if server is not None and server.url not in ("", told):
            told = server.url
            # the password itself to a person only: what is no terminal may be a log that others read
            word = f"password {server.auth}" if err.is_terminal else f"password: see auth in {server.secrets_file}"
            say(f"Prefect UI while it runs: {told} ({word}), once its server has started")

    def look_and_tell() -> None:
        """Read the address again, and tell it: the process that shows the study may have started another server."""
        if server is not None:
            server.read_address()
        tell()

    tell()
    return look_and_tell


def _show_in_terminal(session: Session, has_board: bool, as_json: bool) -> None:
    from hpo_flows.progress import LiveBoard, PlainLines

    if has_board:
        session.add_observer(lambda study: LiveBoard(study, out))
    elif not as_json:

        def write(line: str) -> None:
            print(terminal_text(line), flush=True)

        session.add_observer(lambda study: PlainLines(study, write))


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _say(console: Console, as_json: bool, line: str) -> None:
    """Print a line, above the live board where there is one; nothing with ``--json``."""
    if not as_json:
        console.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Session, summary: Summary, as_json: bool, file: str) -> None:
    """Print how the study ended, and exit with its code."""
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
