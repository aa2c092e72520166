"""The ``hpo`` command.

Exit codes: 0 done; 1 failed; 2 wrong study file or arguments; 3 study exists; 4 study not found; 5 driven by
another controller; 6 storage or journal cannot be written; 7 study halted before its end (``hpo resume`` goes
on); 8 audit found differences; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpo_core.errors import HpoError, SpecError
from hpo_core.home import Home

HALTED = 7
AUDIT_DIFFERS = 8
INTERRUPTED = 130

app = typer.Typer(
    name="hpo",
    help="Tune hyperparameters with Prefect, Dask and MLflow; every decision is journaled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

Name = Annotated[str, typer.Argument(help="Name of the study.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
HomeOption = Annotated[
    str | None, typer.Option("--home", help="Folder of journal, checkpoints, reports (HPO_HOME, or .hpo).")
]
JournalOption = Annotated[
    str | None, typer.Option("--journal", help="SQLAlchemy URL of the journal (HPO_JOURNAL, or SQLite in the home).")
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a controller that seems alive.")]


@app.command()
def tune(
    study_file: Annotated[Path, typer.Argument(help="The study's YAML file.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name than the file gives.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Local workers instead of the file's.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a new study to its end."""
    from hpo_core.spec import StudySpec, load_spec

    spec = load_spec(study_file)
    changes: dict[str, Any] = {}
    if name is not None:
        changes["study"] = name
    if workers is not None:
        changes["cluster"] = {"kind": "local", "workers": workers}
    if changes:
        spec = StudySpec.from_plain(spec.plain() | changes, "command line")
    if spec.objective is None:
        raise SpecError(f"{study_file}: objective: is required to run a study; write package.module:function.")
    _drive(Home(home, journal), spec.study, "tune", as_json, spec=spec)


@app.command()
def resume(
    name: Name, force: Force = False, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False
) -> None:
    """Go on with a study that was interrupted, halted, or whose controller died."""
    _drive(Home(home, journal), name, "resume", as_json, force=force)


