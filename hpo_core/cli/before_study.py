"""Commands before a study: space, try, check, partition."""

from __future__ import annotations

import bdb
import math
import os
import pdb
import re
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hpo_core.home import Home
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.features import feature
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.trial import Report
from hpo_core.partitioning.resolution import MANIFEST
from hpo_core.partitioning.splitting import partition_data
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec.sent_functions import short_name
from hpo_core.terminal.output import AsJson, HomeOption, err, out, print_json
from hpo_core.training.user_code import explained, leads_to_user_code
from hpo_core.views.formatting import duration, number, plural

if TYPE_CHECKING:
    from hpo_core.spec import StudySpec
    from hpo_core.training.request import JobRequest
    from hpo_core.training.resume_check import Difference, ResumeCheck


INTERRUPTED = 130
FAILED = 1

ParamsOption = Annotated[
    list[str] | None,
    typer.Option("--params", help="NAME=VALUE of a parameter, as lr=0.1; again, or further ones after it."),
]
MoreParams = Annotated[list[str] | None, typer.Argument(help="Further NAME=VALUE.", metavar="[NAME=VALUE]...")]


def space(objective: Annotated[str, typer.Argument(help="An Optuna objective, package.module:function.")]) -> None:
    """Print the space of an Optuna objective, found by calling it up to its first report, 200 times or for 30 s."""
    from hpo_core.spec.study_yaml import in_one_line
    from hpo_core.training.objective import load_objective

    found = feature("Optuna", "optuna_space").find_space(load_objective(objective, [str(Path.cwd())]))
    sys.stdout.write(
        "space:\n" + "".join(f"  {in_one_line(name)}: {in_one_line(item)}\n" for name, item in found.space.items())
    )
    if found.constraints:
        sys.stdout.write(f"constraints: {in_one_line(found.constraints)}\n")
    if found.mode is not None:
        err.say(f"It looks at trial.study.direction and runs with `mode: {found.mode}` of the metric.")
    err.say(found.words())


def try_trial(
    study_file: Annotated[Path, typer.Argument(help="The study's YAML file.")],
    more_params: MoreParams = None,
    params: ParamsOption = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Train to this step; default: the target of the study's first job."),
    ] = None,
    post_mortem: Annotated[bool, typer.Option("--pdb", help="Open the debugger where an error was raised.")] = False,
    home: HomeOption = None,
) -> None:
    """Run one trial in this process: breakpoints work, the whole traceback is shown, nothing is recorded."""
    from hpo_core.execution.in_process import first_job, parse_params, request_of
    from hpo_core.spec.assembly import THREAD_VARIABLES
    from hpo_core.training.attempt import run_attempt
    from hpo_core.training.child.shared_progress import SharedProgress
    from hpo_core.training.objective import load_objective

    spec = _spec_of(study_file, home)
    assert spec.objective is not None
    job = first_job(spec, parse_params([*(params or ()), *(more_params or ())]), steps)
    called = short_name(spec.objective)
    _say(f"{called} in this process, to {job.target}, with seed {spec.training_seed(job.trial)} and")
    for name, value in job.params.items():
        _say(f"  {name} = {value!r}")
    with tempfile.TemporaryDirectory(prefix="hpo-try-", ignore_cleanup_errors=True) as folder:
        _keep_sent(spec, home, folder)
        request = request_of(spec, job, Path(folder))
        if steps is not None:
            request = request.with_setup(unit_is_whole=False)
        if (threads := request.setup.threads) is not None:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))  # read at import
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, "1")  # as in a study

        class Shown(SharedProgress):
            def step(self, resource: int) -> None:
                if resource > self.read(job.target)[0]:
                    _say(f"  {spec.unit_word} {resource} of {job.target} is done")
                super().step(resource)

        try:
            function = load_objective(request.setup.objective, request.setup.pythonpath)
            report = run_attempt(function, request, Shown(), raised=(BaseException,))  # in this thread, without limits
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
    _say_result(report, spec.unit_word)


def _say(line: str) -> None:
    sys.stdout.flush()
    err.say(line, style="dim")


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
    err.say(masked(text.rstrip()), lines=True)


