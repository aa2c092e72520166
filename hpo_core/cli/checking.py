"""``hpo check``: whether a training function resumes to the bit."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from hpo_core.cli.debugging import MoreParams, ParamsOption
from hpo_core.cli.options import AsJson, HomeOption
from hpo_core.cli.output import err, out, print_json
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.security.untrusted_text import terminal_text

if TYPE_CHECKING:
    from hpo_core.training.request import JobRequest
    from hpo_core.training.resume_check import Difference, ResumeCheck

DIFFERS = 1
NOT_RUN = 2


def check(
    what: Annotated[str, typer.Argument(help="MODULE:FUNCTION, or the study's YAML file.", metavar="WHAT")],
    more_params: MoreParams = None,
    params: ParamsOption = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=2, max=1000, help="Train so far; default: 3, then up to 27 in a minute."),
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Resume there and nowhere else; default: at 1, 3 and 9.")
    ] = None,
    style: Annotated[
        str, typer.Option("--style", help="Of MODULE:FUNCTION: handle, train(trial); optuna, an Optuna objective.")
    ] = "handle",
    home: HomeOption = None,
    as_json: AsJson = False,
) -> None:
    """Train at once and with resumes, compare the bits, and name what differs and what nobody saves."""
    from hpo_core.training.resume_check import LENGTHS, check_resume

    given = [*(params or ()), *(more_params or ())]
    try:
        if at is not None and steps is None:
            steps = at + 2
        if at is not None and steps is not None and at >= steps:
            raise SpecError(f"--at {at} must lie before --steps {steps}: a resume trains further.")
        is_file = ":" not in what or Path(what).exists()
        request, longest = _of_study(what, given, home) if is_file else (_of_function(what, given, style), None)
        shown = ", ".join(f"{name} = {value!r}" for name, value in request.job.params.items()) or "no parameter"

        def say(what: str) -> None:
            _say(f"{request.objective}: {what}, with {shown}")

        with tempfile.TemporaryDirectory(prefix="hpo-check-", ignore_cleanup_errors=True) as folder:
            most = LENGTHS[0] if longest is None else longest
            found = check_resume(request, Path(folder), steps=steps, at=at, longest=most, say=say)
    except HpoError as error:  # whatever its own exit code: 1 says that something differs
        error.exit_code = NOT_RUN
        raise
    if as_json:
        print_json(msgspec.to_builtins(found) | {"exact": found.exact, "causes": found.causes})
    else:
        _print(found)
    if not found.exact:
        raise typer.Exit(DIFFERS)


def _of_study(file: str, given: list[str], home: str | None) -> tuple[JobRequest, int | None]:
    """The first job of a study, and how far its longest training goes."""
    from hpo_core.execution.requests import JobRequests
    from hpo_core.execution.single_trial import first_job, parse_params
    from hpo_core.partitioning import with_partitions
    from hpo_core.spec import load_spec

    spec = with_partitions(load_spec(file))
    if spec.objective is None:
        raise SpecError(f"{file}: objective: is required to train; write package.module:function.")
    spec = spec.model_copy(update={"pythonpath": Home(home).import_folders(spec)})
    return JobRequests(spec, "").of(first_job(spec, parse_params(given))), spec.search.outline().max_resource


def _of_function(objective: str, given: list[str], style: str) -> JobRequest:
    from hpo_core.execution.single_trial import parse_params, read_value
    from hpo_core.model.rng import derive_seed
    from hpo_core.model.stage import Rung
    from hpo_core.model.trial import Job
    from hpo_core.training.request import JobRequest

    if style not in ("handle", "optuna"):
        raise SpecError(f"--style {style}: write handle or optuna.")
    values, folder = parse_params(given), str(Path.cwd())
    space: dict[str, dict[str, Any]] = {}
    metric, required = "", "none"
    chosen = {name: read_value(value) for name, value in values.items()}
    if style == "optuna":
        space, chosen = _optuna_space(objective, values, folder)
        metric, required = "value", "all"
    return JobRequest(
        study="check",
        job=Job(0, 0, Rung(0, 0), target=1, params=chosen),
        objective=objective,
        metric=metric,
        required=required,  # type: ignore[arg-type]
        seed=derive_seed(0, "training", 0),
        folder="",
        pythonpath=(folder,),
        style=style,
        space=space,
        stall_timeout=3600.0,
        log_limit=10_000_000,
    )


def _optuna_space(
    objective: str, values: dict[str, str], folder: str
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    from hpo_core.execution.single_trial import completed_params
    from hpo_core.model.rng import Stream
    from hpo_core.spec import StudySpec
    from hpo_core.training.objective import load_objective
    from hpo_core.training.optuna.space_discovery import find_space

    found = find_space(load_objective(objective, [folder])).space
    search = {"method": "random", "configs": 1, "max_resource": 1}
    metric = {"name": "value", "mode": "min"}
    spec = StudySpec.from_plain({"study": "check", "metric": metric, "space": found, "search": search}, objective)
    space = spec.search_space()
    chosen = completed_params(space, values, space.draw(Stream(0, "params", 0)), 0)
    return spec.plain()["space"], chosen


def _print(found: ResumeCheck) -> None:
    _print_part("twice from scratch", found.repeated)
    resumed = f"with {'a resume' if len(found.at) == 1 else 'resumes'} at {', '.join(map(str, found.at))}"
    if found.tracked:
        _print_part(resumed, found.resumed)
    causes = found.causes
    for line in ["likely causes, and their cures:", *(f"  - {cause}" for cause in causes)] if causes else ():
        _print_line(line)
    if not found.same_bits:
        return
    if not found.tracked:
        _print_line(
            "not resumed: nothing is tracked, so each job trains from the start again. What training changes belongs "
            "into trial.track(...), before the loop.",
            "yellow",
        )
    elif found.warnings:
        _print_line(f"not proven: the same bits over {found.steps} steps, but not all that changed is saved:", "yellow")
        for line in found.warnings:
            _print_line(f"  - {line}", "yellow")
        _print_line("A variable that no later step needs may have a name that begins with an underscore.")
    else:
        _print_line(f"exact over {found.steps} steps, {resumed} (tracked: {', '.join(found.tracked)})", "green")
        if found.no_longer:
            _print_line(f"what changes later than that was not seen: {found.no_longer}", "yellow")


def _print_line(line: str, style: str = "") -> None:
    out.print(Text(terminal_text(line), style=style), soft_wrap=True)


def _print_part(title: str, differences: tuple[Difference, ...]) -> None:
    out.print(Text(f"{title}: {'differs in' if differences else 'the same bits'}"))
    for difference in differences:
        _print_line(f"  {difference.name}: {difference.what}", "yellow")


def _say(line: str) -> None:
    sys.stdout.flush()
    err.print(Text(terminal_text(line), style="dim"), soft_wrap=True)
