"""From a command to a flow run in this process: start what is missing, run, say how it ended."""

from __future__ import annotations

import os
import signal
from typing import Any

import msgspec
import typer
from rich.text import Text

from flows.server import TemporaryPrefectServer, check_api, configured_api, settle
from flows.session import Session
from hpo_core.console import err, out, print_json, print_summary
from hpo_core.errors import HpoError
from hpo_core.front_view import front_facts
from hpo_core.home import Home
from hpo_core.shown import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.place import read_place

HALTED = 7
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
) -> None:
    """Start what is missing, run the flow in this process, say how it ended."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    if (api := configured_api()) is not None:
        check_api(api)
    session = Session(home, name, spec=spec, force=force, extend=extend)
    server: TemporaryPrefectServer | None = None
    board = out.is_terminal and not as_json
    try:
        if api is None:
            server = TemporaryPrefectServer(home.folder / "prefect")
            server.start()
        session.start_cluster()
        _say(as_json, f"starting: {_cluster_words(session)}, Prefect API, MLflow projection ...")
        _quiet_prefect()
        session.wait_for_cluster()
        if server is not None:
            server.wait()
            _say(as_json, f"Prefect UI while it runs: {server.url}")
        _say(as_json, f"Dask dashboard: {session.executor.dashboard}")
        summary = _run_flow(session, action, board, as_json, home, force, extend)
        warning = session.finish_tracking()
        if warning:
            err.print(warning, style="yellow")
        _finish(session, summary, as_json)
    except KeyboardInterrupt:
        known = session.name in [info.name for info in home.open_journal().studies()]
        cure = f"`hpo resume {name}` goes on." if known else "The study was not begun yet; start it again."
        err.print(f"\nInterrupted; nothing is lost. {cure}", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        session.close()
        if server is not None:
            server.stop()


def _run_flow(
    session: Session, action: str, board: bool, as_json: bool, home: Home, force: bool, extend: int
) -> dict[str, Any]:
    from flows.patience import leave, look
    from flows.progress import LiveBoard, PlainLines
    from flows.tune import run_prepared

    if board:
        session.add_observer(lambda study: LiveBoard(study, out))
    elif not as_json:
        session.add_observer(lambda study: PlainLines(study, lambda line: print(terminal_text(line), flush=True)))
    try:
        summary = run_prepared(
            session,
            action=action,
            spec=session.given_spec,
            extend=extend,
            force=force,
            home=str(home.folder),
            journal=str(session.journal),
        )
    except HpoError:
        raise
    except Exception:
        if session.summary is None or look():
            raise
        leave(0 if session.summary.status == "finished" else HALTED)
        err.print("The Prefect server is gone: its pages do not show the end of this study.", style="yellow")
        return dict(msgspec.to_builtins(session.summary))
    if not settle(summary["flow_run"], summary["task_runs"]):
        _say(as_json, "Prefect has not recorded the final state of every task run; the journal has them all.")
    return summary


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _quiet_prefect() -> None:
    """Prefect's own lines go to its API (the UI shows them), not between ours."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _cluster_words(session: Session) -> str:
    cluster = session.spec.cluster
    if cluster.kind == "local":
        return f"{cluster.workers} local Dask workers"
    return f"Dask cluster {cluster.address}" if cluster.kind == "address" else f"Dask workers ({cluster.kind})"


def _say(as_json: bool, line: str) -> None:
    if not as_json:
        err.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Session, summary: dict[str, Any], as_json: bool) -> None:
    study = Study.open(session.name, session.journal, reading=True)
    place = read_place(session.folder)
    best = study.best
    checkpoint = study.state.best_checkpoint()
    facts: dict[str, Any] = {
        "study": study.name,
        "status": summary["status"],
        "reason": summary["reason"],
        "rule": study.state.halted.rule if summary["reason"] and study.state.halted is not None else "",
        "method": study.spec.search.method,
        "trials": len(study.state.trials),
        "jobs": study.state.completed_jobs,
        "seconds": round(summary["seconds"], 1),
        "metric": study.spec.metric.name,
        "best": None
        if best is None
        else {
            "value": study.metric_value(best.loss),
            "trial": best.trial,
            "resource": best.resource,
            "params": study.state.trials[best.trial].params,
        },
        "front": front_facts(study.spec, study.state),
        "mlflow": None if place is None else place.url,
        "checkpoint": None if checkpoint is None else summary["links"].get("Checkpoint", checkpoint.uri),
        "report": summary["report"],
    }
    if as_json:
        print_json(facts)
    else:
        print_summary(facts)
    if summary["status"] != "finished":
        raise typer.Exit(HALTED)
    if not study.state.completed_jobs and study.state.trials:
        last = next(t.abandoned for t in reversed(study.state.trials) if t.abandoned is not None)
        raise HpoError(f"Study {study.name!r} ended without a single result; the last trial failed with: {last.reason}")
