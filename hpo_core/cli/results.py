"""Commands about what studies found: schedule, report, compare, project, import, history."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hpo_core.home import Home, checked_name
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.file_urls import settled_database
from hpo_core.model.short_text import meant_or_known
from hpo_core.replay.audit import damage_named
from hpo_core.terminal.output import (
    AsJson,
    HomeOption,
    JournalOption,
    Name,
    names_of_studies,
    out,
    print_json,
    print_rows,
)
from hpo_core.terminal.without_terminal import interrupt_at_end
from hpo_core.views.formatting import duration

if TYPE_CHECKING:
    from hpo_core.tracking.optuna_import import Imported
    from hpo_core.tracking.restore import Restored
    from hpo_core.views.device_use import MeasuredNeed


def schedule(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Trial whose schedule is written; default: the best.")] = None,
    to: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Print as JSON the parameters that led to a trial, step by step, for a plain training script."""
    from hpo_core.model.errors import StorageError
    from hpo_core.study import Study
    from hpo_core.views.lineage import read_lineage

    record = Home(home, journal).read_journal()
    with damage_named(record, name):
        lineage, resource = read_lineage(record.entries(name)), None
        if trial is None:
            best = Study.open(name, record, reading=True).best
            if best is None:
                raise HpoError(
                    f"Study {name!r} has no finite, feasible result yet; name a trial with --trial, or wait for one."
                )
            trial, resource = best.trial, best.resource
        found = lineage.schedule(trial, resource)
    if to is None:
        sys.stdout.write(found.to_json())
        return
    try:
        found.to_json(to)
    except OSError as error:
        raise StorageError(f"{to} cannot be written: {error.strerror or error}. Choose another file.") from error
    out.say(f"{to}: {', '.join(found.names)} over {found.end} units, {len(found.segments)} trials")


def report(
    name: Name,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The HTML page; default: report.html in the study's folder.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Write it anew while the study runs; an open page loads itself again.")
    ] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Write the HTML report again and print its path; with --live, write it anew while the study runs."""
    from hpo_core.report import write_report
    from hpo_core.report.study_page import LiveReport
    from hpo_core.spec import StudySpec
    from hpo_core.tracking.tracker_links import study_links

    place = Home(home, journal)
    source = place.read_journal()
    with damage_named(source, name):
        entries = iter(source.entries(name))
        first = next(entries)  # not read twice
        spec = StudySpec.from_journal(first.stimulus.spec)  # type: ignore[union-attr]
        folder = place.study_folder(name, create=out_file is None)
        path = out_file or place.report_path(name)

        def links() -> dict[str, str]:
            return {"Study folder": str(folder)} | study_links(place, spec)

        if live:
            written = LiveReport(source, name, path, folder=folder, links=links)
            if written.write():
                interrupt_at_end()
                out.say(f"{path} follows {name}. Ctrl-C ends that; the study goes on.")
                with suppress(KeyboardInterrupt):
                    written.follow()
            entries = iter(source.entries(name, 1))
        page = write_report(chain([first], entries), path, links=links(), folder=folder)
    out.say(page)


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Names of the studies; repeats of one search share a band.",
            callback=lambda names: [checked_name(name) for name in names],
            autocompletion=names_of_studies,
        ),
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The HTML page; default: compared/ in the home folder.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Compare studies side by side: best value over training and time, final quality, cost."""
    from hpo_core.report.comparison import Comparison, write_comparison
    from hpo_core.terminal.output import print_comparison

    place = Home(home, journal)
    source = place.read_journal()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(damage_named(source, name))
        comparison = Comparison.of(source.entries(name) for name in names)
        page = write_comparison(comparison, out_file or place.comparison_path(names))
    print_comparison(comparison.facts(), page, as_json)


