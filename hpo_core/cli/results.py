"""Commands about what studies found: schedule, report, compare, project, import, history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hpo_core.home import Home, checked_name
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError
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


def schedule(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Trial whose schedule is written; default: the best.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Print as JSON the parameters that led to a trial, step by step, for a plain training script."""
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
    print_json({"study": name, "segments": msgspec.to_builtins(found)})


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
            written = LiveReport(source, name, path, links=links)
            if written.write():
                interrupt_at_end()
                out.say(f"{path} follows {name}. Ctrl-C ends that; the study goes on.")
                with suppress(KeyboardInterrupt):
                    written.follow()
            entries = iter(source.entries(name, 1))
        page = write_report(chain([first], entries), path, links=links())
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

    if len(set(names)) < 2:
        raise SpecError("hpo compare takes the names of two studies or more; `hpo report NAME` shows one.")
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
    file: Annotated[
        Path,
        typer.Argument(help="Its journal: provenance/journal.jsonl.gz of its run in MLflow, or what hpo export wrote."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Another name than the study had.")] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option("--code", help="Folder to import its training function from; again for several; default: here."),
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Restore a study from a copy of its journal."""
    from hpo_core.tracking.provenance_files import restore_study

    place = Home(home, journal)
    folders = [str(folder.resolve()) for folder in code or [Path()]]
    found = restore_study(place, file, name=name, code=folders)
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
    if forget and objective is None:
        raise SpecError("hpo history --forget: name the OBJECTIVE, module:function, whose measurements are forgotten.")
    kept = Home(home, journal).read_journal().measurements
    every = kept.all()
    found = [one for one in every if objective in (None, one.objective)]
    if objective is not None and not found:
        hint = meant_or_known(objective, sorted({one.objective for one in every}))
        raise HpoError(f"hpo history: nothing was measured of {objective!r}; {hint}")
    if forget:
        forgotten = Home(home, journal).open_journal().measurements.forget(found)
        print_json({"forgotten": forgotten}) if as_json else out.say(f"{forgotten} forgotten")
        return
    needs = sorted(_needs(found), key=lambda need: (need["objective"], need["code"], -(need["memory"] or 0)))
    if as_json:
        print_json(needs)
        return
    if not needs:
        out.say("Nothing here. Studies with `packing` measure what their jobs need, and keep it here.")
    for (name, source), group in groupby(needs, lambda need: (need["objective"], need["code"])):
        out.say(f"{name} (source {source[:8]})", style="bold")
        print_rows(out, [_need_row(need) for need in group])


def _needs(found: Iterable[Measurement]) -> Iterator[dict[str, Any]]:
    """The largest need of each objective, source, architecture and key, and its latest measurement."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in found:
        groups.setdefault((one.objective, one.code, one.architecture, one.key), []).append(one)
    for group in groups.values():
        newest = max(group, key=lambda one: one.measured_at)
        yield {name: getattr(newest, name) for name in ("objective", "code", "architecture", "params", "study")} | {
            "memory": max(one.peak for one in group) or None,
            "out_of_memory": max(one.out_of_memory for one in group) or None,
            "compute": max((one.compute for one in group if one.compute is not None), default=None),
            "cores": max(one.cores for one in group),
            "unit_seconds": max(one.unit_seconds for one in group),
            "measurements": sum(not one.out_of_memory for one in group),
            "measured_at": newest.measured_at,
        }


def _need_row(need: dict[str, Any]) -> dict[str, Any]:
    memory = "" if need["memory"] is None else memory_words(need["memory"])
    if (need["out_of_memory"] or 0) > (need["memory"] or 0):
        memory = f"> {memory_words(need['out_of_memory'])}"
    return {
        "key": " ".join(f"{name}={value}" for name, value in need["params"].items()) or "any",
        "device": need["architecture"],
        "memory": memory,
        "compute": "" if need["compute"] is None else f"{100 * need['compute']:.0f} %",
        "cores": f"{need['cores']:.2f}",
        "s/unit": f"{need['unit_seconds']:.3g}",
        "runs": need["measurements"],
        "study": need["study"],
        "age": " ".join(duration(max(time.time() - need["measured_at"], 0.0)).split()[:2]),
    }
