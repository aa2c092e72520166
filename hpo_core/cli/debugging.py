"""Commands that run a training function without a study: try."""

from __future__ import annotations

import bdb
import math
import os
import pdb
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.text import Text

from hpo_core.cli.options import HomeOption
from hpo_core.cli.output import err, out
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.trial import Params, Report
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.training.error_text import explained, leads_to_user_code
from hpo_core.views.formatting import duration, number

INTERRUPTED = 130
FAILED = 1

ParamsOption = Annotated[
    list[str] | None,
    typer.Option("--params", help="NAME=VALUE of a parameter, as lr=0.1; again, or further ones after it."),
]
MoreParams = Annotated[list[str] | None, typer.Argument(help="Further NAME=VALUE.", metavar="[NAME=VALUE]...")]


def try_trial(
    study_file: Annotated[Path, typer.Argument(help="The study's YAML file.")],
    more_params: MoreParams = None,
    params: ParamsOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Train so far; default: as far as the study's first job.")
    ] = None,
    post_mortem: Annotated[bool, typer.Option("--pdb", help="Open the debugger where an error was raised.")] = False,
    home: HomeOption = None,
) -> None:
    """Run one trial in this process: breakpoints work, the whole traceback is shown, nothing is recorded."""
    from hpo_core.execution.single_trial import first_job, parse_params, request_of, run_here
    from hpo_core.partitioning import with_partitions
    from hpo_core.spec import load_spec
    from hpo_core.spec.assembly import VARIABLES
    from hpo_core.training.objective import load_objective

    spec = with_partitions(load_spec(study_file))
    if spec.objective is None:
        raise SpecError(f"{study_file}: objective: is required to train; write package.module:function.")
    job = first_job(spec, parse_params([*(params or ()), *(more_params or ())]), steps)
    spec = spec.model_copy(update={"pythonpath": Home(home).import_folders(spec)})
    seeds = ", ".join(str(spec.training_seed(job.trial, repeat)) for repeat in range(spec.repeats))
    _say(f"{spec.objective} in this process, to {job.target}, with seed{'s' * (spec.repeats > 1)} {seeds} and")
    _say_params(job.params)
    with tempfile.TemporaryDirectory(prefix="hpo-try-", ignore_cleanup_errors=True) as folder:
        request = request_of(spec, job, Path(folder))
        if request.threads is not None:
            os.environ.update(dict.fromkeys(VARIABLES, str(request.threads)))  # read when libraries are loaded
        try:
            report = run_here(load_objective(request.objective, request.pythonpath), request)
        except bdb.BdbQuit:
            _say("left by the debugger")
            raise typer.Exit(INTERRUPTED) from None
        except KeyboardInterrupt as error:
            _say_traceback(error)
            raise typer.Exit(INTERRUPTED) from None
        except BaseException as error:
            if (trace := _say_traceback(error)) is None and isinstance(error, HpoError):
                raise  # of ours alone: the message says it all
            if isinstance(error, SystemExit):
                _say("The training function ended the process; in a study its trial fails with this.")
            if post_mortem:
                pdb.post_mortem(trace or error.__traceback__)
            raise typer.Exit(FAILED) from None
    _say_result(report, "step" if spec.data is None else "epoch")


def _say(line: str) -> None:
    err.print(Text(terminal_text(line), style="dim"), soft_wrap=True)


def _say_params(params: Params) -> None:
    for name, value in params.items():
        _say(f"  {name} = {value!r}")


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is the user's; None where there is none."""
    while trace is not None and leads_to_user_code(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _say_traceback(error: BaseException) -> TracebackType | None:
    """Print the whole traceback of the user's code and return it; None, and nothing, where the error is ours alone.

    What we refuse comes first, and only where in the user's code it was: the frames between are of libraries.
    """
    if isinstance(error, ObjectiveError) and _own_part(error.__traceback__) is None and error.__cause__ is not None:
        _print_error(f"error: {error}")
        return _own_part(error.__cause__.__traceback__)  # of what the import of the user's module raised
    own = _own_part(error.__traceback__)
    if own is not None and isinstance(error, HpoError):
        _print_error(f"error: {explained(error)}")
    elif own is not None:
        _print_error("".join(traceback.format_exception(type(error), error, own)))
    return own


def _print_error(text: str) -> None:
    sys.stdout.flush()
    err.print(Text(terminal_text(masked(text.rstrip()), lines=True)), soft_wrap=True)


def _say_result(report: Report, unit: str) -> None:
    sys.stdout.flush()
    for repeat, metrics in enumerate(report.repeats or ()):
        out.print(Text(f"repeat {repeat}: {_shown(metrics)}"), soft_wrap=True)
    for point in report.curve:
        out.print(Text(f"{unit} {point.resource}: {_shown(point.metrics)}"), soft_wrap=True)
    took = duration(report.ended - report.started)
    if report.checkpoint is not None:
        saved = f"a checkpoint of {number(report.checkpoint.size)} bytes, removed again"
    else:
        saved = "no checkpoint: nothing was tracked, so a promoted trial is trained from its start"
    out.print(Text(f"{report.outcome} in {took}; {saved}", style="green"), soft_wrap=True)
    if report.message:
        out.print(Text(terminal_text(report.message), style="yellow"), soft_wrap=True)


def _shown(metrics: dict[str, Any]) -> str:
    return ", ".join(
        f"{terminal_text(name)} = {number(value, 6) if math.isfinite(value) else value}"
        for name, value in metrics.items()
    )