def _say_result(report: Report, unit: str) -> None:
    sys.stdout.flush()
    for point in report.curve:
        out.say(f"{unit} {point.resource}: {_shown(point.metrics)}")
    took = duration(report.ended - report.started)
    if report.checkpoint is not None:
        saved = f"a checkpoint of {number(report.checkpoint.size)} bytes, removed again"
    else:
        saved = "no checkpoint: nothing was tracked, so a promoted trial is trained from its start"
    out.say(f"{report.outcome} in {took}; {saved}", style="green")
    if report.message:
        out.say(report.message, style="yellow")


def _shown(metrics: dict[str, Any]) -> str:
    return ", ".join(
        f"{terminal_text(name)} = {number(value, 6) if math.isfinite(value) else value}"
        for name, value in metrics.items()
    )


_MISSING_KEY = re.compile(r"\(error\): KeyError: '([\w.-]+)'")
DIFFERS = 1
NOT_RUN = 2


def check(
    what: Annotated[str, typer.Argument(help="MODULE:FUNCTION, or the study's YAML file.", metavar="WHAT")],
    more_params: MoreParams = None,
    params: ParamsOption = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=2,
            max=1000,
            help="Train to this step; default: 3, then up to 27 if that takes less than a minute.",
        ),
    ] = None,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Resume there and nowhere else; default: at 1, 3 and 9.")
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(
            "--process",
            help="kept: compare with a process that stays, too; default: what the study file says, else fresh.",
        ),
    ] = None,
    home: HomeOption = None,
    as_json: AsJson = False,
) -> None:
    """Train in one go and with resumes, compare the bits, and name what differs and what is not saved."""
    from hpo_core.training.resume_check import LONG, check_resume

    given, is_file = [*(params or ()), *(more_params or ())], ":" not in what or Path(what).exists()
    try:
        if at is not None and steps is None:
            steps = at + 2
        if at is not None and steps is not None and at >= steps:
            raise SpecError(f"--at {at} must lie before --steps {steps}: a resume trains further.")
        if process not in ("fresh", "kept", None):
            raise SpecError(f"--process {process}: write fresh or kept.")
        with tempfile.TemporaryDirectory(prefix="hpo-check-", ignore_cleanup_errors=True) as folder:
            request, longest = _of_study(what, given, home, folder) if is_file else (_of_function(what, given), None)
            if process is not None:
                request = request.with_setup(process=process)
            called = short_name(Path(request.setup.objective).name)
            shown = ", ".join(f"{name} = {value!r}" for name, value in request.job.params.items()) or "no parameter"

            _say(f"{called} with {shown}")

            def say(what: str) -> None:
                _say(f"  {what}")

            most = LONG if longest is None else longest
            found = check_resume(request, Path(folder), steps=steps, at=at, longest=most, say=say)
            kept = request.setup.process == "kept"
    except HpoError as error:  # whatever its own exit code: 1 says that something differs
        error.exit_code = NOT_RUN
        if (key := _MISSING_KEY.search(str(error))) is not None and not is_file:
            error.args = (f"{str(error).rstrip()}\nIs it a parameter? Then give it a value: --params {key[1]}=VALUE",)
        raise
    if as_json:
        print_json(msgspec.to_builtins(found) | {"exact": found.exact, "causes": found.causes})
    else:
        _print(found, kept=kept)
    if not found.exact:
        raise typer.Exit(DIFFERS)


def _of_study(file: str, given: list[str], home: str | None, folder: str) -> tuple[JobRequest, int | None]:
    """The first job of a study, and how far its longest training goes."""
    from hpo_core.execution.in_process import first_job, parse_params
    from hpo_core.training.request import JobRequests

    spec = _spec_of(file, home)
    _keep_sent(spec, home, folder)
    request = JobRequests(spec, folder).of(first_job(spec, parse_params(given)))
    if request.setup.unit_is_whole:  # how far a training goes is said here alone
        return request.with_setup(unit_is_whole=False), None
    return request, spec.search.outline().max_resource


def _spec_of(file: str | Path, home: str | None) -> StudySpec:
    """The study of a file, with an objective, its partitions, and the folders that it is imported from.

    Raises:
        SpecError: it has no objective.
    """
    from hpo_core.partitioning.resolution import with_partitions
    from hpo_core.spec import load_spec

    spec = with_partitions(load_spec(file))
    if spec.objective is None:
        raise SpecError(f"{file}: objective: is required to train; write package.module:function.")
    return spec.model_copy(update={"pythonpath": Home(home).import_folders(spec)})


