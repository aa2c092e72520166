"""From a command to a study driven in this process: start what is missing, run, say how it ended.

What starts, and what Prefect shows, is that of a call from Python as well (``in_prefect.py``).
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from functools import partial

import typer
from rich.console import Console
from rich.text import Text

from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.placement.gpus import available_cores
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import notices, oversubscription
from hpo_core.study import Study
from hpo_core.terminal.output import RunResult, err, out, print_run_result
from hpo_core.terminal.without_terminal import ENDS, interrupt_at_end, outlive_terminal
from hpo_core.views.failure_reasons import command_after, cure_words, failures_of, next_command, no_result_words
from hpo_core.views.summary import notices_of, other_best_words, summarize
from hpo_flows.early_interrupt import one_interrupt, raise_at_interrupt
from hpo_flows.python_progress import ShownProgress
from hpo_flows.study_run.in_prefect import drive_study
from hpo_flows.study_run.session import Session, Summary

HALTED = 7
MOST_FAILED = 9
INTERRUPTED = 130


def launch(
    home: Home,
    name: str,
    as_json: bool,
    *,
    spec: StudySpec | None = None,
    file: str = "STUDY.yaml",
    force: bool = False,
    extend: int = 0,
    prefect: bool | None = None,
) -> None:
    """Start what is missing, drive the study in this process, say how it ended.

    Args:
        file: the study's file as the user named it, for the command that is named at the end.
        prefect: whether it is shown in Prefect; None: as the study says.
    """
    outlive_terminal(f"the study goes on, and `hpo status {name}` shows how it stands")
    session = Session(home, name, spec=spec, force=force, extend=extend)
    shown = session.spec.prefect.tasks != "off" if prefect is None else prefect
    crowding = oversubscription(session.spec, available_cores(), os.environ)
    for notice in [*(notices(spec) if spec is not None else ()), *filter(None, [crowding])]:
        err.print(Text(notice, style="yellow"), soft_wrap=True)
    has_board = out.is_terminal and not as_json
    for tracker in session.trackers:
        tracker.is_awaited = not has_board
    session.say = session.inform = partial(_say, out if has_board else err, as_json)
    session.warn = partial(err.say, style="yellow", title="warning", lines=True)
    ending = ExitStack()  # further interrupts are ignored until all is closed
    drawn = ExitStack()  # the live board, until something else is printed or all is closed

    def ended(study: Study, summary: Summary) -> None:
        drawn.close()
        try:
            _finish(session, study, summary, as_json=as_json, file=file)
        except (HpoError, typer.Exit) as error:  # the exit code of the study; its flow run has a state of its own
            outcome.append(error)

    outcome: list[Exception] = []
    try:
        with ending, drawn, closing(session):
            try:
                interrupt_at_end()
                raise_at_interrupt()
                ending.enter_context(one_interrupt(*ENDS))
                if not as_json:
                    board = drawn.enter_context(ShownProgress(name, console=out))
                    session.add_observer(board)
                    session.wait_for = board.wait_for
                session.ended = ended
                drive_study(session, prefect=shown, with_password=err.is_terminal)
            except KeyboardInterrupt:
                drawn.close()
                err.print(f"\nInterrupted; nothing is lost. `hpo resume {name}` goes on.", style="yellow")
                raise
    except KeyboardInterrupt:
        _end_without_prefect(INTERRUPTED)
        raise typer.Exit(INTERRUPTED) from None
    _end_without_prefect(*(getattr(error, "exit_code", 1) for error in outcome))
    if outcome:
        raise outcome[0]


def _end_without_prefect(code: int = 0) -> None:
    # End this process soon where Prefect's API is gone: what Prefect still tries to send would hold its end.
    used = sys.modules.get("hpo_flows.prefect_api.connection")
    if used is not None and used.api_is_unreachable():
        used.end_process_soon(code)


def _say(console: Console, as_json: bool, line: str) -> None:
    # Print a line, above the live board where there is one; nothing with `--json`.
    if not as_json:
        console.print(Text(line, style="dim"), soft_wrap=True)


def _finish(session: Session, study: Study, summary: Summary, *, as_json: bool, file: str) -> None:
    known = summarize(study)
    result = RunResult(
        summary=known,
        jobs_now=summary.jobs,
        seconds=round(summary.seconds, 1),
        failures=failures_of(study.state),
        notices=notices_of(study),
        mlflow=summary.links.get("MLflow"),
        checkpoint=None if known.checkpoint is None else summary.links.get("Checkpoint", known.checkpoint),
        report=summary.report,
    )
    following, then = next_command(study, file), command_after(study, file)
    other_best = other_best_words(study)
    print_run_result(
        result, following=following, then=then, folder=str(session.folder), as_json=as_json, other_best=other_best
    )
    if known.status != "finished":
        raise typer.Exit(HALTED)
    if words := no_result_words(study):
        raise HpoError(f"Study {study.name!r} ended without a single result: {words}. {cure_words(study, file)}")
    if result.failures.most_failed:
        err.say(f"Most trials failed or diverged: exit code {MOST_FAILED}.", "yellow")
        raise typer.Exit(MOST_FAILED)
