"""Commands about what studies found: schedule, report, compare, import, history."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hpo_core.home import Home, checked_name
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.replay.audit import damage_named
from hpo_core.terminal.output import (
    AsJson,
    HomeOption,
    JournalOption,
    Name,
    names_of_studies,
    out,
    print_json,
    study_links,
)
from hpo_core.terminal.without_terminal import interrupt_at_end


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

    place = Home(home, journal)
    source = place.read_journal()
    with damage_named(source, name):
        source.info(name)  # for a name that is not there nothing is made
        folder = place.study_folder(name, create=out_file is None)
        path = out_file or place.report_path(name)

        def links() -> dict[str, str]:
            return {"Study folder": str(folder)} | study_links(folder)

        if live:
            written = LiveReport(source, name, path, links=links)
            if written.write():
                interrupt_at_end()
                out.say(f"{path} follows {name}. Ctrl-C ends that; the study goes on.")
                with suppress(KeyboardInterrupt):
                    written.follow()
        page = write_report(source.entries(name), path, links=links())
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
    from hpo_core.replay.restored_study import restore_study

    place = Home(home, journal)
    folders = [str(folder.resolve()) for folder in code or [Path()]]
    found = restore_study(place, file, name=name, code=folders)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for line in found.lines():
        out.say(line)