def _keep_sent(spec: StudySpec, home: str | None, folder: str) -> None:
    """Copy functions that were sent by value from the study of the home that keeps them."""
    from hpo_core.spec.sent_functions import digest_of, keep

    for name in filter(digest_of, spec.functions.values()):
        keep(name, Path(folder), Home(home).folder / "studies")


def _of_function(objective: str, given: list[str]) -> JobRequest:
    from hpo_core.execution.in_process import parse_params, read_value
    from hpo_core.model.rng import derive_seed
    from hpo_core.model.trial import Job, Rung
    from hpo_core.training.request import JobRequest, StudySetup

    params = {name: read_value(value) for name, value in parse_params(given).items()}
    return JobRequest(
        setup=StudySetup(
            study="check",
            objective=objective,
            metrics=("",),
            required="none",
            folder="",
            pythonpath=(str(Path.cwd()),),
            stall_timeout=3600.0,
        ),
        job=Job(0, 0, Rung(0, 0), target=1, params=params),
        seed=derive_seed(0, "training", 0),
    )


def _print(found: ResumeCheck, *, kept: bool) -> None:
    _print_part("twice from scratch", found.repeated)
    resumed = f"with {'a resume' if len(found.at) == 1 else 'resumes'} at {', '.join(map(str, found.at))}"
    if found.tracked:
        _print_part(resumed, found.resumed)
    if kept:
        _print_part("in a process that stayed", found.kept)
    causes = found.causes
    for line in ["likely causes, and their cures:", *(f"  - {cause}" for cause in causes)] if causes else ():
        out.say(line)
    if not found.same_bits:
        return
    if not found.tracked:
        out.say(
            "not resumed: nothing is tracked, so each job trains from the start again. What training changes belongs "
            "into trial.track(...), before the loop.",
            "yellow",
        )
    elif found.warnings:
        out.say(f"not proven: the same bits over {found.steps} steps, but not all that changed is saved:", "yellow")
        for line in found.warnings:
            out.say(f"  - {line}", "yellow")
    else:
        out.say(f"exact over {found.steps} steps, {resumed} (tracked: {', '.join(found.tracked)})", "green")
        if found.no_longer:
            out.say(f"what changes later than that was not seen: {found.no_longer}", "yellow")


def _print_part(title: str, differences: tuple[Difference, ...]) -> None:
    out.say(f"{title}: {'differs in' if differences else 'the same bits'}")
    for difference in differences:
        out.say(f"  {difference.name}: {difference.what}", "yellow")


def partition(
    source: Annotated[
        str,
        typer.Argument(help="A .npz file, or MODULE:FUNCTION that returns arrays by name."),
    ],
    parts: Annotated[int, typer.Option("--parts", help="Number of partitions that are trained on.")],
    to: Annotated[Path, typer.Option("--to", help="Folder for the partitions; it must be empty, or not exist yet.")],
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same files.")] = 0,
    stratify: Annotated[
        str | None, typer.Option("--stratify", help="Array or column: each partition gets its share of each value.")
    ] = None,
    validation: Annotated[
        float, typer.Option("--validation", help="Share of the examples for validation, in files of their own.")
    ] = 0.0,
    validation_parts: Annotated[
        int | None, typer.Option("--validation-parts", help="Number of files for validation; default: that of --parts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Shuffle data once and split them into partitions that models hop over, with a manifest."""
    manifest = partition_data(
        source,
        to,
        parts=parts,
        seed=seed,
        stratify=stratify,
        validation=validation,
        validation_parts=validation_parts,
        import_folders=[str(Path.cwd())],
    )
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    _say_files(manifest.partitions, "to train on")
    _say_files(manifest.validation, "for validation")
    out.say(f"manifest: {to / MANIFEST}")
    lines = [f"{role}: {to.name}/{MANIFEST}" for role in ("partitions", "validation") if getattr(manifest, role)]
    out.say(f"in a study file beside {to.name}: data: {{{', '.join(lines)}}}")


def _say_files(files: list[PartitionFile], purpose: str) -> None:
    if files:
        counts = [file.count or 0 for file in files]
        each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} or {max(counts):,}"
        size = sum(file.bytes or 0 for file in files) / 1e6
        words = f"{plural(len(files), 'partition')} {purpose}: {sum(counts):,} examples, {each} in each, {size:,.3g} MB"
        out.say(words)