@app.command()
def extend(
    name: Name,
    configs: Annotated[int, typer.Option("--configs", min=1, help="So many configurations more.")],
    force: Force = False,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Ask a study, finished or not, for more configurations, and run them."""
    _drive(Home(home, journal), name, "extend", as_json, force=force, extend=configs)


@app.command()
def rerun(
    name: Name,
    new: Annotated[str, typer.Option("--as", help="Name of the new study.")],
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Train again along a study's recorded grants: same parameters, seeds and promotions."""
    from hpo_core.journal.rerun import rerun_spec

    place = Home(home, journal)
    source = place.open_journal()
    spec = rerun_spec(list(source.entries(name)), new)
    source.close()
    _drive(place, new, "rerun", as_json, spec=spec)


@app.command("list")
def list_studies(home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """All studies of the journal."""
    from hpo_core.study import Study

    source = Home(home, journal).open_journal()
    rows = []
    for info in source.studies():
        study = Study.open(info.name, source)
        rows.append(
            {
                "study": info.name,
                "method": study.spec.search.method,
                "status": _status(study, info),
                "trials": len(study.state.trials),
                "jobs": study.state.completed_jobs,
                "best": None if study.best is None else study.metric_value(study.best.loss),
                "metric": study.spec.metric.name,
                "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created)),
            }
        )
    if as_json:
        _print_json(rows)
    elif rows:
        out.print(_table(rows))
    else:
        out.print("No study yet. `hpo tune STUDY.yaml` makes one.")


@app.command()
def status(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Where a study stands now."""
    _show(Home(home, journal), name, None, as_json)


@app.command()
def show(
    name: Name,
    at: Annotated[int | None, typer.Option("--at", min=0, help="As of this journal entry (default: the last).")] = None,
    trial: Annotated[int | None, typer.Option("--trial", min=0, help="The story of one trial.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """A study as of any entry of its journal."""
    _show(Home(home, journal), name, at, as_json, trial=trial)


@app.command("audit")
def audit_study(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Decide everything again from the recorded stimuli and compare with the record."""
    from hpo_core.journal.audit import audit

    source = Home(home, journal).open_journal()
    report = audit(source.entries(name))
    if as_json:
        _print_json(
            {
                "entries": report.entries,
                "clean": report.clean,
                "sampler_checked": report.sampler_checked,
                "findings": [str(finding) for finding in report.findings],
            }
        )
    else:
        drawn = "parameters drawn again too" if report.sampler_checked else "parameters taken from the record"
        if report.clean:
            out.print(f"clean: {report.entries} entries decided again, all as recorded ({drawn})")
        for finding in report.findings:
            out.print(Text(str(finding)))
    if not report.clean:
        raise typer.Exit(AUDIT_DIFFERS)


@app.command()
def export(name: Name, home: HomeOption = None, journal: JournalOption = None) -> None:
    """Write the journal as JSON lines, one entry a line."""
    from hpo_core.events import encode_entry

    for entry in Home(home, journal).open_journal().entries(name):
        sys.stdout.write(encode_entry(entry) + "\n")


@app.command()
def report(name: Name, home: HomeOption = None, journal: JournalOption = None) -> None:
    """Write the HTML report again and print its path."""
    from hpo_core.report import write_report
    from hpo_core.tracking.place import read_place

    place = Home(home, journal)
    entries = list(place.open_journal().entries(name))
    folder = place.study_folder(name, create=True)
    links = {"Study folder": str(folder)}
    if (run := read_place(folder)) is not None:
        links["MLflow"] = run.url
    out.print(str(write_report(entries, place.report_path(name), links=links)), soft_wrap=True)


@app.command()
def project(
    name: Name,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make runs that were deleted in MLflow anew.")] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Bring MLflow up to date with the journal; doing it twice changes nothing."""
    from hpo_core.tracking.follow import project_study

    place = Home(home, journal)
    source = place.open_journal()
    found = project_study(place, source, name, rebuild=rebuild)
    out.print(found, soft_wrap=True)


def _drive(
    home: Home,
    name: str,
    action: str,
    as_json: bool,
    *,
    spec: Any = None,
    force: bool = False,
    extend: int = 0,
) -> None:
    """Start what is missing, run the flow in this process, say how it ended."""
    from flows.server import TemporaryPrefectServer, check_api, configured_api
    from flows.session import Session

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
    session: Any, action: str, board: bool, as_json: bool, home: Home, force: bool, extend: int
) -> dict[str, Any]:
    from flows.progress import LiveBoard, PlainLines
    from flows.server import drain
    from flows.tune import run_prepared

    if board:
        session.add_observer(lambda study: LiveBoard(study, out))
    elif not as_json:
        session.add_observer(lambda study: PlainLines(study, lambda line: print(line, flush=True)))
    summary = run_prepared(
        session,
        action=action,
        spec=session.given_spec,
        extend=extend,
        force=force,
        home=str(home.folder),
        journal=str(session.journal),
    )
    drain()
    return summary


def _as_interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _quiet_prefect() -> None:
    """Prefect's own lines go to its API (the UI shows them), not between ours."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _cluster_words(session: Any) -> str:
    cluster = session.spec.cluster
    return f"{cluster.workers} local Dask workers" if cluster.kind == "local" else f"Dask cluster {cluster.address}"


def _say(as_json: bool, line: str) -> None:
    if not as_json:
        err.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Any, summary: dict[str, Any], as_json: bool) -> None:
    from hpo_core.study import Study
    from hpo_core.tracking.place import read_place

    study = Study.open(session.name, session.journal)
    place = read_place(session.folder)
    best = study.best
    checkpoint = study.state.best_checkpoint()
    facts: dict[str, Any] = {
        "study": study.name,
        "status": summary["status"],
        "reason": summary["reason"],
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
        "mlflow": None if place is None else place.url,
        "checkpoint": None if checkpoint is None else str(session.folder / checkpoint.uri),
        "report": summary["report"],
    }
    if as_json:
        _print_json(facts)
    else:
        _print_summary(facts)
    if summary["status"] != "finished":
        raise typer.Exit(HALTED)
    if not study.state.completed_jobs and study.state.trials:
        last = next(t.abandoned for t in reversed(study.state.trials) if t.abandoned is not None)
        raise HpoError(f"Study {study.name!r} ended without a single result; the last trial failed with: {last.reason}")


def _print_summary(facts: dict[str, Any]) -> None:
    from flows.progress import duration

    out.print()
    out.print(
        Text.assemble(
            (f"{facts['study']} {facts['status']}", "bold green" if facts["status"] == "finished" else "bold yellow"),
            f": {facts['trials']} trials, {facts['jobs']} jobs in {duration(facts['seconds'])}",
        )
    )
    if facts["reason"]:
        out.print(Text(f"  reason      {facts['reason']}", style="yellow"), soft_wrap=True)
    best = facts["best"]
    if best is not None:
        out.print(
            Text(
                f"  best        {facts['metric']} = {best['value']:.5g}  (trial {best['trial']} at {best['resource']})"
            )
        )
        for key, value in best["params"].items():
            shown = f"{value:.5g}" if isinstance(value, float) else str(value)
            out.print(Text(f"              {key} = {shown}"))
    for title, key in (("checkpoint", "checkpoint"), ("MLflow", "mlflow"), ("report", "report")):
        if facts[key]:
            out.print(Text(f"  {title:<11} {facts[key]}"), soft_wrap=True)
    name = facts["study"]
    if facts["status"] != "finished":
        more = f"hpo resume {name}"
    elif facts["method"] == "recorded":
        more = "hpo list"
    else:
        more = f"hpo extend {name} --configs 30"
    out.print(Text(f"  next        {more}   (also: hpo show {name}, hpo audit {name})"))


def _show(home: Home, name: str, at: int | None, as_json: bool, trial: int | None = None) -> None:
    from flows.progress import best_line
    from hpo_core.study import Study

    source = home.open_journal()
    info = source.info(name)
    if at is not None and at >= info.entries:
        raise HpoError(f"--at {at}: study {name!r} has entries 0 to {info.entries - 1}.")
    study = Study.open(name, source, at=at)
    state = study.state
    if trial is not None:
        if trial >= len(state.trials):
            raise HpoError(f"--trial {trial}: study {name!r} has trials 0 to {len(state.trials) - 1} at that entry.")
        for line in state.story(trial):
            out.print(Text(line), soft_wrap=True)
        return
    rungs = [
        {"rung": k, "trained to": level, "results": done, "promoted": promoted, "promotable": waiting}
        for k, (level, (done, promoted, waiting)) in enumerate(
            zip(study.method.levels(), study.method.rung_sizes(), strict=True)
        )
    ]
    facts = {
        "study": name,
        "entry": study.seq - 1,
        "entries": info.entries,
        "status": _status(study, info) if at is None else study.status,
        "reason": state.halted.reason if state.halted else "",
        "trials": len(state.trials),
        "jobs": state.completed_jobs,
        "running": [
            {"trial": j.trial, "rung": j.rung, "target": j.target, "attempt": j.attempt} for j in state.wanted()
        ],
        "waiting": list(state.waiting),
        "abandoned": state.abandoned_trials,
        "failed_attempts": state.failed_attempts,
        "rungs": rungs,
        "best": None
        if study.best is None
        else {
            "trial": study.best.trial,
            "value": study.metric_value(study.best.loss),
            "resource": study.best.resource,
            "params": state.trials[study.best.trial].params,
        },
    }
    if as_json:
        _print_json(facts)
        return
    out.print(
        Text.assemble(
            (f"{name} ", "bold"),
            f"as of entry {facts['entry']} of {info.entries - 1}: {facts['status']}, {facts['trials']} trials, "
            f"{facts['jobs']} jobs done, {len(state.running)} running, {len(state.waiting)} waiting, "
            f"{facts['abandoned']} abandoned, {facts['failed_attempts']} failed attempts",
        )
    )
    if facts["reason"]:
        out.print(Text(f"halted: {facts['reason']}", style="yellow"), soft_wrap=True)
    out.print(Text(f"best: {best_line(study)}"))
    out.print(_table(rungs))
    for job in state.wanted():
        out.print(Text(f"running: trial {job.trial} to {job.target} (rung {job.rung}, attempt {job.attempt})"))


def _status(study: Any, info: Any) -> str:
    """The study's status, and whether somebody drives it."""
    from hpo_core.journal.sql import is_alive

    word: str = study.status
    if word == "open":
        return "running" if is_alive(info) else "interrupted"
    return word


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{v:.5g}" if isinstance(v, float) else "" if v is None else str(v) for v in row.values()))
    return table


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Entry point: errors of ours are one clear message and an exit code, never a traceback."""
    try:
        app()
    except HpoError as error:
        err.print(Text(f"error: {error}", style="red"), soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
