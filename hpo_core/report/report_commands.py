"""``hpo report`` and ``hpo compare``."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from hpo_core.home import Home, checked_name
from hpo_core.model.errors import SpecError
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
            return {"Study folder": str(folder)} | place.study_links(name)

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

    if len(set(names)) < 2:
        raise SpecError("hpo compare takes the names of two studies or more; `hpo report NAME` shows one.")
    place = Home(home, journal)
    source = place.read_journal()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(damage_named(source, name))
        comparison = Comparison.of(source.entries(name) for name in names)
        page = write_comparison(comparison, out_file or place.comparison_path(names))
    facts = comparison.facts()
    if as_json:
        print_json(facts | {"page": str(page)})
        return
    hidden = {"params", "jobs", "trial", "at", "worker_seconds"}
    if len(facts["groups"]) < len(facts["studies"]):
        print_rows(out, facts["groups"])
        out.print()
    print_rows(out, [{k: v for k, v in row.items() if k not in hidden} for row in facts["studies"]])
    out.print()
    out.say(f"page: {page}")
