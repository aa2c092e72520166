"""From a command to a study driven in this process: start what is missing, run, say how it ended.

The study is a Prefect flow run, or with ``--no-prefect`` none: then Prefect is not even imported.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import msgspec
import typer
from rich.text import Text

from hpo_core.cli.output import RunResult, err, out, print_run_result
from hpo_core.execution.dispatch import DirectDispatcher
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec, notices
from hpo_core.study import Study
from hpo_core.tracking.run_location import read_place
from hpo_core.views.failure_reasons import failures_of
from hpo_core.views.summary import summarize
from hpo_core.views.trained_further import extension_of
from hpo_flows.prefect_api.connection import (
    PrefectServerError,
    check_access,
    check_api,
    configured_api,
    forbid_ephemeral_servers,
    point_prefect_at,
    prepare_environment,
    wait_for_final_states,
)
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session

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
    force: bool = False,
    extend: int = 0,
    prefect: bool | None = None,
    prefect_timeout: float | None = None,
    train: tuple[int | None, int] | None = None,
) -> None:
    """Start what is missing, drive the study in this process, say how it ended.

    Args:
        prefect: whether it is shown in Prefect; None: as the study says.
        prefect_timeout: instead of the study's ``start_timeout``.
    """
    signal.signal(signal.SIGTERM, _as_interrupt)
    session = Session(home, name, spec=spec, force=force, extend=extend, train=train)
    session.say = lambda line: _say(as_json, line)
    shown = session.spec.prefect.enabled if prefect is None else prefect
    server: SharedServer | None = None
    for notice in notices(spec) if spec is not None else ():
        err.print(Text(notice, style="yellow"), soft_wrap=True)
    board = out.is_terminal and not as_json
    try:
        if shown and find_spec("prefect") is None:
            raise HpoError(
                "Prefect is not installed, and the study is to be shown in it. Install it with `pip install "
                "'hpo-core[all]'`, or run the study without it: --no-prefect."
            )
        if shown:
            server = _find_api(home, prefect_timeout or session.spec.prefect.start_timeout)
        session.start_cluster()
        services = ", Prefect API" if shown else ""
        _say(as_json, f"starting: {session.spec.cluster.title}{services}, MLflow projection ...")
        if shown:
            _import_flow()
        session.wait_for_cluster()
        if server is not None:
            server.wait(lambda line: _say(as_json, line))
            point_prefect_at(server.api_url, server.auth)
            _say(as_json, f"Prefect UI while it runs: {server.url} ({_password_words(server)})")
        if dashboard := session.executor.dashboard:
            _say(as_json, f"Dask dashboard: {dashboard}")
        _show_in_terminal(session, board, as_json)
        summary = _run_flow(session, action, as_json) if shown else _run_bare(session)
        warning = session.finish_tracking()
        if warning:
            err.print(warning, style="yellow")
        _finish(session, summary, as_json)
    except KeyboardInterrupt:
        try:
            known = session.name in [info.name for info in home.open_journal().studies()]
            cure = f"`hpo resume {name}` goes on." if known else "The study was not begun yet; start it again."
        except HpoError:
            cure = f"`hpo resume {name}` goes on once the journal can be reached."
        if session.train is not None:
            cure = f"`hpo extend {name} --trial {session.train[0]} --to {session.train[1]}` goes on."
        err.print(f"\nInterrupted; nothing is lost. {cure}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        session.close()
        if server is not None:
            server.close()


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


def _import_flow() -> None:
    """While server and workers start: it takes a second or two."""
    # Prefect's own lines go to its API (the UI shows them), not between ours.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # Nor are its messages about an unreachable server shown, whole events among them: the study says so in a sentence.
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    logging.raiseExceptions = False
    import hpo_flows.tune  # noqa: F401


def _password_words(server: SharedServer) -> str:
    """The password itself to a person only: what is no terminal may be a log that others read."""
    return f"password {server.auth}" if err.is_terminal else f"password: see auth in {server.secrets_file}"


def _show_in_terminal(session: Session, board: bool, as_json: bool) -> None:
    from hpo_flows.study_run.live_progress import LiveBoard, PlainLines

    if board:
        session.add_observer(lambda study: LiveBoard(study, out))
    elif not as_json:
        session.add_observer(lambda study: PlainLines(study, lambda line: print(terminal_text(line), flush=True)))


def _run_bare(session: Session) -> dict[str, Any]:
    _, summary = session.run(lambda _study, executor: DirectDispatcher(executor))
    return dict(msgspec.to_builtins(summary))


def _run_flow(session: Session, action: str, as_json: bool) -> dict[str, Any]:
    from hpo_flows.liveness.api_watch import api_answers, end_process_soon
    from hpo_flows.tune import run_in_flow

    try:
        summary = run_in_flow(session, action)
    except HpoError:
        raise
    except Exception as error:
        if session.summary is None:
            raise _as_said(error, session.name, api_answers) from error
        if api_answers():
            raise
        done = session.summary.status == "finished" or session.train is not None
        end_process_soon(0 if done else HALTED)
        err.print("The Prefect server does not answer: its pages do not show the end of this study.", style="yellow")
        return dict(msgspec.to_builtins(session.summary))
    if not wait_for_final_states(summary["flow_run"], summary["task_runs"]):
        _say(as_json, "Prefect has not recorded the final state of every task run; the journal has them all.")
    return summary


def _as_said(error: Exception, name: str, api_answers: Callable[[], bool]) -> Exception:
    """What Prefect raised before the study's end as a message; anything else as it is."""
    if type(error).__module__.partition(".")[0] not in ("prefect", "httpx", "httpcore", "websockets") and api_answers():
        return error
    return PrefectServerError(
        f"Prefect failed before the end of study {name!r} ({type(error).__name__}: {error}). `hpo list` shows whether "
        f"it began: then `hpo resume {name}` goes on, else start it again; --no-prefect runs it without Prefect."
    )


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _say(as_json: bool, line: str) -> None:
    if not as_json:
        err.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Session, summary: dict[str, Any], as_json: bool) -> None:
    study = Study.open(session.name, session.journal, reading=True)
    place = read_place(session.folder)
    known = summarize(study)
    further = None if session.train is None else extension_of(study, *session.train)
    result = RunResult(
        study=known.study,
        status=summary["status"],
        reason=summary["reason"],
        rule=known.rule if summary["reason"] else "",
        method=known.method,
        trials=known.trials,
        jobs=known.jobs,
        seconds=round(summary["seconds"], 1),
        metric=known.metric,
        failures=failures_of(study.state),
        best=known.best,
        front=known.front,
        notices=notices(study.spec, study.state.extra_configs),
        trained_further=further,
        mlflow=None if place is None else place.url,
        checkpoint=None if known.checkpoint is None else summary["links"].get("Checkpoint", known.checkpoint),
        report=summary["report"],
    )
    print_run_result(result, extendable=known.extendable, folder=str(session.folder), as_json=as_json)
    if further is not None:
        if not further.reached:
            raise HpoError(further.words)
        return
    if summary["status"] != "finished":
        raise typer.Exit(HALTED)
    if not study.state.completed_jobs and study.state.trials:
        last = next(t.abandoned for t in reversed(study.state.trials) if t.abandoned is not None)
        raise HpoError(f"Study {study.name!r} ended without a single result; the last trial failed with: {last.reason}")
    if result.failures.most_failed:
        raise typer.Exit(MOST_FAILED)