def project(
    name: Name,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Make runs again that were deleted in MLflow."),
    ] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Bring MLflow up to date with the journal; doing it twice changes nothing."""
    from hpo_core.tracking.follower import project_study

    place = Home(home, journal)
    source = place.read_journal()
    found = project_study(place, source, name, rebuild=rebuild)
    out.say(found, lines=True)


def import_study(
    study: Annotated[str | None, typer.Argument(help="With --from-optuna: the study's name there.")] = None,
    run: Annotated[
        str | None, typer.Option("--from-mlflow", help="ID of the study's run in MLflow, as its page shows it.")
    ] = None,
    optuna: Annotated[
        str | None, typer.Option("--from-optuna", help="Optuna storage: a database URL, or a journal file.")
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri", help="Tracking URI of that MLflow; default: MLFLOW_TRACKING_URI, or the home's."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Another name than the study had.")] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option("--code", help="Folder to import its training function from; again for several; default: here."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="With --from-optuna: the value's name; again for several.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Restore a study from its run in MLflow, or import one from an Optuna storage for warm starts and comparisons."""
    place = Home(home, journal)
    found: Restored | Imported
    if optuna is not None:
        if run is not None or tracking_uri is not None or code:
            raise SpecError("hpo import: --from-optuna goes with STUDY, --name and --metric alone.")
        if study is None:
            raise SpecError("hpo import --from-optuna STORAGE STUDY: name the study in Optuna's storage.")
        from hpo_core.tracking.optuna_import import import_study as import_from_optuna

        found = import_from_optuna(place, optuna, study, name=name, metrics=metric or [])
    else:
        if run is None:
            raise SpecError("hpo import: give --from-mlflow RUN, or --from-optuna STORAGE STUDY.")
        if study is not None or metric:
            raise SpecError("hpo import: STUDY and --metric go with --from-optuna alone.")
        from hpo_core.tracking.restore import restore_study

        uri = settled_database(tracking_uri) if tracking_uri else place.default_tracking_uri
        folders = [str(folder.resolve()) for folder in code or [Path()]]
        found = restore_study(place, run, tracking_uri=uri, name=name, code=folders)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for line in found.lines():
        out.say(line)


def history(
    objective: Annotated[str | None, typer.Argument(help="Only this module:function.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget it: studies measure such jobs again.")] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """List the memory, compute and cores that jobs were measured to need."""
    from hpo_core.views.device_use import measured_needs

    if forget and objective is None:
        raise SpecError("hpo history --forget: name the OBJECTIVE, module:function, whose measurements are forgotten.")
    kept = Home(home, journal).read_journal().measurements
    every = kept.all()
    found = [one for one in every if objective in (None, one.objective)]
    if objective is not None and not found:
        hint = meant_or_known(objective, sorted({one.objective for one in every}))
        raise HpoError(f"hpo history: nothing was measured of {objective!r}; {hint}")
    if forget:
        out.say(f"{kept.forget(found)} forgotten")
        return
    needs = measured_needs(found)
    if as_json:
        print_json(msgspec.to_builtins(needs))
        return
    if not needs:
        out.say("Nothing here. Studies with `packing` measure what their jobs need, and keep it here.")
    for (name, source), rows in groupby(needs, lambda need: (need.objective, need.code)):
        out.say(f"{name} (source {source[:8]})", style="bold")
        print_rows(out, [_need_row(need) for need in rows])


def _need_row(need: MeasuredNeed) -> dict[str, Any]:
    memory = "" if need.memory is None else memory_words(need.memory)
    if need.out_of_memory is not None and need.out_of_memory > (need.memory or 0):
        memory = f"> {memory_words(need.out_of_memory)}"
    is_measured = need.measurements > 0
    return {
        "key": " ".join(f"{name}={value}" for name, value in need.params.items()) or "any",
        "device": need.architecture,
        "memory": memory,
        "compute": "" if need.compute is None else f"{100 * need.compute:.0f} %",
        "cores": f"{need.cores:.2f}" if is_measured else "",
        "s/unit": f"{need.unit_seconds:.3g}" if is_measured else "",
        "runs": need.measurements,
        "study": need.study,
        "age": " ".join(duration(max(time.time() - need.measured_at, 0.0)).split()[:2]),
    }
