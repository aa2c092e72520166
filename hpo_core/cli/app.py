"""The ``hpo`` command.

Exit codes: 0 done; 1 failed; 2 wrong study file or arguments; 3 study exists; 4 study not found; 5 driven by
another controller; 6 storage or journal cannot be written; 7 study halted before its end (``hpo resume`` goes
on); 8 audit found differences; 130 interrupted.
"""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hpo_core.cli.output import err, out, print_json, print_study, status_word, table_of
from hpo_core.home import Home, checked_name
from hpo_core.journal.damage import damage_named
from hpo_core.model.errors import HpoError, JournalUnavailableError, SpecError
from hpo_core.security.masking import mask_logs, masked
from hpo_core.security.untrusted_text import json_text

AUDIT_DIFFERS = 8

app = typer.Typer(
    name="hpo",
    help="Tune hyperparameters with Prefect, Dask and MLflow; every decision is journaled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(help="Name of the study.", callback=checked_name)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
HomeOption = Annotated[
    str | None, typer.Option("--home", help="Folder of journal, checkpoints, reports (HPO_HOME, or .hpo).")
]
JournalOption = Annotated[
    str | None, typer.Option("--journal", help="SQLAlchemy URL of the journal (HPO_JOURNAL, or SQLite in the home).")
]
UsePrefect = Annotated[
    bool | None, typer.Option("--prefect/--no-prefect", help="Show it in Prefect; default: as the study file says.")
]
PrefectTimeout = Annotated[
    float | None,
    typer.Option(
        "--prefect-timeout",
        min=1.0,
        max=86_400.0,
        help="Seconds without progress that a Prefect server may take to start, instead of the study file's.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a controller that seems alive.")]


@app.command()
def tune(
    study_file: Annotated[Path, typer.Argument(help="The study's YAML file.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name than the file gives.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Local workers instead of the file's.")] = None,
    prefect: UsePrefect = None,
    prefect_timeout: PrefectTimeout = None,
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
    _drive(
        Home(home, journal), spec.study, "tune", as_json, spec=spec, prefect=prefect, prefect_timeout=prefect_timeout
    )


@app.command()
def resume(
    name: Name,
    force: Force = False,
    prefect: UsePrefect = None,
    prefect_timeout: PrefectTimeout = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study that was interrupted, halted, or whose controller died."""
    shown = {"prefect": prefect, "prefect_timeout": prefect_timeout}
    _drive(Home(home, journal), name, "resume", as_json, force=force, **shown)


@app.command()
def extend(
    name: Name,
    configs: Annotated[
        int | None, typer.Option("--configs", min=1, max=1_000_000_000, help="So many configurations more.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="Train one trial further instead, to so many units in all.")
    ] = None,
    trial: Annotated[int | None, typer.Option("--trial", min=0, help="With --to: which; default: the best.")] = None,
    force: Force = False,
    prefect: UsePrefect = None,
    prefect_timeout: PrefectTimeout = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Ask a study, finished or not, for more configurations; or train one trial further after its search."""
    if (configs is None) == (to is None) or (trial is not None and to is None):
        raise SpecError(
            "hpo extend: give either --configs N (so many configurations more), or --to N (train the best trial, or "
            "that of --trial, further than the search did, to N units of training in all)."
        )
    train = None if to is None else (trial, to)
    _drive(
        Home(home, journal),
        name,
        "extend",
        as_json,
        force=force,
        extend=configs or 0,
        train=train,
        prefect=prefect,
        prefect_timeout=prefect_timeout,
    )


@app.command()
def abandon(
    name: Name,
    trial: Annotated[int, typer.Option("--trial", min=0, help="Number of the trial.")],
    force: Force = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Give up one trial of a study that nobody drives at the moment; `hpo resume` goes on without it."""
    from hpo_core.journal.sql import current_owner
    from hpo_core.model.errors import StudyBusyError
    from hpo_core.study import Study

    source = Home(home, journal).read_journal()
    try:
        epoch = source.claim(name, current_owner(), time.time(), force=force)
    except StudyBusyError as error:
        raise StudyBusyError(
            f"{error} Interrupted with Ctrl-C, it loses nothing: then `hpo abandon {name} --trial {trial}`, then "
            f"`hpo resume {name}`."
        ) from None
    try:
        study = Study.open(name, source, reading=True)
        study.epoch = epoch
        study.abandon(trial)
    finally:
        source.release(name, epoch)
    for line in study.state.story(trial)[-2:]:
        out.print(Text(line), soft_wrap=True)


@app.command()
def rerun(
    name: Name,
    new: Annotated[str, typer.Option("--as", help="Name of the new study.", callback=checked_name)],
    trials: Annotated[
        list[int] | None,
        typer.Option("--trial", min=0, help="Only this trial and what it went on from; again for several."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: a parameter set in every trial, as data=new.npz.")
    ] = None,
    prefect: UsePrefect = None,
    prefect_timeout: PrefectTimeout = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Train again along a study's recorded grants: same parameters, seeds and promotions."""
    from hpo_core.replay.rerun import rerun_spec
    from hpo_core.spec.overrides import split_change

    settings = {".".join(keys): value for keys, value in map(split_change, changes or ())}
    place = Home(home, journal)
    source = place.read_journal()
    with damage_named(source, name):
        spec = rerun_spec(list(source.entries(name)), new, trials=trials or (), changes=settings)
    source.close()
    shown = {"prefect": prefect, "prefect_timeout": prefect_timeout}
    _drive(place, new, "rerun", as_json, spec=spec, **shown)


@app.command("simulate")
def simulate_study(
    study_file: Annotated[
        Path | None, typer.Argument(help="The study's YAML file; default: the description in --from-journal.")
    ] = None,
    workers: Annotated[list[int] | None, typer.Option("--workers", help="Again for sizes to compare.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Repeats, each with its own seed.")] = 25,
    from_journal: Annotated[
        str | None, typer.Option("--from-journal", help="Learning curves and durations of this past study.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Another search method; again to compare.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as search.reduction_factor=3; a key again: alternatives to compare."),
    ] = None,
    target: Annotated[float | None, typer.Option("--target", help="Value of the metric that is good enough.")] = None,
    stragglers: Annotated[
        float, typer.Option("--stragglers", help="Durations times 1 + |z|, z normal with this standard deviation.")
    ] = 0.0,
    drops: Annotated[
        float, typer.Option("--drops", help="Chance that a job is dropped, per time that one unit takes.")
    ] = 0.0,
    drop: Annotated[str, typer.Option("--drop", help="What becomes of a dropped job: retry or abandon.")] = "retry",
    speeds: Annotated[str, typer.Option("--speeds", help="Given to the workers in turn, as 1,1,0.5.")] = "1",
    join: Annotated[list[str] | None, typer.Option("--join", help="COUNT@SECONDS: so many workers come.")] = None,
    leave: Annotated[list[str] | None, typer.Option("--leave", help="COUNT@SECONDS: so many workers go.")] = None,
    seconds_per_unit: Annotated[
        float | None, typer.Option("--seconds-per-unit", help="What one unit of training takes.")
    ] = None,
    overhead: Annotated[float, typer.Option("--overhead", help="Seconds of every job beside (made-up curves).")] = 0.0,
    cost_spread: Annotated[
        float, typer.Option("--cost-spread", help="How configurations differ in cost: deviation of its logarithm.")
    ] = 0.0,
    picture: Annotated[
        str | None, typer.Option("--picture", help="HTML file; default: in the home folder; off: none.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """What a study would take: simulated on virtual workers, nothing is trained."""
    from hpo_core.cli.simulate import Question, parse_changes_of_cluster, parse_numbers, simulate

    question = Question(
        study_file=study_file,
        from_journal=from_journal,
        workers=workers or (),
        repeat=repeat,
        changes=[*(f"search.method={name}" for name in method or ()), *(changes or ())],
        stragglers=stragglers,
        drops=drops,
        drop=drop,
        speeds=parse_numbers("--speeds", speeds),
        joins=parse_changes_of_cluster("--join", join or ()),
        leaves=parse_changes_of_cluster("--leave", leave or ()),
        seconds_per_unit=seconds_per_unit,
        overhead=overhead,
        cost_spread=cost_spread,
        target=target,
    )
    simulate(question, Home(home, journal), picture=picture, as_json=as_json)


@app.command()
def space(objective: Annotated[str, typer.Argument(help="An Optuna objective, package.module:function.")]) -> None:
    """Write the space of an Optuna objective, found by calling it up to its first report."""
    from hpo_core.training.objective import load_objective
    from hpo_core.training.optuna.space_discovery import find_space
    from hpo_core.training.optuna.suggestions import to_yaml, yaml_key

    found = find_space(load_objective(objective, [str(Path.cwd())]))
    sys.stdout.write(
        "space:\n" + "".join(f"  {yaml_key(name)}: {to_yaml(item)}\n" for name, item in found.space.items())
    )
    if found.unclear:
        names = ", ".join(found.unclear)
        err.print(f"Suggested under some choices only, which one or two parameters do not explain: {names}.")
    if found.gaps:
        gaps = "; ".join(found.gaps)
        line = f"Called {found.calls} times. Not gone through: {gaps}. What is suggested only there is missing."
        err.print(line, soft_wrap=True)


@app.command("list")
def list_studies(home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """All studies of the journal."""
    from hpo_core.study import Study

    source = Home(home, journal).read_journal()
    rows = []
    for info in source.studies():
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        try:
            study = Study.open(info.name, source, reading=True)
        except JournalUnavailableError:
            raise
        except HpoError as error:  # the others are listed all the same
            err.print(Text(str(error), style="red"), soft_wrap=True)
            gaps = dict.fromkeys(["method", "status", "trials", "jobs", "best", "metric"])
            rows.append({"study": info.name} | gaps | {"status": "damaged", "created": created})
            continue
        rows.append(
            {
                "study": info.name,
                "method": study.spec.search.method,
                "status": status_word(study, info),
                "trials": len(study.state.trials),
                "jobs": study.state.completed_jobs,
                "best": None if study.best is None else study.metric_value(study.best.loss),
                "metric": study.spec.metric.name,
                "created": created,
            }
        )
    if as_json:
        print_json(rows)
    elif rows:
        out.print(table_of(rows))
    else:
        out.print("No study yet. `hpo tune STUDY.yaml` makes one.")


@app.command()
def status(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Where a study stands now."""
    print_study(Home(home, journal), name, None, as_json)


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
    print_study(Home(home, journal), name, at, as_json, trial=trial)


@app.command("audit")
def audit_study(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Decide everything again from the recorded stimuli and compare with the record."""
    from hpo_core.replay.audit import audit

    source = Home(home, journal).read_journal()
    report = audit(source.entries(name))
    if as_json:
        print_json(
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
    from hpo_core.journal.codec import encode_entry

    for entry in Home(home, journal).read_journal().entries(name):
        sys.stdout.write(json_text(encode_entry(entry)) + "\n")


@app.command()
def schedule(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Whose schedule; default: the best trial's.")] = None,
    to: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Write the parameters along the training that led to a trial as JSON, for a plain training script."""
    from hpo_core.model.errors import StorageError
    from hpo_core.study import Study
    from hpo_core.views.lineage import read_lineage

    record = Home(home, journal).read_journal()
    with damage_named(record, name):
        lineage, resource = read_lineage(record.entries(name)), None
        if trial is None:
            best = Study.open(name, record, reading=True).best
            if best is None:
                raise HpoError(f"Study {name!r} has no finite result yet; name a trial with --trial, or wait for one.")
            trial, resource = best.trial, best.resource
        found = lineage.schedule(trial, resource)
    if to is None:
        sys.stdout.write(found.to_json())
        return
    try:
        found.to_json(to)
    except OSError as error:
        raise StorageError(f"{to} cannot be written: {error.strerror or error}. Choose another file.") from error
    out.print(f"{to}: {', '.join(found.names)} over {found.end} units, {len(found.segments)} trials", soft_wrap=True)


@app.command()
def report(
    name: Name,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The HTML page; default: report.html in the study's folder.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Write the HTML report again and print its path."""
    from hpo_core.report import write_report
    from hpo_core.tracking.run_location import read_place

    place = Home(home, journal)
    source = place.read_journal()
    entries = list(source.entries(name))
    folder = place.study_folder(name, create=out_file is None)
    links = {"Study folder": str(folder)}
    if (run := read_place(folder)) is not None:
        links["MLflow"] = run.url
    with damage_named(source, name):
        page = write_report(entries, out_file or place.report_path(name), links=links)
    out.print(str(page), soft_wrap=True)


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Names of the studies; repeats of one search share a band.",
            callback=lambda names: [checked_name(name) for name in names],
        ),
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The HTML page; default: compared/ in the home folder.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Studies side by side: incumbents over training and time, final quality, cost."""
    from hpo_core.cli.output import print_comparison
    from hpo_core.report.compare.comparison_page import Comparison, write_comparison

    place = Home(home, journal)
    source = place.read_journal()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(damage_named(source, name))
        comparison = Comparison.of([list(source.entries(name)) for name in names])
        page = write_comparison(comparison, out_file or place.comparison_path(names))
    print_comparison(comparison.facts(), page, as_json)


@app.command()
def project(
    name: Name,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make runs that were deleted in MLflow anew.")] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Bring MLflow up to date with the journal; doing it twice changes nothing."""
    from hpo_core.tracking.follower import project_study

    place = Home(home, journal)
    source = place.read_journal()
    found = project_study(place, source, name, rebuild=rebuild)
    out.print(found, soft_wrap=True)


@app.command()
def deploy(
    file: Annotated[Path | None, typer.Option("--file", help="A prefect.yaml; default: that of deployments/.")] = None,
) -> None:
    """Register the deployments with the Prefect server of PREFECT_API_URL."""
    from hpo_flows.deployed.register import POOL, deploy

    deploy(file)
    out.print(f"registered with work pool {POOL!r}; `hpo worker` runs what is started there", soft_wrap=True)


@app.command()
def worker() -> None:
    """Run what is started from the Prefect UI, until interrupted (HPO_ALLOWED_OBJECTIVES says what it may)."""
    from hpo_flows.deployed.register import start_worker

    start_worker()


def _drive(home: Home, name: str, action: str, as_json: bool, **how: Any) -> None:
    """Prefect and Dask are imported by the commands that train, and by no other."""
    from hpo_flows.launch import launch

    launch(home, name, action, as_json, **how)


def main() -> None:
    """Entry point: errors of ours are one clear message and an exit code, never a traceback; none shows a secret."""
    mask_logs()
    try:
        app()
    except HpoError as error:
        err.print(Text(f"error: {masked(str(error))}", style="red"), soft_wrap=True)
        sys.exit(error.exit_code)
    except Exception as error:
        err.print(Text(masked("".join(traceback.format_exception(error)))), soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
